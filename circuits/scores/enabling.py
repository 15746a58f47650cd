"""Carrying and enabling: what a path is worth in the intact model, and which later paths need it.

With all patterns fixed, a path matters only by what it *carries* to the output. The head that joins
a pair, without which no later head finds its target, then looks idle (the paper's exception in
appendix E). So each path is also *cut live*: its attention is set to zero in the intact model and
all later attention is recomputed.

`circuits.scores.ablations` gives the loss of every such cut. `enabled_by` finds the later paths
that lose attention when a path is cut, and whether through their queries or their keys, by taking
only one of the two from the cut run and the other from the intact one.
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
from retrieval_interp.circuits.circuit import Circuit, HeadPath
from retrieval_interp.circuits.hooks.points import is_causal
from retrieval_interp.circuits.runs.hook_runs import HookRuns, parts_of
from retrieval_interp.circuits.runs.mean_attention import weighted_mean
from retrieval_interp.circuits.scores.scorer import Progress, no_progress
from retrieval_interp.tasks import Batch, InputError

LEAST_DROP = 0.1  # of mean attention
Cut = HeadPath | tuple[HeadPath, ...]
Seen = dict[int, dict[str, Tensor]]  # q, k and pattern by layer


@dataclass(frozen=True)
class Enabled:
    """A later path that loses attention when an earlier one is cut.

    Attributes:
        path: the later path.
        attention: its mean attention in the intact model.
        when_cut: its mean attention when the earlier path is cut.
        by_query: the same with only the later head's queries from the cut run.
        by_key: the same with only its keys from the cut run.
    """

    path: HeadPath
    attention: float
    when_cut: float
    by_query: float
    by_key: float

    @property
    def side(self) -> str:
        """`query` or `key`: whichever alone loses more attention."""
        return "query" if self.by_query < self.by_key else "key"


def enabled_by(
    model: Any,
    batch: Batch,
    cuts: Sequence[Cut],
    later: Sequence[HeadPath],
    least_drop: float = LEAST_DROP,
    progress: Progress = no_progress,
) -> dict[Cut, tuple[Enabled, ...]]:
    """Find the later paths that each path enables.

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
        progress: wraps an iterable to show a bar, as `(items, text)`.

    Returns:
        For each cut, the paths that lose attention, the largest loss first.

    Raises:
        InputError: the model's attention is not the softmax of queries times keys (for instance
            rotary or local attention), so queries and keys cannot be separated.

    Examples:
        >>> import retrieval_interp as ri
        >>> small = ri.load_checkpoint("small")
        >>> batch = small.task.sample(64, split="test")
        >>> cut, *later = (ri.parse_head_path(f"L{text}", n_roles=7) for text in
        ...     ("0.H0 s2<-s1", "2.H0 s0<-s2", "4.H0 s0<-s4"))
        >>> for row in ri.enabled_by(small.model, batch, [cut], later)[cut]:
        ...     print(row.path, row.side, round(row.attention, 2), "to", round(row.when_cut, 2))
        L2.H0 s0<-s2 key 0.89 to 0.01
        L4.H0 s0<-s4 query 0.99 to 0.2
    """
    means: dict[Cut, list[tuple[Tensor, Tensor]]] = {cut: [] for cut in cuts}
    first = min(map(_layer, cuts), default=0)
    layers = sorted({path.head.layer for path in later if path.head.layer > first})
    if not layers:
        return dict.fromkeys(cuts, ())
    parts = parts_of(model, batch)
    empty = Circuit({}, batch.roles.shape[-1])
    for number in progress(range(len(parts) * len(cuts)), "finding enabled paths"):
        part, cut = parts[number // len(cuts)], cuts[number % len(cuts)]
        if number % len(cuts) == 0:
            with _seeing(model, layers) as intact:
                runs = HookRuns(model, part, empty)
            _check_sides(model, part, intact, later)
        with _seeing(model, [layer for layer in layers if layer > _layer(cut)]) as changed:
            if changed:
                runs.outputs(empty.cut(*_paths(cut)))
        means[cut].append(_all_sides(model, part, intact, changed, later))
    return {cut: _losers(weighted_mean(means[cut]), cut, later, least_drop) for cut in cuts}


def _paths(cut: Cut) -> tuple[HeadPath, ...]:
    return (cut,) if isinstance(cut, HeadPath) else cut


def _layer(cut: Cut) -> int:
    """The first layer of a cut."""
    return min(path.head.layer for path in _paths(cut))


def _losers(
    sides: Float[Tensor, "side later"], cut: Cut, later: Sequence[HeadPath], least_drop: float
) -> tuple[Enabled, ...]:
    """The paths of later layers that lose attention, the largest loss first."""
    found = [
        Enabled(path, before, after, by_query, by_key)
        for path, (before, by_key, by_query, after) in zip(later, sides.T.tolist())
        if path.head.layer > _layer(cut) and before - after >= least_drop
    ]
    return tuple(sorted(found, key=lambda row: row.when_cut - row.attention))


@contextmanager
def _seeing(model: Any, layers: list[int]) -> Iterator[Seen]:
    """Record some layers' queries, keys and patterns in the runs within."""
    seen: dict[int, dict[str, Tensor]] = {layer: {} for layer in layers}

    def see(x: Tensor, hook: Any, layer: int, side: str) -> None:
        seen[layer][side] = x.detach()

    hooks = [
        (f"blocks.{layer}.attn.hook_{side}", partial(see, layer=layer, side=side))
        for layer in layers
        for side in ("q", "k", "pattern")
    ]
    with model.hooks(fwd_hooks=hooks):
        yield seen


def _check_sides(model: Any, batch: Batch, seen: Seen, paths: Sequence[HeadPath]) -> None:
    for layer, sides in seen.items():
        of_layer = [path for path in paths if path.head.layer == layer]
        expected, _ = _shown(model, batch, sides["pattern"], of_layer)
        mean = _mean_attention(model, batch, layer, sides["q"], sides["k"], of_layer)
        if not torch.allclose(mean, expected, atol=1e-3):
            raise InputError(
                f"enabling: expected layer {layer} to attend by its queries and keys alone, found "
                "another pattern; this model's queries and keys cannot be separated"
            )


def _all_sides(
    model: Any, batch: Batch, intact: Seen, changed: Seen, paths: Sequence[HeadPath]
) -> tuple[Float[Tensor, "side path"], Float[Tensor, " path"]]:
    """Mean attention of paths with neither, the keys, the queries, and both from the changed run.

    Zero in layers that are not in the changed run. Also how many chains each is the mean of.
    """
    sides, counts = torch.zeros(4, len(paths)), torch.zeros(len(paths))
    for layer, after in changed.items():
        before = intact[layer]
        places = [place for place, path in enumerate(paths) if path.head.layer == layer]
        here = [paths[place] for place in places]
        by_key = _mean_attention(model, batch, layer, before["q"], after["k"], here)
        by_query = _mean_attention(model, batch, layer, after["q"], before["k"], here)
        neither, counts[places] = _shown(model, batch, before["pattern"], here)
        both, _ = _shown(model, batch, after["pattern"], here)
        sides[:, places] = torch.stack([neither, by_key, by_query, both])
    return sides, counts


def _shown(
    model: Any,
    batch: Batch,
    pattern: Float[Tensor, "batch head dest src"],
    paths: Sequence[HeadPath],
) -> tuple[Float[Tensor, " path"], Float[Tensor, " path"]]:
    """The mean attention of some paths of one layer, and how many chains each is the mean of."""
    if not paths:
        return torch.zeros(0), torch.zeros(0)
    found = [attention_along(pattern[:, head.head], path, batch.roles) for head, path in paths]
    means, counts = zip(*found)
    return torch.stack(means).cpu(), torch.stack(counts).cpu()


def _mean_attention(
    model: Any,
    batch: Batch,
    layer: int,
    queries: Float[Tensor, "batch pos head d_head"],
    keys: Float[Tensor, "batch pos head d_head"],
    paths: Sequence[HeadPath],
) -> Float[Tensor, " path"]:
    """The mean attention of some paths of one layer, from given queries and keys."""
    group = queries.shape[2] // keys.shape[2]
    scale = getattr(model.blocks[layer].attn, "attn_scale", None) or queries.shape[-1] ** 0.5
    allowed = allowed_positions(
        queries.shape[1], is_causal(model), queries.device, batch.attention_mask
    )
    pattern = queries.new_zeros(len(queries), queries.shape[2], *allowed.shape[1:])
    for head in {path.head.head for path in paths}:
        key = keys[:, :, head // group]
        pattern[:, head] = softmax_attention(queries[:, :, head], key, allowed, scale)
    return _shown(model, batch, pattern, paths)[0]
