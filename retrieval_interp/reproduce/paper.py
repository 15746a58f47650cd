"""The paper's numbers, to judge ours by, each with where the paper states it.

The paper gives two decimals, so numbers are compared to two decimals; a range includes its ends.
"""

from retrieval_interp.views.paper import FIRST_LAYER as FIRST_LAYER
from retrieval_interp.views.paper import PATHS as PATHS
from retrieval_interp.views.paper import SUFFICIENT as SUFFICIENT
from retrieval_interp.views.paper import range_text as range_text

Range = tuple[float, float]

UNLEARNED = 0.7  # section 7.2: without curriculum every run ends above (C3)
LEARNED = 0.01  # section 8.2: validation MSE of A, B and C (C6)
D_LEARNED = 0.031  # section 9.2: validation MSE of D (C10)
D_SUFFICIENT = 0.045  # section 9.2: the same with its circuit in place (C10)


def side(value: float, within: Range) -> str:
    """`below`, `inside` or `above` a range, to two decimals."""
    low, high = within
    rounded = round(value, 2)
    return "below" if rounded < low else "above" if rounded > high else "inside"
