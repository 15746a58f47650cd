"""The wheel holds all that is used, and works in a folder with modules of the same names."""

import os
import site
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
COPIED = ["pyproject.toml", "README.md", "LICENSE", "tasks", "circuits", "retrieval_interp"]
KINDS = ("py", "pyi", "safetensors", "json", "html", "js", "css", "typed")
USE = "print(ri.Circuit.__module__, ri.RetrievalTask.__module__, ri.__file__)"


@pytest.mark.slow
def test_names_are_found_beside_a_users_own(tmp_path):
    """In a Python that sees the wheel and the libraries, and no other checkout."""
    source, made = tmp_path / "checkout", tmp_path / "made"  # nothing is built in this checkout
    source.mkdir()
    subprocess.run(["cp", "-r", *(ROOT / name for name in COPIED), source], check=True)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", made, source]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = made.glob("*.whl")
    assert wheel.stat().st_size < 20_000_000
    with zipfile.ZipFile(wheel) as file:
        file.extractall(made / "site")
    for package in ("retrieval_interp", "tasks", "circuits"):
        for path in (path for kind in KINDS for path in (ROOT / package).rglob(f"*.{kind}")):
            name = path.relative_to(ROOT)
            if "-step-" not in path.name:  # in the repository alone
                places = made / "site" / name, made / "site/retrieval_interp" / name
                assert any(place.exists() for place in places), path
    (tmp_path / "circuits").mkdir()
    for module in ("tasks.py", "circuits/mine.py"):
        (tmp_path / module).write_text("raise ImportError('the user's module')\n")
    paths = [str(made / "site"), *site.getsitepackages()]
    load = f"import sys; sys.path += {paths}; import retrieval_interp as ri"
    python = [sys.executable, "-S", "-c", f"{load}; {USE}"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(python, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *modules, file = done.stdout.split()
    assert modules == ["retrieval_interp.circuits.circuit", "retrieval_interp.tasks.retrieval"]
    assert Path(file).is_relative_to(made / "site")
