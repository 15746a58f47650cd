"""The paths of a circuit along a training run, as data (paper, section 9 and appendix D).

What a path is worth at a step is the rise of the loss when it is cut in the intact model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from retrieval_interp.circuits import Circuit, HeadPath
from retrieval_interp.config import PRESETS, Recipe
from retrieval_interp.storage.files import read_part, read_text
from retrieval_interp.tasks import InputError
from retrieval_interp.tasks.structured import from_data, read_json, to_data

_DIGITS = 7  # decimal places in files


@dataclass(frozen=True)
class PathAtStep:
    """One path at one step."""

    attention: float  # mean, in [0, 1]
    live_losses: tuple[float, ...]  # of each asked symbol, with the path cut


@dataclass(frozen=True)
class Snapshot:
    """A circuit's paths in the model of one step."""

    step: int
    examples: int  # of the test split
    seed: int  # of the examples
    partial_losses: tuple[float, ...]  # of each asked symbol in the intact model
    combined_losses: tuple[float, ...]  # the same with the whole circuit in place
    paths: dict[str, PathAtStep]  # by their text, in the order of `paths_of`
    source: Literal["checkpoint", "watch"] = "checkpoint"

    def to_dict(self) -> dict[str, Any]:
        """As JSON data with 7 decimal places; `read_snapshot` reads it back."""
        data: dict[str, Any] = _rounded(to_data(self))
        return data


@dataclass(frozen=True)
class Losses:
    """The losses of one step."""

    step: int
    validation_loss: float
    partial_losses: tuple[float, ...]  # of each asked symbol
    train_loss: float | None  # mean since the previous log line; None where not logged
    logged: bool  # by the run, not measured on the snapshot's examples

    @classmethod
    def measured(cls, at: Snapshot) -> "Losses":
        """Those of the intact model on a snapshot's examples."""
        return cls(at.step, fmean(at.partial_losses), at.partial_losses, None, False)


@dataclass(frozen=True)
class Series:
    """What was measured along a training run."""

    run: str  # the folder's name
    recipe: Recipe
    circuit: Circuit  # whose paths were followed
    circuit_from: str  # where it comes from, in words
    tolerance: float  # a path is necessary if cutting it at the last step costs more than this loss
    snapshots: tuple[Snapshot, ...]  # by rising step, at least one
    losses: tuple[Losses, ...]  # by rising step, of every logged step and of the snapshots
    notes: tuple[str, ...] = ()  # what was skipped, one sentence each

    @property
    def paths(self) -> tuple[HeadPath, ...]:
        """Carrying paths, then those that only enable."""
        return paths_of(self.circuit)

    @property
    def steps(self) -> list[int]:
        """The measured steps."""
        return [snapshot.step for snapshot in self.snapshots]

    @property
    def plateau(self) -> float:
        """The loss before anything is learned."""
        return self.recipe.task.plateau or self.recipe.task.loss_scale

    def attention(self, path: HeadPath) -> list[float]:
        """A path's mean attention at every measured step."""
        return [snapshot.paths[str(path)].attention for snapshot in self.snapshots]

    def necessity(self, path: HeadPath) -> list[float]:
        """The share of what is learned that is lost without a path, at every measured step.

        What is learned of a symbol is how far its loss is below the plateau; what is lost is how
        far it rises when the path is cut in the intact model, at most back to the plateau. Both are
        averaged over the asked symbols and divided; the divisor is at least the tolerance, so that
        noise on the plateau counts for little.
        """
        top = self.plateau
        return [
            fmean(
                min(cut, top) - min(loss, top)
                for cut, loss in zip(at.paths[str(path)].live_losses, at.partial_losses)
            )
            / self._learned(at)
            for at in self.snapshots
        ]

    @property
    def least_necessity(self) -> float:
        """The necessity that costs the tolerance at the last step."""
        return self.tolerance / self._learned(self.snapshots[-1])

    def _learned(self, at: Snapshot) -> float:
        learned = fmean(max(self.plateau - loss, 0.0) for loss in at.partial_losses)
        return max(learned, self.tolerance)

    def to_dict(self) -> dict[str, Any]:
        """As JSON data; `series_from_dict` reads it back."""
        return {
            **vars(self),
            "recipe": to_data(self.recipe),
            "circuit": self.circuit.to_dict(),
            "snapshots": [snapshot.to_dict() for snapshot in self.snapshots],
            "losses": [to_data(row) for row in self.losses],
            "notes": list(self.notes),
        }


def paths_of(circuit: Circuit) -> tuple[HeadPath, ...]:
    """The paths to follow, at least one: carrying ones, then those that only enable."""
    paths = (*circuit.paths(), *circuit.enabling)
    if not paths:
        raise InputError("circuit: expected at least one path to follow, found none")
    return paths


def _rounded(value: Any) -> Any:
    """JSON data with rounded numbers, without keys that are None."""
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items() if part is not None}
    if isinstance(value, list):
        return list(map(_rounded, value))
    return round(value, _DIGITS) if isinstance(value, float) else value


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
    """Read the file that `emergence --json` wrote."""
    text = read_text(Path(path), "a series, as emergence --json writes it")
    return series_from_dict(read_json(text, str(path)), str(path))


def series_from_dict(data: Any, where: str = "series") -> Series:
    """Read what `Series.to_dict` gave; other keys are ignored."""
    file = read_part(_File, data, where)
    circuit = Circuit.from_dict(file.circuit, len(file.recipe.task.role_names))
    snapshots = tuple(read_snapshot(row, circuit, where) for row in file.snapshots)
    if not (snapshots and file.losses):
        raise InputError(f"{where}: expected snapshots and losses, found none")
    return Series(**{**vars(file), "circuit": circuit, "snapshots": snapshots})


def read_snapshot(data: Any, circuit: Circuit, where: str) -> Snapshot:
    """Read what `Snapshot.to_dict` gave for a circuit; `where` names the data in errors."""
    snapshot: Snapshot = from_data(Snapshot, data, where)
    names = list(map(str, paths_of(circuit)))
    if list(snapshot.paths) != names:
        found = list(snapshot.paths)
        raise InputError(f"{where}: expected the circuit's {len(names)} paths, found {found!s:.60}")
    return snapshot


THRESHOLD = 0.5  # of attention, and of losses in units of a symbol's variance (1 in the paper)
LEAST_ATTENTION = 0.05  # a path that ends below this has no attention


@dataclass(frozen=True)
class Crossing:
    """Where a curve first passes a threshold.

    Attributes:
        step: the training step, interpolated; the first measured one if already past there.
        after: the last measured step before the crossing, None if there is none.
        by: the first measured step past the threshold.
    """

    step: float
    after: int | None
    by: int

    def __str__(self) -> str:
        return f"<= {self.by}" if self.after is None else f"{self.step:.0f}"


def first_above(steps: Sequence[int], values: Sequence[float], threshold: float) -> Crossing | None:
    """The first of rising steps at which a curve exceeds a threshold; None if no value does."""
    place = next((i for i, value in enumerate(values) if value > threshold), None)
    if place is None:
        return None
    if place == 0:
        return Crossing(float(steps[0]), None, steps[0])
    before, after = steps[place - 1], steps[place]
    low, high = values[place - 1], values[place]
    share = min(1.0, (threshold - low) / (high - low))
    return Crossing(before + share * (after - before), before, after)


def first_below(steps: Sequence[int], values: Sequence[float], threshold: float) -> Crossing | None:
    """The same for going below a threshold."""
    return first_above(steps, [-value for value in values], -threshold)


def half_of_final(steps: Sequence[int], values: Sequence[float], least: float) -> Crossing | None:
    """The same for half of the last value, or None if that is not above `least`."""
    return first_above(steps, values, values[-1] / 2) if values[-1] > least else None


def in_order(
    crossings: Mapping[str, Crossing | None], pairs: Sequence[tuple[str, str]]
) -> bool | None:
    """Whether of each pair of curves the first crosses before the second; never counts as last.

    Returns:
        False if a pair crosses in the opposite order. None if that cannot be decided: fewer than
        two cross, or both of a pair at the same step. True otherwise.
    """
    steps = {name: inf if at is None else at.step for name, at in crossings.items()}
    found = [(steps[first], steps[second]) for first, second in pairs]
    if any(second < first for first, second in found):
        return False
    passed = [(first, second) for first, second in found if second < inf]
    return True if passed and all(first < second for first, second in passed) else None


def interpolated_pairs(
    crossings: Mapping[str, Crossing | None], pairs: Sequence[tuple[str, str]]
) -> list[tuple[str, str]]:
    """The pairs of curves that cross between the same two measured steps."""
    return [
        (first, second)
        for first, second in pairs
        if (one := crossings[first]) and (other := crossings[second]) and one.by == other.by
    ]


@dataclass(frozen=True)
class PathEmergence:
    """When a path appears; steps are interpolated, "half" is above half of the last value."""

    path: HeadPath
    attention: float  # mean at the last measured step
    above: Crossing | None  # 0.5
    attention_half: Crossing | None
    necessity: float  # at the last step, cut in the intact model
    necessity_half: Crossing | None
    carries: bool  # or only enables

    @property
    def name(self) -> str:
        """The path, with ~ if it only enables."""
        return f"{self.path}{'' if self.carries else ' ~'}"

    @property
    def leads(self) -> Literal["attention", "necessity", "unresolved"] | None:
        """Which of attention and necessity reaches half of its last value at an earlier measured
        step; `unresolved` if both do between the same two; None if one never does.
        """
        attention, necessity = self.attention_half, self.necessity_half
        if not (attention and necessity):
            return None
        if attention.by == necessity.by:
            return "unresolved"
        return "attention" if attention.by < necessity.by else "necessity"

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        dest, src = self.path.path.ends()
        return {
            **self.path.head._asdict(),
            "dest": dest,
            "src": src,
            "carries": self.carries,
            "attention": self.attention,
            "attention_above_half": to_data(self.above),
            "attention_half_of_final": to_data(self.attention_half),
            "necessity": self.necessity,
            "necessity_half_of_final": to_data(self.necessity_half),
            "leads": self.leads,
        }


def path_emergence(series: Series) -> list[PathEmergence]:
    """When each path of a series appears, in the circuit's order."""
    rows, steps = list[PathEmergence](), series.steps
    for path in series.paths:
        attention, necessity = series.attention(path), series.necessity(path)
        rows.append(
            PathEmergence(
                path,
                attention[-1],
                first_above(steps, attention, THRESHOLD),
                half_of_final(steps, attention, LEAST_ATTENTION),
                necessity[-1],
                half_of_final(steps, necessity, series.least_necessity),
                path not in series.circuit.enabling,
            )
        )
    return rows


def loss_emergence(series: Series) -> dict[str, Crossing | None]:
    """When each partial loss is first below 0.5, by symbol (x_1, x_2, ...)."""
    steps, task = [row.step for row in series.losses], series.recipe.task
    curves = zip(task.asked, zip(*(row.partial_losses for row in series.losses)))
    below = THRESHOLD * task.loss_scale
    return {symbol: first_below(steps, losses, below) for symbol, losses in curves}


def paper_epochs(recipe: Recipe) -> bool:
    """Whether 8 steps make one of the paper's epochs, as for transformer D (section 9.1)."""
    paper = PRESETS["transformer-d"]
    return (recipe.task, recipe.model, recipe.batch) == (paper.task, paper.model, paper.batch)
