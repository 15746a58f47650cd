"""One harness that ends commands in the midst of their work and looks at what is left.

    python -m tests.faults.kill [--command train sweep ...] [--how kill files ...] [--times 50]

1. A command runs undisturbed, twice; it has to leave the same files.
2. It is started and ended by force, one to eight times in a row (`WAYS`): by SIGKILL at a random
   moment or right before one of its operations on files, by Ctrl-C or a signal, by files that may
   not grow, or with a second process at the same folder. The moments are spread evenly.
3. After each end every file is whole, but for temporary ones and the last line of a log. A command
   that could still speak has said one line, and its status belongs to it.
4. Then the command is left alone. It has to leave what an undisturbed one leaves: the same weights
   to the last bit, the same numbers, but for dates and seconds (losses to 1e-5 where seeds train in
   common steps, sweep-seeds), no temporary file, and every cell of a sweep that was finished as it
   was.

Importing torch takes longer than the work, so most are forked off this process, which has imported
everything. Prints a row per command and way; the exit status is 1 if anything was wrong.
"""

import argparse
import contextlib
import hashlib
import importlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from retrieval_interp.circuits import parse_circuit
from retrieval_interp.commands.command import run_command
from retrieval_interp.config.recipe import Recipe
from retrieval_interp.model import ModelConfig
from retrieval_interp.storage.checkpoint import read_tensors
from retrieval_interp.storage.files import is_temporary
from retrieval_interp.tasks import RetrievalTask
from retrieval_interp.training.loop import train_model
from retrieval_interp.views.tables import text_table

ROOT = Path(__file__).parent.parent.parent
TINY = Recipe(
    task=RetrievalTask(chains=2, steps=1, dim=2),
    model=ModelConfig(layers=1, heads=1, d_model=8),
    steps=60,
    batch=8,
    examples=64,
    validation_examples=16,
    log_every=5,
    checkpoint_every=10,
)
_SWEEP = "--grid section7-ic --scale smoke --device cpu --threads 1 --out sweep --group "
COMMANDS = {
    "train": (
        "--task.chains 2 --task.steps 1 --task.dim 2 --model.layers 1 --model.heads 1 "
        "--model.d-model 8 --steps 60 --batch 8 --examples 64 --log-every 5 --checkpoint-every 10 "
        "--validation-examples 16 --no-compile --threads 1 --out run --watch {inputs}/circuit.json"
    ),
    "sweep": _SWEEP + "1",
    "sweep-seeds": _SWEEP + "2",
    "emergence": (
        "--run {inputs}/run --circuit {inputs}/circuit.json --examples 16 "
        "--json e.json --csv e.csv --report e.html"
    ),
    "ablate": (
        "--ckpt small --circuit {small} --examples 16 "
        "--json a.json --save-circuit c.json --report a.html"
    ),
}
IN_A_ROW = 8
VARYING = ("seconds", "seconds_per_step", "date", "first_date", "sha256", "seeds_together")
# The date of a page, and the random names that its drawings get.
_VARYING_TEXT = re.compile(r"\d{4}-\d\d-\d\dT[\d:]+\+00:00|attention-[0-9a-f]{12}")
# Of Python's audit events: open for writing, rename, delete, make a folder, set permissions.
_OPERATIONS = ("open", "os.rename", "os.remove", "os.mkdir", "os.chmod", "os.truncate", "os.rmdir")


@dataclass
class Work:
    """A command with all of its arguments; paths that it writes are relative.

    Attributes:
        name: of the command, and after a hyphen which way of running it.
        base: where every start has a folder.
        left: what it leaves undisturbed.
        seconds: and how long that takes.
        operations: and how many operations on files that are.
    """

    name: str
    base: Path
    left: dict[str, Any]
    seconds: float
    operations: int

    def __init__(self, name: str, base: Path) -> None:
        self.name, self.base = name, base
        assert ended(self.forked(base / "first")) == 0, f"see {base / 'first.log'}"
        self.left = outcome(base / "first")
        reader, writer = os.pipe()
        start = time.monotonic()  # the first was slower than all others
        child = self.forked(
            base / "second", lambda: on_operations(lambda _: os.write(writer, b"."))
        )
        os.close(writer)
        with os.fdopen(reader, "rb") as stream:
            self.operations = len(stream.read())
        assert ended(child) == 0
        self.seconds = time.monotonic() - start
        assert not self.differing(base / "second"), "expected the same from the same command twice"

    def command(self) -> tuple[str, list[str]]:
        """The module, and what is typed after it."""
        small = ROOT / "retrieval_interp" / "results" / "small.circuit.json"
        line = COMMANDS[self.name].format(inputs=self.base.parent / "inputs", small=small)
        return f"retrieval_interp.{self.name.split('-')[0]}", line.split()

    def forked(self, folder: Path, before: Callable[[], object] = lambda: None) -> int:
        """Start it in a child of this process, which does something before; returns its id."""
        folder.mkdir(parents=True, exist_ok=True)
        name, arguments = self.command()
        module = importlib.import_module(name)
        if hasattr(module, "__path__"):
            module = importlib.import_module(f"{name}.__main__")
        sys.stdout.flush()
        child = os.fork()
        if child:
            return child
        status = 70
        try:
            os.chdir(folder)
            log = os.open(f"../{folder.name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1), os.dup2(log, 2)
            os.environ["PYTHONPATH"] = str(ROOT)
            sys.argv[1:] = arguments
            before()
            run_command(module.main, f"python -m {name}")
            status = 0
        except SystemExit as stop:
            status = int(stop.code or 0)
        finally:
            with contextlib.suppress(OSError):
                sys.stdout.flush()
            os._exit(status)

    def real(self, folder: Path) -> "subprocess.Popen[str]":
        """Start the command as a user does, in a process group of its own."""
        folder.mkdir(parents=True, exist_ok=True)
        name, arguments = self.command()
        return subprocess.Popen(
            [sys.executable, "-m", name, *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def differing(self, folder: Path) -> list[str]:
        """The files that are not as those of an undisturbed command."""
        tolerance = 1e-5 if self.name == "sweep-seeds" else 0.0
        left = outcome(folder)
        names = sorted(left.keys() | self.left.keys())
        return [n for n in names if not same(left.get(n), self.left.get(n), tolerance)]


def ended(child: int) -> int:
    """Wait for a forked command; its exit status, or the negative number of a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# What is left


def temporaries(folder: Path) -> list[Path]:
    """Files that are not finished."""
    return [path for path in folder.rglob("*") if is_temporary(path)]


def outcome(folder: Path) -> dict[str, Any]:
    """What a command left: every file but locks, without dates and seconds.

    Raises:
        ValueError: a file is not whole.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path.relative_to(folder)): _content(path) for path in files}


def half_written(folder: Path) -> list[str]:
    """Files that are not whole; not meant are temporary ones and the last line of a log."""
    found = []
    for path in folder.rglob("*"):
        try:
            if path.suffix == ".jsonl":
                [json.loads(line) for line in path.read_text().split("\n")[:-1]]
            elif path.is_file() and path.name != "lock" and not is_temporary(path):
                _content(path)
        except ValueError as error:
            found.append(f"{path}: {error}")
    return found


def same(one: Any, other: Any, tolerance: float) -> bool:
    """Whether two outcomes are equal; with a tolerance of losses, weights need not be."""
    if isinstance(one, dict) and isinstance(other, dict):
        names = (one.keys() | other.keys()) - ({"weights"} if tolerance else set())
        return all(n in one and n in other and same(one[n], other[n], tolerance) for n in names)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(a, b, tolerance) for a, b in zip(one, other))
    if isinstance(one, float) and isinstance(other, float) and tolerance:
        return abs(one - other) <= tolerance
    return bool(one == other)


def _content(path: Path) -> Any:
    if path.suffix == ".safetensors":
        tensors, content = read_tensors(path, "a whole file")
        data = {name: tensor.numpy().tobytes() for name, tensor in sorted(tensors.items())}
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        return {**_steady(content), "shapes": shapes, "weights": _digest(repr(data))}
    text = path.read_text()
    if path.suffix == ".json":
        return _steady(json.loads(text))
    if path.suffix == ".jsonl":
        return [_steady(json.loads(line)) for line in text.splitlines()]
    if path.suffix == ".html" and not text.rstrip().endswith("</html>"):
        raise ValueError("expected a whole page")
    return _digest(_VARYING_TEXT.sub("", text))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _steady(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _steady(value) for key, value in data.items() if key not in VARYING}
    return [_steady(value) for value in data] if isinstance(data, list) else data


def finished_cells(folder: Path) -> dict[Path, int]:
    """When the results and metrics of a sweep's finished cells were written."""
    names = [path.stem for path in folder.glob("sweep/results/*.json")]
    files = [folder / "sweep" / "results" / f"{name}.json" for name in names]
    files += [folder / "sweep" / "cells" / name / "metrics.jsonl" for name in names]
    return {path: path.stat().st_mtime_ns for path in files if path.exists()}


# Ways to end a command: each starts it in a folder, and gives whether it came to the moment, from 0
# to 1 of the whole, and what was wrong.

Way = Callable[[Work, Path, float], tuple[bool, str]]


def on_operations(act: Callable[[int], object]) -> None:
    """Call a function with a rising number before every operation that changes a file here.

    Those of this process are meant: a worker that it starts makes its own.
    """
    number, here, process = 0, os.getcwd(), os.getpid()

    def hook(event: str, arguments: Any) -> None:
        nonlocal number
        if event not in _OPERATIONS or os.getpid() != process:
            return
        if not isinstance(arguments[0], (str, bytes, os.PathLike)):
            return
        reads = event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if reads or not os.path.abspath(os.fsdecode(arguments[0])).startswith(here):
            return
        number += 1
        act(number - 1)

    sys.addaudithook(hook)


def kill(work: Work, folder: Path, moment: float) -> tuple[bool, str]:
    child = work.forked(folder)
    end = time.monotonic() + moment * work.seconds
    while (left := end - time.monotonic()) > 0:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False, ""
        time.sleep(min(0.002, left))
    os.kill(child, signal.SIGKILL)
    return ended(child) == -signal.SIGKILL, ""


def files(work: Work, folder: Path, moment: float) -> tuple[bool, str]:
    def act(number: int) -> None:
        if number == int(moment * work.operations):
            os.kill(os.getpid(), signal.SIGKILL)

    return ended(work.forked(folder, lambda: on_operations(act))) == -signal.SIGKILL, ""


def _signalled(number: int, work: Work, folder: Path, moment: float) -> tuple[bool, str]:
    """In a real command, from its own first line on: before that Python itself answers."""
    with work.real(folder) as process:
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None and not _caught(status.read_text(), signal.SIGTERM):
            time.sleep(0.001)
        time.sleep(moment * (work.seconds + 5))  # libraries are loaded first
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        _, errors = process.communicate()
    return _judge(process.returncode, errors, (128 + number,))


def _caught(status: str, number: int) -> bool:
    return bool(int(status.split("SigCgt:")[1].split()[0], 16) >> (number - 1) & 1)


def full(work: Work, folder: Path, moment: float) -> tuple[bool, str]:
    limit = int(200 * 5000**moment)  # from 200 bytes to a megabyte
    unlimited = resource.RLIM_INFINITY
    set_limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (limit, unlimited))
    status = ended(work.forked(folder, set_limit))
    errors = folder.with_name(f"{folder.name}.log").read_text()
    if not status:
        return False, ""
    return _judge(status, errors.splitlines()[-1], (2, 1) if "sweep" in work.name else (2,))


def _judge(status: int, errors: str, wanted: Sequence[int]) -> tuple[bool, str]:
    lines = [line for line in errors.splitlines() if line]
    if status == 0 and not lines:
        return False, ""
    right = status in wanted and len(lines) == 1 and "Traceback" not in errors
    return True, "" if right else f"status {status}, {len(lines)} lines: {errors[-300:]}"


def two(work: Work, folder: Path, moment: float) -> tuple[bool, str]:
    first = work.forked(folder)
    time.sleep(moment * work.seconds)
    statuses = (ended(work.forked(folder)), ended(first))
    # The one that comes when the other is done finds all finished.
    return True, "" if sorted(statuses) in ([0, 0], [0, 2]) else f"statuses {statuses}"


WAYS: dict[str, Way] = {
    **{way.__name__: way for way in (kill, files, full)},
    **{
        name: partial(_signalled, getattr(signal, name)) for name in ("SIGINT", "SIGTERM", "SIGHUP")
    },
    "two": two,
}


def campaign(work: Work, name: str, moments: Sequence[float], draw: random.Random) -> Iterator[str]:
    """Series of ends, each followed by a run that is left alone: a line per end and per fault."""
    waiting, series = draw.sample(moments, len(moments)), 0
    while waiting:
        series += 1
        folder, cells, wrong = work.base / f"{name}-{series}", dict[Path, int](), list[str]()
        for row in range(draw.randint(1, IN_A_ROW)):
            moment = waiting.pop() if waiting else None
            if moment is None:
                break
            came, fault = WAYS[name](work, folder, moment)
            if not came:  # as part had been done before; from the start it comes to this moment
                waiting += [moment] if row else []
                break
            yield "writing" if temporaries(folder) else "ended"
            wrong += [fault] if fault else []
            wrong += half_written(folder)
            cells |= finished_cells(folder)
        status = ended(work.forked(folder))
        wrong += [f"then status {status}"] if status else []
        wrong += [f"{path} is left" for path in temporaries(folder)]
        wrong += [f"{path} differs" for path in work.differing(folder) if not temporaries(folder)]
        wrong += (
            ["a finished cell was redone"] if cells.items() - finished_cells(folder).items() else []
        )
        if not wrong:
            shutil.rmtree(folder)
        for fault in wrong:
            print(f"{work.name}, {name}: {folder}: {fault}")
            yield "wrong"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", nargs="+", default=list(COMMANDS), choices=list(COMMANDS))
    parser.add_argument("--how", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--times", type=int, default=50, help="a quarter of it for signals and two")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    base = Path(tempfile.mkdtemp(prefix="kill-"))
    torch.set_num_threads(1)
    (base / "inputs").mkdir()
    circuit = parse_circuit(["L0.H0 one-hot s0<-s2"], TINY.task)
    (base / "inputs" / "circuit.json").write_text(circuit.to_json())
    train_model(TINY, base / "inputs" / "run", "cpu", compile=False)
    rows = []
    for command in options.command:
        work = Work(command, base / command)
        for name in options.how:
            draw = random.Random(f"{command} {name} {options.seed}")
            times = options.times if name in ("kill", "files") else -(-options.times // 4)
            moments = [(i + draw.random()) / times for i in range(times)]
            found = list(campaign(work, name, moments, draw))
            wrong = found.count("wrong")
            cells = (len(found) - wrong, found.count("writing"), wrong)
            rows.append([command, name, *map(str, cells)])
            print(*rows[-1], flush=True)
    header = ["command", "ended by", "times", "of them while a file was written", "wrong"]
    print("\n".join(text_table(header, rows, right=(2, 3, 4))))
    if any(row[-1] != "0" for row in rows):
        sys.exit(f"something was wrong: see above, and {base}")
    shutil.rmtree(base)


if __name__ == "__main__":
    main()
