"""circuitsvis views of attention patterns, with roles as token labels (paper, appendix C)."""

from typing import Any

import torch
from circuitsvis.attention import attention_heads
from circuitsvis.utils.render import RenderedHTML

from circuits.ablation import is_causal, pattern_hook_name
from tasks import Batch, InputError, symbol_letter


def token_labels(batch: Batch, example: int) -> list[str]:
    """A short name for every position: symbol letter and chain number, a query with `?`.

    `B2` stands for x_1 of the chain whose query comes second, `A2?` for that query.
    """
    labels = [""] * batch.inputs.shape[1]
    for chain, roles in enumerate(batch.roles[example].tolist(), start=1):
        for role, position in enumerate(roles):
            labels[position] = f"{symbol_letter(role // 2)}{chain}{'?' if role == 0 else ''}"
    return labels


@torch.no_grad()
def attention_view(model: Any, batch: Batch, example: int = 0) -> RenderedHTML:
    """Every head's attention on one example.

    Args:
        model: a hooked model that reads the batch.
        batch: the examples to choose from.
        example: which one.

    Returns:
        circuitsvis's view; its `local_src` is HTML that needs no network.

    Raises:
        InputError: no such example.
    """
    if not 0 <= example < len(batch):
        raise InputError(f"example: expected 0 to {len(batch) - 1}, found {example}")
    one = batch[example : example + 1]
    layers = range(model.cfg.n_layers)
    _, cache = model.run_with_cache(
        one.inputs, names_filter=[pattern_hook_name(layer) for layer in layers]
    )
    patterns = torch.cat([cache[pattern_hook_name(layer)][0] for layer in layers])
    names = [f"L{layer}.H{head}" for layer in layers for head in range(model.cfg.n_heads)]
    return attention_heads(
        attention=patterns.cpu().mul(1000).round().div(1000).tolist(),
        tokens=token_labels(batch, example),
        attention_head_names=names,
        max_value=1.0,
        min_value=0.0,
        mask_upper_tri=is_causal(model),
    )
