"""Least depths in closed form; docs/depth.md proves them (paper, section 5, appendix B).

Where this departs from the paper: its bound ignores the causal mask and lets every position grow to
both sides, also s_0, which is an end of the chain; the exact depths here do neither.
"""

from circuits.flow.pieces import check_steps


def paper_bound(steps: int) -> int:
    """ceil(log3(2D)), the least depth that theorem 1 leaves open.

    Raises:
        InputError: steps below 1.
    """
    check_steps(steps)
    return _ceil_log3(2 * steps)


def unmasked_depth(steps: int) -> int:
    """ceil(log3(4D + 1)), the least depth under assumptions 1 and 2 without a mask.

    Raises:
        InputError: steps below 1.
    """
    check_steps(steps)
    return _ceil_log3(4 * steps + 1)


def causal_depth(steps: int) -> int:
    """floor(log2 D) + 2, the least depth under assumptions 1 and 2 with the causal mask.

    Raises:
        InputError: steps below 1.
    """
    check_steps(steps)
    return steps.bit_length() + 1


def _ceil_log3(number: int) -> int:
    power, exponent = 1, 0
    while power < number:
        power, exponent = 3 * power, exponent + 1
    return exponent
