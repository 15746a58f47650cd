"""The paths of a circuit along a training run (paper, section 9.2 and appendix D).

A `Series` holds what was measured at every step. From its JSON every table and figure can be made
again without the checkpoints.
"""

import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from retrieval_interp.circuits import Circuit, HeadPath
from retrieval_interp.config.recipe import Recipe
from retrieval_interp.emergence.probe import Snapshot, named, paths_of, snapshot_from_dict
from retrieval_interp.storage.files import read_part, read_text
from retrieval_interp.tasks import InputError
from retrieval_interp.tasks.structured import read_json, to_data


@dataclass(frozen=True)
class Losses:
    """The losses of one step.

    Attributes:
        step: optimizer steps done.
        validation_loss: loss over all that is asked.
        partial_losses: loss of each asked symbol.
        train_loss: mean since the previous log line; None where not logged.
        logged: whether from the run's metrics, or measured on the snapshot's examples.
    """

    step: int
    validation_loss: float
    partial_losses: tuple[float, ...]
    train_loss: float | None
    logged: bool


@dataclass(frozen=True)
class Series:
    """What was measured along a training run.

    Attributes:
        run: the run folder's name.
        recipe: of the run.
        circuit: whose paths were followed.
        circuit_from: where the circuit comes from, in words.
        tolerance: a path is necessary if cutting it at the last step costs more than this loss.
        snapshots: by rising step, at least one.
        losses: by rising step; those of every logged step and of the snapshots.
        notes: what was skipped, one sentence each.

    Raises:
        InputError: no steps, steps that do not rise, or not one finite loss per asked symbol.
    """

    run: str
    recipe: Recipe
    circuit: Circuit
    circuit_from: str
    tolerance: float
    snapshots: tuple[Snapshot, ...]
    losses: tuple[Losses, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for what, rows in (("snapshots", self.snapshots), ("losses", self.losses)):
            steps = [row.step for row in rows]
            if not steps or steps[0] < 0 or any(a >= b for a, b in itertools.pairwise(steps)):
                raise InputError(f"expected {what} of rising steps, at least one")
        n_targets = self.recipe.task.n_targets
        counts = {len(row.partial_losses) for row in self.snapshots}
        counts |= {len(row.partial_losses) for row in self.losses}
        finite = all(
            math.isfinite(loss)
            for row in self.losses
            for loss in (row.validation_loss, *row.partial_losses)
        )
        if counts != {n_targets} or not finite:
            raise InputError(
                f"expected {n_targets} finite losses, one per asked symbol, everywhere"
            )

    @property
    def paths(self) -> tuple[HeadPath, ...]:
        """Carrying paths, then those that only enable."""
        return paths_of(self.circuit)

    @property
    def steps(self) -> list[int]:
        """The measured steps."""
        return [snapshot.step for snapshot in self.snapshots]

    def attention(self, path: HeadPath) -> list[float]:
        """A path's mean attention at every measured step."""
        return [snapshot.paths[path].attention for snapshot in self.snapshots]

    def necessity(self, path: HeadPath) -> list[float]:
        """The share of what is learned that is lost without a path, at every measured step.

        1. What is learned of a symbol is how far its loss is below the plateau.
        2. What is lost is how far that loss rises when the path is cut in the intact model, at most
           back to the plateau: a rise beyond it says nothing.
        3. Both are averaged over the asked symbols and divided; the divisor is at least the
           tolerance, so that noise on the plateau counts for little.

        1 means that without the path the model is back where it began.
        """
        return [
            self._lost(row.paths[path].live_losses, row.partial_losses) for row in self.snapshots
        ]

    def frozen_necessity(self, path: HeadPath) -> list[float] | None:
        """The same in the frozen circuit; None if the path only enables.

        It tells when the other weights can use the path, given the final attention.
        """
        lost = []
        for row in self.snapshots:
            frozen = row.paths[path].frozen_losses
            if frozen is None:
                return None
            lost.append(self._lost(frozen, row.combined_losses))
        return lost

    def least_necessity(self, frozen: bool = False) -> float:
        """The necessity that costs the tolerance at the last step."""
        last = self.snapshots[-1]
        losses = last.combined_losses if frozen else last.partial_losses
        return self.tolerance / self._learned(losses)

    @property
    def plateau(self) -> float:
        """The loss before anything is learned."""
        return self.recipe.task.plateau or self.recipe.task.loss_scale

    def _learned(self, losses: tuple[float, ...]) -> float:
        return max(fmean(max(self.plateau - loss, 0.0) for loss in losses), self.tolerance)

    def _lost(self, without: tuple[float, ...], intact: tuple[float, ...]) -> float:
        top = self.plateau
        risen = fmean(min(cut, top) - min(loss, top) for cut, loss in zip(without, intact))
        return risen / self._learned(intact)

    def to_dict(self) -> dict[str, Any]:
        """As JSON data; `series_from_dict` reads it back."""
        return {
            "run": self.run,
            "recipe": to_data(self.recipe),
            "circuit": self.circuit.to_dict(),
            "circuit_from": self.circuit_from,
            "tolerance": self.tolerance,
            "snapshots": [snapshot.to_dict() for snapshot in self.snapshots],
            "losses": [to_data(row) for row in self.losses],
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class _File:
    """The keys of a series file that are read; the others follow from them."""

    run: str
    recipe: Recipe
    circuit: dict[str, Any]
    circuit_from: str
    tolerance: float
    snapshots: tuple[Any, ...]
    losses: tuple[Losses, ...]
    notes: tuple[str, ...] = ()


def read_series(path: Path | str) -> Series:
    """Read the file that `emergence --json` wrote.

    Raises:
        InputError: no such file, or not a series.
    """
    text = read_text(Path(path), "a series, as emergence --json writes it")
    return series_from_dict(read_json(text, str(path)), str(path))


def series_from_dict(data: Any, where: str = "series") -> Series:
    """Read what `Series.to_dict` gave; other keys are ignored.

    Raises:
        InputError: a part is missing or of another form.
    """
    file = read_part(_File, data, where)
    with named(where):
        circuit = Circuit.from_dict(file.circuit, len(file.recipe.task.role_names))
    snapshots = tuple(snapshot_from_dict(row, circuit, where) for row in file.snapshots)
    with named(where):
        return Series(**{**vars(file), "circuit": circuit, "snapshots": snapshots})
