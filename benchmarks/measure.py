"""What the benchmarks share: options, timing in turns, tables, result files, fitted exponents."""

import argparse
import json
import math
import os
import resource
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval_interp.storage.files import provenance
from retrieval_interp.views.tables import text_table

# Loads nothing heavy, as a process starts with the peak memory of the one that started it, and this
# module starts those whose memory is measured.

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT))  # for tests.random_models
Rows = list[dict[str, Any]]


def benchmark(
    description: str | None,
    rows: Callable[[argparse.Namespace], Rows],
    asked: Mapping[str, Any],
    quick: Mapping[str, Any],
    *,
    shown: Callable[[Rows], Rows] | None = None,
    device: bool = True,
) -> Callable[..., None]:
    """The `main` of a benchmark: reads its options, makes its rows and reports them.

    Args:
        description: the script's docstring.
        rows: makes the rows; `options.device` is a torch.device.
        asked: its own options with their defaults: a list takes several words, False is a flag, and
            a type has no default; `path` is an argument without a flag.
        quick: what takes the place of these options with --quick.
        shown: the table to print, made from the rows; by default the rows.
        device: whether it uses tensors in this process.
    """

    def main(argv: Sequence[str] | None = None) -> None:
        parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
        parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
        parser.add_argument("--json", type=Path, help="write the rows here too")
        if device:
            parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
            parser.add_argument("--threads", type=int, help="CPU threads; default all")
        for name, default in asked.items():
            _add(parser, name, default)
        options = parser.parse_args(argv)
        if options.quick:
            vars(options).update(quick)
        machine = prepare(options) if device else {}
        made = rows(options)
        printed = shown(made) if shown else made
        numbers = [at for at, value in enumerate(printed[0].values()) if type(value) is not str]
        cells = [[_cell(value) for value in row.values()] for row in printed]
        print("\n".join(text_table(list(printed[0]), cells, right=numbers)))
        if options.json is not None:
            script = os.path.relpath(sys.argv[0], ROOT / "benchmarks")
            words = shlex.join(sys.argv[1:] if argv is None else argv)
            record = provenance(f"python benchmarks/{script} {words}".strip())
            options.json.write_text(
                json.dumps({**record, **machine, "rows": made}, indent=1) + "\n"
            )

    return main


def _add(parser: argparse.ArgumentParser, name: str, default: Any) -> None:
    flag = f"--{name.replace('_', '-')}"
    if name == "path":
        parser.add_argument(name, type=default)
    elif default is False:
        parser.add_argument(flag, action="store_true")
    elif isinstance(default, (list, tuple)):
        parser.add_argument(flag, nargs="+", type=type([*default, ""][0]), default=default)
    elif isinstance(default, type):
        parser.add_argument(flag, type=default)
    else:
        parser.add_argument(flag, type=type(default), default=default)


def prepare(options: argparse.Namespace) -> dict[str, str]:
    """Set threads and the device as for training; returns a record of the machine."""
    import torch

    from retrieval_interp.training import choose_device

    if options.threads:
        torch.set_num_threads(options.threads)
    options.device, name = choose_device(options.device), "cpu"
    if options.device.type == "cuda":
        torch.set_float32_matmul_precision("high")
        name = torch.cuda.get_device_name(options.device)
    return {"machine": f"torch {torch.__version__}, {name}, {torch.get_num_threads()} threads"}


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return "" if value is None else str(value)
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds and result of one call whose result is on the CPU."""
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def seconds(function: Callable[[], object], times: int, device: Any = None) -> float:
    """Seconds per call, including all that it queued on a CUDA device."""

    def wait() -> None:
        if device is not None and device.type == "cuda":
            import torch

            torch.cuda.synchronize(device)

    wait()
    took, _ = timed(lambda: ([function() for _ in range(times)], wait()))
    return took / times


def in_turns(
    contenders: Mapping[str, Callable[[], object]], rounds: int, times: int, device: Any = None
) -> dict[str, list[float]]:
    """Seconds per call of every contender in every round, taking turns in alternating order."""
    order = list(contenders)
    found: dict[str, list[float]] = {name: [] for name in order}
    for _ in range(rounds):
        for name in order:
            found[name].append(seconds(contenders[name], times, device))
        order.reverse()
    return found


def ratios(times: Sequence[float], to: Sequence[float]) -> tuple[float, float, float]:
    """The median and the quartiles of the ratios over the rounds."""
    each = [a / b for a, b in zip(times, to)]
    single = len(each) == 1
    low, middle, high = 3 * each if single else statistics.quantiles(each, method="inclusive")
    return middle, low, high


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The power of the size with which a cost grows: the slope of a line through the logarithms."""
    x, y = ([math.log(value) for value in values] for values in (sizes, costs))
    return statistics.linear_regression(x, y).slope


@dataclass(frozen=True)
class Finished:
    """A process that has ended."""

    status: int
    first: float  # seconds until it first wrote to standard output or error, or ended
    seconds: float  # until it ended
    peak: int  # peak resident memory in bytes, of it or of a process it waited for
    output: str  # standard output and error


def run_process(command: Sequence[str], cwd: Path = ROOT) -> Finished:
    """Run a command and measure it from outside."""
    start = time.perf_counter()
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    with process.stdout as stream:
        output = stream.read(1)
        first = time.perf_counter() - start
        output += stream.read()
    _, status, usage = os.wait4(process.pid, 0)
    took = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    peak = peak_bytes(usage)
    return Finished(process.returncode, first, took, peak, output.decode(errors="replace"))


def peak_bytes(usage: Any = None) -> int:
    """The peak resident memory of a resource usage, by default of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF) if usage is None else usage
    return int(usage.ru_maxrss) * (1 if sys.platform == "darwin" else 1024)
