"""Where the numbers of the reproduction come from.

Nothing is typed in by hand: a number is computed here from a checkpoint, or read from a result file
that carries its own command, versions and date. Each is looked for in the package first
(`checkpoints/`, `results/`), then among the finished runs of a folder.

    results/<checkpoint>.circuit.json     a circuit, as `ablate --one-hot --save-circuit` writes it
    results/<checkpoint>.emergence.json   a series, as `emergence --json` writes it
    results/<grid>.json                   a grid, as `sweep` writes it (summary.json)
"""

import json
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from circuits import Circuit, CircuitScore, score_circuit
from circuits import discover as discover_circuit
from circuits.scoring import Progress, no_progress
from retrieval_interp.checkpoint import Checkpoint, load_checkpoint, shipped_checkpoints
from retrieval_interp.circuit_file import read_circuit
from retrieval_interp.emergence.series import Series, read_series
from retrieval_interp.files import read_text
from retrieval_interp.recipe import PRESETS, Recipe
from tasks import InputError

EXAMPLES = 512
_RECORD = ("command", "versions", "date")


def results_folder() -> Path:
    """The result files that are part of the package."""
    return Path(str(resources.files("retrieval_interp"))) / "results"


class Trained:
    """A trained transformer: its checkpoint, its circuit, and what both are worth."""

    def __init__(self, name: str, where: str, circuit: Path | None, progress: Progress):
        self.name, self.where = name, where
        self._circuit_file, self._progress = circuit, progress

    @property
    def recipe(self) -> Recipe:
        """The preset of this name."""
        return PRESETS[self.name]

    @cached_property
    def checkpoint(self) -> Checkpoint:
        return load_checkpoint(self.where)

    @property
    def command(self) -> str:
        """What makes the checkpoint."""
        return f"python -m retrieval_interp.train --preset {self.name}"

    @property
    def ablate_command(self) -> str:
        """What prints the circuit's numbers."""
        return f"python -m retrieval_interp.ablate --ckpt {self.where} --one-hot"

    @cached_property
    def circuit(self) -> Circuit:
        """Of one-hot paths alone, as the paper's; from the result file, or found now."""
        checkpoint = self.checkpoint
        if self._circuit_file is not None:
            trained = f"{self.name} was trained on"
            sizes = checkpoint.config.layers, checkpoint.config.heads
            return read_circuit(self._circuit_file, checkpoint.task, *sizes, trained)
        return discover_circuit(
            checkpoint.model,
            checkpoint.task,
            examples=EXAMPLES,
            shared=False,
            progress=self._progress,
        )

    @cached_property
    def score(self) -> CircuitScore:
        """Of the circuit, on fresh examples; `tolerance` as in the paper."""
        checkpoint = self.checkpoint
        batch = checkpoint.task.sample(EXAMPLES, split="test")
        return score_circuit(
            checkpoint.model, checkpoint.task, self.circuit, batch, progress=self._progress
        )

    @property
    def validation_loss(self) -> float | None:
        """The mean over the run's last 100 steps, from its training record (section 7.1)."""
        loss = self.checkpoint.training.get("validation_loss")
        return float(loss) if loss is not None else None


class Evidence:
    """Everything there is to judge the claims by.

    Args:
        runs: where finished runs are looked for after the package's own files.
        progress: wraps an iterable to show a bar, as `(items, text)`.
    """

    def __init__(self, runs: Path = Path("runs"), progress: Progress = no_progress):
        self.runs, self.progress = runs, progress
        self._trained: dict[str, Trained | None] = {}

    def trained(self, name: str) -> Trained | None:
        """A transformer by its preset's name; None where it has not been trained."""
        if name not in self._trained:
            where = self._checkpoint(name)
            circuit = self._file(f"{name}.circuit.json")
            self._trained[name] = (
                Trained(name, where, circuit, self.progress) if where is not None else None
            )
        return self._trained[name]

    def _checkpoint(self, name: str) -> str | None:
        if name in shipped_checkpoints():
            return name
        run = self.runs / name
        last = f"checkpoints/step-{PRESETS[name].steps:06d}.safetensors"
        return str(run) if (run / last).is_file() else None

    def series(self, name: str) -> tuple[Series, dict[str, Any]] | None:
        """A transformer's series through training, and the file's record of itself."""
        path = self._file(f"{name}.emergence.json")
        return (read_series(path), _read(path)) if path is not None else None

    def grid(self, name: str) -> dict[str, Any] | None:
        """A grid's summary, the package's or that of a finished sweep."""
        path = self._file(f"{name}.json", f"{name}/summary.json")
        if path is None:
            return None
        summary = _read(path)
        if summary.get("grid") != name or not summary.get("finished"):
            raise InputError(f"{path}: expected a summary of {name} with finished cells")
        return summary

    def _file(self, name: str, in_runs: str | None = None) -> Path | None:
        places = [results_folder() / name, self.runs / (in_runs or name)]
        return next((path for path in places if path.is_file()), None)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(read_text(path, "a result file"))
        missing = [key for key in _RECORD if key not in data]
    except (ValueError, TypeError, RecursionError):
        raise InputError(f"{path}: expected a result file (JSON), found other text") from None
    if missing:
        raise InputError(
            f"{path}: expected a result file that says how it was made, found none of its "
            f"{missing[0]!r}"
        )
    return dict(data)
