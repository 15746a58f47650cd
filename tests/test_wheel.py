"""The package works however it is installed, and whatever the folder it is used from holds."""

import os
import site
import subprocess
import sys
import venv
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
WAYS = ["script", "empty path", "module", "console script"]
FOLDERS = ["tasks.py", "circuits/", "tasks/__init__.py", "the repository"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A checkout, so that nothing is built in this one."""
    source = tmp_path_factory.mktemp("checkout")
    subprocess.run(["cp", "-r", *(ROOT / name for name in COPIED), source], check=True)
    return source


def pip(*arguments):
    command = [sys.executable, "-m", "pip", *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture(scope="module", params=["wheel", "editable", "pip install .", "checkout"])
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
    elif request.param == "pip install .":
        pip(*install, source)
    found = packages if request.param in ("wheel", "pip install .") else source
    return request.param, python, found


@pytest.fixture
def folder(request, source, tmp_path):
    """A folder with files of the user's own that have our names."""
    if request.param == "the repository":
        return source
    own = tmp_path / request.param.rstrip("/")
    if request.param == "circuits/":
        own.mkdir()
        own = own / "mine.py"
    own.parent.mkdir(exist_ok=True)
    own.write_text("raise ImportError('the own module')\n")
    return tmp_path


@pytest.mark.parametrize("folder", FOLDERS, indirect=True)
@pytest.mark.parametrize("way", WAYS)
def test_names_are_found_in_every_folder(way, folder, installed, source):
    how, python, found = installed
    if how == "checkout" and way == "console script":
        pytest.skip("nothing is installed")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if how == "checkout":
        environment["PYTHONPATH"] = str(source)
    command = {
        "script": [python, "use.py"],
        "empty path": [python, "-c", USE],
        "module": [python, "-m", "retrieval_interp", "list", "tasks"],
        "console script": [python.parent / "retrieval-interp", "list", "tasks"],
    }[way]
    script = folder / "use.py"
    script.write_text(USE)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    script.unlink()
    assert done.returncode == 0, done.stderr
    if way in ("script", "empty path"):
        *modules, file = done.stdout.split()
        assert modules == EXPECTED
        in_repository = folder == source  # where a script or `python -c` finds the checkout first
        assert Path(file).is_relative_to(source if in_repository else found)
    else:
        assert "RetrievalTask" in done.stdout


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
    import tarfile
    import zipfile

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
