"""What the paper reports of a circuit (appendix E), to be shown next to our own numbers."""

from dataclasses import dataclass

from retrieval_interp.tasks import RetrievalTask, Task

CITATION = (
    "T. Mușat, Mechanism and Emergence of Stacked Attention Heads in Multi-Layer Transformers, "
    "appendix E"
)
SUFFICIENT = 0.05  # MSE with all heads replaced
PATHS = (0.17, 0.89)  # MSE without one more path
FIRST_LAYER = (0.05, 0.10)  # the same in the first useful layer


@dataclass(frozen=True)
class Reported:
    """What others report for the same measurements, in words; empty if they give nothing.

    Attributes:
        citation: the source in full.
        source: the source in one word.
        combined: their loss with all heads replaced.
        paths: their losses without single paths.
    """

    citation: str
    source: str = "paper"
    combined: str = ""
    paths: str = ""


NOTHING_REPORTED = Reported("")


def range_text(within: tuple[float, float]) -> str:
    """`0.17 to 0.89`."""
    return f"{within[0]:g} to {within[1]:g}"


def paper_reports(task: Task) -> Reported:
    """The paper's numbers for its own task, its citation for the same task at another scale."""
    if not isinstance(task, RetrievalTask):
        return NOTHING_REPORTED
    if task.tokens != "gaussian":
        return Reported(CITATION)
    return Reported(
        CITATION,
        combined=f"below {SUFFICIENT:g}",
        paths=f"{range_text(PATHS)} per path, {range_text(FIRST_LAYER)} in the first useful layer",
    )
