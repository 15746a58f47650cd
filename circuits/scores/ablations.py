"""Every single-head and single-path hypothesis of a model, in one call.

1. Each head alone, replaced by uniform and by identity attention; in estimates, by its mean.
2. Each path alone, cut live: its attention is set to zero in the intact model and all later
   attention is recomputed.

Exact, and computed only where a hypothesis can change the answer (`circuits.runs.parted_runs`); or
estimated, all from one pass (`circuits.attribution`), with as many exact losses as are asked for.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, overload

from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.attribution.estimates import Estimate, attribute, rank_correlation
from retrieval_interp.circuits.circuit import Head, HeadPath
from retrieval_interp.circuits.hooks.points import is_causal
from retrieval_interp.circuits.mechanisms import IDENTITY, UNIFORM, Mechanism
from retrieval_interp.circuits.runs.losses import mean_loss
from retrieval_interp.circuits.runs.mean_attention import mean_attention
from retrieval_interp.circuits.runs.means import head_means
from retrieval_interp.circuits.scores.control import allowed_attention, allowed_paths
from retrieval_interp.circuits.scores.number_table import number_table
from retrieval_interp.circuits.scores.scorer import Progress, Scorer, no_progress
from retrieval_interp.tasks import Batch, Task

_FAR = 0.5  # of a head's attention; estimates of larger changes may have any size


@dataclass(frozen=True)
class LiveScore:
    """A path cut in the intact model.

    Attributes:
        path: the path.
        attention: its mean attention in the intact model.
        live_loss: the loss when it is cut, with later attention recomputed.
    """

    path: HeadPath
    attention: float
    live_loss: float


@dataclass(frozen=True)
class AblationSweep:
    """The loss of every head and path hypothesis; printed, a table of those that cost most.

    Attributes:
        baseline_loss: the intact model's loss.
        heads: the loss with one head replaced by a mechanism.
        paths: the loss with one path cut.
        role_names: what the task calls its roles; s0, s1, ... if empty.
    """

    baseline_loss: float
    heads: dict[tuple[Head, Mechanism], float]
    paths: list[LiveScore]
    role_names: tuple[str, ...] = ()

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
        costs = self.head_costs
        heads = [
            (str(head), [*(self.heads[head, m] for m in (UNIFORM, IDENTITY)), costs[head]])
            for head in sorted(costs, key=lambda head: -costs[head])
        ]
        paths = [
            (
                row.path.text(self.role_names),
                [row.attention, row.live_loss, row.live_loss - self.baseline_loss],
            )
            for row in self.by_cost
        ]
        return "\n".join(
            [
                f"intact loss {self.baseline_loss:.4f}",
                *number_table("head replaced", ("uniform", "identity", "rises by"), heads),
                *number_table("path cut live", ("attention", "loss", "rises by"), paths),
            ]
        )


Hypothesis = HeadPath | tuple[Head, Mechanism]  # a path that is cut, or a head that is replaced


@dataclass(frozen=True)
class EstimatedSweep:
    """The estimated change of the loss by every head and path hypothesis.

    Attributes:
        baseline_loss: the intact model's loss, which is exact.
        heads: the estimate with one head replaced by its mean (`circuits.runs.means`).
        paths: the estimate with one path cut.
        changed: of each head, the share of its attention that its mean does not have.
        exact: the exact losses of the hypotheses with the largest estimates, largest first.
        role_names: what the task calls its roles; s0, s1, ... if empty.
    """

    baseline_loss: float
    heads: dict[tuple[Head, Mechanism], Estimate]
    paths: dict[HeadPath, Estimate]
    changed: dict[Head, float]
    exact: dict[Hypothesis, float]
    role_names: tuple[str, ...] = ()

    def __str__(self) -> str:
        effects: list[tuple[Hypothesis, Estimate]] = [*self.heads.items(), *self.paths.items()]
        rows = [
            (
                each.text(self.role_names) if isinstance(each, HeadPath) else "{} {}".format(*each),
                [effect.first, effect.curvature, self.exact.get(each, math.nan)],
            )
            for each, effect in sorted(effects, key=lambda pair: -pair[1].effect)
        ]
        header = ("first order", "curvature", "exact loss")
        loss = f"intact loss {self.baseline_loss:.4f}; estimates of its rise"
        far = ", ".join(str(head) for head in self.far)
        return "\n".join(
            [
                loss,
                *number_table("changed", header, rows),
                *([f"far, so that the estimate may have any size: {far}"] if far else []),
            ]
        )

    @property
    def far(self) -> list[Head]:
        """The heads whose mean differs from their attention by more than half of it."""
        return [head for head, share in self.changed.items() if share > _FAR]

    @property
    def rank_correlation(self) -> float:
        """Spearman's, of estimates and exact losses where there are both; NaN for fewer than 2."""
        effects = [
            (self.paths[each] if isinstance(each, HeadPath) else self.heads[each]).effect
            for each in self.exact
        ]
        return rank_correlation(effects, list(self.exact.values()))


@overload
def ablation_sweep(
    model: Any,
    task: Task,
    batch: Batch,
    least: float = 0.0,
    progress: Progress = no_progress,
    estimate: Literal[False] = False,
) -> AblationSweep: ...
@overload
def ablation_sweep(
    model: Any,
    task: Task,
    batch: Batch,
    least: float = 0.0,
    progress: Progress = no_progress,
    *,
    estimate: Literal[True],
    exact: int = 0,
) -> EstimatedSweep: ...
def ablation_sweep(
    model: Any,
    task: Task,
    batch: Batch,
    least: float = 0.0,
    progress: Progress = no_progress,
    estimate: bool = False,
    exact: int = 0,
) -> AblationSweep | EstimatedSweep:
    """Replace every head alone, and cut every path alone.

        heads[h, m] = loss({h: m})    for m uniform and identity (in estimates, h's mean): head h
                                      replaced, all others intact
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
        estimate: give the estimates of `circuits.attribution.estimates.attribute` instead, all from
            one forward pass. Heads are replaced by their mean, which is nearer to their attention
            than uniform and identity are, so that an estimate of first order is worth more.
        exact: with `estimate`, the number of hypotheses with the largest estimates that are also
            measured exactly.

    Returns:
        The exact losses, or with `estimate` an `EstimatedSweep`.

    Raises:
        InputError: the model does not fit the task, or an estimate is asked for and the loss has no
            gradient.

    Examples:
        >>> import retrieval_interp as ri
        >>> small = ri.load_checkpoint("small")
        >>> batch = small.task.sample(64, split="test")
        >>> sweep = ri.ablation_sweep(small.model, small.task, batch, least=0.3)
        >>> worst = max(sweep.paths, key=lambda row: row.live_loss)
        >>> print(worst.path, round(sweep.baseline_loss, 3), round(worst.live_loss, 2))
        L2.H0 s0<-s2 0.009 1.82
    """
    scorer = Scorer(model, task, batch)
    attention = mean_attention(model, batch)
    n_layers, n_heads = attention.shape[:2]
    all_heads = [Head(layer, head) for layer in range(n_layers) for head in range(n_heads)]
    replaced = [(head, mechanism) for head in all_heads for mechanism in (UNIFORM, IDENTITY)]
    baseline = mean_loss(scorer.base_losses)
    empty = scorer.empty_circuit
    if not estimate:
        heads = {
            choice: scorer.loss(empty.replace(*choice))
            for choice in progress(replaced, "replacing heads")
        }
        paths = [
            LiveScore(path, float(attention[path.head][path.path]), scorer.loss(empty.cut(path)))
            for path in progress(_paths(scorer, attention, least), "cutting paths")
        ]
        return AblationSweep(baseline, heads, paths, empty.role_names)
    attribution = attribute(model, task, batch)
    causal = is_causal(model)
    means = head_means(model, batch, allowed_attention(attention.cpu(), batch, causal))
    of_heads = {
        (head, mean): attribution.estimate(empty.replace(head, mean))
        for head, (mean, _) in means.items()
    }
    changed = {head: 1 - share for head, (_, share) in means.items()}
    cuts = progress(_paths(scorer, attention, least), "estimating cuts")
    of_paths = {path: attribution.estimate(empty.cut(path)) for path in cuts}
    effects: list[tuple[Hypothesis, Estimate]] = [*of_heads.items(), *of_paths.items()]
    largest = [each for each, _ in sorted(effects, key=lambda pair: -pair[1].effect)[:exact]]
    losses = {
        each: scorer.loss(empty.cut(each) if isinstance(each, HeadPath) else empty.replace(*each))
        for each in progress(largest, "scoring exactly")
    }
    return EstimatedSweep(baseline, of_heads, of_paths, changed, losses, empty.role_names)


def _paths(
    scorer: Scorer, attention: Float[Tensor, "layer head dest src"], least: float
) -> list[HeadPath]:
    """Every path that the mask allows and that has some attention."""
    allowed = allowed_paths(scorer.batch, is_causal(scorer.model))
    return [
        HeadPath(Head(layer, head), path)
        for layer in range(attention.shape[0])
        for head in range(attention.shape[1])
        for path in allowed
        if attention[layer, head][path] >= least
    ]
