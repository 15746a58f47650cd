"""Every single-head and single-path hypothesis of a model, in one call.

Exact, and computed only where a hypothesis can change the answer (`circuits.runs.runs`); or
estimated, all from one pass (`circuits.attribution`), with as many exact losses as are asked for.
"""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.attribution import Estimate, attribute, rank_correlation
from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.hooks import is_causal
from retrieval_interp.circuits.mechanisms import IDENTITY, UNIFORM, Mechanism
from retrieval_interp.circuits.paths import Head, HeadPath
from retrieval_interp.circuits.runs.means import head_means, mean_attention, mean_loss
from retrieval_interp.circuits.scores.control import allowed_attention, allowed_paths
from retrieval_interp.circuits.scores.scorer import (
    Progress,
    Scorer,
    cut_losses,
    heads_of,
    no_progress,
)
from retrieval_interp.tasks import Batch, Task

_SHOWN = 5  # heads, and paths, that are printed


@dataclass(frozen=True)
class LiveScore:
    """A path, its mean attention in the intact model, and the loss when it is cut there."""

    path: HeadPath
    attention: float
    live_loss: float


@dataclass(frozen=True)
class Ablations:
    """The loss of every head and path hypothesis; printed, those that cost most."""

    baseline_loss: float  # of the intact model
    heads: dict[tuple[Head, Mechanism], float]  # with one head replaced by a mechanism
    paths: list[LiveScore]  # with one path cut
    role_names: tuple[str, ...] = ()  # as the task has them; s0, s1, ... if empty

    @property
    def head_costs(self) -> dict[Head, float]:
        """What the loss rises by with uniform or identity attention, whichever costs less."""
        costs: dict[Head, float] = {}
        for (head, _), loss in self.heads.items():
            cost = loss - self.baseline_loss
            costs[head] = min(cost, costs.get(head, cost))
        return costs

    @property
    def by_cost(self) -> list[LiveScore]:
        """The paths, those that cost most when cut first."""
        return sorted(self.paths, key=lambda row: -row.live_loss)

    def __str__(self) -> str:
        costs = sorted(self.head_costs.items(), key=lambda pair: -pair[1])
        heads = ", ".join(f"{head} {cost:+.4f}" for head, cost in costs[:_SHOWN])
        paths = ", ".join(
            f"{row.path.text(self.role_names)} {row.live_loss - self.baseline_loss:+.4f}"
            for row in self.by_cost[:_SHOWN]
        )
        loss = f"intact loss {self.baseline_loss:.4f}"
        return f"{loss}\nheads replaced: {heads}\npaths cut in the model: {paths}"


Hypothesis = HeadPath | tuple[Head, Mechanism]  # a path that is cut, or a head that is replaced


@dataclass(frozen=True)
class EstimatedAblations:
    """The estimated change of the loss by every head and path hypothesis."""

    baseline_loss: float  # of the intact model, exact
    estimates: dict[Hypothesis, Estimate]  # with one head replaced by its mean, or one path cut
    changed: dict[Head, float]  # the share of a head's attention that its mean does not have
    exact: dict[Hypothesis, float]  # losses of those with the largest estimates, largest first

    @property
    def rank_correlation(self) -> float:
        """Spearman's, of estimates and exact losses where there are both; NaN for fewer than 2."""
        effects = [self.estimates[each].effect for each in self.exact]
        return rank_correlation(effects, list(self.exact.values()))

    def __str__(self) -> str:
        counts = f"{len(self.estimates)} hypotheses estimated, {len(self.exact)} measured exactly"
        return f"intact loss {self.baseline_loss:.4f}, {counts}"


def ablations(
    model: Any, task: Task, batch: Batch, least: float = 0.0, progress: Progress = no_progress
) -> Ablations:
    """Replace every head, and cut every path, one at a time.

        heads[h, m] = loss({h: m})    for m uniform and identity: head h replaced, all others intact
        live_loss   = loss(cut p)     p's attention set to 0 in the intact model, everything after
                                      it recomputed

    Each equals the loss of a whole run with hooks, but only what a hypothesis can change is
    computed.

    Args:
        model: a hooked model that reads the batch.
        task: gives the loss.
        batch: the examples.
        least: skip paths with less mean attention.
        progress: wraps an iterable to show a bar, as `(items, text)`.
    """
    scorer, attention = Scorer(model, task, batch), mean_attention(model, batch)
    empty = scorer.empty_circuit
    replaced = [(head, mechanism) for head in heads_of(model) for mechanism in (UNIFORM, IDENTITY)]
    heads = {
        choice: scorer.loss(empty.replace(*choice))
        for choice in progress(replaced, "replacing heads")
    }
    paths = [
        LiveScore(path, float(attention[path.head][path.path]), mean_loss(losses))
        for path, losses in cut_losses(scorer, _paths(scorer, attention, least), progress)
    ]
    return Ablations(mean_loss(scorer.base_losses), heads, paths, empty.role_names)


def estimated_ablations(
    model: Any,
    task: Task,
    batch: Batch,
    least: float = 0.0,
    exact: int = 0,
    progress: Progress = no_progress,
) -> EstimatedAblations:
    """Estimate every hypothesis of `ablations` from one forward pass (`circuits.attribution`).

    Heads are replaced by their mean, which is nearer to their attention than uniform and identity
    are, so that an estimate of first order is worth more. Arguments are those of `ablations`; the
    loss needs a gradient, and `exact` hypotheses with the largest estimates are also measured.
    """
    scorer, attention = Scorer(model, task, batch), mean_attention(model, batch)
    empty, attribution = scorer.empty_circuit, attribute(model, task, batch)
    means = head_means(model, batch, allowed_attention(attention.cpu(), batch, is_causal(model)))
    trials: dict[Hypothesis, Circuit] = {
        (head, mean): empty.replace(head, mean) for head, (mean, _) in means.items()
    }
    trials |= {path: empty.cut(path) for path in _paths(scorer, attention, least)}
    found = {each: attribution.estimate(trials[each]) for each in progress(trials, "estimating")}
    estimates = dict(sorted(found.items(), key=lambda pair: -pair[1].effect))
    measured = progress(list(estimates)[:exact], "scoring exactly")
    return EstimatedAblations(
        mean_loss(scorer.base_losses),
        estimates,
        {head: 1 - share for head, (_, share) in means.items()},
        {each: scorer.loss(trials[each]) for each in measured},
    )


def _paths(
    scorer: Scorer, attention: Float[Tensor, "layer head dest src"], least: float
) -> list[HeadPath]:
    allowed = allowed_paths(scorer.batch, is_causal(scorer.model))
    return [
        HeadPath(head, path)
        for head in heads_of(scorer.model)
        for path in allowed
        if attention[head][path] >= least
    ]
