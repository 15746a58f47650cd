"""The tests with the lowest and the newest versions that pyproject.toml allows.

    python benchmarks/versions.py --folder runs/versions          as `make test`, twice
    python benchmarks/versions.py --only lowest --tests tests/test_model.py
    python benchmarks/versions.py --bridge                        TransformerLens 3.9 against 4

1. uv, which is installed into the folder, resolves pyproject.toml twice, with the extra [test] and
   so with all extras: `lowest-direct` takes the lowest version of every direct dependency within
   its bound (for `>=6`, one of 6.*, else it is an error), `highest` the newest. Indirect
   dependencies are the newest that fit. In `newest`, torch stays at the version of constraints.txt,
   as a newer one brings gigabytes of CUDA packages, and TransformerLens at 3, as the tests train.
2. A copy of the working tree is tested in both environments. Warnings are errors with the newest
   versions, and printed with the lowest, as what old versions say about newer ones cannot be fixed
   here.
3. `--bridge` instead installs the package with TransformerLens 4, runs its commands and a workbench
   on shipped checkpoints with both, there and in this environment, which has 3.9, and compares what
   they write: every number to 1e-5, anything else exactly.
"""

import argparse
import json
import math
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
TOLERANCE = 1e-5  # between losses of the same weights in two classes, all below about 3
BELOW_4 = "transformer-lens<4"  # the tests train

# A workbench on a checkpoint: the numbers of what it shows, as the commands write theirs.
WORKBENCH = """
import json, sys, torch
import retrieval_interp as ri
name, circuit, examples, file = sys.argv[1:]
bench = ri.open(name, examples=int(examples), device="cpu")
attention = bench.intact_attention.nan_to_num().tolist()
bench.load(circuit)
bench.explore()
with ri.ablated(bench.model, bench.circuit, bench.batch):
    outputs = bench.model(bench.batch.inputs)
losses = [bench.intact_loss, bench.loss, bench.task.loss(outputs, bench.batch).item()]
json.dump({"losses": losses, "attention": attention}, open(file, "w"))
"""


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


def copy_of_tree(folder: Path) -> Path:
    source = folder / "source"
    left = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__")
    top = {"runs", "site"}
    shutil.copytree(
        ROOT,
        source,
        ignore=lambda folder, names: {*left(folder, names), *(top if folder == str(ROOT) else ())},
        dirs_exist_ok=True,
    )
    return source


def compare_versions(folder: Path, only: str | None, tests: list[str]) -> bool:
    """Test with both resolutions, print the table and return whether all tests passed."""
    source = copy_of_tree(folder)
    columns, ends = {}, {}
    asked = requirements(extras=True)
    names = sorted(
        {wanted.name for wanted in asked if not wanted.marker or wanted.marker.evaluate()}
    )
    for name in [only] if only else list(RESOLUTION):
        wanted = ["--resolution", RESOLUTION[name], "-r", "pyproject.toml", "--extra", "test"]
        held = folder / f"{name}.txt"
        newest = [pinned_torch(), BELOW_4]
        held.write_text("\n".join(at_bounds(asked) if name == "lowest" else newest))
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
        print(f"newest: {pinned_torch()} is pinned, a newer one brings gigabytes of CUDA packages;")
        print(f"{BELOW_4}, as the tests train")
    return not any(counts["failed"] for counts in ends.values())


def bridge_jobs(checkpoints: list[str], examples: int) -> dict[str, list[str]]:
    """What is run with both, by a name; the file to write to follows."""
    some = ["--examples", str(examples)]
    jobs = {}
    for name in checkpoints:
        circuit = f"retrieval_interp/results/{name}.circuit.json"
        ablate = ["-m", "retrieval_interp.ablate", "--ckpt", name, *some]
        jobs[f"ablate {name} --circuit"] = [*ablate, "--circuit", circuit, "--json"]
        jobs[f"ri.open {name}"] = ["-c", WORKBENCH, name, circuit, str(examples)]
    first = checkpoints[0]
    jobs[f"ablate {first}"] = ["-m", "retrieval_interp.ablate", "--ckpt", first, *some, "--json"]
    jobs[f"scan {first}"] = [
        "-m",
        "retrieval_interp",
        "scan",
        "--model",
        first,
        *some,
        "--json",
    ]
    return jobs


def run_job(python: Path, job: list[str], file: Path) -> tuple[Any, float]:
    """What it wrote, and how many seconds of CPU it took."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    before = os.times().children_user
    subprocess.run(
        [python, *job, file], env=environment, cwd=ROOT, check=True, stdout=subprocess.DEVNULL
    )
    seconds = os.times().children_user - before
    found = json.loads(file.read_text())
    found.pop("record", None)  # the command, the date and the versions
    return found, seconds


def differences(ours: Any, theirs: Any) -> list[float]:
    """The difference of every number; infinite where anything else differs."""
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        return [d for key in ours for d in differences(ours[key], theirs[key])]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [d for pair in zip(ours, theirs) for d in differences(*pair)]
    if isinstance(ours, (int, float)) and isinstance(theirs, (int, float)):
        return [abs(ours - theirs)]
    return [] if ours == theirs else [math.inf]


def compare_bridge(folder: Path, other: Path | None, checkpoints: list[str], examples: int) -> bool:
    """Compare TransformerLens 4 with this environment; returns whether the numbers agree."""
    if other is None:
        source = copy_of_tree(folder)
        other = make_environment(
            folder, "bridge", [str(source), "transformer-lens>=4", pinned_torch()]
        )
    pythons = [Path(sys.executable), other.absolute()]
    named = [versions(python, ["transformer-lens"])["transformer-lens"] for python in pythons]
    if [version.partition(".")[0] for version in named] != ["3", "4"]:
        raise SystemExit(f"expected TransformerLens 3 here and 4 there, found {named}")
    rows = [["", "numbers", "greatest difference", *(f"CPU seconds, {v}" for v in named)]]
    worst = 0.0
    for what, job in bridge_jobs(checkpoints, examples).items():
        (ours, before), (theirs, after) = (
            run_job(python, job, folder / f"{version}.json")
            for python, version in zip(pythons, named)
        )
        found = differences(ours, theirs)
        worst = max(worst, *found)
        rows.append([what, str(len(found)), f"{max(found):.1e}", f"{before:.1f}", f"{after:.1f}"])
    print("\n".join(text_table(rows[0], rows[1:])))
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
    parser.add_argument("--python", type=Path, help="of an environment with TransformerLens 4")
    parser.add_argument("--checkpoints", nargs="+", default=["small", "transformer-a", "equations"])
    parser.add_argument("--examples", type=int, default=64)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        if options.bridge:
            passed = compare_bridge(folder, options.python, options.checkpoints, options.examples)
        else:
            passed = compare_versions(folder, options.only, options.tests)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
