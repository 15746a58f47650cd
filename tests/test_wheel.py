"""The package works however it is installed, and whatever the folder it is used from holds."""

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
USE = """
import os, retrieval_interp as ri
print(ri.Circuit.__module__, ri.RetrievalTask.__module__, os.path.realpath(ri.__file__))
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A checkout, so that nothing is built in this one."""
    source = tmp_path_factory.mktemp("checkout")
    subprocess.run(["cp", "-r", *(ROOT / name for name in COPIED), source], check=True)
    return source


def wheel(source, folder):
    command = [sys.executable, "-m", "build", "--no-isolation"]  # an sdist, and the wheel from it
    subprocess.run([*command, "--outdir", folder, source], check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    assert built.stat().st_size < 20_000_000
    with zipfile.ZipFile(built) as file:
        names = set(file.namelist())
        for package in ("retrieval_interp", "tasks", "circuits"):
            for path in (path for kind in KINDS for path in (ROOT / package).rglob(f"*.{kind}")):
                name = path.relative_to(ROOT)
                if "-step-" not in path.name:  # in the repository alone
                    assert str(name) in names or f"retrieval_interp/{name}" in names, path
        file.extractall(folder / "site")
    return folder / "site"


def windows(source, folder):
    """As git makes it on Windows: the links are text files."""
    subprocess.run(["cp", "-r", f"{source}/.", folder], check=True)
    for name in ("tasks", "circuits"):
        link = folder / "retrieval_interp" / name
        link.unlink()
        link.write_text(f"../{name}")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("make", [wheel, lambda source, folder: source, windows])
def test_names_are_found_beside_a_users_own(make, source, tmp_path):
    """In a Python that sees the package and the libraries, and no other checkout."""
    (tmp_path / "made").mkdir()
    place = make(source, tmp_path / "made")
    (tmp_path / "circuits").mkdir()
    for module in ("tasks.py", "circuits/mine.py"):
        (tmp_path / module).write_text("raise ImportError('the user's module')\n")
    paths = [str(place), *site.getsitepackages()]
    python = [sys.executable, "-S", "-c", f"import sys; sys.path += {paths}\n{USE}"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(python, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *modules, file = done.stdout.split()
    assert modules == ["retrieval_interp.circuits.circuit", "retrieval_interp.tasks.retrieval"]
    assert Path(file).is_relative_to(place)
