"""The package works however it is installed, and whatever the folder it is used from holds."""

import os
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
COPIED = ["pyproject.toml", "README.md", "LICENSE", "tasks", "circuits", "retrieval_interp"]
pytestmark = pytest.mark.slow

USE = """
import os, retrieval_interp as ri
print(ri.Circuit.__module__, ri.RetrievalTask.__module__, os.path.realpath(ri.__file__))
"""
EXPECTED = ["retrieval_interp.circuits.circuit", "retrieval_interp.tasks.retrieval"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A checkout, so that nothing is built in this one; without symbolic links, as on Windows."""
    source = tmp_path_factory.mktemp("checkout")
    subprocess.run(["cp", "-r", *(ROOT / name for name in COPIED), source], check=True)
    return source


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", folder, source], check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module", params=["wheel", "checkout"])
def installed(request, source, wheel, tmp_path_factory):
    """A Python, and where it has to find the package; the libraries are this environment's."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    packages = next((folder / "lib").glob("python*")) / "site-packages"
    paths = [path for path in site.getsitepackages() if Path(path).is_dir()]
    if request.param == "wheel":
        zipfile.ZipFile(wheel).extractall(packages)
    else:
        paths.insert(0, str(source))
    (packages / "paths.pth").write_text("\n".join(paths) + "\n")
    return folder / "bin" / "python", packages if request.param == "wheel" else source


def printed(*command, **where):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, **where)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_names_are_found_beside_a_users_own(installed, tmp_path):
    python, folder = installed
    (tmp_path / "circuits").mkdir()
    for module in ("tasks.py", "circuits/mine.py"):
        (tmp_path / module).write_text("raise ImportError('the user's module')\n")
    *modules, file = printed(python, "-c", USE, cwd=tmp_path).split()
    assert modules == EXPECTED and Path(file).is_relative_to(folder)
    listed = printed(python, "-m", "retrieval_interp", "list", "tasks", cwd=tmp_path)
    assert "RetrievalTask" in listed


def test_a_checkout_without_symbolic_links_works(source, tmp_path):
    """As git makes it on Windows: the links are text files."""
    subprocess.run(["cp", "-r", f"{source}/.", tmp_path], check=True)
    for name in ("tasks", "circuits"):
        link = tmp_path / "retrieval_interp" / name
        link.unlink()
        link.write_text(f"../{name}")
    assert printed(sys.executable, "-c", USE, cwd=tmp_path).split()[:2] == EXPECTED


def test_the_wheel_holds_everything(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    kinds = ("py", "pyi", "safetensors", "json", "html", "js", "css", "typed")
    for package in ("retrieval_interp", "tasks", "circuits"):
        for path in (path for kind in kinds for path in (ROOT / package).rglob(f"*.{kind}")):
            name = path.relative_to(ROOT)
            assert str(name) in names or f"retrieval_interp/{name}" in names, path
