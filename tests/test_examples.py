"""What the README, docs/ and examples/ show runs as it stands."""

import json
import os
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from retrieval_interp.__main__ import COMMANDS as known
from retrieval_interp.tasks.words.template_task import NAMES, TEMPLATES
from tests.models import needs_hooked_transformer
from tests.texts import byte_pairs

ROOT = Path(__file__).parent.parent


def run(*arguments, cwd):
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


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


MARKDOWN = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [str(page.relative_to(ROOT)) for page in MARKDOWN if "```python" in page.read_text()]
SLOW = pytest.mark.slow
GUIDES = [f"docs/guide/{name}.md" for name in ("discovery", "why", "other-tools", "own-model")]
MARKS = dict.fromkeys(["README.md", "docs/tokens.md", *GUIDES[:2]], SLOW)
MARKS |= {GUIDES[2]: needs_hooked_transformer, GUIDES[3]: [SLOW, needs_hooked_transformer]}


@pytest.mark.parametrize("page", [pytest.param(p, marks=MARKS.get(p, ())) for p in PAGES])
def test_the_lines_of_a_page_run_and_print_what_it_shows(page, printed):
    """A block without a language that soon follows Python is part of what that prints."""
    text = (ROOT / page).read_text()
    blocks = list(re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.S | re.M))
    output = printed("\n".join(code[2] for code in blocks if code[1] == "python"))
    for code, shown in pairwise(blocks):
        soon = text.count("\n", code.end(), shown.start()) <= 5
        if (code[1], shown[1]) == ("python", "") and soon:
            for part in filter(str.strip, re.split(r"\.\.\.|\n", shown[2])):
                assert is_printed(part, output), (part, output)


def is_printed(part, output):
    """Whether an output has a part, but for spaces and the last digits of numbers."""
    number = r"(\d+\.\d+|\d+(?=%))"
    part, output = " ".join(part.split()), " ".join(output.split())
    words, numbers = re.split(number, part)[::2], re.findall(number, part)
    steps = [10.0 ** -len(text.partition(".")[2]) for text in numbers]
    return any(
        all(abs(float(a) - float(b)) < 2.5 * c for a, b, c in zip(numbers, match.groups(), steps))
        for match in re.finditer(number.join(map(re.escape, words)), output)
    )


README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^\| `retrieval-interp (.+?)` \| (.*) \|$", README, re.M)
# What makes a long line short; all other words are the README's.
SHORT = {
    "why": "--upto heads --examples 8 --controls 2",
    "ablate": "--examples 64",
    "scan": "--examples 32",
    "explore": "--no-browser --examples 16",
    "train": "--steps 4 --log-every 2 --checkpoint-every 2 --batch 4 --no-compile",
    "emergence": "--circuit circuit.json --examples 4",  # so short a run has none to find
    "sweep": "--scale smoke",
    "reproduce": "--only C2 C3",
}


@pytest.mark.slow
def test_the_readmes_commands_run_one_after_the_other(
    tmp_path, run_command_in_process, monkeypatch
):
    served = "retrieval_interp.explorer.server.serve_explorer"
    monkeypatch.setattr(served, lambda bench, *_: print(bench.name))  # until Ctrl-C
    head = {"layer": 4, "head": 0, "mechanism": "one-hot", "paths": [["s0", "s4"]]}
    (tmp_path / "circuit.json").write_text(json.dumps({"heads": [head]}))
    for line, _ in COMMANDS:
        name, *words = shlex.split(line)
        if name == "llm":  # asks a model that need not be installed
            continue
        done = run_command_in_process(name, *words, *SHORT.get(name, "").split(), cwd=tmp_path)
        assert done.returncode == 0 and done.stdout, (line, done.stderr)
    assert {line.split()[0] for line, _ in COMMANDS} == set(known)


def example(name, *argv):
    """The code of an example, with its arguments."""
    code = (ROOT / "examples" / name).read_text()
    return f"import sys; sys.argv = {[name, *argv]}\n" + code


def test_compiled_models_reach_the_bound(printed):
    lines = printed(example("reach_the_bound.py", "1", "3", "8")).splitlines()[1:]
    rows = [line.split() for line in lines]
    assert [row[:2] for row in rows] == [["1", "2"], ["3", "3"], ["8", "5"]]
    assert all(float(row[4]) < 1e-3 and row[5] == "refused" for row in rows)


@pytest.mark.slow
def test_a_circuit_is_drawn(tmp_path):
    run(ROOT / "examples" / "draw_circuit.py", "small", "out.svg", cwd=tmp_path)
    assert (tmp_path / "out.svg").read_text().count("marker-end") >= 6


SCRIPT_SAYS = {  # what they print, run as a user runs them
    "suppose_a_circuit.py": ["taken back", "not below 0.05", "with 3 of 5 heads replaced"],
    "own_task.py": [
        *["Sufficient: with 1 of 1 head", "L0.H0: original -> one-hot here<-before"],
        "by rules: L0.H0 three-back",
    ],
    "trained_task.py": ["enables L1.H0 query<-value (key", "Sufficient: with 2 of 2 heads"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPT_SAYS)
def test_a_script_prints_what_it_says(name, tmp_path):
    words = " ".join(run(ROOT / "examples" / name, cwd=tmp_path).split())
    assert all(part in words for part in SCRIPT_SAYS[name]), words


WIDGET = "application/vnd.jupyter.widget-view+json"
NOTEBOOK_SHOWS = {  # what a notebook has to show: parts of its texts, or a kind of data
    "circuit_discovery": [
        *[", below 0.05", "Minimal, as no path can go", "6 paths", "minimal: True"],
        *["text/html", WIDGET],
    ],
    "train_and_watch_heads_emerge": [WIDGET, "L0.H0 s2<-s1: above 0.4 from step", "L3.H0"],
    "depth_bound": ["B, C, D and E.", WIDGET, ", below 0.01", "refused: compile: expected heads"],
    "your_own_model": ["Sufficient", "L0.H0 s2<-s1", "enables L1.H0 s0<-s2 (key"],
    "language_model": ["of what is lost is recovered by", "Sufficient", "Minimal"],
    "why_an_answer": ["is recovered by", "paths of"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOK_SHOWS)
def test_a_notebook_shows_what_it_says(name, tmp_path, monkeypatch):
    """From a temporary folder, with this interpreter and no settings of a user."""
    import nbformat  # which takes seconds
    from nbclient import NotebookClient

    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel = tmp_path / "data" / "kernels" / "python3" / "kernel.json"
    kernel.parent.mkdir(parents=True)
    kernel.write_text(json.dumps({"argv": argv, "display_name": "Python", "language": "python"}))
    for folder in ("DATA", "CONFIG", "RUNTIME"):
        monkeypatch.setenv(f"JUPYTER_{folder}_DIR", str(tmp_path / folder.lower()))
    monkeypatch.setenv("JUPYTER_NO_CONFIG", "1")
    folders = dict.fromkeys(("TMPDIR", "HOME", "IPYTHONDIR"), str(tmp_path))
    beside = {"PYTHONPATH": str(ROOT / "examples")}
    notebook = nbformat.read(ROOT / "examples" / f"{name}.ipynb", as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(notebook, timeout=900, kernel_name="python3", resources=where)
    client.execute(env={**os.environ, **folders, **beside})
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in cells for output in cell.outputs]
    assert [output.text for output in outputs if output.get("name") == "stderr"] == []
    shown = {kind for output in outputs for kind in output.get("data", ())}
    texts = [output.get("text") or output.data.get("text/plain", "") for output in outputs]
    assert all(part in "\n".join(texts) or part in shown for part in NOTEBOOK_SHOWS[name]), texts


def test_heads_of_gpt2_are_ranked_beside_a_papers(tmp_path, printed):
    """With random weights; the area follows from the ranks that are printed (Mann and Whitney)."""
    texts = [t.format(IO=a, S1=b, S2=b) for t in TEMPLATES for a, b in pairwise(NAMES[:8])]
    byte_pairs(texts, 900).save_pretrained(tmp_path)
    sizes = {"n_layer": 12, "n_head": 12, "n_embd": 24, "n_positions": 32}
    GPT2LMHeadModel(GPT2Config(vocab_size=1000, **sizes)).save_pretrained(tmp_path)
    shown = printed(example("gpt2_names.py", str(tmp_path))).partition("heads of the paper")[2]
    ranks = [int(rank) for rank in re.findall(r"L\d+\.H\d+ (\d+)", shown)]
    assert len(set(ranks)) == 26 and all(1 <= rank <= 144 for rank in ranks)
    area = 1 - (sum(ranks) - 26 * 27 / 2) / (26 * (144 - 26))
    count = len(re.findall(r"\d\*", shown))
    assert f"{count} of 26 found, ROC-AUC {area:.2f}" in shown
