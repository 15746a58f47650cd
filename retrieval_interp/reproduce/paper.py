"""What the paper reports of a circuit (appendix E), to be read beside our own numbers."""

from retrieval_interp.reproduce.ranges import FIRST_LAYER, PATHS, SUFFICIENT, range_text
from retrieval_interp.views.score_text import NOTHING_REPORTED, Reported
from tasks import RetrievalTask, Task

CITATION = (
    "T. Mușat, Mechanism and Emergence of Stacked Attention Heads in Multi-Layer Transformers, "
    "appendix E"
)


def paper_reports(task: Task) -> Reported:
    """The paper's numbers for its own task, its method alone for the same task at another scale.

    Args:
        task: whichever; for tasks that the paper does not have, nothing is reported.
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
