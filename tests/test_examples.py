r"""What the README, docs/ and examples/ show runs as it stands.

Notebooks are committed without outputs, as this leaves them:

    jupyter nbconvert --clear-output --ClearMetadataPreprocessor.enabled=True \
        --ClearMetadataPreprocessor.preserve_nb_metadata_mask=kernelspec \
        --inplace examples/*.ipynb
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def run(*arguments, cwd):
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def blocks(page, language=""):
    found = re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M)
    return [block for name, block in found if name == language]


@pytest.fixture
def printed(tmp_path, monkeypatch, capsys, without_type_checks):
    """Runs code in this process, in an empty folder; gives what it printed."""

    def run_code(code):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["code"])
        capsys.readouterr()
        exec(compile(code, "code", "exec"), {"__name__": "__main__"})
        return capsys.readouterr().out

    return run_code


NUMBER = re.compile(r"\d+\.\d+")


def is_shown(line, lines):
    """Whether a text is among others, but for blanks and the last digit of numbers, up to 2."""
    words = NUMBER.sub("#", " ".join(line.split()))
    return any(
        NUMBER.sub("#", " ".join(other.split())) == words
        and all(
            abs(float(a) - float(b)) <= 2.01 * 0.1 ** len(a.partition(".")[2])
            for a, b in zip(NUMBER.findall(line), NUMBER.findall(other))
        )
        for other in lines
    )


# What the code of a page has to print.
PRINTED = {
    "README.md": ["Sufficient: with 5 of 5 heads replaced"],
    "docs/conditional.md": ["torch.Size([8, "],
    "docs/depth.md": ["can deliver B, C, D and E."],
    "docs/emergence.md": ["L4.H0 s0<-s4"],
    "docs/tokens.md": ["L1.H0  one-hot s0<-s2", "repeated A <- B after it", "(key 0.98 to 0.03)"],
    "docs/words.md": ["cross entropy", "L0   H0 uniform"],
    "docs/guide/carrying-and-enabling.md": ["combined MSE", "Holds so far", "key 0.88"],
    "docs/guide/discovery.md": ["L4.H0 one-hot s0<-s4", "L2.H0 s4<-s6 0.0026 + 0.2169"],
    "docs/guide/mechanisms.md": ["L3   original", "L4   H0 one-hot s0<-s4"],
    "docs/guide/notebook.md": [],
    "docs/guide/own-model.md": [],
    "docs/guide/scan.md": ["L1.H0 uniform 0.54 +3.6150", "2 99%"],
    "docs/guide/task.md": [],
}


def test_the_pages_with_code_are_known():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = {str(page.relative_to(ROOT)) for page in pages if "```python" in page.read_text()}
    assert shown == PRINTED.keys()


@pytest.mark.parametrize("page", PRINTED)
def test_the_lines_of_a_page_run(page, printed):
    found = printed("\n".join(blocks(page, "python")))
    assert all(part in found for part in PRINTED[page]), found
    if page == "README.md":  # the next block is lines that they print
        (shown,) = (block for block in blocks(page) if block.startswith("L4.H0: original"))
        lines = shown.splitlines()
        assert (
            len(lines) == 5
            and [line for line in lines if not is_shown(line, found.splitlines())] == []
        )


def test_the_depths_of_the_shown_graph_are_those_of_the_text(printed):
    code = "\nfrom retrieval_interp.circuits.flow import node_depths"
    code += "\nprint(node_depths(task.graph, causal=True))"
    found = printed(blocks("docs/conditional.md", "python")[0] + code)
    assert found.splitlines()[-1] == "{'a': 0, 'x': 2, 'y': 2, 'z': 3}"
    said = "a is there from the start, x and y after 2 layers, and z after 3."
    assert said in (ROOT / "docs/conditional.md").read_text()


@pytest.mark.slow
def test_the_numbers_of_the_docs_are_the_commands(
    run_command_in_process, tmp_path, without_type_checks
):
    """What docs/commands.md shows is what the command prints."""
    (shown,) = (block for block in blocks("docs/commands.md") if block.startswith("small: "))
    done = run_command_in_process("ablate", "--ckpt", "small", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert shown.count("\nL") >= 11
    assert is_shown(shown, [done.stdout]), done.stdout


def example(name, *argv):
    """The code of an example, with its arguments."""
    code = (ROOT / "examples" / name).read_text()
    return f"import sys; sys.argv = {[name, *argv]}\n" + code


def test_compiled_models_reach_the_bound(printed):
    rows = [
        line.split()
        for line in printed(example("reach_the_bound.py", "1", "3", "8")).splitlines()[1:]
    ]
    assert [row[:2] for row in rows] == [["1", "2"], ["3", "3"], ["8", "5"]]
    assert all(float(row[4]) < 1e-3 and row[5] == "refused" for row in rows)


@pytest.mark.slow
def test_a_circuit_is_drawn(tmp_path):
    run(ROOT / "examples" / "draw_circuit.py", "small", "out.svg", cwd=tmp_path)
    drawn, shipped = (tmp_path / "out.svg").read_text(), ROOT / "docs" / "small-circuit.svg"
    assert drawn.startswith("<svg") and drawn.count("marker-end") >= 6
    assert drawn.count("marker-end") == shipped.read_text().count("marker-end")


@pytest.mark.slow
def test_a_circuit_is_supposed_in_a_terminal(tmp_path):
    printed = run(ROOT / "examples" / "suppose_a_circuit.py", cwd=tmp_path)
    assert printed.count("taken back") == 1 and "not below 0.05" in printed
    words = " ".join(printed.split())
    assert "Holds so far (2 heads left as they are): with 3 of 5 heads replaced" in words
    one = run(ROOT / "examples" / "suppose_a_circuit.py", "L4.H0 s0<-s4", cwd=tmp_path)
    assert "taken back" not in one and "with 1 of 5 heads replaced" in one


@pytest.mark.slow
def test_a_task_of_ones_own_is_learned_and_explained(tmp_path):
    """In a process of its own, as a user runs it."""
    printed = run(ROOT / "examples" / "own_task.py", cwd=tmp_path)
    assert "here <- three before" in printed and "here<-before 0.9" in printed
    assert "L0.H0: original -> one-hot here<-before" in printed
    assert "Sufficient: with 1 of 1 head" in printed


@pytest.mark.slow
def test_a_task_that_can_be_trained_is_added_and_explained(tmp_path):
    printed = run(ROOT / "examples" / "trained_task.py", cwd=tmp_path)
    assert "enables L1.H0 query<-value (key 0.9" in printed
    assert "Sufficient: with 2 of 2 heads replaced" in printed
    assert (tmp_path / "recall" / "config.json").exists()


def test_notebooks_are_committed_without_outputs():
    assert len(NOTEBOOKS) == 5
    for path in NOTEBOOKS:
        notebook = json.loads(path.read_text())
        assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5), path
        assert list(notebook["metadata"]) == ["kernelspec"], path
        for cell in notebook["cells"]:
            assert cell["metadata"] == {} and re.fullmatch("[a-z-]+", cell["id"]), path
            if cell["cell_type"] == "code":
                assert cell["outputs"] == [] and cell["execution_count"] is None, path


@pytest.fixture
def executed(tmp_path, monkeypatch):
    """Runs a notebook from a temporary folder, with this interpreter and no settings of a user.

    Gives what each code cell showed: streams and plain texts, and the kinds of data beside them.
    """
    spec = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Python 3",
        "language": "python",
    }
    kernel = tmp_path / "data" / "kernels" / "python3" / "kernel.json"
    kernel.parent.mkdir(parents=True)
    kernel.write_text(json.dumps(spec))
    for name in ("DATA", "CONFIG", "RUNTIME"):
        monkeypatch.setenv(f"JUPYTER_{name}_DIR", str(tmp_path / name.lower()))
    monkeypatch.setenv("JUPYTER_NO_CONFIG", "1")
    work = tmp_path / "work"
    work.mkdir()
    environment = {
        **os.environ,
        "OMP_WAIT_POLICY": "PASSIVE",
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "TMPDIR": str(work),
        "HOME": str(tmp_path),
    }

    def execute(name):
        notebook = nbformat.read(ROOT / "examples" / f"{name}.ipynb", as_version=4)
        client = NotebookClient(
            notebook,
            timeout=900,
            kernel_name="python3",
            allow_errors=False,
            resources={"metadata": {"path": str(work)}},
        )
        client.execute(env=environment)
        shown = {}
        for cell in notebook.cells:
            if cell.cell_type == "code":
                texts, kinds = [], set()
                for output in cell.outputs:
                    assert output.get("name") != "stderr", output.text
                    # A stream may come in pieces.
                    text = output.get("text") or output.data.get("text/plain", "") + "\n"
                    texts.append(text)
                    kinds |= set(output.get("data", ()))
                shown[cell.id] = ("".join(texts), kinds)
        return shown

    return execute


WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.mark.slow
def test_the_notebook_that_finds_a_circuit(executed):
    shown = executed("circuit_discovery")
    assert "not below 0.05" in shown["join"][0] and "text/html" in shown["role-maps"][1]
    for cell in ("top-head", "second-head", "shared", "rest-identity", "discover"):
        assert "not below" not in shown[cell][0] and ", below 0.05" in shown[cell][0], cell
    assert "Not minimal" in shown["score"][0]
    assert "Minimal, as no path can go" in shown["score-found"][0]
    assert "6 paths" in shown["numbers"][0] and "minimal: True" in shown["numbers"][0]
    assert '"enabling"' in shown["keep"][0] and "nothing changed" in shown["load"][0]
    assert shown["explore"][1] >= {WIDGET, "text/html"}


@pytest.mark.slow
def test_the_notebook_that_trains(executed):
    shown = executed("train_and_watch_heads_emerge")
    assert WIDGET in shown["train"][1] and WIDGET in shown["emerge"][1]
    loss, b, c = (float(x) for x in re.findall(r"\d\.\d{3}", shown["result"][0]))
    assert loss < 0.3 and b < c < 0.5
    learned = [int(step) for step in re.findall(r"at step (\d+)", shown["result"][0])]
    assert len(learned) == 2 and learned[0] <= learned[1]
    assert "L0.H0 s2<-s1: above 0.4 from step" in shown["order"][0]
    assert "4 layers of 1 head" in shown["bench"][0] and "L3.H0" in shown["role-maps"][0]
    cuts = [line.split() for line in shown["cut"][0].splitlines()[1:]]
    assert len(cuts) == 8 and cuts[0][0] == "intact"
    assert max(float(row[-1]) for row in cuts[1:]) > 3 * float(cuts[0][-1])


@pytest.mark.slow
def test_the_notebook_on_depth(executed):
    shown = executed("depth_bound")
    assert "D = 4, 4 layers" in shown["hand"][0] and "B, C, D and E." in shown["hand"][0]
    assert "but not E" in shown["one-fewer-by-hand"][0]
    rows = [line.split() for line in shown["table"][0].splitlines()]
    assert ["4", "2", "3", "4", "3", "4"] in rows and WIDGET in shown["figure"][1]
    assert "MSE 0.0000" in shown["suppose"][0] and ", below 0.01" in shown["suppose"][0]
    assert "0 of 20 random circuits" in shown["score"][0]
    assert "refused: compile: expected heads that bring x_4 to s0" in shown["refused"][0]


@pytest.mark.slow
def test_the_notebook_with_a_model_of_ones_own(executed):
    shown = executed("your_own_model")
    losses = [float(x) for x in re.findall(r"cross entropy (\d\.\d{4})", shown["train"][0])]
    assert losses[0] > 1 and losses[-1] < 0.05
    assert ", below 0.1" in shown["suppose"][0] and "Sufficient" in shown["score"][0]
    assert "L0.H0 s2<-s1" in shown["score"][0] and "enables L1.H0 s0<-s2 (key" in shown["score"][0]
    assert shown["bridge"][0].startswith("Lookup model: Lookup with roles")
    rows = [line.split() for line in shown["same"][0].splitlines()[1:]]
    assert len(rows) == 5
    assert all(abs(float(row[0]) - float(row[1])) < 1e-4 for row in rows)
    assert "Sufficient" in shown["bridge-score"][0]


@pytest.mark.slow
def test_the_notebook_on_a_language_model(executed):
    shown = executed("language_model")
    small = "on the shipped models" in shown["open"][0]
    assert "can be replaced together" in shown["scan"][0]
    assert ("after-same" if small else "mean") in shown["scan"][0]
    assert ("answer" if small else ", IO") in shown["task"][0]
    assert float(re.search(r"logit difference ([0-9.]+)", shown["task"][0])[1]) > 2
    assert shown["sweep"][0].count("\n") == 11
    if small:
        assert "answer <- query A cut" in shown["sweep"][0]
    assert "Holds so far (4 heads left as they are)" in shown["score"][0]
    right = [float(share) for share in re.findall(r"right in ([0-9.]+)%", shown["with-circuit"][0])]
    assert len(right) == 3 and min(right) > 95
    assert "accuracy 100%" in shown["own"][0]
