"""What the README and examples/ show runs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


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


def test_the_readmes_lines_run(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert len(blocks) == 2
    (tmp_path / "lines.py").write_text("\n".join(blocks))
    printed = run("lines.py", cwd=tmp_path)
    assert printed.count("combined MSE") == 2 and "Sufficient" in printed
    assert "L3   original" in printed


def test_the_readmes_numbers_are_the_commands(tmp_path):
    """The table in the README is what the command prints."""
    shown = re.search(r"```\n(small: .*?)```", (ROOT / "README.md").read_text(), re.S)[1]
    printed = run("-m", "retrieval_interp.ablate", cwd=tmp_path)
    rows = [line for line in shown.splitlines() if re.match(r"L\d\.H\d ", line)]
    assert len(rows) >= 11
    for row in rows:
        name = re.split(r"\s{2,}", row)[0]
        found = [line for line in printed.splitlines() if line.startswith(name + " ")]
        numbers = [float(x) for x in re.findall(r"\d+\.\d{4}", row)]
        close = [
            line
            for line in found
            if len(numbers) == len(re.findall(r"\d+\.\d{4}", line))
            and all(
                abs(a - float(b)) <= 0.0002
                for a, b in zip(numbers, re.findall(r"\d+\.\d{4}", line))
            )
        ]
        assert close, row


def test_compiled_models_reach_the_bound(tmp_path):
    printed = run(ROOT / "examples" / "reach_the_bound.py", 1, 3, 8, cwd=tmp_path)
    rows = [line.split() for line in printed.splitlines()[1:]]
    assert [row[:2] for row in rows] == [["1", "2"], ["3", "3"], ["8", "5"]]
    assert all(float(row[4]) < 1e-3 and row[5] == "refused" for row in rows)


def test_a_circuit_is_drawn(tmp_path):
    run(ROOT / "examples" / "draw_circuit.py", "small", "out.svg", cwd=tmp_path)
    drawn, shipped = (tmp_path / "out.svg").read_text(), ROOT / "docs" / "small-circuit.svg"
    assert drawn.startswith("<svg") and drawn.count("marker-end") >= 6
    assert drawn.count("marker-end") == shipped.read_text().count("marker-end")
