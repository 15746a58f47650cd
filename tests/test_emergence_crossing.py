"""When curves cross, and in what order."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_interp.emergence.crossing import (
    Crossing,
    first_above,
    first_below,
    half_of_final,
    in_order,
)
from retrieval_interp.tasks import RetrievalTask


def by_bisection(steps, values, threshold):
    """The first crossing without the formula: walk the intervals, halve the one that crosses."""
    if values[0] > threshold:
        return float(steps[0])
    for a, b, low, high in zip(steps, steps[1:], values, values[1:]):
        if high > threshold:
            left, right = 0.0, 1.0
            for _ in range(80):
                middle = (left + right) / 2
                above = low + (high - low) * middle > threshold
                left, right = (left, middle) if above else (middle, right)
            return a + left * (b - a)
    return None


# Coarse numbers, as on nearly flat pieces the step is not sharp.
numbers = st.integers(-20, 20).map(lambda number: number / 10)


@given(st.lists(st.tuples(st.integers(1, 50), numbers), min_size=1, max_size=12), numbers)
def test_crossings_equal_those_found_by_bisection(curve, threshold):
    steps = list(itertools.accumulate(gap for gap, _ in curve))
    values = [value for _, value in curve]
    found, expected = first_above(steps, values, threshold), by_bisection(steps, values, threshold)
    assert (found is None) == (expected is None)
    assert first_below(steps, [-value for value in values], -threshold) == found
    if found is not None:
        assert found.step == pytest.approx(expected, abs=1e-9)
        assert all(v <= threshold for s, v in zip(steps, values) if s < found.by)


def test_crossings_by_hand():
    steps, values = [80, 160, 240, 320], [0.1, 0.3, 0.7, 0.2]
    assert first_above(steps, values, 0.5) == Crossing(200.0, 160, 240)
    assert first_above(steps, values, 0.3) == Crossing(160.0, 160, 240)  # reached, then passed
    assert first_above(steps, values, 0.05) == Crossing(80.0, None, 80)
    assert first_above(steps, values, 0.7) is None
    assert first_below(steps, [0.9, 0.8, 0.4, 0.9], 0.5) == Crossing(220.0, 160, 240)
    assert half_of_final(steps, [0.0, 0.1, 0.3, 0.4], least=0.05) == Crossing(200.0, 160, 240)
    assert half_of_final(steps, [0.0, 0.9, 0.9, 0.04], least=0.05) is None
    assert str(Crossing(80.0, None, 80)) == "<= 80" and str(Crossing(200.4, 160, 240)) == "200"


def chain(*steps):
    """When x_1, x_2, ... fell, and the pairs of a chain."""
    crossings = [None if step is None else Crossing(step, 0, 1000) for step in steps]
    losses = {f"x_{i}": crossing for i, crossing in enumerate(crossings, start=1)}
    return losses, RetrievalTask(steps=len(steps)).steps_between


@pytest.mark.parametrize(
    ("steps", "held"),
    [
        ([1.0, 2.0, 3.0], True),
        ([1.0, 2.0, None], True),
        ([1.0, 3.0, 2.0], False),
        ([1.0, None, 2.0], False),
        ([None, 2.0], False),
        ([1.0, 1.0], None),  # a tie shows neither this order nor another
        ([1.0, 1.0, None], None),
        ([2.0, 2.0, 1.0], False),  # out of turn, whatever else is tied
        ([1.0, None, None], None),
        ([None, None], None),
    ],
)
def test_the_papers_order_of_losses(steps, held):
    assert in_order(*chain(*steps)) is held
