"""Rules: where a head attends, said by position or by token instead of by role.

- `previous`, or `offset k`: the position before, or k before.
- `next`, or `offset -k`: the position after, or k after, in a model that looks both ways.
- `first`: the first position, where heads of language models rest (an attention sink).
- `last`: the last position, in a model that looks both ways.
- `same`: the earlier positions with the same token, in equal parts.
- `after-same`: the positions after these, in equal parts (induction).
- `mean`: the head's mean pattern by position, measured.

A position without a target, such as one whose token is new, attends to the first position; the last
ones, where `offset -k` has no target, to the last. `same` and `after-same` look back only, in a
model without a mask as well.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from retrieval_interp.circuits.circuit import Mechanism
from retrieval_interp.tasks import InputError

FIRST = Mechanism("first")
LAST = Mechanism("last")
PREVIOUS = Mechanism("offset", offset=1)
NEXT = Mechanism("offset", offset=-1)
SAME = Mechanism("same")
AFTER_SAME = Mechanism("after-same")
TOKEN_RULES = (SAME, AFTER_SAME)


def looks_ahead(mechanism: Mechanism) -> bool:
    """Whether a rule attends to later positions, which a causal model cannot do."""
    return mechanism.kind == "last" or mechanism.offset < 0


def position_rules(causal: bool, offsets: Sequence[int] = (1,)) -> list[Mechanism]:
    """Rules by position, the simplest first, those that look ahead only without a mask.

    Args:
        causal: whether the model attends to earlier positions alone.
        offsets: how far the `offset` rules look, both ways.
    """
    ways = (offsets,) if causal else (offsets, [-offset for offset in offsets])
    shifts = [Mechanism("offset", offset=offset) for way in ways for offset in way]
    return [FIRST, *([] if causal else [LAST]), *shifts]


def rule_pattern(
    mechanism: Mechanism,
    tokens: Int[Tensor, "batch pos"] | None,
    n_positions: int,
    device: torch.device,
    real: Bool[Tensor, "batch pos"] | None = None,
) -> Float[Tensor, "#batch dest src"]:
    """The attention pattern of a rule.

    Args:
        mechanism: of a kind in `circuits.circuit.RULES`.
        tokens: what stands at each position; None where inputs are vectors.
        n_positions: sequence length.
        device: of the pattern.
        real: False at padding, which rules do not see: positions count from the first real one.

    Returns:
        [batch dest src], or [1 dest src] if the pattern is the same for every example.

    Raises:
        InputError: the rule compares tokens and there are none, or a mean that looks ahead was
            measured on shorter sequences.
    """
    if real is not None:
        starts = first_real(real)
        tokens = None if tokens is None else shifted(tokens, -starts, (1,))
        pattern = rule_pattern(mechanism, tokens, n_positions, device)
        pattern = shifted(pattern.expand(len(real), -1, -1), starts, (1, 2))
        return pattern * (real[:, :, None] & real[:, None, :])
    if mechanism.mean is not None:
        return mechanism.mean.pattern(n_positions).to(device)[None]
    position = torch.arange(n_positions, device=device)
    if mechanism.kind in ("offset", "first", "last"):
        back = {"offset": mechanism.offset, "first": n_positions, "last": -n_positions}
        sources = (position - back[mechanism.kind]).clamp(min=0, max=n_positions - 1)
        return torch.nn.functional.one_hot(sources, n_positions).float()[None]
    if tokens is None:
        raise InputError(
            f"{mechanism.kind}: expected token ids, which this rule compares, found vectors; use "
            "role paths"
        )
    earlier = position[None, :] < position[:, None]
    targets = (tokens[:, :, None] == tokens[:, None, :]) & earlier
    if mechanism.kind == "after-same":
        targets = torch.nn.functional.pad(targets[:, :, :-1], (1, 0))
    targets[:, :, 0] |= ~targets.any(-1)
    return targets / targets.sum(-1, keepdim=True)


def first_real(real: Bool[Tensor, "batch pos"]) -> Int[Tensor, " batch"]:
    """The position of every example's first token that is no padding."""
    return real.int().argmax(1)


def shifted(x: Tensor, by: Int[Tensor, " batch"], dims: tuple[int, ...]) -> Tensor:
    """Each example moved along some axes by a number of places of its own, around the end."""
    for dim in dims:
        place = torch.arange(x.shape[dim], device=x.device) - by[:, None]
        shape = [len(x), *[1] * (dim - 1), x.shape[dim], *[1] * (x.ndim - dim - 1)]
        x = x.gather(dim, (place % x.shape[dim]).view(shape).expand(x.shape))
    return x
