"""Where the numbers of the reproduction come from.

No number is typed in by hand: each is computed from a checkpoint, or read from a result file that
records its own command, versions and date. Both are looked up in the package first (`checkpoints/`,
`results/`), then in a folder of finished runs.

    results/<checkpoint>.circuit.json     a circuit, as `ablate --one-hot --save-circuit` writes it
    results/<checkpoint>.emergence.json   a series, as `emergence --json` writes it
    results/<grid>.json                   a grid, as `sweep` writes it (summary.json)
"""

import re
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from retrieval_interp.circuits import Circuit, HeadPath, Scorer
from retrieval_interp.circuits import discover as discover_circuit
from retrieval_interp.circuits.runs.losses import standard_error
from retrieval_interp.circuits.scores.scorer import Progress, no_progress
from retrieval_interp.commands.search_line import line_with
from retrieval_interp.config.presets import PRESETS
from retrieval_interp.config.recipe import Recipe
from retrieval_interp.emergence.series import Series, read_series
from retrieval_interp.storage.checkpoint import Checkpoint, load_checkpoint, shipped_checkpoints
from retrieval_interp.storage.circuit_file import read_circuit
from retrieval_interp.storage.files import read_part, read_text
from retrieval_interp.tasks import InputError
from retrieval_interp.tasks.structured import from_data, read_json

EXAMPLES = 512
LOSS_EXAMPLES = 4096  # examples differ a lot: on 512 the mean is uncertain by a quarter


def results_folder() -> Path:
    """The result files that are part of the package."""
    return Path(str(resources.files("retrieval_interp"))) / "results"


@dataclass(frozen=True)
class Worth:
    """What a circuit is worth: the losses of `score_circuit` that take seconds."""

    combined_loss: float  # with the circuit in place
    ablated: dict[HeadPath, float]  # with the circuit in place except for one path


@dataclass(frozen=True)
class Record:
    """How a result file was made."""

    command: str
    versions: dict[str, Any]  # of libraries by name
    date: str  # ISO format


class Trained:
    """A trained transformer, its circuit, and the losses of both."""

    def __init__(self, name: str, where: str, circuit: Path | None, progress: Progress):
        self.name, self.where = name, where
        self._circuit_file, self._progress = circuit, progress

    @cached_property
    def checkpoint(self) -> Checkpoint:
        return load_checkpoint(self.where)

    @property
    def recipe(self) -> Recipe:
        """The recipe in the checkpoint's training record."""
        recorded = self.checkpoint.training.get("recipe")
        recipe: Recipe = from_data(Recipe, recorded, f"{self.where}: recipe")
        return recipe

    @property
    def command(self) -> str:
        """Makes the checkpoint."""
        return f"python -m retrieval_interp.train --preset {self.name}"

    @property
    def ablate_command(self) -> str:
        """Finds the circuit and prints its numbers."""
        if self._circuit_file is not None:
            file = self._circuit_file
            return _record(_read(file).get("record"), f"{file}: record").command
        return f"python -m retrieval_interp.ablate --ckpt {self.where} --one-hot"

    @property
    def tolerance(self) -> float:
        """The loss that the circuit had to stay below: the command's, else the task's."""
        given = re.search(r"--tolerance[= ]([0-9.]+)", self.ablate_command)
        return float(given[1]) if given else self.checkpoint.task.tolerance

    @cached_property
    def circuit(self) -> Circuit:
        """Made of one-hot paths, as in the paper; read from the result file, or found now."""
        checkpoint = self.checkpoint
        if self._circuit_file is not None:
            trained = f"{self.name} was trained on"
            sizes = checkpoint.config.layers, checkpoint.config.heads
            return read_circuit(self._circuit_file, checkpoint.task, *sizes, trained)
        line, model = line_with(self._progress), checkpoint.model
        found = discover_circuit(
            model, checkpoint.task, examples=EXAMPLES, shared=False, progress=line
        )
        if found.unfinished:  # no claim is judged by it
            raise KeyboardInterrupt
        return found

    @cached_property
    def worth(self) -> Worth:
        """What the circuit is worth on fresh examples."""
        checkpoint, circuit = self.checkpoint, self.circuit
        batch = checkpoint.task.sample(EXAMPLES, split="test")
        scorer = Scorer(checkpoint.model, checkpoint.task, batch)
        combined = scorer.rebase(circuit)
        paths = self._progress(list(circuit.paths()), f"paths of {self.name}")
        ablated = {path: scorer.loss(circuit.without(path)) for path in paths}
        return Worth(combined, ablated)

    @cached_property
    def fresh_loss(self) -> tuple[float, float]:
        """The intact model's loss on LOSS_EXAMPLES fresh examples, and its standard error."""
        model, task = self.checkpoint.model, self.checkpoint.task
        losses = []
        starts = range(0, LOSS_EXAMPLES, EXAMPLES)
        for start in self._progress(starts, f"fresh examples of {self.name}"):
            batch = task.sample(EXAMPLES, split="test", start=start)
            with torch.no_grad():
                losses.append(task.example_losses(model(batch.inputs), batch).mean(dim=1))
        each = torch.cat(losses)
        return float(each.mean()), standard_error(each)

    @property
    def validation_loss(self) -> float | None:
        """The mean over the run's last 100 steps (section 7.1), from its training record."""
        loss = self.checkpoint.training.get("validation_loss")
        return float(loss) if loss is not None else None


class Evidence:
    """Everything the claims are judged by.

    Args:
        runs: folder of finished runs, searched after the package's own files.
        progress: wraps an iterable to show a bar, as `(items, text)`.
    """

    def __init__(self, runs: Path = Path("runs"), progress: Progress = no_progress):
        self.runs, self.progress = runs, progress
        self._trained: dict[str, Trained | None] = {}

    def trained(self, name: str) -> Trained | None:
        """A transformer by its preset's name; None if it has not been trained."""
        if name not in self._trained:
            run = self.runs / name
            last = run / f"checkpoints/step-{PRESETS[name].steps:06d}.safetensors"
            circuit = self._file(f"{name}.circuit.json")
            self._trained[name] = None
            if name in shipped_checkpoints():
                self._trained[name] = Trained(name, name, circuit, self.progress)
            elif last.is_file():
                self._trained[name] = Trained(name, str(run), circuit, self.progress)
        return self._trained[name]

    def series(self, name: str) -> tuple[Series, Record] | None:
        """A transformer's series through training, and how it was made."""
        path = self._file(f"{name}.emergence.json")
        return (read_series(path), _record(_read(path), str(path))) if path is not None else None

    def grid(self, name: str) -> dict[str, Any] | None:
        """The summary of a grid, shipped or of a finished sweep."""
        path = self._file(f"{name}.json", f"{name}/summary.json")
        if path is None:
            return None
        summary = _read(path)
        if summary.get("grid") != name or not summary.get("finished"):
            raise InputError(f"{path}: expected a summary of {name} with finished cells")
        _record(summary, str(path))
        return summary

    def _file(self, name: str, in_runs: str | None = None) -> Path | None:
        places = [results_folder() / name, self.runs / (in_runs or name)]
        return next((path for path in places if path.is_file()), None)


def _read(path: Path) -> dict[str, Any]:
    """A result file as JSON data."""
    data = read_json(read_text(path, "a result file"), str(path))
    if not isinstance(data, dict):
        raise InputError(f"{path}: expected a result file, found {type(data).__name__}")
    return data


def _record(data: Any, where: str) -> Record:
    """The part of a result file that says how it was made."""
    return read_part(Record, data, f"{where}: how it was made")
