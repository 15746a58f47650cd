"""The paper's numbers, to judge ours by; each with the place where it stands.

A range holds its ends. The paper gives two decimals, so that is what numbers are compared to.
"""

Range = tuple[float, float]

UNLEARNED = 0.7  # section 7.2: without curriculum every run ends above (C3)
LEARNED = 0.01  # section 8.2: validation MSE of A, B and C (C6)
SUFFICIENT = 0.05  # appendix E: MSE with all heads replaced (C7)
PATHS: Range = (0.17, 0.89)  # appendix E: MSE without one more path (C8)
FIRST_LAYER: Range = (0.05, 0.10)  # appendix E: the same in the first useful layer (C8)
D_LEARNED, D_SUFFICIENT = (
    0.031,
    0.045,
)  # section 9.2: validation MSE of D, and with its circuit (C10)


def side(value: float, within: Range) -> str:
    """`below`, `inside` or `above` a range, to two decimals."""
    low, high = within
    rounded = round(value, 2)
    return "below" if rounded < low else "above" if rounded > high else "inside"


def range_text(within: Range) -> str:
    """`0.17 to 0.89`."""
    return f"{within[0]:g} to {within[1]:g}"
