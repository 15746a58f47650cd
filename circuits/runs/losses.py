"""Means of losses over examples, and their standard errors."""

from jaxtyping import Float
from torch import Tensor


def mean_loss(losses: Float[Tensor, "batch target"]) -> float:
    """The mean over targets, then over examples; the same everywhere, so equal runs score equal."""
    return float(losses.mean(dim=1).mean())


def standard_error(losses: Float[Tensor, " batch"]) -> float:
    """The standard error of the mean over n examples, s / √n; 0 for a single one."""
    return float(losses.std()) / len(losses) ** 0.5 if len(losses) > 1 else 0.0
