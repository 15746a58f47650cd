"""The package works however it is installed, and whatever the folder it is used from holds."""

import os
import site
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
COPIED = ["pyproject.toml", "README.md", "LICENSE", "tasks", "circuits", "retrieval_interp"]
pytestmark = pytest.mark.slow

USE = """
import os, sys, retrieval_interp as ri
print(ri.Circuit.__module__, ri.RetrievalTask.__module__, os.path.realpath(ri.__file__))
"""
EXPECTED = ["retrieval_interp.circuits.circuit", "retrieval_interp.tasks.retrieval"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A checkout, so that nothing is built in this one."""
    source = tmp_path_factory.mktemp("checkout")
    subprocess.run(["cp", "-r", *(ROOT / name for name in COPIED), source], check=True)
    return source


def pip(*arguments):
    command = [sys.executable, "-m", "pip", *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture(scope="module", params=["wheel", "editable", "checkout"])
def installed(request, source, tmp_path_factory):
    """An environment: how it was installed, its Python, and where the package has to be found.

    The libraries come from this environment, by a .pth line, without its editable copy.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    packages = next((folder / "lib").glob("python*")) / "site-packages"
    libraries = [path for path in site.getsitepackages() if Path(path).is_dir()]
    (packages / "libraries.pth").write_text("\n".join(libraries) + "\n")
    offline = ["--no-deps", "--no-build-isolation"]
    install = [f"--python={python}", "install", "--ignore-installed", *offline]
    if request.param == "wheel":
        pip("wheel", *offline, "--wheel-dir", folder, source)
        pip(*install, *folder.glob("*.whl"))
    elif request.param == "editable":
        pip(*install, "--editable", source)
    return request.param, python, packages if request.param == "wheel" else source


@pytest.mark.parametrize("own", ["tasks.py", "circuits/mine.py"])
def test_names_are_found_beside_a_users_own(own, installed, source, tmp_path):
    how, python, found = installed
    (tmp_path / own).parent.mkdir(exist_ok=True)
    (tmp_path / own).write_text("raise ImportError('the own module')\n")
    (tmp_path / "use.py").write_text(USE)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if how == "checkout":
        environment["PYTHONPATH"] = str(source)

    where = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True}

    def printed(*command):
        done = subprocess.run(command, **where)
        assert done.returncode == 0, done.stderr
        return done.stdout

    for use in ((python, "use.py"), (python, "-c", USE)):
        *modules, file = printed(*use).split()
        assert modules == EXPECTED and Path(file).is_relative_to(found)
    assert "RetrievalTask" in printed(python, "-m", "retrieval_interp", "list", "tasks")
    if how != "checkout":
        assert "RetrievalTask" in printed(python.parent / "retrieval-interp", "list", "tasks")


def test_a_checkout_without_symbolic_links_works(source, tmp_path):
    """As git makes it on Windows: the links are text files."""
    subprocess.run(["cp", "-r", f"{source}/.", tmp_path], check=True)
    for name in ("tasks", "circuits"):
        link = tmp_path / "retrieval_interp" / name
        link.unlink()
        link.write_text(f"../{name}")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", USE]
    done = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True)
    assert done.stdout.split()[:2] == EXPECTED, done.stderr


def test_the_wheel_and_the_source_archive_hold_everything(source, tmp_path):
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, source]
    subprocess.run(build, check=True, capture_output=True)  # the wheel is made from the archive
    (wheel,), (archive,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {
        "retrieval_interp"
    }
    kinds = ("*.py", "*.pyi", "*.safetensors", "*.json", "*.html", "*.js", "*.css", "py.typed")
    for path in (path for kind in kinds for path in (ROOT / "retrieval_interp").rglob(kind)):
        assert str(path.relative_to(ROOT)) in names, path
    for package in ("tasks", "circuits"):
        for path in (ROOT / package).rglob("*.py*"):
            if "__pycache__" not in path.parts:
                assert f"retrieval_interp/{path.relative_to(ROOT)}" in names, path
    with tarfile.open(archive) as tar:
        assert any(name.endswith("tasks/retrieval.py") for name in tar.getnames())
