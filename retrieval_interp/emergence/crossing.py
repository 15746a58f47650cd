"""When a measured curve first passes a threshold, and in what order several curves do (paper,
sections 7.2 and 9.2).

1. Between two measured steps a curve is taken as a straight line, as in the paper. What was really
   observed is only that it crossed between them; a `Crossing` keeps both steps. The first crossing
   counts, even if the curve falls back later.
2. Curves are ordered by their interpolated steps; one that never crosses comes last (`in_order`).
   Two that cross at exactly the same step are in no order. Where two cross between the same two
   measured steps, interpolation alone orders them; `interpolated_pairs` names such pairs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

THRESHOLD = 0.5  # of attention, and of losses in units of a symbol's variance (1 in the paper)


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
    """The first step at which a curve exceeds a threshold; None if no value does.

    Args:
        steps: measured steps, rising.
        values: one per step.
        threshold: must be exceeded, not only reached.
    """
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
    """The first step above half of the last value, or None if that is not above `least`."""
    return first_above(steps, values, values[-1] / 2) if values[-1] > least else None


def in_order(
    crossings: Mapping[str, Crossing | None], pairs: Sequence[tuple[str, str]]
) -> bool | None:
    """Whether curves cross in the expected order, as partial losses should (section 7.2).

    Args:
        crossings: when each curve crosses, by name; None if never, which counts as last.
        pairs: names of curves, the first of which should cross before the second, such as
            `task.steps_between`.

    Returns:
        False if a pair crosses in the opposite order. None if that cannot be decided: fewer than
        two cross, or both of a pair at the same step. True otherwise.
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
    """The pairs of names that cross between the same two measured steps."""
    return [
        (first, second)
        for first, second in pairs
        if (one := crossings[first]) and (other := crossings[second]) and one.by == other.by
    ]
