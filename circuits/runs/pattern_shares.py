"""Mean attention by position, and what patterns share with mechanisms."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.attention import first_real, shifted
from retrieval_interp.circuits.circuit import Head
from retrieval_interp.circuits.hooks.points import is_causal
from retrieval_interp.circuits.mechanisms import Mechanism, Where
from retrieval_interp.circuits.runs.patterns import read_patterns
from retrieval_interp.tasks import Batch

_AT_ONCE = 50_000_000  # weights of the patterns that are held at once


def asked_rows(batch: Batch, causal: bool) -> Float[Tensor, "batch pos"]:
    """1 at positions that count, 0 at others: padding and, in a causal model, after all roles."""
    last = batch.roles.flatten(1).amax(1, keepdim=True)
    asked = torch.arange(batch.inputs.shape[1], device=last.device) <= last
    asked = asked if causal else torch.ones_like(asked)
    return (asked if batch.attention_mask is None else asked & batch.attention_mask).float()


@torch.no_grad()
def mean_patterns(model: Any, batch: Batch) -> Float[Tensor, "layer head dest src"]:
    """Mean attention by position, over the examples that have it (`asked_rows`).

    Positions count from the first that is no padding.

    Raises:
        InputError: the model's pattern hooks do not fire.
    """
    total: list[Tensor] = []
    causal = is_causal(model)
    for part in _parts(model, batch):
        weights = asked_rows(part, causal)[:, None, :, None]
        weighted = (pattern * weights for pattern in _patterns(model, part))
        sums = [_from_start(pattern, part, (2, 3)).sum(0) for pattern in weighted]
        total = [a + b for a, b in zip(total, sums)] if total else sums
    count = _from_start(asked_rows(batch, causal), batch, (1,)).sum(0)
    return torch.stack(total) / count.clamp(min=1)[None, None, :, None]


def _from_start(x: Tensor, batch: Batch, dims: tuple[int, ...]) -> Tensor:
    """Positions moved so that each example starts at 0."""
    real = batch.attention_mask
    return x if real is None else shifted(x, -first_real(real), dims)


def pattern_shares(
    model: Any, batch: Batch, mechanisms: Mapping[Head, Sequence[Mechanism]]
) -> dict[Head, list[float]]:
    """What the pattern of every head shares with each of its mechanisms.

    Σ min(pattern, mechanism) over sources, as a mean over the positions that count
    (`asked_rows`): 1 if they are equal, and 1 minus their total variation distance in general.

    Raises:
        InputError: the model's pattern hooks do not fire.
    """
    sums = {head: [0.0] * len(of_head) for head, of_head in mechanisms.items()}
    causal = is_causal(model)
    for part, head, place, shared in _shared_rows(model, batch, mechanisms):
        sums[head][place] += float((shared * asked_rows(part, causal)).sum())
    total = float(asked_rows(batch, causal).sum()) or 1.0
    return {head: [each / total for each in of_head] for head, of_head in sums.items()}


def role_shares(
    model: Any, batch: Batch, mechanisms: Mapping[Head, Sequence[Mechanism]]
) -> dict[Head, list[Float[Tensor, " role"]]]:
    """As `pattern_shares`, as a mean over the positions of each role; 0 for one that is absent."""
    roles = batch.roles
    sums = {head: [torch.zeros(roles.shape[-1])] * len(own) for head, own in mechanisms.items()}
    for part, head, place, shared in _shared_rows(model, batch, mechanisms):
        at = part.roles.flatten(1)
        of_roles = shared.gather(1, at.clamp(min=0)).masked_fill(at < 0, 0.0)
        sums[head][place] = sums[head][place] + of_roles.view_as(part.roles).sum((0, 1)).cpu()
    total = (roles >= 0).sum((0, 1)).clamp(min=1).cpu()
    return {head: [each / total for each in of_head] for head, of_head in sums.items()}


def _shared_rows(
    model: Any, batch: Batch, mechanisms: Mapping[Head, Sequence[Mechanism]]
) -> Iterator[tuple[Batch, Head, int, Float[Tensor, "batch dest"]]]:
    """Of each part of a batch, head and mechanism, what every row shares with the mechanism."""
    causal = is_causal(model)
    for part in _parts(model, batch):
        rules: dict[Mechanism, Tensor] = {}
        where = Where.of(part, causal)
        patterns = _patterns(model, part)
        for head, of_head in mechanisms.items():
            for place, mechanism in enumerate(of_head):
                wanted = rules.get(mechanism)
                if wanted is None:
                    wanted = mechanism.pattern(where)
                    if not (mechanism.paths or mechanism.is_measured):  # others have it, too
                        rules[mechanism] = wanted
                yield (
                    part,
                    head,
                    place,
                    torch.minimum(patterns[head.layer][:, head.head], wanted).sum(-1),
                )


def _parts(model: Any, batch: Batch) -> list[Batch]:
    each = model.cfg.n_layers * model.cfg.n_heads * batch.inputs.shape[1] ** 2
    return list(batch.parts(max(1, _AT_ONCE // each)))


def _patterns(model: Any, batch: Batch) -> list[Float[Tensor, "batch head dest src"]]:
    return read_patterns(model, batch, Tensor.float)
