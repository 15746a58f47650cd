"""When a curve of measured steps crosses a threshold, and in which order several curves do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

THRESHOLD = 0.5  # of attention, and of losses in units of a symbol's variance (1 in the paper)


@dataclass(frozen=True)
class Crossing:
    """Where a curve first passes a threshold."""

    step: float  # of training, interpolated; the first measured one if already past there
    after: int | None  # the last measured step before the crossing, None if there is none
    by: int  # the first measured step past the threshold

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


def in_order(when: Mapping[str, Crossing | None], pairs: Sequence[tuple[str, str]]) -> bool | None:
    """Whether of each pair of curves the first crosses before the second; never counts as last.

    None if it cannot be decided: fewer than two cross, or both of a pair at the same step.
    """
    steps = {name: inf if at is None else at.step for name, at in when.items()}
    found = [(steps[first], steps[second]) for first, second in pairs]
    if any(second < first for first, second in found):
        return False
    passed = [(first, second) for first, second in found if second < inf]
    return True if passed and all(first < second for first, second in passed) else None
