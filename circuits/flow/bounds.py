"""Least depths in closed form; docs/depth.md proves them (paper, section 5, appendix B).

The paper's bound ignores the causal mask and lets every position grow in both directions, even
s_0, which is at the end of the chain. The exact depths here do neither.
"""

from retrieval_interp.circuits.flow.pieces import check_steps


def paper_bound(steps: int) -> int:
    """The lower bound of theorem 1, ceil(log3(2D)).

    Raises:
        InputError: steps is below 1.
    """
    check_steps(steps)
    return _ceil_log3(2 * steps)


def unmasked_depth(steps: int) -> int:
    """ceil(log3(4D + 1)): the least depth under assumptions 1 and 2 without a mask.

    Raises:
        InputError: steps is below 1.
    """
    check_steps(steps)
    return _ceil_log3(4 * steps + 1)


def causal_depth(steps: int) -> int:
    """floor(log2 D) + 2: the least depth under assumptions 1 and 2 with the causal mask.

    Raises:
        InputError: steps is below 1.
    """
    check_steps(steps)
    return steps.bit_length() + 1


def _ceil_log3(number: int) -> int:
    power, exponent = 1, 0
    while power < number:
        power, exponent = 3 * power, exponent + 1
    return exponent
