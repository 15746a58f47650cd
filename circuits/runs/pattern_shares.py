"""Mean attention by position, and what patterns share with mechanisms."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuits.attention import attention_pattern
from circuits.circuit import Head, Mechanism
from circuits.hooks.points import is_causal
from circuits.rules import first_real, shifted
from circuits.runs.patterns import read_patterns
from tasks import Batch

_AT_ONCE = 50_000_000  # weights of the patterns that are held at once


def asked_rows(batch: Batch) -> Float[Tensor, "batch pos"]:
    """1 at positions up to the last role of each example, 0 after it and at padding."""
    last = batch.roles.flatten(1).amax(1, keepdim=True)
    asked = torch.arange(batch.inputs.shape[1], device=last.device) <= last
    return (asked if batch.attention_mask is None else asked & batch.attention_mask).float()


@torch.no_grad()
def mean_patterns(model: Any, batch: Batch) -> Float[Tensor, "layer head dest src"]:
    """Mean attention by position, over the examples that have it (`asked_rows`).

    Positions count from the first that is no padding.

    Raises:
        InputError: the model's pattern hooks do not fire.
    """
    total: list[Tensor] = []
    for part in _parts(model, batch):
        weights = asked_rows(part)[:, None, :, None]
        weighted = (pattern * weights for pattern in _patterns(model, part))
        sums = [_from_start(pattern, part, (2, 3)).sum(0) for pattern in weighted]
        total = [a + b for a, b in zip(total, sums)] if total else sums
    count = _from_start(asked_rows(batch), batch, (1,)).sum(0)
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
    causal, length = is_causal(model), batch.inputs.shape[1]
    sums = {head: [0.0] * len(of_head) for head, of_head in mechanisms.items()}
    for part in _parts(model, batch):
        rows, real = asked_rows(part), part.attention_mask
        rules: dict[Mechanism, Tensor] = {}
        patterns = _patterns(model, part)
        for head, of_head in mechanisms.items():
            for place, mechanism in enumerate(of_head):
                wanted = rules.get(mechanism)
                if wanted is None:
                    wanted = attention_pattern(
                        mechanism, part.roles, length, causal, "zero", part.tokens, real
                    )
                    if not (mechanism.paths or mechanism.mean):  # others have it, too
                        rules[mechanism] = wanted
                shared = torch.minimum(patterns[head.layer][:, head.head], wanted).sum(-1)
                sums[head][place] += float((shared * rows).sum())
    total = float(asked_rows(batch).sum()) or 1.0
    return {head: [each / total for each in of_head] for head, of_head in sums.items()}


def _parts(model: Any, batch: Batch) -> list[Batch]:
    each = model.cfg.n_layers * model.cfg.n_heads * batch.inputs.shape[1] ** 2
    return list(batch.parts(max(1, _AT_ONCE // each)))


def _patterns(model: Any, batch: Batch) -> list[Float[Tensor, "batch head dest src"]]:
    return read_patterns(model, batch, Tensor.float)
