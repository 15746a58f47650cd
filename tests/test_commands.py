"""The commands as a user runs them: exit status, one-line errors, files written or not."""

import json
import os
import re
import subprocess
import sys
import warnings
from html.parser import HTMLParser
from pathlib import Path

import pytest

from retrieval_interp.circuits import Circuit, parse_circuit
from retrieval_interp.circuits.discovery.search import SearchStopped
from retrieval_interp.commands.ablate import main as ablate
from retrieval_interp.commands.train import main as train
from retrieval_interp.tasks import InputError, RetrievalTask

QUICK = ["--examples", "64", "--tolerance", "0.06"]


def run(module, *arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "retrieval_interp", module, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """One real run of the main job."""
    folder = tmp_path_factory.mktemp("ablate")
    result = run(
        "ablate",
        *["--ckpt", "small", "--json", "out.json", "--report", "out.html"],
        *["--save-circuit", "circuit.json"],
        cwd=folder,
    )
    assert result.returncode == 0, result.stderr
    return folder, result


def test_the_main_job_finds_a_sufficient_and_minimal_circuit(done):
    data = json.loads((done[0] / "out.json").read_text())
    assert data["baseline_loss"] < 0.01 and data["loss_name"] == "MSE"
    assert data["combined_loss"] < 0.05 and data["sufficient"]
    assert data["minimal"] and min(row["ablated_loss"] for row in data["paths"]) > 0.05
    assert len(data["heads"]) == 5
    assert len(data["control"]) == 20 and data["control"][0] > 10 * data["combined_loss"]
    assert 0 < data["combined_se"] < data["combined_loss"] / 10
    assert (data["checkpoint"], data["examples"], data["seed"]) == ("small", 512, 0)
    assert data["task"]["steps"] == 3


def test_the_table_says_what_the_json_says(done):
    folder, result = done
    data = json.loads((folder / "out.json").read_text())
    for row in data["heads"]:
        line = next(
            line for line in result.stdout.splitlines()
            if line.startswith(f"L{row['layer']}.H{row['head']} ")
        )  # fmt: skip
        assert row["mechanism"] in line and line.endswith(f"{row['loss']:.4f}")
    for row in data["paths"]:
        name = f"L{row['layer']}.H{row['head']} {row['dest']}<-{row['src']} "
        line = next(line for line in result.stdout.splitlines() if line.startswith(name))
        assert f" {row['ablated_loss']:.4f} " in line and f" {row['live_loss']:.4f} " in line
        assert line.count("enables") == bool(row["enables"]) and "carries" in line
    for row in data["enabling"]:
        name = f"L{row['layer']}.H{row['head']} {row['dest']}<-{row['src']} "
        line = next(line for line in result.stdout.splitlines() if line.startswith(name))
        assert f" {row['live_loss']:.4f} " in line and "carries" not in line
    assert f"{data['combined_loss']:.4f}" in result.stdout
    assert "Sufficient" in result.stdout and "Minimal" in result.stdout
    assert result.stderr == ""


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found += [value for name, value in attrs if name in ("src", "href", "data", "action")]


def test_the_report_needs_no_network(done):
    folder, _ = done
    page = (folder / "out.html").read_text()
    links = Links()
    links.feed(page)
    assert links.found and all(link.startswith("#") for link in links.found)
    assert all(f'id="{link[1:]}"' in page for link in links.found)
    own = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    assert "http" not in own.replace("http://www.w3.org/2000/svg", "")
    assert len(page) < 6_000_000
    data = json.loads((folder / "out.json").read_text())
    assert f"{data['combined_loss']:.4f}" in own and "<svg" in own
    assert own.count("<figure>") == 5  # a heat map a head


def test_the_saved_circuit_gives_the_same_numbers(done, capsys):
    folder, _ = done
    ablate(["--circuit", str(folder / "circuit.json"), "--json", str(folder / "again.json")])
    capsys.readouterr()
    again = json.loads((folder / "again.json").read_text())
    assert again == json.loads((folder / "out.json").read_text())


def test_an_edited_circuit_is_scored_as_it_is(done, capsys):
    folder, _ = done
    circuit = Circuit.from_json((folder / "circuit.json").read_text(), 7)
    worse = circuit.without(next(circuit.paths()))
    (folder / "worse.json").write_text(worse.to_json())
    ablate(["--circuit", str(folder / "worse.json"), "--json", str(folder / "worse_out.json")])
    capsys.readouterr()
    first = json.loads((folder / "out.json").read_text())["paths"][0]
    found = json.loads((folder / "worse_out.json").read_text())
    assert found["combined_loss"] == pytest.approx(first["ablated_loss"], abs=1e-5)


def errors_of(main, arguments, capsys):
    with pytest.raises(InputError) as caught:
        main([str(argument) for argument in arguments])
    assert capsys.readouterr().out == ""
    return " ".join(str(caught.value).split())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--ckpt", "smal"], "checkpoint 'smal': expected a file, .* one of: .*small"),
        (["--examples", "0"], "--examples: expected 2 to 1000000, found 0"),
        (["--tolerance", "0"], "--tolerance: expected a number above 0, found 0.0"),
        (["--tolerance", "nan"], "--tolerance: expected a number above 0, found nan"),
        (["--seed", "-1"], "--seed: expected 0 to"),
        (["--json", "missing/out.json"], "expected an existing folder to write into"),
        (["--report", "."], "expected the name of a file to write, found a folder"),
        (["--circuit", "none.json"], "none.json: expected a circuit, found: No such file"),
        (["--example", "5"], "--example"),
        (["--examples", "many"], "--examples: invalid literal"),
        (["--device", "gpu"], "device: expected auto, cpu or cuda, found 'gpu'"),
    ],
)
def test_bad_options_of_ablate(arguments, text, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert re.search(text, errors_of(ablate, arguments, capsys))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"layer": 9}, r"circuit.json: circuit: expected heads from L0.H0 to L4.H0, .* L9.H0"),
        ({"head": 1}, r"found L0.H1"),
        ({"paths": [["s0", "s8"]]}, r"L0.H0: expected a role from s0 to s6, found 's8'"),
        ({"paths": [["s5", "s0"]]}, r"L0.H0: expected a source before its destination"),
        ({"paths": [["s0", "s2"], ["s0", "s2"]]}, r"L0.H0: expected every path once"),
    ],
)
def test_circuits_that_do_not_fit_are_refused(change, text, capsys, tmp_path):
    row = {"layer": 0, "head": 0, "mechanism": "one-hot", "paths": [["s0", "s2"]], **change}
    path = tmp_path / "circuit.json"
    path.write_text(json.dumps({"heads": [row]}))
    assert re.search(text, errors_of(ablate, ["--circuit", path], capsys))


def test_a_circuit_for_other_chains_is_refused(capsys, tmp_path):
    path = tmp_path / "circuit.json"
    path.write_text(json.dumps({"heads": [], "task": {"name": "retrieval", "steps": 5}}))
    found = errors_of(ablate, ["--circuit", path], capsys)
    assert "for chains of 3 steps, as small was trained on, found one for 5" in found


def test_a_tolerance_below_the_models_own_loss_is_remarked(capsys):
    ablate(["--examples", "64", "--tolerance", "0.001"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "out of reach on these examples: the intact model's own MSE" in printed
    assert "Try a tolerance of 0.05" in printed


def test_the_same_file_twice_is_refused(capsys, tmp_path):
    both = ["--json", tmp_path / "x", "--report", tmp_path / "x"]
    assert "expected a different file" in errors_of(ablate, both, capsys)


def test_errors_are_one_line_with_exit_status_2(tmp_path):
    result = run("ablate", "--ckpt", "smal", cwd=tmp_path)
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.startswith("ablate: checkpoint 'smal'")
    assert result.stderr.count("\n") == 1
    assert run("train", "--help").returncode == 0


def test_outputs_do_not_replace_inputs_or_what_is_no_file(capsys, tmp_path):
    circuit = tmp_path / "circuit.json"
    circuit.write_text('{"heads": []}')
    both = ["--circuit", circuit, "--json", circuit]
    assert "expected other files to write than to read" in errors_of(ablate, both, capsys)
    assert circuit.read_text() == '{"heads": []}'
    os.mkfifo(tmp_path / "pipe")
    found = errors_of(ablate, ["--json", tmp_path / "pipe"], capsys)
    assert "expected a new or a regular file to write" in found
    assert "not a regular file" in errors_of(ablate, ["--circuit", tmp_path / "pipe"], capsys)
    assert "expected a file to write" in errors_of(ablate, ["--json", "x" * 300], capsys)


def test_the_last_preset_counts(capsys):
    twice = ["--preset", "small", "--preset", "nope"]
    assert "preset 'nope': expected one of" in errors_of(train, twice, capsys)


def test_a_path_that_can_go_is_not_said_to_carry(done, capsys, tmp_path):
    circuit = Circuit.from_json((done[0] / "circuit.json").read_text(), 7)
    lines = [f"{head} {mechanism}" for head, mechanism in circuit.mechanisms.items()]
    richer = parse_circuit(
        [line + " s6<-s6" if line.startswith("L2") else line for line in lines], RetrievalTask()
    )
    (tmp_path / "richer.json").write_text(richer.to_json())
    ablate(
        [*QUICK, "--circuit", str(tmp_path / "richer.json"), "--json", str(tmp_path / "out.json")]
    )
    printed = capsys.readouterr().out
    (row,) = [row for row in printed.splitlines() if row.startswith("L2.H0 s6<-s6 ")]
    assert "carries" not in row and "Not minimal, as L2.H0 s6<-s6 can go" in printed
    data = json.loads((tmp_path / "out.json").read_text())
    assert [row["carries"] for row in data["paths"]].count(False) == 1 and not data["minimal"]


def test_a_circuit_of_nothing_is_not_sufficient(capsys, tmp_path):
    (tmp_path / "empty.json").write_text('{"heads": []}')
    ablate(
        [*QUICK, "--circuit", str(tmp_path / "empty.json"), "--json", str(tmp_path / "out.json")]
    )
    assert "No circuit: no head can be replaced, or none was given" in capsys.readouterr().out
    data = json.loads((tmp_path / "out.json").read_text())
    assert not data["sufficient"] and not data["minimal"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--device", "mps"], "device: expected auto, cpu or cuda, found 'mps'"),
        (["--preset", "smal"], "preset 'smal': expected one of: small, transformer-a"),
        (["--preset"], "preset '': expected one of"),
        (["--steps", "0"], "recipe: expected steps to be an integer of at least 1, found 0"),
        (["--stepz", "3"], "--stepz"),
        (["--threads", "0"], "--threads: expected 1 to 1024, found 0"),
        (["--task.dim", "3"], "expected an even dim"),
        (["--out", "taken"], "found a folder with other files"),
    ],
)
def test_bad_options_of_train(arguments, text, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes").write_text("")
    assert re.search(text, errors_of(train, arguments, capsys))
    assert {path.name for path in tmp_path.rglob("*")} == {"taken", "notes"}


def test_training_and_ablating_a_run_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tiny = ["--out", "run", "--steps", "6", "--log-every", "2", "--checkpoint-every", "2"]
    tiny += ["--model.layers", "2", "--model.d-model", "8", "--batch", "4", "--no-compile"]
    train(tiny)
    printed = capsys.readouterr().out
    assert re.search(r"run: 6 steps in 0.0 min, validation MSE \d\.\d{4}", printed)
    ablate(["--ckpt", "run", "--examples", "16", "--json", "out.json"])
    printed = capsys.readouterr().out
    assert "has not learned the task" in printed
    data = json.loads(Path("out.json").read_text())
    assert not data["sufficient"] and data["paths"] == []


def test_ablate_ends_a_search_in_time(run_command_in_process, tmp_path):
    options = ("--ckpt", "small", "--examples", "16", "--time")
    with warnings.catch_warnings():
        warnings.simplefilter("default", SearchStopped)
        done = run_command_in_process("ablate", *options, "1e-6", cwd=tmp_path)
    assert "stopped by its time limit; a simpler circuit may exist\n" in done.stderr
    assert done.returncode == 0 and "No circuit" in done.stdout
    done = run_command_in_process("ablate", *options, "0", cwd=tmp_path)
    assert done.returncode == 2 and "time: expected more than 0 seconds, found 0" in done.stderr
