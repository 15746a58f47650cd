"""Candidate mechanisms from a head's mean attention by role."""

from typing import Literal

from jaxtyping import Float
from torch import Tensor

from circuits.circuit import Mechanism, RolePath, tidy

_NEGLIGIBLE = 0.005  # weaker paths are left out of role-mean heads


def propose(
    attention: Float[Tensor, "dest src"], kind: Literal["one-hot", "shared"], threshold: float
) -> Mechanism:
    """A one-hot or shared mechanism of a head's strongest paths.

    Args:
        attention: mean attention, [dest src].
        kind: `one-hot` keeps a role's strongest source, `shared` all of them.
        threshold: in (0, 1); weaker paths are left out.
    """
    paths = []
    for dest, row in enumerate(attention.tolist()):
        sources = [src for src, weight in enumerate(row) if weight >= threshold]
        if kind == "one-hot" and sources:
            sources = [max(sources, key=lambda src: row[src])]
        paths += [RolePath(dest, src) for src in sources]
    return tidy(Mechanism("shared", tuple(paths)))


def role_mean(attention: Float[Tensor, "dest src"]) -> Mechanism:
    """A head's mean attention by role as a role-mean mechanism."""
    weights = {
        RolePath(dest, src): min(1.0, weight)
        for dest, row in enumerate(attention.tolist())
        for src, weight in enumerate(row)
        if weight >= _NEGLIGIBLE
    }
    return Mechanism("role-mean", tuple(weights), tuple(weights.values()))
