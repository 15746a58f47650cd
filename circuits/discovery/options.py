"""What a search is asked for, and the constants that it goes by."""

from collections.abc import Sequence
from dataclasses import dataclass

from retrieval_interp.circuits.paths import Head
from retrieval_interp.tasks import InputError


@dataclass(frozen=True)
class SearchOptions:
    """How to search for a circuit. The constants below `strategy` seldom need a change.

    Attributes:
        tolerance: the loss that the circuit has to stay below; by default the task's (0.05 in the
            paper), or else the loss at which 95% of what the model has learned is kept
            (`circuits.scores.scorer`). No circuit is found that is worse than knowing nothing.
        examples: number of examples that decide.
        seed: of these examples.
        restarts: number of starting circuits, at least 1. With more than 4, the search also starts
            from the best circuit without each of its useful heads.
        shared: whether several sources may share a role's attention; otherwise paths are one-hot
            only, as in the paper.
        time: seconds that it may take, by default until there is a local optimum. After two thirds
            of it the best circuit so far is taken; the rest is for what the intact model needs.
        heads: heads that may be replaced, by default all; the others stay as they are.
        strategy: which one of `circuits.discovery.search.STRATEGIES`.
    """

    tolerance: float | None = None
    examples: int = 512
    seed: int = 0
    restarts: int = 4
    shared: bool = True
    time: float | None = None
    heads: Sequence[Head] | None = None
    strategy: str = "greedy"
    # Deciding
    looks: tuple[int, ...] = (16, 64, 192)  # examples after which a circuit may be given up
    estimated: int = 32  # examples of estimates
    few: int = 8  # trials that are compared by exact losses; more are by estimates
    few_fast: int = 64  # the same where only what changes is run
    # Candidates: mean attention of the paths of one-hot heads, then of those that share
    one_hot: tuple[float, ...] = (0.5, 0.3, 0.1)
    sharing: tuple[float, ...] = (0.4, 0.25, 0.15)
    weak: float = 0.1  # paths with at least this mean attention may be added
    rule_share: float = 0.25  # a rule that has less of a head's attention is no candidate ...
    rule_in_role: float = 0.5  # ... unless it has as much of the attention of a single role
    # Steps
    singly: int = 4  # heads made richer one by one; then twice as many at each step
    promising: int = 8  # trials with the best estimates, compared by exact losses
    combined: int = 24  # additions, and other changes, that are combined by threes
    rearranged: int = 48  # of these combinations, how many are tried
    paired: int = 64  # cheaper changes that are tried two at once
    weakest_cut: float = 0.05  # paths with less mean attention are not cut in the intact model

    def __post_init__(self) -> None:
        if self.restarts < 1:
            raise InputError(f"restarts: expected at least 1, found {self.restarts}")
        if self.time is not None and not self.time > 0:
            raise InputError(f"time: expected more than 0 seconds, found {self.time:g}")

    @property
    def thresholds(self) -> list[tuple[str, float]]:
        """The kinds of candidates with paths, and the least mean attention of these."""
        one_hot = [("one-hot", least) for least in self.one_hot]
        return one_hot + [("shared", least) for least in self.sharing if self.shared]


DEFAULTS = SearchOptions()
