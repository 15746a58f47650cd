"""Mean attention by role: which role looks at which, a number a head (paper, section 9.1)."""

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuits.attention import attention_by_role
from circuits.hooks.points import pattern_hook_name
from circuits.runs.hook_runs import parts_of
from tasks import Batch, InputError


def mean_attention(model: Any, batch: Batch) -> Float[Tensor, "layer head role role2"]:
    """How much each head lets each role attend to each role of its own chain.

    Returns:
        [layer head dest src], each in [0, 1]; what a row lacks to 1 goes to other chains.

    Raises:
        InputError: the model's pattern hooks do not fire.
    """
    parts = parts_of(model, batch)
    return weighted_mean((_mean_attention(model, part), len(part)) for part in parts)


def weighted_mean(parts: Iterable[tuple[Tensor, int]]) -> Tensor:
    """The mean over all examples from the means over parts and their numbers of examples."""
    means, counts = zip(*parts)
    weights = torch.tensor(counts, dtype=means[0].dtype, device=means[0].device) / sum(counts)
    mean: Tensor = torch.tensordot(weights, torch.stack(means), dims=1)
    return mean


@torch.no_grad()
def _mean_attention(model: Any, batch: Batch) -> Float[Tensor, "layer head role role2"]:
    layers: list[Tensor] = []

    def measure(pattern: Tensor, hook: Any) -> None:
        layers.append(attention_by_role(pattern, batch.roles))

    names = [pattern_hook_name(layer) for layer in range(model.cfg.n_layers)]
    model.run_with_hooks(
        batch.inputs, fwd_hooks=[(name, measure) for name in names], return_type=None
    )
    if len(layers) != len(names):
        raise InputError(
            f"attention: expected {names[0]} and its like to fire in {len(names)} layers, found "
            f"{len(layers)}; the model does not pass its attention through these hooks"
        )
    return torch.stack(layers)
