"""What it saves training to keep freed memory for the next step, on Linux with glibc.

    python benchmarks/freed_memory.py [--presets section7-ic-4 ...] [--precision bfloat16]

`keep_freed_memory` is switched on and off in one process, round after round, around compiled
training steps. "off" sets the limits to which glibc's own grow once large blocks have been freed,
and hands back what was kept; a few steps are taken before the clock starts. CPU seconds and page
faults are those of the process; the ratio is of CPU seconds, kept to off, with quartiles over the
rounds.
"""

import ctypes
import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

from measure import arguments, machine, prepare, ratios, report
from tqdm import tqdm
from training_step import KNOWN, stepper

from retrieval_interp.config.presets import PRESETS
from retrieval_interp.model import build_model
from retrieval_interp.training.freed_memory import (
    MMAP_THRESHOLD,
    TRIM_THRESHOLD,
    keep_freed_memory,
)

DEFAULT = ("small", "transformer-a", "section7-ic-1", "section7-ic-4")
SETTLING = 4  # steps before the clock starts


def hand_back() -> None:
    """What glibc does by itself."""
    library = ctypes.CDLL(None)
    library.mallopt(MMAP_THRESHOLD, 32 * 2**20)
    library.mallopt(TRIM_THRESHOLD, 64 * 2**20)
    library.malloc_trim(0)


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--presets", nargs="+", default=DEFAULT, choices=KNOWN)
    parser.add_argument(
        "--precision", nargs="+", choices=("float32", "bfloat16"), help="default: the preset's"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3, help="in turn")
    options = parser.parse_args(argv)
    device = prepare(options)
    print(machine(device))
    rows = []
    chosen = [
        (name, precision)
        for name in options.presets
        for precision in options.precision or (PRESETS[name].precision,)
    ]
    for name, precision in tqdm(chosen, leave=False, disable=None):
        recipe = replace(PRESETS[name], precision=precision)
        if options.quick:
            recipe = replace(recipe, model=replace(recipe.model, layers=1), batch=8)
        model = build_model(recipe.model, recipe.task, 0, device)
        step = stepper(recipe, model, device, compile=not options.quick)
        step()
        seconds: dict[str, list[float]] = {"kept": [], "off": []}
        faults: dict[str, list[float]] = {"kept": [], "off": []}
        for _ in range(options.rounds):
            for mode, begin in (("off", hand_back), ("kept", keep_freed_memory)):
                begin()
                for _ in range(SETTLING):
                    step()
                faulted = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                start = time.process_time()
                for _ in range(options.steps):
                    step()
                seconds[mode].append((time.process_time() - start) / options.steps)
                faulted = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faulted
                faults[mode].append(faulted / options.steps)
        ratio, low, high = ratios(seconds["kept"], seconds["off"])
        rows.append(
            {
                "preset": name,
                "precision": recipe.precision,
                "kept CPU s": statistics.median(seconds["kept"]),
                "off CPU s": statistics.median(seconds["off"]),
                "ratio": ratio,
                "25%": low,
                "75%": high,
                "kept faults": statistics.median(faults["kept"]),
                "off faults": statistics.median(faults["off"]),
            }
        )
    report(rows, options, argv, machine=machine(device))


if __name__ == "__main__":
    main()
