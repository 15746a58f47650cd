"""Fuzzing of everything that reads a file or text from outside: `python -m faults.fuzz`.

1. Inputs come from hypothesis's strategies (`faults.fuzz_targets`), each target for some seconds:
   at random, or with `--engine atheris` guided by the branches that inputs reach.
2. `faults.fuzz_guard` judges: a value or a one-line InputError is right, all else is a finding.
3. A table says what was tried; findings are kept, one of a kind, in the folder `--out`, each a
   text file: the target, what is wrong, and the input as Python writes it.
"""

import argparse
import json
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from faults.fuzz_guard import Outcome, install, judge
from faults.fuzz_targets import TARGETS, Target

KINDS = ("accepted", "refused", "finding")
_ROOM = 8 * 2**30  # bytes of address space beyond what is mapped at the start
_AT_ONCE = 200


def check(target: Target, value: Any, folder: Path) -> Outcome:
    """Give one input to a target.

    Args:
        target: one of `TARGETS`.
        value: drawn from its `inputs`.
        folder: where its file is written.
    """
    return judge(target.read, target.prepare(value, folder))


class Tally:
    """Counts what came of a target's inputs, and keeps one input of every kind of finding."""

    def __init__(self, target: Target, folder: Path, out: Path | None):
        target.warm()
        self.target, self.folder, self.out = target, folder, out
        self.counts: Counter[str] = Counter()
        self.findings: dict[str, str] = {}

    def __call__(self, value: Any) -> None:
        outcome = check(self.target, value, self.folder)
        self.counts[outcome.kind] += 1
        kind = re.sub(r"\d+(\.\d+)?", "N", outcome.text)[:60]
        if outcome.kind != "finding" or kind in self.findings:
            return
        self.findings[kind] = outcome.text
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            name = f"{self.target.name}-{len(self.findings):03d}.txt"
            text = f"{self.target.name}\n{outcome.text!a}\n{value!a}\n"
            (self.out / name).write_text(text)

    def to_json(self) -> str:
        return json.dumps({"counts": self.counts, "findings": list(self.findings.values())})


def run_target(tally: Tally, seconds: float, number: int, examples: int | None = None) -> None:
    """Try inputs at random until the time is up, or so many have been tried."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and (examples is None or not tally.counts):

        @seed(number)
        @settings(
            max_examples=examples or _AT_ONCE,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(tally.target.inputs)
        def try_some(value: Any) -> None:
            if time.monotonic() < end:
                tally(value)

        try_some()
        number += 1


def limit_memory() -> None:
    """Let a blow-up fail here instead of taking the machine along."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (mapped + _ROOM, hard))


def _guided(name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The same with atheris, which ends the process that it runs in."""
    corpus, report = folder / "corpus", folder / "report.json"
    corpus.mkdir()
    rng = random.Random(options.seed)
    for number in range(40):
        (corpus / f"{number}").write_bytes(rng.randbytes(rng.choice((64, 512, 4096))))
    command = [sys.executable, "-m", "faults.fuzz_atheris", name, str(folder), str(report)]
    command += ["" if options.out is None else str(options.out), str(corpus)]
    libfuzzer = [f"-max_total_time={options.seconds:g}", "-timeout=0", "-rss_limit_mb=0"]
    libfuzzer += ["-max_len=8192", "-len_control=0", f"-seed={options.seed + 1}", "-verbosity=0"]
    done = subprocess.run([*command, *libfuzzer], capture_output=True, text=True, check=False)
    if not report.exists():
        sys.exit(f"{name}: expected atheris to run, found: {done.stderr[-300:]}")
    return dict(json.loads(report.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=float, default=60, help="for each target")
    parser.add_argument("--examples", type=int, help="no more for each target (hypothesis)")
    parser.add_argument("--engine", choices=("hypothesis", "atheris"), default="hypothesis")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for findings")
    options = parser.parse_args()
    if unknown := set(options.targets) - set(TARGETS):
        parser.error(f"expected targets of {', '.join(TARGETS)}, found {sorted(unknown)[0]!r}")
    if options.engine == "atheris":
        try:
            import atheris  # noqa: F401
        except ImportError:
            parser.error("expected atheris: pip install --target DIR atheris; PYTHONPATH=$PWD:DIR")
    install()
    limit_memory()
    print(f"{'target':<14}{'inputs':>9}{'accepted':>10}{'refused':>9}{'findings':>10}{'kinds':>7}")
    found: dict[str, list[str]] = {}
    for name in options.targets or TARGETS:
        with tempfile.TemporaryDirectory() as folder:
            if options.engine == "atheris":
                report = _guided(name, options, Path(folder))
            else:
                tally = Tally(TARGETS[name], Path(folder), options.out)
                run_target(tally, options.seconds, options.seed, options.examples)
                report = json.loads(tally.to_json())
        n = [report["counts"].get(kind, 0) for kind in KINDS]
        found[name] = report["findings"]
        print(
            f"{name:<14}{sum(n):>9}{n[0]:>10}{n[1]:>9}{n[2]:>10}{len(found[name]):>7}", flush=True
        )
    for name, texts in found.items():
        for text in texts:
            print(f"{name}: {text!a:.240}")
    sys.exit(1 if any(found.values()) else 0)


if __name__ == "__main__":
    main()
