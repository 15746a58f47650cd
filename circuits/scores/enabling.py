"""Which later paths a path serves: those that lose attention, or what they bring, when it is cut.

With all patterns fixed, a path matters only by what it *carries* to the output. A head that joins
pairs, without which no later head finds its target, looks idle (the exception in appendix E).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from retrieval_interp.circuits.attention import attention_along
from retrieval_interp.circuits.circuit import Circuit, HeadPath
from retrieval_interp.circuits.hooks import hooked, in_all_layers, parts_of, run_model
from retrieval_interp.circuits.losses import (
    HookRuns,
    Progress,
    SomeRemoval,
    no_progress,
    with_cut,
)
from retrieval_interp.circuits.models.contract import HookedModel
from retrieval_interp.tasks import Batch
from retrieval_interp.tasks.errors import check_type

Seen = dict[str, dict[int, Tensor]]  # queries, keys, values and own patterns by layer
_NOTED = ("q", "k", "v", "pattern")


@dataclass(frozen=True)
class Enabled:
    """A later path that loses attention, or what it brings, when an earlier one is cut."""

    path: HeadPath
    attention: float  # its mean in the intact model
    when_cut: float
    by_query: float  # with only the later head's queries from the cut run
    by_key: float  # with only its keys from the cut run
    by_value: float  # its attention times the share of its values that the cut run has

    @property
    def side(self) -> str:
        """Through which side of the later head most is lost: `query`, `key` or `value`.

        `query and key` where neither alone loses half of the attention that is lost.
        """
        lost = self.attention - self.when_cut
        if self.attention - self.by_value > lost:
            return "value"
        if self.attention - min(self.by_query, self.by_key) < lost / 2:
            return "query and key"
        return "query" if self.by_query < self.by_key else "key"

    @property
    def text(self) -> str:
        """`key 0.99 to 0.06`: the side, and what is left there."""
        left = self.by_value if self.side == "value" else self.when_cut
        return f"{self.side} {self.attention:.2f} to {left:.2f}"


def enabled_by(
    model: HookedModel,
    batch: Batch,
    cuts: Sequence[SomeRemoval],
    later: Sequence[HeadPath],
    least_drop: float = 0.1,
    progress: Progress = no_progress,
) -> dict[SomeRemoval, tuple[Enabled, ...]]:
    """Find the later paths that each path serves, those that lose most first.

    Write Ā(Q, K) for the mean attention of a later path with its head's queries from run Q and
    keys from run K, where a run is the intact model (0) or the model with path p cut live (p); and
    V_n(R) for the value at the path's source in run R, over examples and chains n. Then

        attention lost  Ā(0, 0) - Ā(p, p)
        value lost      Ā(0, 0) (1 - share),  share = Σ_n <V_n(p)-V̄(p), V_n(0)-V̄(0)> /
                                                      Σ_n |V_n(0)-V̄(0)|²

    with the means V̄ over n, so that what is the same everywhere does not count (of a single n they
    are 0). The path is listed if either is at least `least_drop`. Its side is `value` if more of
    that is lost; else `query` or `key`, by the lower of Ā(p, 0) and Ā(0, p), or `query and key` if
    neither loses half of what is lost. Where it is the value, the later path *carries on* what p
    brings; otherwise p *enables* it to attend.

    Args:
        model: a hooked model.
        batch: the examples, of which those are used that fit in one run.
        cuts: what to cut in the intact model, one after the other: a path, several at once, or all
            attention of a head.
        later: the paths to examine; those up to the layer of the (first) path cut are skipped.
        least_drop: the smallest loss that counts.
        progress: as in `ablations`.
    """
    check_type(batch, Batch, "batch")
    for text in (path for path in (*cuts, *later) if isinstance(path, str)):
        check_type(text, HeadPath, "paths", ", as ri.parse_head_path reads it from text")
    empty = Circuit({}, batch.roles.shape[-1])
    sight = Sight(model, parts_of(model, batch)[0], empty)
    return {
        cut: tuple(sight.enabled(with_cut(empty, cut), later, least_drop))
        for cut in progress(cuts, "finding enabled paths")
    }


class Sight:
    """What heads attend to in a run of a circuit, and in those of others that differ from it."""

    def __init__(
        self, model: HookedModel, batch: Batch, circuit: Circuit, answers: tuple[int, ...] = ()
    ):
        self.model, self.batch = model, batch
        self.runs = HookRuns(model, batch, answers)
        with self._noting(*_NOTED) as self.before:
            self.base = self.runs.base(circuit)

    @torch.no_grad()
    def enabled(
        self, circuit: Circuit, later: Sequence[HeadPath], least_drop: float = 0.1
    ) -> Iterator[Enabled]:
        """Later paths that another circuit takes something from, those that lose most first."""
        first = self.runs.first_layer(circuit, self.base)
        later = [path for path in later if path.head.layer > first]
        if not later:
            return
        with self._noting(*_NOTED) as after:
            self.runs.outputs(circuit, self.base)
        intact = {path: self._along(self.before, path) for path in later}
        brought = {path: intact[path] * self._share_of_values(after, path) for path in later}
        rest = {path: min(self._along(after, path), brought[path]) for path in later}
        lost = [path for path in later if intact[path] - rest[path] >= least_drop]
        if not lost:
            return
        by_query = self._mixed(first + 1, queries=after, keys=self.before)
        by_key = self._mixed(first + 1, queries=self.before, keys=after)
        for path in sorted(lost, key=lambda path: rest[path] - intact[path]):
            yield Enabled(
                path=path,
                attention=intact[path],
                when_cut=self._along(after, path),
                by_query=self._along(by_query, path),
                by_key=self._along(by_key, path),
                by_value=brought[path],
            )

    @contextmanager
    def _noting(self, *names: str) -> Iterator[Seen]:
        seen: Seen = {name: {} for name in names}

        def note(name: str, x: Tensor, hook: Any) -> None:
            seen[name][hook.layer()] = x.detach()

        hooks = [
            hook
            for name in names
            for hook in in_all_layers(self.model, f"hook_{name}", partial(note, name))
        ]
        with hooked(self.model, hooks):
            yield seen

    def _along(self, seen: Seen, path: HeadPath) -> float:
        pattern = seen["pattern"][path.head.layer][:, path.head.head]
        return float(attention_along(pattern, path.path, self.batch.roles)[0])

    def _share_of_values(self, after: Seen, path: HeadPath) -> float:
        """How much of the values at a path's sources, less their mean, is left (`enabled_by`)."""
        (layer, head), roles = path.head, self.batch.roles
        dest, src = roles[:, :, path.path.dest], roles[:, :, path.path.src]
        example, chain = ((dest >= 0) & (src >= 0)).nonzero(as_tuple=True)
        group = self.model.cfg.n_heads // self.before["v"][layer].shape[2]  # share their values
        place = example, src[example, chain], head // group
        then, now = (seen["v"][layer][place].float() for seen in (self.before, after))
        if len(then) > 1:
            then, now = then - then.mean(0), now - now.mean(0)
        norm = float(then.square().sum())
        return float((now * then).sum()) / norm if norm > 0 else 1.0

    def _mixed(self, layer: int, queries: Seen, keys: Seen) -> Seen:
        """What heads attend to, from a layer on, by the queries of one run and keys of another."""

        def set_to(values: Mapping[int, Tensor]) -> Callable[..., Tensor | None]:
            return lambda x, hook: values.get(hook.layer())

        put = in_all_layers(self.model, "hook_q", set_to(queries["q"]))
        put += in_all_layers(self.model, "hook_k", set_to(keys["k"]))
        before = self.base.returned[layer - 1] if self.base.returned else None
        with hooked(self.model, put), self._noting("pattern") as seen:
            run_model(self.model, self.batch, layer if before is not None else 0, before)
        return seen
