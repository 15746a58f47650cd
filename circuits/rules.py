"""Rules: where a head attends, said by position or by token instead of by role.

- `previous`, or `offset k`: the position before, or k before.
- `first`: the first position, where heads of language models rest (an attention sink).
- `same`: the earlier positions with the same token, in equal parts.
- `after-same`: the positions after these, in equal parts (induction).
- `mean`: the head's mean pattern by position, measured.

A position without a target, such as one whose token is new, attends to the first position. Rules
look back only, in a model without a mask as well.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuits.circuit import Mechanism
from tasks import InputError

FIRST = Mechanism("first")
PREVIOUS = Mechanism("offset", offset=1)
SAME = Mechanism("same")
AFTER_SAME = Mechanism("after-same")
POSITION_RULES = (FIRST, PREVIOUS)  # simplest first
TOKEN_RULES = (SAME, AFTER_SAME)


def rule_pattern(
    mechanism: Mechanism,
    tokens: Int[Tensor, "batch pos"] | None,
    n_positions: int,
    device: torch.device,
) -> Float[Tensor, "#batch dest src"]:
    """The attention pattern of a rule.

    Args:
        mechanism: of kind `offset`, `first`, `same`, `after-same` or `mean`.
        tokens: what stands at each position; None where inputs are vectors.
        n_positions: sequence length.
        device: of the pattern.

    Returns:
        [batch dest src], or [1 dest src] if the pattern is the same for every example.

    Raises:
        InputError: the rule compares tokens and there are none, or a mean that looks ahead was
            measured on shorter sequences.
    """
    if mechanism.mean is not None:
        return mechanism.mean.pattern(n_positions).to(device)[None]
    position = torch.arange(n_positions, device=device)
    if mechanism.kind in ("offset", "first"):
        back = mechanism.offset if mechanism.kind == "offset" else n_positions
        sources = (position - back).clamp(min=0)
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
