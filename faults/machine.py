"""What machines and people do to a running command: one case a row.

    python faults/machine.py [--moments 6] [--case signals pipes ...]

signals   Ctrl-C (to the process group), SIGTERM and SIGHUP, at moments from the first line of the
          command's own code on, while libraries are loaded too; what Python does before that line
          is not in its power
pipes     output that nobody reads, or that cannot be written
disk      a full one: a small tmpfs where we may mount one, else a limit on the size of files
readonly  a folder that cannot be written: a read-only tmpfs; skipped where we may not mount one
removed   files and folders that go while a command is at work
two       two processes with one folder
clock     the wall clock set back and forth, with the bar of a terminal
worker    a sweep's worker that is killed, as for want of memory

A command has to end with status 0, or with one line that says why and the status that belongs to
it, never with a traceback; nothing may be half written; and the same command has to lead to what an
undisturbed one leaves. Exit status 1 if that was not so in some case.
"""

import argparse
import contextlib
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from tqdm import tqdm
from work import Work, ended, outcome, prepare, temporaries, whole


@dataclass(frozen=True)
class Row:
    """What was done, what had to happen, what did, and whether that is the same."""

    did: str
    expected: str
    found: str
    ok: bool


class Bench:
    """The commands, what each leaves undisturbed, and a fresh folder a case."""

    def __init__(self, base: Path, moments: int):
        self.base, self.moments = base, moments
        self.works = prepare(base / "inputs")
        self._references: dict[str, dict[str, Any]] = {}
        self._seconds: dict[str, float] = {}
        self._folders = 0

    def folder(self) -> Path:
        self._folders += 1
        path = self.base / f"case-{self._folders}"
        path.mkdir()
        return path

    def reference(self, name: str) -> dict[str, Any]:
        if name not in self._references:
            folder = self.folder()
            start = time.monotonic()
            assert ended(self.works[name].forked(folder)) == 0, f"see {folder}.log"
            self._seconds[name] = time.monotonic() - start
            self._references[name] = outcome(folder)
        return self._references[name]

    def again(self, name: str, folder: Path, less: tuple[str, ...] = ()) -> str:
        """Run a command once more, undisturbed, and compare what it leaves, but for some files."""
        status = ended(self.works[name].forked(folder))
        if status:
            return f"again: status {status}, {said(folder)[-1]:.200}"
        if temporaries(folder):
            return "a temporary file is left"
        left, reference = outcome(folder), self.reference(name)
        names = (left.keys() | reference.keys()) - set(less)
        other = sorted(name for name in names if left.get(name) != reference.get(name))
        return f"differs: {', '.join(other)}" if other else "same result"


def said(folder: Path) -> list[str]:
    """The lines that forked commands printed."""
    log = folder.with_name(f"{folder.name}.log")
    return [line for line in log.read_text(errors="replace").splitlines() if line] or [""]


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    """Wait until something holds.

    Raises:
        TimeoutError: it does not, in time.
    """
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("expected the command to come to this point, found that it did not")
        time.sleep(0.001)


# Signals


def armed(process: "subprocess.Popen[str]") -> bool:
    """Whether a command's own code has begun: it has a handler for SIGTERM, Python has none."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = int(status.split("SigCgt:")[1].split()[0], 16)
        return process.poll() is not None or bool(caught >> (signal.SIGTERM - 1) & 1)
    return True


def interrupted(
    work: Work, folder: Path, number: int, seconds: float, times: int
) -> tuple[int, str]:
    """Send a signal to a real command and all that it started; its status and error output."""
    with work.real(folder, start_new_session=True) as process:
        wait_for(lambda: armed(process))
        time.sleep(seconds)
        for _ in range(times):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        _, errors = process.communicate()
    return process.returncode, errors


def signals(bench: Bench) -> Iterator[Row]:
    for name, number, times, moments in (
        ("train", signal.SIGINT, 1, 2 * bench.moments),
        ("train", signal.SIGINT, 2, bench.moments),
        ("train", signal.SIGTERM, 1, bench.moments),
        ("train", signal.SIGHUP, 1, bench.moments),
        ("sweep", signal.SIGINT, 1, bench.moments),
        ("sweep", signal.SIGTERM, 1, bench.moments),
        ("emergence", signal.SIGINT, 1, bench.moments),
        ("ablate", signal.SIGINT, 1, bench.moments),
    ):
        start = time.monotonic()
        with bench.works[name].real(bench.folder()) as process:
            wait_for(lambda process=process: armed(process))
            own = time.monotonic()
            process.communicate()
        before, whole_time = own - start, time.monotonic() - own
        stopped, problems = 0, []
        for moment in range(moments):
            folder, seconds = bench.folder(), whole_time * moment / moments
            status, errors = interrupted(bench.works[name], folder, number, seconds, times)
            stopped += status == 128 + number
            lines = [line for line in errors.splitlines() if line]
            if status not in (0, 128 + number) or len(lines) > 1 or "Traceback" in errors:
                problems.append(f"at {seconds:.2f} s status {status}, {len(lines)} lines: {errors}")
            elif bool(status) != bool(lines):
                problems.append(f"at {seconds:.2f} s status {status} and {len(lines)} lines")
            elif not whole(folder):
                problems.append(f"at {seconds:.2f} s a file is half written")
            elif (result := bench.again(name, folder)) != "same result":
                problems.append(f"at {seconds:.2f} s {result}")
        yield Row(
            f"{name}: {signal.Signals(number).name}{' twice' * (times > 1)} at {moments} moments "
            f"of {whole_time:.1f} s, from {before:.2f} s on",
            f"one line, status {128 + number}, then the same result",
            f"{stopped} stopped, {moments - stopped - len(problems)} were over; "
            + (f"{len(problems)} wrong: {problems}" if problems else "all the same result"),
            not problems and stopped > 0,
        )


# Output that nobody reads


def pipes(bench: Bench) -> Iterator[Row]:
    for name, kept in (("ablate", True), ("emergence", True), ("sweep", False), ("train", False)):
        folder = bench.folder()
        with bench.works[name].real(folder, stdout=subprocess.PIPE) as process:
            first = process.stdout.readline()
            process.stdout.close()
            errors = process.stderr.read()
        files = {path.name for path in folder.iterdir()}
        wanted = {Path(path).parts[0] for path in bench.reference(name)}
        ok = process.returncode in (0, 1) and not errors and bool(first)
        ok = ok and (not kept or files == wanted)
        again = bench.again(name, folder)
        yield Row(
            f"{name} | head -1",
            "no error output, status 0 or 1, then the same result",
            f"status {process.returncode}, {len(errors.splitlines())} lines, {again}",
            ok and again == "same result",
        )
    for what, options in (
        ("> /dev/full", {"stdout": open("/dev/full", "w")}),  # noqa: SIM115
        ("2> /dev/full", {"stderr": open("/dev/full", "w")}),  # noqa: SIM115
        ("2>&-", {"stderr": None, "preexec_fn": lambda: os.close(2)}),
        (">&-", {"stdout": None, "preexec_fn": lambda: os.close(1)}),
        ("<&-", {"stdin": None, "preexec_fn": lambda: os.close(0)}),
    ):
        folder = bench.folder()
        with bench.works["ablate"].real(folder, **options) as process:
            _, errors = process.communicate()
        lines, wanted = (errors or "").splitlines(), (2,) if what == "> /dev/full" else (0,)
        again = bench.again("ablate", folder)
        yield Row(
            f"ablate {what}",
            f"status {wanted[0]}, the files, at most one line",
            f"status {process.returncode}, {len(lines)} lines, {again}",
            process.returncode in wanted and len(lines) <= 1 and again == "same result",
        )


# Disks


@contextlib.contextmanager
def mounted(folder: Path, size: str) -> Iterator[Callable[[str], None] | None]:
    """A small tmpfs on a folder, and a function to remount it; None where we may not."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True
    )
    if done.returncode:
        yield None
        return

    def remount(options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", folder], check=True)

    try:
        yield remount
    finally:
        subprocess.run(["umount", folder], check=True)


def disk(bench: Bench) -> Iterator[Row]:
    sizes = {
        "train": ("4k", "8k", "16k", "32k", "64k"),
        "sweep": ("4k", "16k", "64k", "128k"),
        "emergence": ("4k", "1m"),
        "ablate": ("4k", "1m"),
    }
    for name, tried in sizes.items():
        for size in tried:
            folder = bench.folder()
            with mounted(folder, size) as remount:
                if remount is None:
                    limit = int(size.rstrip("km")) * (1024 if size[-1] == "k" else 2**20) // 4
                    child = bench.works[name].forked(
                        folder,
                        lambda limit=limit: resource.setrlimit(
                            resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY)
                        ),
                    )
                    how = f"files of at most {limit} bytes"
                else:
                    child, how = bench.works[name].forked(folder), f"tmpfs of {size}"
                status, lines = ended(child), said(folder)
                sound = whole(folder)
                if remount:
                    remount("size=64m")
                again = bench.again(name, folder)
            expected = (1, 2) if name == "sweep" else (2,)
            yield Row(
                f"{name}: {how}",
                f"status {' or '.join(map(str, expected))}, one line, then the same result",
                f"status {status}: {lines[-1]:.90}; {again}",
                status in expected
                and sound
                and not any("Traceback" in line for line in lines)
                and again == "same result",
            )


def readonly(bench: Bench) -> Iterator[Row]:
    for name in ("train", "sweep", "emergence", "ablate"):
        for state in ("new", "finished"):
            folder = bench.folder()
            with mounted(folder, "64m") as remount:
                if remount is None:
                    yield Row(f"{name}: read-only", "", "skipped: we may not mount a tmpfs", True)
                    return
                if state == "finished":
                    assert ended(bench.works[name].forked(folder)) == 0
                remount("ro")
                status, line = ended(bench.works[name].forked(folder)), said(folder)[-1]
                remount("rw")
                again = bench.again(name, folder)
            yield Row(
                f"{name}: read-only, {state} folder",
                "status 2, one line, then the same result",
                f"status {status}: {line:.90}; {again}",
                status == 2 and line.startswith(f"{name}: ") and again == "same result",
            )
    folder, inputs = bench.folder(), bench.base / "inputs"
    with mounted(folder, "64m") as remount:
        shutil.copytree(inputs / "run", folder / "run")
        assert remount is not None
        remount("ro")
        out, work = bench.folder(), bench.works["emergence"]
        arguments = [a.replace(str(inputs / "run"), str(folder / "run")) for a in work.arguments]
        status = ended(Work("emergence", tuple(arguments)).forked(out))
    yield Row("emergence of a read-only run", "status 0", f"status {status}", status == 0)


# Removed under a running command


def removed(bench: Bench) -> Iterator[Row]:
    run, cell = "run", "sweep/cells/layers-1-seed-0"
    log = "metrics.jsonl"
    kept = "run/checkpoints/step-000010.safetensors"
    # What goes, when (a file that is there), the status, and files that differ in the end.
    cases: list[tuple[str, str, str, tuple[int, ...], tuple[str, ...]]] = [
        ("train", kept, kept, (0,), (kept,)),
        ("train", f"{run}/checkpoints", kept, (2,), (kept,)),
        ("train", f"{run}/config.json", kept, (0,), ()),
        ("train", f"{run}/state.safetensors", f"{run}/state.safetensors", (0,), ()),
        ("train", f"{run}/{log}", f"{run}/{log}", (0,), ()),
        ("train", f"{run}/watch.jsonl", f"{run}/{log}", (0,), ()),
        ("train", f"{run}/lock", f"{run}/{log}", (2,), ()),
        ("train", run, kept, (2,), ()),
        ("sweep", f"{cell}/state.safetensors", f"{cell}/state.safetensors", (0,), ()),
        ("sweep", f"{cell}/lock", f"{cell}/state.safetensors", (1,), ()),
        ("sweep", cell, f"{cell}/state.safetensors", (1,), ()),
        ("sweep", "sweep/results", f"{cell}/state.safetensors", (2,), ()),
        ("sweep", "sweep/lock", f"{cell}/state.safetensors", (2,), ()),
        ("sweep", "sweep", f"{cell}/state.safetensors", (1, 2), ()),
    ]
    for name, target, present, statuses, less in cases:
        folder, trash = bench.folder(), bench.folder()
        child = bench.works[name].forked(folder)
        wait_for((folder / present).exists)
        if (folder / target).is_dir():
            (folder / target).rename(trash / "gone")
        else:
            (folder / target).unlink()
        status, lines = ended(child), said(folder)
        again = bench.again(name, folder, less)
        yield Row(
            f"{name}: {target} goes",
            f"status {' or '.join(map(str, statuses))}, then the same result"
            + (f" but for {len(less)} file" if less else ""),
            f"status {status}: {lines[-1]:.90}; {again}",
            status in statuses
            and not any("Traceback" in line for line in lines)
            and again == "same result",
        )


# Two processes


def two(bench: Bench) -> Iterator[Row]:
    for name, present in (("train", "run/metrics.jsonl"), ("sweep", "sweep/results")):
        folder = bench.folder()
        first = bench.works[name].forked(folder)
        wait_for((folder / present).exists)
        os.kill(first, signal.SIGSTOP)
        second, line = ended(bench.works[name].forked(folder)), said(folder)[-1]
        os.kill(first, signal.SIGCONT)
        status = ended(first)
        again = bench.again(name, folder)
        yield Row(
            f"{name}: a second process while one is at work",
            "status 2 and one line; the first ends with the same result",
            f"status {second}: {line:.90}; first {status}, {again}",
            (second, status) == (2, 0) and "no other process" in line and again == "same result",
        )
        problems: list[str] = []
        for _ in range(bench.moments):
            folder = bench.folder()
            children = [bench.works[name].forked(folder) for _ in range(2)]
            statuses = sorted(map(ended, children))
            # The one that comes when the other is done finds all finished.
            if statuses not in ([0, 0], [0, 2]) or "Traceback" in "".join(said(folder)):
                problems.append(f"statuses {statuses}: {said(folder)[-1]:.200}")
            elif (again := bench.again(name, folder)) != "same result":
                problems.append(again)
        yield Row(
            f"{name}: two started at once in a new folder, {bench.moments} times",
            "one ends with 0, the other with 2 or after it; the same result",
            f"{len(problems)} wrong {problems or ''}",
            not problems,
        )


# Clocks


def jump() -> None:
    """Have the wall clock of this process go back and forth by years."""
    import tqdm.std

    true, calls = time.time, [0]

    def jumping() -> float:
        calls[0] += 1
        return true() + (-1) ** calls[0] * 1e8

    time.time = tqdm.std.time = jumping


def clock(bench: Bench) -> Iterator[Row]:
    for name in ("train", "sweep", "emergence", "ablate"):
        folder = bench.folder()
        terminal, end = os.openpty()

        def before(end: int = end) -> None:
            jump()
            os.dup2(end, 2)

        start = time.monotonic()
        child = bench.works[name].forked(folder, before)
        os.close(end)
        shown = b""
        with contextlib.suppress(OSError):  # the other end closes
            while select.select([terminal], [], [], 120)[0] and (more := os.read(terminal, 65536)):
                shown += more
        status = ended(child)
        took = time.monotonic() - start
        os.close(terminal)
        seconds = [
            row["seconds"] for path in folder.rglob("metrics.jsonl") for row in read_rows(path)
        ]
        sane = all(0 <= value <= took for value in seconds)
        left = outcome(folder) == bench.reference(name)
        yield Row(
            f"{name}: clock set 3 years forth and back at each look, on a terminal",
            "status 0, 0 <= seconds <= those that passed, same result",
            f"status {status}, {len(seconds)} durations, up to {max(seconds, default=0):.1f} of "
            f"{took:.1f} s; {'same result' if left else 'differs'}",
            status == 0 and sane and left and b"Traceback" not in shown,
        )


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    from retrieval_interp.storage.files import read_json_lines

    return read_json_lines(path)


# Workers


def children_of(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def worker(bench: Bench) -> Iterator[Row]:
    for kills, wanted in ((1, 0), (2, 1)):
        folder = bench.folder()
        sweep = bench.works["sweep"].forked(folder)
        killed = set[int]()
        state = folder / "sweep" / "cells" / "layers-2-seed-0" / "metrics.jsonl"
        wait_for(state.exists)
        for _ in range(kills):
            while not (workers := set(children_of(sweep)) - killed):
                time.sleep(0.001)
            (found,) = workers
            os.kill(found, signal.SIGKILL)
            killed.add(found)
        status, line = ended(sweep), said(folder)[-1]
        again = bench.again("sweep", folder)
        yield Row(
            f"sweep: a worker is killed {'once' if kills == 1 else 'twice in one cell'}",
            f"status {wanted}, then the same result",
            f"status {status}: {line:.90}; {again}",
            status == wanted and again == "same result",
        )


CASES: dict[str, Callable[[Bench], Iterator[Row]]] = {
    case.__name__: case for case in (signals, pipes, disk, readonly, removed, two, clock, worker)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moments", type=int, default=6, help="of every signal")
    parser.add_argument("--case", nargs="+", default=list(CASES), choices=list(CASES))
    options = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="machine-"))
    bench = Bench(base, options.moments)
    rows = []
    for name in tqdm(options.case, disable=None):
        for row in CASES[name](bench):
            rows.append(row)
            print(f"{'ok' if row.ok else 'WRONG':<5}  {row.did}\n       expected {row.expected}")
            print(f"       found    {row.found}", flush=True)
    wrong = [row for row in rows if not row.ok]
    print(f"{len(rows)} cases, {len(wrong)} wrong")
    if wrong:
        print(f"see {base}")
        sys.exit(1)
    shutil.rmtree(base)


if __name__ == "__main__":
    main()
