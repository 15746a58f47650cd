"""The paper's numbers, to judge ours by, each with where the paper states it.

The paper gives two decimals, so numbers are compared to two decimals; a range includes its ends.
"""

from retrieval_interp.tasks import RetrievalTask, Task
from retrieval_interp.views.score_text import NOTHING_REPORTED, Reported

CITATION = (
    "T. Mușat, Mechanism and Emergence of Stacked Attention Heads in Multi-Layer Transformers, "
    "appendix E"
)
Range = tuple[float, float]

UNLEARNED = 0.7  # section 7.2: without curriculum every run ends above (C3)
LEARNED = 0.01  # section 8.2: validation MSE of A, B and C (C6)
SUFFICIENT = 0.05  # appendix E: MSE with all heads replaced (C7)
PATHS: Range = (0.17, 0.89)  # appendix E: MSE without one more path (C8)
FIRST_LAYER: Range = (0.05, 0.10)  # appendix E: the same in the first useful layer (C8)
D_LEARNED = 0.031  # section 9.2: validation MSE of D (C10)
D_SUFFICIENT = 0.045  # section 9.2: the same with its circuit in place (C10)


def side(value: float, within: Range) -> str:
    """`below`, `inside` or `above` a range, to two decimals."""
    low, high = within
    rounded = round(value, 2)
    return "below" if rounded < low else "above" if rounded > high else "inside"


def range_text(within: Range) -> str:
    """`0.17 to 0.89`."""
    return f"{within[0]:g} to {within[1]:g}"


def paper_reports(task: Task) -> Reported:
    """What the paper reports of a circuit (appendix E), to be read beside our own numbers.

    Args:
        task: any. The numbers are given for the paper's own task, the citation alone for the same
            task at another scale, and nothing for other tasks.
    """
    if not isinstance(task, RetrievalTask):
        return NOTHING_REPORTED
    if task.tokens != "gaussian":
        return Reported(CITATION)
    return Reported(
        CITATION,
        combined=f"below {SUFFICIENT:g}",
        paths=f"{range_text(PATHS)} per path, {range_text(FIRST_LAYER)} in the first useful layer",
    )
