"""When a measured curve first passes a threshold, and in what order several do (paper, sections 7.2
and 9.2).

1. Between two measured steps a curve is taken to be a straight line, as the paper does. All that
   was really seen is that it lay on one side at one measured step and on the other at the next; a
   `Crossing` holds both, so that nobody reads more into the interpolated step than there is in it.
   The first time counts, whether or not the curve falls back later.
2. Curves are ordered by their interpolated steps, and one that never passes comes last
   (`in_order`). Two at the very same step are in no order, neither the expected one nor another.
   Where two pass between the same two measured steps, the interpolation alone orders them;
   `interpolated_pairs` names such pairs, so that whoever states an order can say so.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tasks.errors import InputError

THRESHOLD = 0.5  # of attention; of a loss in units of a symbol's variance, which the paper has as 1
Leader = Literal["attention", "necessity", "unresolved"]


@dataclass(frozen=True)
class Crossing:
    """Where a curve first passes a threshold.

    Attributes:
        step: the training step, interpolated; the first measured one if it is past already.
        after: the last measured step before it is past, None if the first one is past already.
        by: the first measured step at which it is past.
    """

    step: float
    after: int | None
    by: int

    def __str__(self) -> str:
        return f"<= {self.by}" if self.after is None else f"{self.step:.0f}"

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


def first_above(steps: Sequence[int], values: Sequence[float], threshold: float) -> Crossing | None:
    """The first step at which a curve goes above a threshold.

    Args:
        steps: measured steps, rising.
        values: what was measured at each.
        threshold: has to be passed, not only reached.

    Returns:
        None if no value is above.

    Raises:
        InputError: another number of steps than of values, or steps that do not rise.
    """
    if len(steps) != len(values):
        raise InputError(
            f"crossing: expected one value per step, found {len(steps)} steps and {len(values)} "
            "values"
        )
    if any(later <= earlier for earlier, later in itertools.pairwise(steps)):
        raise InputError("crossing: expected steps that rise")
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
    """The first step at which a curve goes below a threshold; see `first_above`."""
    return first_above(steps, [-value for value in values], -threshold)


def half_of_final(steps: Sequence[int], values: Sequence[float], least: float) -> Crossing | None:
    """The first step at which a curve goes above half its last value.

    Args:
        steps: measured steps, rising.
        values: what was measured at each.
        least: a curve that does not end above this has not risen, and has no such step.
    """
    if not values or values[-1] <= least:
        return None
    return first_above(steps, values, values[-1] / 2)


def who_leads(attention: Crossing | None, necessity: Crossing | None) -> Leader | None:
    """Which of two curves is past its threshold at a measured step at which the other is not.

    Returns:
        `unresolved` if both pass between the same two measured steps, where only the interpolation
        could tell; None if one never does.
    """
    if attention is None or necessity is None:
        return None
    if attention.by < necessity.by:
        return "attention"
    return "necessity" if necessity.by < attention.by else "unresolved"


def in_order(
    crossings: Mapping[str, Crossing | None], pairs: Sequence[tuple[str, str]]
) -> bool | None:
    """Whether curves pass in the expected order, as partial losses should (section 7.2).

    Args:
        crossings: when each passes, by name; None for one that never does, which comes last.
        pairs: names of which the first is expected to pass before the second, such as
            `task.steps_between`.

    Returns:
        False if a pair passes the other way round. None if there is nothing to tell by: fewer than
        two passed, or two of a pair passed at the same step. True otherwise.
    """
    steps = {name: math.inf if at is None else at.step for name, at in crossings.items()}
    found = [(steps[first], steps[second]) for first, second in pairs]
    if any(second < first for first, second in found):
        return False
    passed = [(first, second) for first, second in found if second < math.inf]
    return True if passed and all(first < second for first, second in passed) else None


def interpolated_pairs(
    crossings: Mapping[str, Crossing | None], pairs: Sequence[tuple[str, str]]
) -> list[tuple[str, str]]:
    """The pairs that pass between the same two measured steps, ordered by interpolation alone.

    Args:
        crossings: when each passes, by name.
        pairs: of names.
    """
    return [
        (first, second)
        for first, second in pairs
        if (one := crossings[first]) and (other := crossings[second]) and one.by == other.by
    ]
