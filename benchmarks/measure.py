"""What the benchmarks share: options, timing in turns, tables and result files."""

import argparse
import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from retrieval_interp.device import choose_device
from retrieval_interp.storage.files import provenance, write_json
from retrieval_interp.storage.models_by_name import load_model as load_model
from retrieval_interp.views.tables import text_table

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT))  # for tests
Rows = list[dict[str, Any]]


def benchmark(
    quick: Mapping[str, Any], shown: Callable[[Rows], Rows] = list, **asked: Any
) -> Callable[[Callable[[argparse.Namespace], Iterable[Any]]], Callable[..., None]]:
    """Make the `main` of a script from a function from its options to rows.

    If the script is run, so is its `main`. The JSON file is written after every row.

    Args:
        quick: what takes the place of options with --quick.
        shown: the table to print, made from the rows; by default the rows.
        asked: its own options with their defaults: a list takes several words, False is a flag;
            `path` is an argument without a flag.
    """

    def decorate(rows: Callable[[argparse.Namespace], Iterable[Any]]) -> Callable[..., None]:
        def main(argv: Sequence[str] | None = None) -> None:
            options = _options(asked, quick, argv)
            made: Rows = []
            for row in rows(options):
                made.append(row)
                if options.json is not None:
                    _write(options, made, argv)
            printed = shown(made)
            numbers = [at for at, value in enumerate(printed[0].values()) if type(value) is not str]
            cells = [[_cell(value) for value in row.values()] for row in printed]
            print("\n".join(text_table(list(printed[0]), cells, right=numbers)))

        if rows.__module__ == "__main__":
            main()
        return main

    return decorate


def _write(options: argparse.Namespace, rows: Rows, argv: Sequence[str] | None) -> None:
    script = os.path.relpath(sys.argv[0], ROOT / "benchmarks")
    words = shlex.join(sys.argv[1:] if argv is None else argv)
    record = provenance(f"python benchmarks/{script} {words}".strip())
    on_gpu = options.device.type == "cuda"
    name = torch.cuda.get_device_name(options.device) if on_gpu else "cpu"
    machine = f"torch {torch.__version__}, {name}, {options.threads} threads"
    write_json(options.json, {**record, "machine": machine, "rows": rows})


def _options(
    asked: Mapping[str, Any], quick: Mapping[str, Any], argv: Sequence[str] | None
) -> argparse.Namespace:
    about = sys.modules["__main__"].__doc__ or ""
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--json", type=Path, help="write the rows here too")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    for name, default in asked.items():
        flag = name if name == "path" else f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, list):
            parser.add_argument(flag, nargs="+", type=type([*default, ""][0]), default=default)
        else:
            parser.add_argument(flag, type=type(default), default=default)
    options = parser.parse_args(argv)
    if options.quick:
        vars(options).update(quick)
    torch.set_num_threads(options.threads)
    options.device = choose_device(options.device)
    return options


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return "" if value is None else str(value)
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds and result of one call whose result is on the CPU."""
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def rank_correlation(ones: Sequence[float], others: Sequence[float]) -> float:
    """Spearman's."""
    return float(pd.Series(ones).rank().corr(pd.Series(others).rank()))


def shortest(count: int, holds: Callable[[int], bool], within: float = 0) -> int:
    """How many of the first units do, by bisection, to this share of the number."""
    low, high = 0, count
    while high - low > max(1, within * high):
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def median_ratio(times: Sequence[float], to: Sequence[float]) -> float:
    """The median of the ratios over the rounds."""
    return statistics.median(a / b for a, b in zip(times, to))
