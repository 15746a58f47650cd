"""What the README, docs/ and examples/ show runs as it stands.

Notebooks are committed without outputs; docs/guide/notebook.md has the command.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def run(*arguments, cwd):
    command = [sys.executable, *map(str, arguments)]
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=environment)
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
    "docs/words.md": ["cross entropy", "L0.H0 uniform"],
    "docs/guide/carrying-and-enabling.md": ["combined MSE", "Holds so far", "key 0.88"],
    "docs/guide/discovery.md": ["L4.H0 one-hot s0<-s4", "L2.H0 s4<-s6 0.0026 + 0.1664"],
    "docs/guide/mechanisms.md": ["L4.H0 one-hot s0<-s4", "is after the heads are mixed."],
    "docs/guide/notebook.md": [],
    "docs/guide/other-tools.md": ["here 7.9086", "here 0.0326", "k: EAP +0.0021, patched +8.12"],
    "docs/guide/own-model.md": ["Sufficient: with 4 of 4 heads replaced"],
    "docs/guide/scan.md": ["L1.H0 uniform 0.54 +3.6150", "2 99%"],
    "docs/guide/task.md": [],
    "docs/guide/why.md": ["recovered by 2 paths of 2 heads", "It enables L4.H0 to C of B->C"],
}


def test_the_pages_with_code_are_known():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = {str(page.relative_to(ROOT)) for page in pages if "```python" in page.read_text()}
    assert shown == PRINTED.keys()
    for page in pages:  # what is not installed is said to be in a checkout
        text, *blocks = page.read_text().split("```python")
        for block in blocks:
            assert "from examples" not in block.split("```")[0] or "checkout" in text[-300:], page
            text = block


def test_a_broken_link_fails_make_docs(tmp_path):
    pytest.importorskip("mkdocstrings", reason="needs the extra [docs]")
    (line,) = re.findall(r"\$\(RUN\) (-m mkdocs build.*)", (ROOT / "Makefile").read_text())
    for name in ("tasks", "circuits", "retrieval_interp"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    run(*line.split(), cwd=tmp_path)
    page = tmp_path / "docs/glossary.md"
    page.write_text(page.read_text() + "\n[x](api/tasks.md#ri.Nobody)\n")
    with pytest.raises(AssertionError, match="anchor.*ri.Nobody"):
        run(*line.split(), cwd=tmp_path)


SLOW = {"docs/guide/discovery.md"}  # a search
PAGES = [pytest.param(page, marks=[pytest.mark.slow] * (page in SLOW)) for page in PRINTED]


@pytest.mark.parametrize("page", PAGES)
def test_the_lines_of_a_page_run(page, printed):
    found = printed("\n".join(blocks(page, "python")))
    assert all(part in found for part in PRINTED[page]), found
    if page == "README.md":  # the next block is lines that they print
        (shown,) = (block for block in blocks(page) if block.startswith("L4.H0: original"))
        assert shown.count("\n") == 5
        assert all(is_shown(line, found.splitlines()) for line in shown.splitlines())


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
    lines = printed(example("reach_the_bound.py", "1", "3", "8")).splitlines()[1:]
    rows = [line.split() for line in lines]
    assert [row[:2] for row in rows] == [["1", "2"], ["3", "3"], ["8", "5"]]
    assert all(float(row[4]) < 1e-3 and row[5] == "refused" for row in rows)


@pytest.mark.slow
def test_a_circuit_is_drawn(tmp_path):
    run(ROOT / "examples" / "draw_circuit.py", "small", "out.svg", cwd=tmp_path)
    drawn, shipped = (tmp_path / "out.svg").read_text(), ROOT / "docs" / "small-circuit.svg"
    assert drawn.count("marker-end") == shipped.read_text().count("marker-end") >= 6


# What the scripts print, run as a user runs them.
SCRIPTS = [
    (
        ["suppose_a_circuit.py"],
        ["taken back", "not below 0.05", "(2 heads not replaced): with 3 of 5 heads replaced"],
    ),
    (
        ["own_task.py"],
        [
            *["here <- three before", "here<-before 0.9", "Sufficient: with 1 of 1 head"],
            "L0.H0: original -> one-hot here<-before",
        ],
    ),
    (
        ["trained_task.py"],
        ["enables L1.H0 query<-value (key 0.9", "Sufficient: with 2 of 2 heads replaced"],
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("command", "parts"), SCRIPTS)
def test_a_script_prints_what_it_says(command, parts, tmp_path):
    words = " ".join(run(ROOT / "examples" / command[0], *command[1:], cwd=tmp_path).split())
    assert all(part in words for part in parts), words
    assert words.count("taken back") == parts.count("taken back")
    assert "better than the intact" not in words or command[0] == "suppose_a_circuit.py"
    assert command != ["trained_task.py"] or (tmp_path / "recall" / "config.json").exists()


def test_notebooks_are_committed_without_outputs():
    assert {path.stem for path in NOTEBOOKS} == SHOWN.keys()
    for path in NOTEBOOKS:
        notebook = json.loads(path.read_text())
        assert list(notebook["metadata"]) == ["kernelspec"], path
        for cell in notebook["cells"]:
            assert cell["metadata"] == {} and not cell.get("outputs"), path


@pytest.fixture
def executed(tmp_path, monkeypatch):
    """Runs a notebook from a temporary folder, with this interpreter and no settings of a user.

    Gives what each code cell showed: streams and plain texts, and the kinds of data with them.
    """
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel = tmp_path / "data" / "kernels" / "python3" / "kernel.json"
    kernel.parent.mkdir(parents=True)
    kernel.write_text(json.dumps({"argv": argv, "display_name": "Python", "language": "python"}))
    for name in ("DATA", "CONFIG", "RUNTIME"):
        monkeypatch.setenv(f"JUPYTER_{name}_DIR", str(tmp_path / name.lower()))
    monkeypatch.setenv("JUPYTER_NO_CONFIG", "1")
    folders = dict.fromkeys(("TMPDIR", "HOME", "IPYTHONDIR"), str(tmp_path))

    def execute(name):
        notebook = nbformat.read(ROOT / "examples" / f"{name}.ipynb", as_version=4)
        where = {"metadata": {"path": str(tmp_path)}}
        client = NotebookClient(notebook, timeout=900, kernel_name="python3", resources=where)
        beside = {"PYTHONPATH": str(ROOT / "examples"), "OMP_WAIT_POLICY": "PASSIVE"}
        client.execute(env={**os.environ, **folders, **beside})
        shown = {}
        for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
            texts, kinds = [], set()
            for output in cell.outputs:
                assert output.get("name") != "stderr", output.text
                texts.append(output.get("text") or output.data.get("text/plain", "") + "\n")
                kinds |= set(output.get("data", ()))
            shown[cell.id] = ("".join(texts), kinds)
        return shown

    return execute


WIDGET = "application/vnd.jupyter.widget-view+json"
# What the cells of each notebook have to show: parts of a text, or a kind of data.
SHOWN = {
    "circuit_discovery": {
        "join": ["not below 0.05"],
        "role-maps": ["text/html"],
        **{key: [", below 0.05"] for key in ("top-head", "second-head", "shared", "discover")},
        "score": ["Not minimal"],
        "score-found": ["Minimal, as no path can go"],
        "numbers": ["6 paths", "minimal: True"],
        "keep": ['"enabling"'],
        "load": ["nothing changed"],
        "explore": [WIDGET],
    },
    "train_and_watch_heads_emerge": {
        "train": [WIDGET],
        "emerge": [WIDGET],
        "order": ["L0.H0 s2<-s1: above 0.4 from step"],
        "bench": ["4 layers of 1 head"],
        "role-maps": ["L3.H0"],
        "cut": ["intact"],
    },
    "depth_bound": {
        "hand": ["D = 4, 4 layers", "B, C, D and E."],
        "one-fewer-by-hand": ["but not E"],
        "figure": [WIDGET],
        "suppose": ["MSE 0.0000", ", below 0.01"],
        "score": ["0 of 20"],
        "refused": ["refused: compile: expected heads that bring x_4 to s0"],
    },
    "your_own_model": {
        "suppose": [", below 0.1"],
        "score": ["Sufficient", "L0.H0 s2<-s1", "enables L1.H0 s0<-s2 (key"],
        "bridge": ["Lookup model: Lookup with roles"],
        "bridge-score": ["Sufficient"],
    },
    "language_model": {
        "scan": ["can be replaced together"],
        "why": ["of what is lost is recovered by"],
        "task": ["logit difference"],
        "score": ["Sufficient", "Minimal"],
        "own": ["accuracy 100%"],
    },
    "why_an_answer": {"keep-more": ["97% of what"], "why": ["by 3 paths of 3 heads"]},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_a_notebook_shows_what_it_says(name, executed):
    shown = executed(name)
    for cell, parts in SHOWN[name].items():
        text, kinds = shown[cell]
        assert all(part in text or part in kinds for part in parts), (cell, text)
    if name == "train_and_watch_heads_emerge":
        loss, b, c = (float(x) for x in re.findall(r"\d\.\d{3}", shown["result"][0]))
        assert loss < 0.3 and b < c < 0.5
        cuts = [line.split() for line in shown["cut"][0].splitlines()[1:]]
        assert max(float(row[-1]) for row in cuts[1:]) > 3 * float(cuts[0][-1])
    if name == "your_own_model":
        losses = [float(x) for x in re.findall(r"entropy (\d\.\d{4})", shown["train"][0])]
        assert losses[0] > 1 and losses[-1] < 0.05
        rows = [line.split() for line in shown["same"][0].splitlines()[1:]]
        assert rows and all(abs(float(row[0]) - float(row[1])) < 1e-4 for row in rows)
