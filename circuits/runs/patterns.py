"""Reading every layer's attention pattern in one run."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from retrieval_interp.circuits.hooks.points import call_options, pattern_hook_name
from retrieval_interp.tasks import Batch, InputError


@torch.no_grad()
def read_patterns(model: Any, batch: Batch, keep: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """What is kept of every layer's pattern.

    Args:
        model: a hooked model; left unchanged.
        batch: the examples.
        keep: takes a layer's pattern, [batch head dest src], while the model runs.

    Raises:
        InputError: the model lacks pattern hooks, or does not fire them.
    """
    layers: list[Tensor] = []

    def hold(pattern: Tensor, hook: Any) -> None:
        layers.append(keep(pattern.detach()))

    names = [pattern_hook_name(layer) for layer in range(model.cfg.n_layers)]
    missing = [name for name in names if name not in model.hook_dict]
    if missing:
        raise InputError(
            f"attention: expected a model with hook points, found no {missing[0]}; load it as a "
            "HookedTransformer or TransformerBridge"
        )
    hooks = [(name, hold) for name in names]
    model.run_with_hooks(batch.inputs, **call_options(batch), fwd_hooks=hooks, return_type=None)
    if len(layers) != len(names):
        raise InputError(
            f"attention: expected {names[0]} and its counterparts to fire in {len(names)} layers, "
            f"found {len(layers)}; the model does not pass its attention through these hooks"
        )
    return layers
