"""The wheel alone, in an empty environment and an empty folder, does the main job."""

import json
import os
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_wheel_does_the_main_job(tmp_path):
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    source = tmp_path / "source"
    copied = ["pyproject.toml", "README.md", "LICENSE", "tasks", "circuits", "retrieval_interp"]
    source.mkdir()
    subprocess.run(["cp", "-r", *(ROOT / name for name in copied), source], check=True)
    subprocess.run(
        [*build, "--wheel-dir", tmp_path, source], check=True, capture_output=True, cwd=tmp_path
    )
    (wheel,) = tmp_path.glob("retrieval_interp-*.whl")
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    target = next((tmp_path / "venv" / "lib").glob("python*")) / "site-packages"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--no-deps", "--target", target, wheel],
        check=True,
        capture_output=True,
    )
    # The libraries come from this environment; a .pth line brings them without its editable copy.
    libraries = [path for path in site.getsitepackages() if Path(path).is_dir()]
    (target / "libraries.pth").write_text("\n".join(libraries) + "\n")
    empty = tmp_path / "empty"
    empty.mkdir()

    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*arguments):
        command = [python, *arguments]
        options = {"capture_output": True, "text": True, "check": True}
        return subprocess.run(command, cwd=empty, env=environment, **options).stdout

    where = run("-c", "import retrieval_interp, circuits, tasks; print(circuits.__file__)")
    assert Path(where.strip()).is_relative_to(target)
    printed = run(
        *["-m", "retrieval_interp.ablate", "--examples", "128"],
        *["--json", "out.json", "--report", "out.html"],
    )
    assert "Sufficient" in printed
    assert json.loads((empty / "out.json").read_text())["sufficient"]
    assert (empty / "out.html").stat().st_size > 100_000
