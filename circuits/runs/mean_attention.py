"""Mean attention by role: how much each role attends to each other one (paper, section 9.1)."""

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.attention import attention_by_role
from retrieval_interp.circuits.runs.hook_runs import parts_of
from retrieval_interp.circuits.runs.patterns import read_patterns
from retrieval_interp.tasks import Batch


def mean_attention(model: Any, batch: Batch) -> Float[Tensor, "layer head role role2"]:
    """Mean attention from each role to each role of the same chain, per head.

    With A[l, h, b] the attention pattern of head h in layer l on example b, and roles[b, c, r] the
    position of role r of chain c, over the examples and chains that have both roles,

        mean[l, h, dest, src] = mean over b and c of A[l, h, b, roles[b, c, dest], roles[b, c, src]]

    Where several chains have role dest at the same position, as where one position answers for all
    of them, it is the attention from there to role src of all these chains together.

    Returns:
        [layer head dest src], each in [0, 1]. What a row lacks to 1 goes to other chains (and to
        positions without a role).

    Raises:
        InputError: the model's pattern hooks do not fire.

    Examples:
        >>> import retrieval_interp as ri
        >>> small = ri.load_checkpoint("small")
        >>> attention = ri.mean_attention(small.model, small.task.sample(64, split="test"))
        >>> attention.shape  # layer, head, dest, src
        torch.Size([5, 1, 7, 7])
        >>> round(attention[2, 0, 0, 2].item(), 2)  # L2.H0 s0<-s2
        0.89
    """
    return weighted_mean(_mean_attention(model, part) for part in parts_of(model, batch))


def weighted_mean(parts: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """The mean over all examples, from the parts' means and how many examples each is the mean of.

    Counts are broadcast against means.
    """
    means, counts = zip(*parts)
    total = torch.stack([count.float() for count in counts]).sum(0).clamp(min=1)
    mean: Tensor = torch.stack([m * (count / total) for m, count in zip(means, counts)]).sum(0)
    return mean


def _mean_attention(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    counts: list[Tensor] = []

    def by_role(pattern: Tensor) -> Tensor:
        mean, count = attention_by_role(pattern, batch.roles)
        counts.append(count)
        return mean

    return torch.stack(read_patterns(model, batch, by_role)), counts[0]
