"""Which rule describes a head's attention best, and its mean pattern."""

from dataclasses import dataclass
from typing import Any

from retrieval_interp.circuits.discovery.space import propose
from retrieval_interp.circuits.hooks.hooked import is_causal
from retrieval_interp.circuits.mechanisms import (
    IDENTITY,
    TOKEN_RULES,
    UNIFORM,
    Mechanism,
    position_rules,
)
from retrieval_interp.circuits.paths import Head
from retrieval_interp.circuits.runs.means import head_means, mean_attention, pattern_shares
from retrieval_interp.circuits.scores.control import allowed_attention
from retrieval_interp.circuits.scores.scorer import heads_of
from retrieval_interp.tasks import Batch

_OFFSETS = (1, 2, 3, 4)  # of `offset` rules
_PATHS = 0.25  # mean attention of the paths that are tried where positions have roles
_BETTER = 0.02  # so much more attention a less simple rule has to explain


@dataclass(frozen=True)
class Description:
    """A head's attention in short.

    What a pattern and a rule share is Σ min(pattern, rule) over sources, as a mean over positions.
    """

    rule: Mechanism  # shares most; of rules that share nearly as much, the simplest
    share: float  # from 0 to 1
    mean: Mechanism  # the mean pattern, by position or by role, whichever shares more
    mean_share: float


def describe_heads(model: Any, batch: Batch) -> dict[Head, Description]:
    """Describe every head's attention on a batch.

    Rules are uniform, identity, `first`, `previous`, `offset 2` to `4`; `last`, `next`, `offset -2`
    to `-4` where the model looks both ways; `same` and `after-same` where the batch has tokens; and
    where it has several roles, the head's paths with at least a quarter of a role's attention. In a
    causal model only positions up to the last role of an example count: after it there is padding,
    or nothing that is asked.
    """
    rules = [IDENTITY, UNIFORM, *position_rules(is_causal(model), _OFFSETS)]
    rules += TOKEN_RULES if batch.tokens is not None else ()
    candidates = {head: list(rules) for head in heads_of(model)}
    attention = allowed_attention(mean_attention(model, batch).cpu(), batch, is_causal(model))
    if batch.roles.shape[-1] > 1:
        for head, own in candidates.items():
            paths = propose(attention[head], "shared", _PATHS)
            own += [paths] if paths.paths else []
    means = head_means(model, batch, attention)
    found = {}
    for head, shares in pattern_shares(model, batch, candidates).items():
        place = next(at for at, share in enumerate(shares) if share >= max(shares) - _BETTER)
        found[head] = Description(candidates[head][place], shares[place], *means[head])
    return found
