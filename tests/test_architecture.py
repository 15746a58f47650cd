"""The arrows between packages, and what importing costs."""

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

from retrieval_interp.__main__ import COMMANDS

ROOT = Path(__file__).parent.parent
PACKAGES = ["tasks", "circuits", "retrieval_interp"]  # each knows only those before it


def imports_of(path, known):
    """The project's modules that a module imports, at its top or inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{name.name}" for name in node.names}
            found |= {name if name in known else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found & known.keys()


def test_modules_import_in_one_direction_and_never_in_a_circle():
    known = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            name = name if package == "retrieval_interp" else f"retrieval_interp.{name}"
            known[name.removesuffix(".__init__")] = path
    home = {name: PACKAGES.index(path.relative_to(ROOT).parts[0]) for name, path in known.items()}
    graph = {name: imports_of(path, known) - {name} for name, path in known.items()}
    for name, imported in graph.items():
        assert all(home[other] <= home[name] for other in imported), name
    # Packages on the top hand names on; they are not where anything lives.
    top = {"retrieval_interp", "retrieval_interp.tasks", "retrieval_interp.circuits"}
    rooms = {name: imported - top for name, imported in graph.items() if name not in top}
    assert list(TopologicalSorter(rooms).static_order())  # raises CycleError, naming the circle


def loaded_by(statement):
    command = [sys.executable, "-c", f"{statement}\nimport sys; print(*sys.modules)"]
    return set(subprocess.check_output(command, text=True).split())


def test_heavy_libraries_are_loaded_when_they_are_needed():
    """Those of train are the fields of its tasks, which are made with torch."""
    light = [f"retrieval_interp.commands.{name}" for name in COMMANDS if name != "train"]
    modules = loaded_by("import " + ", ".join(light))
    assert not modules & {"torch", "transformer_lens", "plotly", "numpy"}
    modules = loaded_by("import retrieval_interp.commands.train, retrieval_interp.bench")
    assert not modules & {"transformer_lens", "plotly"}


@pytest.mark.parametrize("name", ["retrieval_interp", "retrieval_interp.tasks"])
def test_every_exported_name_is_there(name):
    package = import_module(name)
    for exported in package.__all__:
        assert getattr(package, exported) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        package.nothing  # noqa: B018


def test_a_module_among_the_names_needs_no_other_to_be_imported_first():
    command = [sys.executable, "-c", "import retrieval_interp as ri; print(ri.mechanisms.FIRST)"]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "first\n"


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [{}, {"OMP_WAIT_POLICY": "ACTIVE"}])
def test_threads_sleep_while_they_wait_unless_the_user_has_set_something_else(chosen):
    """OpenMP says how often a thread looks for work before it sleeps."""
    command = [sys.executable, "-c", "import retrieval_interp as ri; ri.RetrievalTask"]
    env = {"OMP_DISPLAY_ENV": "VERBOSE", **chosen}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    if (said := re.search(r"GOMP_SPINCOUNT = '(\w+)'", done.stderr)) is None:
        pytest.skip("PyTorch has another OpenMP here")
    assert (said[1] == "0") is (not chosen)
