"""Where the numbers of the reproduction come from.

Each is computed from a checkpoint or read from a result file that records its own command; from the
package first, then from a folder of finished runs. Result files are `<checkpoint>.circuit.json`
(`ablate --one-hot --save-circuit`), `<checkpoint>.emergence.json` (`emergence --json`),
`<grid>.json` (a sweep's summary.json) and `llm.json` (`llm plot --json`).
"""

from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from retrieval_interp.circuits import Circuit, Head, HeadPath, Scorer, discover
from retrieval_interp.circuits.losses import (
    Measured,
    Progress,
    mean_loss,
    no_progress,
    removed_losses,
    standard_error,
    with_cut,
)
from retrieval_interp.config import PRESETS
from retrieval_interp.emergence.series import Series, read_series
from retrieval_interp.storage import checkpoint as storage
from retrieval_interp.storage.files import read_text
from retrieval_interp.tasks import InputError
from retrieval_interp.tasks.structured import read_json

EXAMPLES = 512
LOSS_EXAMPLES = 4096  # examples differ a lot: on 512 the mean is uncertain by a quarter


def results_folder() -> Path:
    """The result files that are part of the package."""
    return Path(str(resources.files("retrieval_interp"))) / "results"


@dataclass(frozen=True)
class Worth:
    """What a circuit is worth: the losses of `score_circuit` that take seconds."""

    combined_loss: float  # with the circuit in place
    ablated: dict[HeadPath, float]  # with one path removed from the circuit
    as_such: tuple[Head, ...] = ()  # with a fixed pattern, needed as such


class Trained:
    """A trained transformer, its circuit, and the losses of both."""

    def __init__(self, name: str, where: str, file: Path | None, progress: Progress):
        self.name, self.where, self.file, self.progress = name, where, file, progress

    @cached_property
    def checkpoint(self) -> storage.Checkpoint:
        return storage.load_checkpoint(self.where)

    @property
    def ablate_command(self) -> str:
        """Finds the circuit and prints its numbers."""
        if self.file is not None:
            return made_by(_read(self.file).get("record"), self.file)
        return f"python -m retrieval_interp.ablate --ckpt {self.where} --one-hot"

    @cached_property
    def circuit(self) -> Circuit:
        """Made of one-hot paths, as in the paper; read from the result file, or found now."""
        model, task, config = self.checkpoint.model, self.checkpoint.task, self.checkpoint.config
        if self.file is not None:
            trained = f"{self.name} was trained on"
            return storage.read_circuit(self.file, task, config.layers, config.heads, trained)
        progress = self.progress
        circuit = discover(model, task, examples=EXAMPLES, shared=False, progress=progress)
        if circuit.unfinished:  # no claim is judged by it
            raise KeyboardInterrupt
        return circuit

    @cached_property
    def worth(self) -> Worth:
        """What the circuit is worth on fresh examples."""
        model, task, circuit = self.checkpoint.model, self.checkpoint.task, self.circuit
        scorer = Scorer(model, task, task.sample(EXAMPLES, split="test"))
        combined = scorer.rebase(circuit)
        removed = removed_losses(scorer, circuit, self.progress)
        ablated = {path: mean_loss(losses) for path, losses in removed}
        fixed = [head for head, mechanism in circuit.mechanisms.items() if mechanism.is_fixed]
        emptied = {head: Measured.of(scorer.each(with_cut(circuit, head))) for head in fixed}
        needed = (head for head, (loss, se) in emptied.items() if loss - 2 * se > task.tolerance)
        return Worth(combined, ablated, tuple(needed) if combined < task.tolerance else ())

    @cached_property
    def fresh_loss(self) -> tuple[float, float]:
        """The intact model's loss on LOSS_EXAMPLES fresh examples, and its standard error."""
        model, task = self.checkpoint.model, self.checkpoint.task
        losses = []
        starts = range(0, LOSS_EXAMPLES, EXAMPLES)
        for start in self.progress(starts, f"fresh examples of {self.name}"):
            batch = task.sample(EXAMPLES, split="test", start=start)
            with torch.no_grad():
                losses.append(task.example_losses(model(batch.inputs), batch).mean(dim=1))
        by_example = torch.cat(losses)
        return float(by_example.mean()), standard_error(by_example)


class Evidence:
    """Everything the claims are judged by; `runs` is searched after the package's own files."""

    def __init__(self, runs: Path = Path("runs"), progress: Progress = no_progress):
        self.runs, self.progress = runs, progress
        self.trained = cache(self._trained)

    def _trained(self, name: str) -> Trained | None:
        """A transformer by its preset's name; None if it has not been trained."""
        run, circuit = self.runs / name, self._file(f"{name}.circuit.json")
        if name in storage.shipped_checkpoints():
            return Trained(name, name, circuit, self.progress)
        last = run / f"checkpoints/step-{PRESETS[name].steps:06d}.safetensors"
        return Trained(name, str(run), circuit, self.progress) if last.is_file() else None

    def series(self, name: str) -> tuple[Series, str] | None:
        """A transformer's series through training, and the command that made it."""
        path = self._file(f"{name}.emergence.json")
        return (read_series(path), made_by(_read(path), path)) if path is not None else None

    def grid(self, name: str) -> tuple[dict[str, Any], str] | None:
        """The summary of a grid with finished cells, and the command that made it."""
        path = self._file(f"{name}.json", f"{name}/summary.json")
        if path is None or not (summary := _read(path)).get("finished"):
            return None
        return summary, made_by(summary, path)

    def answers(self) -> tuple[list[dict[str, Any]], str] | None:
        """How a language model answers the five formulations, and the command that says so."""
        path = self._file("llm.json")
        return (_read(path)["rows"], made_by(_read(path), path)) if path is not None else None

    def _file(self, name: str, in_runs: str | None = None) -> Path | None:
        places = [results_folder() / name, self.runs / (in_runs or name)]
        return next((path for path in places if path.is_file()), None)


def _read(path: Path) -> Any:
    return read_json(read_text(path, "a result file"), str(path))


def made_by(record: Any, path: Path) -> str:
    """The command that made a result file."""
    if not isinstance(record, dict) or "command" not in record:
        raise InputError(f"{path}: expected the command that made it, found none")
    return str(record["command"])
