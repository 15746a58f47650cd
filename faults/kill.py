"""Commands that are killed, again and again, and started again as a user would.

    python faults/kill.py [--kills 50] [--real 5] [--command train sweep ...]

Every command is killed (SIGKILL) at random moments, spread evenly over the time that it takes
undisturbed: `--kills` of them in a process forked off this one, whose first moment is the start of
the command's own code, and `--real` in real commands, whose first seconds load libraries. As many
again, of those that are forked, are killed right before one of the operations on files that they
make, also spread evenly over all of them. One to eight kills come in a row; then the command is
started again and left alone. What it leaves has to be what an undisturbed one leaves: the same
files, the same weights to the last bit, the same numbers, but for dates and seconds (losses to 1e-5
where seeds train in common steps, sweep-seeds).

After every kill all files are read: none may be half written, but for temporary ones and the last
line of a log. A cell of a sweep that is finished once is never touched again. A row of the table
counts kills, how many of them left a temporary file behind, and what was wrong at the end of a
series of kills; exit status 1 if anything was.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from tqdm import tqdm
from work import COMMANDS, Work, ended, outcome, prepare, temporaries, whole

# Of Python's audit events: open for writing, rename, delete, make a folder, set permissions.
OPERATIONS = ("open", "os.rename", "os.remove", "os.mkdir", "os.chmod", "os.truncate", "os.rmdir")
COLUMNS = (
    "kills",
    "while writing",
    "series",
    "not whole",
    "failed",
    "differs",
    "leftover",
    "redone",
)
IN_A_ROW = 8


def on_operations(act: Callable[[int], None]) -> None:
    """Call a function with a rising number before every operation that changes a file here.

    Those of this process are meant: a worker that it forks makes its own.
    """
    number, here, process = 0, os.getcwd(), os.getpid()

    def hook(event: str, arguments: Any) -> None:
        nonlocal number
        if event not in OPERATIONS or os.getpid() != process:
            return
        if not isinstance(arguments[0], (str, bytes, os.PathLike)):
            return
        reads = event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if reads or not os.path.abspath(os.fsdecode(arguments[0])).startswith(here):
            return
        number += 1
        act(number - 1)

    sys.addaudithook(hook)


def count_operations(work: Work, folder: Path) -> int:
    """How many operations on files an undisturbed command makes."""
    reader, writer = os.pipe()
    child = work.forked(folder, lambda: on_operations(lambda _: os.write(writer, b".") and None))
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        count = len(stream.read())
    assert ended(child) == 0, f"see {folder}.log"
    return count


def kill_before(operation: int) -> None:
    """Have this process killed before one of its operations on files."""

    def act(number: int) -> None:
        if number == operation:
            os.kill(os.getpid(), signal.SIGKILL)

    on_operations(act)


def killed_at(work: Work, folder: Path, seconds: float) -> bool:
    """Start a forked command and kill it; whether it was still running."""
    child = work.forked(folder)
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        time.sleep(min(0.002, left))
    os.kill(child, signal.SIGKILL)
    return ended(child) == -signal.SIGKILL


def killed_before(work: Work, folder: Path, operation: int) -> bool:
    """Run a forked command up to an operation on files; whether it came to it."""
    return ended(work.forked(folder, partial(kill_before, operation))) == -signal.SIGKILL


def killed_really(work: Work, folder: Path, seconds: float) -> bool:
    """Start a real command and kill it; whether it was still running."""
    with work.real(folder) as process:
        time.sleep(seconds)
        process.kill()
        process.communicate()
    return process.returncode == -signal.SIGKILL


def finished_cells(folder: Path) -> dict[Path, int]:
    """When the results and metrics of a sweep's finished cells were written."""
    names = [path.stem for path in folder.glob("sweep/results/*.json")]
    files = [folder / "sweep" / "results" / f"{name}.json" for name in names]
    files += [folder / "sweep" / "cells" / name / "metrics.jsonl" for name in names]
    return {path: path.stat().st_mtime_ns for path in files if path.exists()}


def campaign(
    work: Work,
    base: Path,
    kill: Callable[[Work, Path, Any], bool],
    moments: Sequence[Any],
    reference: dict[str, Any],
    draw: random.Random,
) -> Counter[str]:
    """Series of kills, each ended by a run that is left alone.

    Args:
        work: the command.
        base: where every series has a folder.
        kill: starts it and kills it at a moment.
        moments: when; all are used.
        reference: what it leaves undisturbed.
        draw: how many kills come in a row, and which.
    """
    found: Counter[str] = Counter()
    waiting = list(moments)
    draw.shuffle(waiting)
    while waiting:
        found["series"] += 1
        folder = base / f"{kill.__name__}-{found['series']}"
        cells: dict[Path, int] = {}
        for row in range(draw.randint(1, IN_A_ROW)):
            if not waiting:
                break
            moment = waiting.pop()
            if not kill(work, folder, moment):
                # It was over before, as part of it had been done; next time it starts afresh.
                if row or isinstance(moment, float):
                    waiting.append(moment if row else 0.8 * moment)
                break
            found["kills"] += 1
            found["while writing"] += bool(temporaries(folder))
            found["not whole"] += not whole(folder)
            cells |= finished_cells(folder)
        status = ended(work.forked(folder))
        left = outcome(folder)
        wrong = {
            "failed": status != 0,
            "differs": not work.same(left, reference) and not temporaries(folder),
            "leftover": bool(temporaries(folder)),
            "redone": not cells.items() <= finished_cells(folder).items(),
        }
        found.update({name: int(value) for name, value in wrong.items()})
        if any(wrong.values()):
            names = left.keys() | reference.keys()
            differing = [n for n in names if not work.same(left.get(n), reference.get(n))]
            tqdm.write(f"{folder}: status {status}, {[k for k in wrong if wrong[k]]}, {differing}")
        else:
            shutil.rmtree(folder)
    return found


def spread(count: int, whole_time: float, draw: random.Random) -> list[float]:
    """Random moments, one in each of as many equal parts of a time."""
    return [whole_time * (i + draw.random()) / count for i in range(count)]


def campaigns(
    work: Work, base: Path, kills: int, operations: int, real: int, seed: int
) -> Iterator[tuple[str, Counter[str]]]:
    """Kill one command in every way: what was done, and what was found.

    Raises:
        AssertionError: undisturbed, it fails or does not leave the same twice.
    """
    draw = random.Random(f"{work.name} {seed}")
    assert ended(work.forked(base / "whole")) == 0, f"see {base / 'whole'}.log"
    reference = outcome(base / "whole")
    start = time.monotonic()  # the first run is slower than all others
    count = count_operations(work, base / "again")
    seconds = time.monotonic() - start
    again = outcome(base / "again")
    assert work.same(again, reference), "expected the same from the same command twice"
    if kills:
        moments = spread(kills, seconds, draw)
        name = f"random moments of {seconds:.1f} s"
        yield name, campaign(work, base, killed_at, moments, reference, draw)
    if operations:
        chosen = sorted({count * i // operations for i in range(operations)})
        name = f"before {len(chosen)} of {count} file operations"
        yield name, campaign(work, base, killed_before, chosen, reference, draw)
    if real:
        start = time.monotonic()
        with work.real(base / "real") as process:
            assert process.communicate() and process.returncode == 0
        seconds = time.monotonic() - start
        moments = spread(real, seconds, draw)
        name = f"real command, {seconds:.1f} s"
        yield name, campaign(work, base, killed_really, moments, reference, draw)


def table(rows: Sequence[tuple[str, str, Counter[str]]]) -> str:
    """Kills and what came of them, a row a way of killing a command."""
    heads = [f"{'command':<10} {'killed at':<36}", *COLUMNS]
    lines = ["  ".join(heads)]
    for command, how, found in rows:
        cells = [f"{found[name]:>{len(name)}}" for name in COLUMNS]
        lines.append("  ".join([f"{command:<10} {how:<36}", *cells]))
    return "\n".join(lines)


def wrong(found: Counter[str]) -> int:
    return sum(found[name] for name in COLUMNS[3:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--kills", type=int, default=50, help="at random moments, and as many again"
    )
    parser.add_argument("--real", type=int, default=5, help="kills of real commands")
    parser.add_argument("--command", nargs="+", default=list(COMMANDS), choices=list(COMMANDS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="kill-"))
    works = prepare(base / "inputs")
    rows = []
    for name in tqdm(options.command, disable=None):
        for how, found in campaigns(
            works[name], base / name, options.kills, options.kills, options.real, options.seed
        ):
            rows.append((name, how, found))
            tqdm.write(table(rows[-1:]))
            sys.stdout.flush()
    print(table(rows))
    if any(wrong(found) for _, _, found in rows):
        print(f"something was wrong: see above, and {base}")
        sys.exit(1)
    shutil.rmtree(base)


if __name__ == "__main__":
    main()
