"""Commands that take a second or two, how to start them, and what they leave behind.

A command runs in a folder of its own. Importing torch takes longer than the work, so most are
forked off this process, which has imported everything (`forked`); the others are `real`.
"""

import hashlib
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import torch

from circuits import parse_circuit
from retrieval_interp.cli.command import run_command
from retrieval_interp.config.recipe import Recipe
from retrieval_interp.storage.checkpoint import read_tensors
from retrieval_interp.storage.files import is_temporary
from retrieval_interp.sweep import cells, executors
from retrieval_interp.training.loop import train_model
from retrieval_interp.training.model import ModelConfig
from tasks import RetrievalTask

TINY = Recipe(
    task=RetrievalTask(chains=2, steps=1, dim=2),
    model=ModelConfig(layers=1, heads=1, d_model=8),
    steps=60,
    batch=8,
    examples=64,
    log_every=5,
    checkpoint_every=10,
    validation_examples=16,
)
_TRAIN = (
    "--task.chains 2 --task.steps 1 --task.dim 2 --model.layers 1 --model.heads 1 "
    "--model.d-model 8 --steps 60 --batch 8 --examples 64 --log-every 5 --checkpoint-every 10 "
    "--validation-examples 16 --no-compile --threads 1 --out run --watch {inputs}/circuit.json"
)
_SWEEP = "--grid section7-ic --scale smoke --device cpu --threads 1 --out sweep --group "
COMMANDS = {
    "train": _TRAIN,
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
VARYING = ("seconds", "seconds_per_step", "date", "first_date", "sha256", "seeds_together")
LOSS_TOLERANCE = 1e-5
# The date of a page, and the random names that its drawings get.
_VARYING_TEXT = re.compile(r"\d{4}-\d\d-\d\dT[\d:]+\+00:00|attention-[0-9a-f]{12}")


@dataclass(frozen=True)
class Work:
    """A command with all of its arguments; paths that it writes are relative.

    Attributes:
        name: of the command, and after a hyphen which way of running it.
        arguments: what is typed after it.
    """

    name: str
    arguments: tuple[str, ...]

    @property
    def module(self) -> str:
        return f"retrieval_interp.{self.name.split('-')[0]}"

    def same(self, one: Any, other: Any) -> bool:
        """Whether two outcomes are equal.

        Seeds that train in common steps have the losses of their single runs up to rounding, and
        after a kill one of them may be ahead, so that they go on alone: of these the losses are
        compared, to 1e-5, and not the weights.
        """
        if self.name != "sweep-seeds":
            return bool(one == other)
        if isinstance(one, dict) and isinstance(other, dict):
            names = one.keys() | other.keys()
            return all(k in one and k in other and self.same(one[k], other[k]) for k in names)
        if isinstance(one, list) and isinstance(other, list):
            return len(one) == len(other) and all(map(self.same, one, other))
        if isinstance(one, Weights) and isinstance(other, Weights):
            return one.shapes == other.shapes
        if isinstance(one, float) and isinstance(other, float):
            return abs(one - other) <= LOSS_TOLERANCE
        return bool(one == other)

    def forked(self, folder: Path, before: Callable[[], None] = lambda: None) -> int:
        """Run in a child of this process; returns its id.

        Args:
            folder: where it runs, created if missing.
            before: what the child does first.
        """
        folder.mkdir(parents=True, exist_ok=True)
        module = importlib.import_module(self.module)
        if hasattr(module, "__path__"):
            module = importlib.import_module(f"{self.module}.__main__")
        sys.stdout.flush()
        child = os.fork()
        if child:
            return child
        status = 70
        try:
            os.chdir(folder)
            log = os.open(f"../{folder.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1), os.dup2(log, 2)
            os.environ["PYTHONPATH"] = str(ROOT)
            sys.argv[1:] = self.arguments
            executors.subprocess = ForkedWorkers  # type: ignore[assignment]
            before()
            run_command(module.main, f"python -m {self.module}")
            status = 0
        except SystemExit as stop:
            status = int(stop.code or 0)
        finally:
            sys.stdout.flush()
            os._exit(status)

    def real(self, folder: Path, **options: Any) -> "subprocess.Popen[str]":
        """Start the command as a user does; `options` are those of Popen."""
        folder.mkdir(parents=True, exist_ok=True)
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        return subprocess.Popen(
            [sys.executable, "-m", self.module, *self.arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            **options,
        )


@dataclass(frozen=True)
class Weights:
    """A checkpoint's tensors: their shapes, and a digest of every bit."""

    shapes: dict[str, tuple[int, ...]]
    digest: str


class ForkedWorkers:
    """Stands for the module `subprocess` where a sweep starts its workers: they are forked too."""

    PIPE = subprocess.PIPE

    class Popen:
        def __init__(self, _: Any, stderr: Any, env: dict[str, str], **__: Any):
            (job, self_stdin), (self_stdout, answers) = os.pipe(), os.pipe()
            self.pid = os.fork()
            if not self.pid:
                os.setsid()
                os.dup2(job, 0), os.dup2(answers, 1), os.dup2(stderr.fileno(), 2)
                os.closerange(3, 64)  # locks of the sweep among them
                os.environ.update(env)
                try:
                    cells.worker()
                finally:
                    os._exit(0)
            os.close(job), os.close(answers)
            self.stdin, self.stdout = os.fdopen(self_stdin, "w"), os.fdopen(self_stdout)

        def wait(self) -> int:
            return ended(self.pid)


def prepare(inputs: Path) -> dict[str, Work]:
    """Make what the commands read, and the commands, by name."""
    torch.set_num_threads(1)
    inputs.mkdir(parents=True)
    circuit = parse_circuit(["L0.H0 one-hot s0<-s2"], TINY.task)
    (inputs / "circuit.json").write_text(circuit.to_json())
    train_model(TINY, inputs / "run", "cpu", compile=False)
    small = ROOT / "retrieval_interp" / "results" / "small.circuit.json"
    return {
        name: Work(name, tuple(line.format(inputs=inputs, small=small).split()))
        for name, line in COMMANDS.items()
    }


def ended(child: int) -> int:
    """Wait for a forked command; its exit status, or the negative number of a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


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


def whole(folder: Path) -> bool:
    """Whether every file is, but for temporary ones and the last line of a log."""
    files = [path for path in folder.rglob("*") if path.is_file() and not is_temporary(path)]
    try:
        for path in files:
            if path.suffix == ".jsonl":
                for line in path.read_text().split("\n")[:-1]:
                    json.loads(line)
            elif path.name != "lock":
                _content(path)
    except ValueError as error:
        print(f"{path}: {error}")
        return False
    return True


def _content(path: Path) -> Any:
    if path.suffix == ".safetensors":
        tensors, content = read_tensors(path, "a whole file")
        data = {name: tensor.numpy().tobytes() for name, tensor in sorted(tensors.items())}
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        digest = hashlib.sha256(repr(data).encode()).hexdigest()
        return [_steady(content), Weights(shapes, digest)]
    text = path.read_text()
    if path.suffix == ".json":
        return _steady(json.loads(text))
    if path.suffix == ".jsonl":
        return [_steady(json.loads(line)) for line in text.splitlines()]
    if path.suffix == ".html" and not text.rstrip().endswith("</html>"):
        raise ValueError(f"{path}: expected a whole page")
    return hashlib.sha256(_VARYING_TEXT.sub("", text).encode()).hexdigest()


def _steady(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _steady(value) for key, value in data.items() if key not in VARYING}
    return [_steady(value) for value in data] if isinstance(data, list) else data
