"""The tests with the lowest and the newest versions that pyproject.toml allows.

    python benchmarks/versions.py --folder runs/versions          as `make test`, twice
    python benchmarks/versions.py --only lowest --tests tests/test_model.py
    python benchmarks/versions.py --bridge                        TransformerLens 4

1. uv, which is installed into the folder, resolves pyproject.toml twice, with the extra [test] and
   so with all extras: `lowest-direct` takes the lowest version of every direct dependency within
   its bound (for `>=6`, one of 6.*, else it is an error), `highest` the newest. Indirect
   dependencies are the newest that fit. In `newest`, torch stays at the version of constraints.txt,
   as a newer one brings gigabytes of CUDA packages.
2. A copy of the working tree is tested in both environments. Warnings are errors with the newest
   versions, and printed with the lowest, as what old versions say about newer ones cannot be fixed
   here.
3. `--bridge` instead installs a TransformerLens beyond the bound, runs `bridge_worker.py` with it
   and compares every number with those of the HookedTransformer in this environment.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import tomllib
from packaging.requirements import Requirement

from retrieval_interp.views.tables import text_table

ROOT = Path(__file__).parent.parent
RESOLUTION = {"lowest": "lowest-direct", "newest": "highest"}
TOLERANCE = 1e-5  # between the MSEs of the same weights in two classes, all below about 2


def requirements(extras: bool) -> list[Requirement]:
    """The direct dependencies in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = list(project["dependencies"])
    if extras:
        lines += [line for group in project["optional-dependencies"].values() for line in group]
    found = {str(wanted): wanted for wanted in map(Requirement, lines)}
    return [wanted for wanted in found.values() if wanted.name != project["name"]]


def at_bounds(asked: list[Requirement]) -> list[str]:
    """Constraints to the lower bounds, which uv otherwise may exceed to fit indirect ones."""
    return [
        f"{wanted.name}=={bound.version}.*"
        for wanted in asked
        for bound in wanted.specifier
        if bound.operator == ">="
    ]


def pinned_torch() -> str:
    (line,) = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line.startswith("torch==")
    ]
    return line


def make_environment(folder: Path, name: str, *installs: list[str]) -> Path:
    """Make an environment by these calls of `uv pip install`; returns its Python."""
    uv = folder / "uv" / "bin" / "uv"
    if not uv.exists():
        venv.create(folder / "uv", with_pip=True)
        subprocess.run([uv.with_name("python"), "-m", "pip", "install", "-q", "uv"], check=True)
    venv.create(folder / name, with_pip=True)
    python = folder / name / "bin" / "python"
    for arguments in installs:
        command = [uv, "pip", "install", "-q", "--python", python, *arguments]
        subprocess.run(command, check=True, cwd=ROOT)
    return python


def versions(python: Path, names: list[str]) -> dict[str, str]:
    """The installed versions by name."""
    code = (
        "import json, sys; from importlib.metadata import version; "
        "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
    )
    done = subprocess.run([python, "-c", code, *names], check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


def run_tests(python: Path, source: Path, name: str, tests: list[str]) -> dict[str, int]:
    """Test the copy; returns how many tests passed, failed and were skipped."""
    report = source.parent / f"{name}.xml"
    chosen = tests or ["-m", "not slow and not faults"]
    command = ["-m", "pytest", "-n", "2", "--dist", "worksteal", f"--junitxml={report}", *chosen]
    environment = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)
    if name == "lowest":
        command += ["-W", "default"]
    status = subprocess.run([python, *command], cwd=source, env=environment).returncode
    if status not in (0, 1):  # 1: some tests failed
        raise SystemExit(f"{name}: expected pytest to end, found status {status}")
    counts = {"passed": 0, "skipped": 0, "failed": 0}
    for case in ElementTree.parse(report).iter("testcase"):
        ends = {child.tag for child in case} & {"failure", "error", "skipped"}
        counts["passed" if not ends else "skipped" if ends == {"skipped"} else "failed"] += 1
    return counts


def compare_versions(folder: Path, only: str | None, tests: list[str]) -> bool:
    """Test with both resolutions, print the table and return whether all tests passed."""
    source = folder / "source"
    left = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__")
    top = {"runs", "site"}
    shutil.copytree(
        ROOT,
        source,
        ignore=lambda folder, names: {*left(folder, names), *(top if folder == str(ROOT) else ())},
        dirs_exist_ok=True,
    )
    columns, ends = {}, {}
    asked = requirements(extras=True)
    names = sorted(
        {wanted.name for wanted in asked if not wanted.marker or wanted.marker.evaluate()}
    )
    for name in [only] if only else list(RESOLUTION):
        wanted = ["--resolution", RESOLUTION[name], "-r", "pyproject.toml", "--extra", "test"]
        held = folder / f"{name}.txt"
        held.write_text("\n".join(at_bounds(asked) if name == "lowest" else [pinned_torch()]))
        wanted += ["-c", str(held)]
        python = make_environment(folder, name, wanted, ["--no-deps", str(source)])
        columns[name] = versions(python, names)
        ends[name] = run_tests(python, source, name, tests)
    rows = [["dependency", "allowed", *columns]]
    for dependency in names:
        (allowed, *_) = [str(wanted.specifier) for wanted in asked if wanted.name == dependency]
        rows.append([dependency, allowed, *(column[dependency] for column in columns.values())])
    for end in ("passed", "skipped", "failed"):
        rows.append([end, "", *(str(counts[end]) for counts in ends.values())])
    print("\n".join(text_table(rows[0], rows[1:])))
    if "newest" in columns:
        print(f"newest: {pinned_torch()} is pinned, a newer one brings gigabytes of CUDA packages")
    return not any(counts["failed"] for counts in ends.values())


def compare_bridge(folder: Path, checkpoints: list[str], examples: int) -> bool:
    """Compare TransformerLens 4 with this environment; returns whether the numbers agree."""
    others = [wanted for wanted in requirements(extras=False) if wanted.name != "transformer-lens"]
    wanted = [*map(str, others), "transformer-lens>=4,<5", pinned_torch()]
    python = make_environment(folder, "bridge", wanted)
    worker = [ROOT / "benchmarks" / "bridge_worker.py", *checkpoints, "--examples", str(examples)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    found: list[dict[str, Any]] = []
    for command in ([sys.executable, *worker, "--hooked"], [python, *worker]):
        done = subprocess.run(
            command, env=environment, check=True, stdout=subprocess.PIPE, text=True
        )
        found.append(json.loads(done.stdout))
    hooked, bridged = found
    installed = [versions(Path(path), ["transformer-lens"]) for path in (sys.executable, python)]
    ours, theirs = (version["transformer-lens"] for version in installed)
    worst = 0.0
    for name in checkpoints:
        rows = [["MSE", f"HookedTransformer {ours}", f"TransformerBridge {theirs}", "difference"]]
        for done, mse in hooked[name].items():
            difference = abs(mse - bridged[name][done])
            worst = max(worst, difference)
            rows.append([done, f"{mse:.6f}", f"{bridged[name][done]:.6f}", f"{difference:.1e}"])
        print(f"\n{name}, {examples} examples\n", *text_table(rows[0], rows[1:]), sep="\n")
    print(f"\ngreatest difference {worst:.1e}, at most {TOLERANCE:g} is expected")
    return worst <= TOLERANCE


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="for environments (default: temporary)")
    parser.add_argument("--only", choices=RESOLUTION)
    parser.add_argument("--tests", nargs="*", default=[], help="tests to run instead of all")
    parser.add_argument("--bridge", action="store_true")
    parser.add_argument("--checkpoints", nargs="+", default=["small", "transformer-a"])
    parser.add_argument("--examples", type=int, default=64)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        if options.bridge:
            passed = compare_bridge(folder, options.checkpoints, options.examples)
        else:
            passed = compare_versions(folder, options.only, options.tests)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
