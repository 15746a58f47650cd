"""The paths of a circuit along a training run (paper, section 9.2 and appendix D).

A `Series` holds what was measured at every step. It is data: JSON, from which every table and
figure can be made again without the checkpoints.
"""

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from circuits import Circuit, HeadPath
from retrieval_interp.config.recipe import Recipe
from retrieval_interp.emergence.probe import Snapshot, paths_of, snapshot_from_dict
from retrieval_interp.storage.files import read_text
from tasks import InputError
from tasks.structured import from_data, to_data


@dataclass(frozen=True)
class Losses:
    """The losses of one step.

    Attributes:
        step: optimizer steps done.
        validation_loss: loss over all that is asked.
        partial_losses: loss of each asked symbol.
        train_loss: mean since the log line before; None where not logged.
        logged: from the run's metrics, else measured on the examples of the snapshot.
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
        recipe: how the run was made.
        circuit: whose paths were followed.
        circuit_from: where the circuit comes from, in words.
        tolerance: the loss that cutting a path must cost at the last step to count it as necessary.
        snapshots: by rising step, at least one.
        losses: by rising step; every logged step, and those of the snapshots.
        notes: what was passed over, a sentence each.
    """

    run: str
    recipe: Recipe
    circuit: Circuit
    circuit_from: str
    tolerance: float
    snapshots: tuple[Snapshot, ...]
    losses: tuple[Losses, ...]
    notes: tuple[str, ...] = ()

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
        """What part of what the model has learned is lost without a path, at every measured step.

        1. What is learned of a symbol is how far its loss is below the plateau.
        2. What is lost is how far it rises when the path is cut in the living model, at most back
           to the plateau: how far beyond it a cut model goes astray says nothing.
        3. Both are averaged over the asked symbols and divided, by the tolerance at least, so that
           noise on the plateau counts for little.

        1 means that without the path the model is where it began.
        """
        return [
            self._lost(row.paths[path].live_losses, row.partial_losses) for row in self.snapshots
        ]

    def frozen_necessity(self, path: HeadPath) -> list[float] | None:
        """The same with the whole circuit in place, then without the path; None if it only enables.

        It tells when the weights around a path can use it if all attention is as it will be.
        """
        lost = []
        for row in self.snapshots:
            frozen = row.paths[path].frozen_losses
            if frozen is None:
                return None
            lost.append(self._lost(frozen, row.combined_losses))
        return lost

    def least_necessity(self, frozen: bool = False) -> float:
        """The part that costs the tolerance at the last step."""
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
            "losses": [asdict(row) for row in self.losses],
            "notes": list(self.notes),
        }


def read_series(path: Path | str) -> Series:
    """Read the file that `emergence --json` wrote.

    Raises:
        InputError: no such file, or not a series.
    """
    path = Path(path)
    try:
        data = json.loads(read_text(path, "a series, as emergence --json writes it"))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: expected JSON, found {str(error)[:80]}") from None
    return series_from_dict(data, str(path))


def series_from_dict(data: Any, where: str = "series") -> Series:
    """Read what `Series.to_dict` gave; other keys are left alone.

    Raises:
        InputError: a part is missing or of another form.
    """
    parts = ("run", "recipe", "circuit", "circuit_from", "tolerance", "snapshots", "losses")
    if not isinstance(data, dict) or any(part not in data for part in parts):
        raise InputError(
            f"{where}: expected an object with {', '.join(parts)}, as emergence --json writes it"
        )
    recipe = from_data(Recipe, data["recipe"], f"{where}: recipe")
    circuit = Circuit.from_dict(data["circuit"], len(recipe.task.role_names))
    try:
        losses = tuple(
            Losses(
                int(row["step"]),
                float(row["validation_loss"]),
                tuple(map(float, row["partial_losses"])),
                None if row["train_loss"] is None else float(row["train_loss"]),
                bool(row["logged"]),
            )
            for row in data["losses"]
        )
        snapshots = tuple(snapshot_from_dict(row, circuit, where) for row in data["snapshots"])
        _check(snapshots, losses, recipe.task.n_targets, where)
        return Series(
            str(data["run"]),
            recipe,
            circuit,
            str(data["circuit_from"]),
            float(data["tolerance"]),
            snapshots,
            losses,
            tuple(map(str, data.get("notes", []))),
        )
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{where}: expected numbers, found {error!s:.80}") from None


def _check(
    snapshots: Sequence[Snapshot], losses: Sequence[Losses], n_targets: int, where: str
) -> None:
    """Refuse a series that no table can be made of."""
    for what, steps in (
        ("snapshots", [row.step for row in snapshots]),
        ("losses", [row.step for row in losses]),
    ):
        if not steps or steps[0] < 0 or any(a >= b for a, b in itertools.pairwise(steps)):
            raise InputError(f"{where}: expected {what} of rising steps, at least one")
    asked = [(row.validation_loss,) * n_targets for row in losses]
    asked += [row.partial_losses for row in losses]
    for row in snapshots:
        asked += [row.partial_losses, row.combined_losses]
        for at in row.paths.values():
            asked += [
                (at.attention,) * n_targets,
                at.live_losses,
                at.frozen_losses or at.live_losses,
            ]
    if not all(len(row) == n_targets and all(map(math.isfinite, row)) for row in asked):
        raise InputError(f"{where}: expected {n_targets} finite losses, a symbol each, everywhere")
