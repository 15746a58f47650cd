"""Where the numbers of the reproduction come from.

Each is computed from a checkpoint or read from a result file that records its own command; from the
package first, then from a folder of finished runs. Result files are `<checkpoint>.circuit.json`
(`ablate --one-hot --save-circuit`; `.alone.circuit.json` of `benchmarks/paper_search.py --save`),
`<checkpoint>.emergence.json` (`emergence --json`), `<grid>.json` (a sweep's summary.json) and
`llm.json` (`llm score --json` or `llm plot --json`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, reduce
from importlib import resources
from math import nan
from pathlib import Path
from typing import Any

import torch

from retrieval_interp.circuits import Circuit, Head, HeadPath, RolePath, Scorer
from retrieval_interp.circuits.losses import (
    Progress,
    mean_loss,
    no_progress,
    removed_losses,
    standard_error,
)
from retrieval_interp.circuits.mechanisms import ORIGINAL, UNIFORM
from retrieval_interp.emergence.series import Series, read_series
from retrieval_interp.llm.results import AccuracyRow, read_results
from retrieval_interp.storage import checkpoint as storage
from retrieval_interp.storage.files import read_text
from retrieval_interp.tasks import InputError
from retrieval_interp.tasks.structured import read_json

ALONE = ".alone"  # how a circuit was found: each head alone, by the paper's procedure
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
    together: Mapping[RolePath, float] = field(default_factory=dict)  # removed from all its heads
    useful: tuple[Head, ...] = ()  # with a path, or left as they are
    first_uniform: float = nan  # with the first useful layer uniform


class Shipped:
    """A shipped transformer, its circuit, and the losses of both."""

    def __init__(self, name: str, file: Path, progress: Progress):
        self.name, self.file, self.progress = name, file, progress
        self.checkpoint = storage.load_checkpoint(name)
        self.model, self.task = self.checkpoint.model, self.checkpoint.task

    @property
    def circuit_command(self) -> str:
        return made_by(_read(self.file).get("record"), self.file)

    @cached_property
    def circuit(self) -> Circuit:
        """Made of one-hot paths, as in the paper."""
        trained = f"{self.name} was trained on"
        return storage.read_circuit(self.file, self.task, self.model, trained)

    @cached_property
    def worth(self) -> Worth:
        """What the circuit is worth on fresh examples."""
        scorer = Scorer(self.model, self.task, self.task.sample(EXAMPLES, split="test"))
        return worth_of(scorer, self.circuit, self.progress)

    @cached_property
    def fresh_loss(self) -> tuple[float, float]:
        """The intact model's loss on LOSS_EXAMPLES fresh examples, and its standard error."""
        model, task = self.model, self.task
        batches = list(task.sample(LOSS_EXAMPLES, split="test").parts(EXAMPLES))
        parts = self.progress(batches, f"fresh examples of {self.name}")
        with torch.no_grad():
            losses = [task.example_losses(model(part.inputs), part).mean(dim=1) for part in parts]
        by_example = torch.cat(losses)
        return float(by_example.mean()), standard_error(by_example)


def worth_of(scorer: Scorer, circuit: Circuit, progress: Progress = no_progress) -> Worth:
    """What a circuit is worth on the scorer's examples."""
    combined = mean_loss(scorer.losses(circuit, as_base=True))
    removed = removed_losses(scorer, circuit, progress)
    ablated = {path: mean_loss(losses) for path, losses in removed}
    together = dict[RolePath, float]()
    for role_path in dict.fromkeys(path.path for path in ablated):
        alike = [path for path in ablated if path.path == role_path]
        if len(alike) > 1:
            together[role_path] = scorer.loss(reduce(Circuit.without, alike, circuit))
    useful = [h for h in scorer.heads if circuit[h].paths or circuit[h] == ORIGINAL]
    first = [head for head in useful if head.layer == useful[0].layer]
    uniform = scorer.loss(reduce(lambda c, head: c.replace(head, UNIFORM), first, circuit))
    return Worth(combined, ablated, together, tuple(useful), uniform)


class Evidence:
    """Everything the claims are judged by; `runs` is searched after the package's own files."""

    def __init__(self, runs: Path = Path("runs"), progress: Progress = no_progress):
        self.runs, self.progress = runs, progress
        self._trained = dict[Path, Shipped]()  # by circuit; several claims read their losses

    def trained(self, name: str, how: str = "") -> Shipped | None:
        """A shipped transformer and its circuit, found by `ablate` or as `how` says; or None."""
        file = self._file(f"{name}{how}.circuit.json")
        if file is None or name not in storage.shipped_checkpoints():
            return None
        if file not in self._trained:
            self._trained[file] = Shipped(name, file, self.progress)
        return self._trained[file]

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

    def answers(self) -> tuple[list[AccuracyRow], str] | None:
        """How language models answer the five formulations, and the command that says so."""
        path = self._file("llm.json")
        return (read_results([path]), made_by(_read(path), path)) if path is not None else None

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
