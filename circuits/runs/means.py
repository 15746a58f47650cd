"""Mean attention of heads as mechanisms: by role, or by position."""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.circuit import Head, RolePath
from retrieval_interp.circuits.mechanisms import Mean, Mechanism, RoleMean
from retrieval_interp.circuits.runs.pattern_shares import mean_patterns, pattern_shares
from retrieval_interp.tasks import Batch

_NEGLIGIBLE = 0.005  # weaker paths are left out of role-mean heads


def role_mean(attention: Float[Tensor, "dest src"]) -> Mechanism:
    """A head's mean attention by role as a role-mean mechanism.

    Rows that sum to more than 1, as where sources share positions, are scaled to 1.
    """
    attention = attention / attention.sum(-1, keepdim=True).clamp(min=1)
    weights = {
        RolePath(dest, src): min(1.0, weight)
        for dest, row in enumerate(attention.tolist())
        for src, weight in enumerate(row)
        if weight >= _NEGLIGIBLE
    }
    return RoleMean(tuple(weights), tuple(weights.values()))


def position_means(model: Any, batch: Batch) -> dict[Head, Mechanism]:
    """The mean pattern of every head by position."""
    means = mean_patterns(model, batch).cpu()
    return {
        Head(layer, head): Mean(means[layer, head])
        for layer in range(means.shape[0])
        for head in range(means.shape[1])
    }


def head_means(
    model: Any, batch: Batch, attention: Float[Tensor, "layer head dest src"]
) -> dict[Head, tuple[Mechanism, float]]:
    """The mean of every head, by position or by role, whichever shares more with its patterns.

    A mean by role says little where positions have no role, and one by position where roles move.

    Args:
        model: a hooked model; left unchanged.
        batch: the examples.
        attention: mean attention by role, where it is allowed.

    Returns:
        The mechanism, and the share of the head's attention that it has.
    """
    means = {head: [mean] for head, mean in position_means(model, batch).items()}
    for head, of_head in means.items():
        if batch.roles.shape[-1] > 1:
            of_head.insert(0, role_mean(attention[head]))
    shares = pattern_shares(model, batch, means)
    best = {head: max(range(len(own)), key=own.__getitem__) for head, own in shares.items()}
    return {head: (means[head][at], shares[head][at]) for head, at in best.items()}
