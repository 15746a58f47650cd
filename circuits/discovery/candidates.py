"""Candidate mechanisms of a head, from its mean attention by role and by position."""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.circuit import Head, RolePath
from retrieval_interp.circuits.hooks.points import is_causal
from retrieval_interp.circuits.mechanisms import TOKEN_RULES, Mechanism, along, position_rules
from retrieval_interp.circuits.runs.means import position_means
from retrieval_interp.circuits.runs.pattern_shares import pattern_shares, role_shares
from retrieval_interp.tasks import Batch

_SHARED = 0.25  # a rule that has less of a head's attention is no candidate ...
_OF_A_ROLE = 0.5  # ... unless it has as much of the attention of a single role


def propose(attention: Float[Tensor, "dest src"], kind: str, threshold: float) -> Mechanism:
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
    return along(paths)


def rule_candidates(model: Any, batch: Batch, heads: list[Head]) -> dict[Head, list[Mechanism]]:
    """The rules that have some of a head's attention, and its mean pattern.

    At least a quarter of it, or half of the attention of one role, since a head may work at one
    position. None where inputs are vectors, whose positions are shuffled: roles say what they are.
    """
    if batch.tokens is None:
        return {head: [] for head in heads}
    rules = [*position_rules(is_causal(model)), *TOKEN_RULES]
    means = position_means(model, batch)
    tried = dict.fromkeys(heads, rules)
    shares, of_roles = pattern_shares(model, batch, tried), role_shares(model, batch, tried)
    return {
        head: [
            *(
                rule
                for rule, share, at in zip(rules, shares[head], of_roles[head])
                if share >= _SHARED or float(at.max()) >= _OF_A_ROLE
            ),
            means[head],
        ]
        for head in heads
    }
