"""Carrying and enabling: what a path is worth in the living model, and what it makes possible.

With every pattern fixed, a path matters only by what it *carries* to the output. The head that
joins a pair, without which no later head could find its target, then looks idle (the paper's
exception in appendix E). So each path is also ablated *live*: its attention is set to zero in the
intact model and later attention is computed anew.

`circuits.ablation_sweep` gives the loss of every such cut. `enabled_by` says which later paths lose
attention when a path is cut, and whether through their queries or through their keys: one of the
two is taken from the cut run, the other from the intact one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuits.ablation import ablated, is_causal, pattern_hook_name
from circuits.attention import attention_by_role
from circuits.circuit import Circuit, HeadPath
from circuits.mechanisms import allowed_positions
from tasks import Batch, InputError


@dataclass(frozen=True)
class Enabled:
    """A later path that loses attention when an earlier one is cut.

    Attributes:
        path: the later path.
        attention: its mean attention in the intact model.
        when_cut: the same when the earlier path is cut.
        by_query: the same when only the later head's queries come from the cut run.
        by_key: the same when only its keys do.
    """

    path: HeadPath
    attention: float
    when_cut: float
    by_query: float
    by_key: float

    @property
    def side(self) -> str:
        """`query` or `key`: which of the two loses more attention alone."""
        return "query" if self.by_query < self.by_key else "key"


@torch.no_grad()
def enabled_by(
    model: Any,
    batch: Batch,
    cut: HeadPath,
    later: Sequence[HeadPath],
    least_drop: float = 0.1,
) -> list[Enabled]:
    """Which later paths a path enables.

    Args:
        model: a hooked model without rotary attention.
        batch: the examples.
        cut: the path that is cut in the intact model.
        later: paths to look at; those of the same or earlier layers are skipped.
        least_drop: mean attention that a path must lose to be named.

    Returns:
        The paths that lose attention, those that lose most first.

    Raises:
        InputError: the model's attention is not the softmax of its queries times keys (rotary or
            local attention, for instance), so that sides cannot be told apart.
    """
    later = [path for path in later if path.head.layer > cut.head.layer]
    if not later:
        return []
    layers = sorted({path.head.layer for path in later})
    sides = ("q", "k", "pattern")
    names = [f"blocks.{layer}.attn.hook_{side}" for layer in layers for side in sides]
    _, intact = model.run_with_cache(batch.inputs, names_filter=names, return_type=None)
    circuit = Circuit({}, batch.roles.shape[-1]).cut(cut)
    with ablated(model, circuit, batch):
        _, changed = model.run_with_cache(batch.inputs, names_filter=names, return_type=None)
    found = []
    for layer in layers:
        q, k = (f"blocks.{layer}.attn.hook_{side}" for side in "qk")
        means = [
            _mean_attention(model, batch, layer, queries[q], keys[k])
            for queries in (intact, changed)
            for keys in (intact, changed)
        ]
        measured = attention_by_role(intact[pattern_hook_name(layer)], batch.roles)
        if not torch.allclose(means[0], measured, atol=1e-3):
            raise InputError(
                f"enabling: expected layer {layer} to attend by its queries and keys alone, found "
                "another pattern; queries and keys of this model cannot be told apart"
            )
        for path in later:
            if path.head.layer == layer:
                both = (path.head.head, *path.path)
                before, by_key, by_query, after = (float(mean[both]) for mean in means)
                if before - after >= least_drop:
                    found.append(Enabled(path, before, after, by_query, by_key))
    return sorted(found, key=lambda row: row.when_cut - row.attention)


def _mean_attention(
    model: Any,
    batch: Batch,
    layer: int,
    queries: Float[Tensor, "batch pos head d_head"],
    keys: Float[Tensor, "batch pos head d_head"],
) -> Float[Tensor, "head dest src"]:
    """Attention by role from given queries and keys."""
    keys = keys.repeat_interleave(queries.shape[2] // keys.shape[2], dim=2)
    scale = getattr(model.blocks[layer].attn, "attn_scale", None) or queries.shape[-1] ** 0.5
    scores = torch.einsum("bqhd,bkhd->bhqk", queries, keys) / scale
    allowed = allowed_positions(queries.shape[1], is_causal(model), scores.device)
    pattern = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    return attention_by_role(pattern, batch.roles)
