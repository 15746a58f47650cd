"""When each path of a circuit appears in training, and what comes first (paper, sections 7.2, 9.2).

Attention (the paper's measure) counts from 0.5, a partial loss below 0.5 of a symbol's variance.
Attention and necessity are compared by when each is above half of its own last value, as a path
that shares a role's attention may never reach 0.5. Between two measured steps a curve is taken as a
straight line, as in the paper.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Literal

from retrieval_interp.circuits import HeadPath
from retrieval_interp.config.presets import PRESETS
from retrieval_interp.config.recipe import Recipe
from retrieval_interp.emergence.series import Series
from retrieval_interp.tasks.structured import to_data

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
