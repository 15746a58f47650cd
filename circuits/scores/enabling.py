"""Which later paths lose attention when a path is cut in the intact model (*enabling*).

With all patterns fixed, a path matters only by what it *carries* to the output. A head that joins
pairs, without which no later head finds its target, looks idle (the exception in appendix E).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.attention import (
    allowed_positions,
    attention_along,
    softmax_attention,
)
from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.hooks import is_causal
from retrieval_interp.circuits.paths import Head, HeadPath
from retrieval_interp.circuits.runs.means import weighted_mean
from retrieval_interp.circuits.runs.runs import HookRuns, parts_of
from retrieval_interp.circuits.scores.scorer import Cut, Progress, no_progress, paths_of
from retrieval_interp.tasks import Batch, InputError

Seen = dict[int, dict[str, Tensor]]  # queries, keys and pattern by layer


@dataclass(frozen=True)
class Enabled:
    """A later path that loses attention when an earlier one is cut."""

    path: HeadPath
    attention: float  # its mean in the intact model
    when_cut: float
    by_query: float  # with only the later head's queries from the cut run
    by_key: float  # with only its keys from the cut run

    @property
    def side(self) -> str:
        """`query` or `key`: whichever by itself loses more attention."""
        return "query" if self.by_query < self.by_key else "key"


def enabled_by(
    model: Any,
    batch: Batch,
    cuts: Sequence[Cut],
    later: Sequence[HeadPath],
    least_drop: float = 0.1,
    progress: Progress = no_progress,
) -> dict[Cut, tuple[Enabled, ...]]:
    """Find the later paths that each path enables, those that lose most attention first.

    Write Ā_q(Q, K) for the mean attention of path q with its head's queries from run Q and keys
    from run K, where a run is the intact model (0) or the model with path p cut live (p). Then

        p enables q      ⇔  q is in a later layer than p, and Ā_q(0, 0) - Ā_q(p, p) >= least_drop
        through queries  ⇔  Ā_q(p, 0) < Ā_q(0, p),  otherwise through keys

    Args:
        model: a hooked model without rotary attention.
        batch: the examples.
        cuts: what to cut in the intact model, one after the other: a path, or several at once.
        later: the paths to examine; those up to the layer of the (first) path cut are skipped.
        least_drop: the smallest loss of mean attention that counts.
        progress: as in `ablations`.
    """
    means: dict[Cut, list[tuple[Tensor, Tensor]]] = {cut: [] for cut in cuts}
    first = min(map(_layer, cuts), default=0)
    layers = sorted({path.head.layer for path in later if path.head.layer > first})
    if not layers:
        return dict.fromkeys(cuts, ())
    empty = Circuit({}, batch.roles.shape[-1])
    for part in parts_of(model, batch):
        with _seeing(model, layers) as intact:
            runs = HookRuns(model, part)
            base = runs.base(empty)
        pattern, mixed, *_ = _all_sides(model, part, intact, intact, later)[0]
        if not torch.allclose(mixed, pattern, atol=1e-3):
            raise InputError(
                "enabling: expected heads to attend only by their queries and keys, found another "
                "pattern; this model's queries and keys cannot be separated"
            )
        for cut in progress(cuts, "finding enabled paths"):
            with _seeing(model, [layer for layer in layers if layer > _layer(cut)]) as changed:
                if changed:
                    runs.outputs(empty.cut(*paths_of(cut)), base)
            means[cut].append(_all_sides(model, part, intact, changed, later))
    found = {}
    for cut, parts in means.items():
        sides = weighted_mean(parts).T.tolist()
        rows = [
            Enabled(path, before, after, by_query, by_key)
            for path, (before, by_key, by_query, after) in zip(later, sides)
            if path.head.layer > _layer(cut) and before - after >= least_drop
        ]
        found[cut] = tuple(sorted(rows, key=lambda row: row.when_cut - row.attention))
    return found


def _layer(cut: Cut) -> int:
    return min(path.head.layer for path in paths_of(cut))


@contextmanager
def _seeing(model: Any, layers: list[int]) -> Iterator[Seen]:
    """Record some layers' queries, keys and patterns in the runs within."""
    seen: Seen = {layer: {} for layer in layers}

    def see(x: Tensor, hook: Any, layer: int, side: str) -> None:
        seen[layer][side] = x.detach()

    hooks = [
        (f"blocks.{layer}.attn.hook_{side}", partial(see, layer=layer, side=side))
        for layer in layers
        for side in ("q", "k", "pattern")
    ]
    with model.hooks(fwd_hooks=hooks):
        yield seen


def _all_sides(
    model: Any, batch: Batch, intact: Seen, changed: Seen, later: Sequence[HeadPath]
) -> tuple[Float[Tensor, "side path"], Float[Tensor, " path"]]:
    """Mean attention of paths with neither, the keys, the queries, and both from the changed run;
    and how many chains each is the mean of.
    """
    sides, counts = torch.zeros(4, len(later)), torch.zeros(len(later))
    patterns = {
        head: (
            intact[head.layer]["pattern"][:, head.head],
            _mixed(model, batch, head, intact, changed),
            _mixed(model, batch, head, changed, intact),
            changed[head.layer]["pattern"][:, head.head],
        )
        for head in {path.head for path in later if path.head.layer in changed}
    }
    for place, path in enumerate(later):
        for side, pattern in enumerate(patterns.get(path.head, ())):
            sides[side, place], counts[place] = attention_along(pattern, path.path, batch.roles)
    return sides, counts


def _mixed(
    model: Any, batch: Batch, head: Head, queries: Seen, keys: Seen
) -> Float[Tensor, "batch dest src"]:
    """A head's pattern from the queries of one run and the keys of another."""
    query, key = queries[head.layer]["q"], keys[head.layer]["k"]
    group = query.shape[2] // key.shape[2]
    scale = getattr(model.blocks[head.layer].attn, "attn_scale", None) or query.shape[-1] ** 0.5
    allowed = allowed_positions(
        query.shape[1], is_causal(model), query.device, batch.attention_mask
    )
    return softmax_attention(query[:, :, head.head], key[:, :, head.head // group], allowed, scale)
