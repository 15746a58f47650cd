"""When a measured curve first passes a threshold (paper, section 9.2).

Between two measured steps the curve is taken to be a straight line, as the paper does. What was
really seen is only that it lay on one side at one measured step and on the other at the next: a
`Crossing` holds both, so that nobody reads more from the interpolated step than there is in it. The
first time counts, whether or not the curve falls back later.
"""

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tasks import InputError

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
            f"crossing: expected a value a step, found {len(steps)} steps and {len(values)} values"
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
