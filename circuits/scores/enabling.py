"""Find the later paths that a path serves: they lose attention, or their values, when it is cut.

A path *carries* if what it writes reaches the output, and *enables* if what it writes lets a later
head find its target. In a circuit, whose patterns are fixed, only carrying shows (the exception in
appendix E). So enabling is measured by cutting paths in the intact model.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from retrieval_interp.circuits import hooks
from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.hooks import HookedModel
from retrieval_interp.circuits.losses import HookRuns, Progress, SomeRemoval, no_progress, with_cut
from retrieval_interp.circuits.paths import HeadPath, attention_along
from retrieval_interp.tasks import Batch
from retrieval_interp.tasks.messages import check_type

Seen = dict[str, dict[int, Tensor]]  # queries, keys, values and own patterns by layer
_NOTED = ("q", "k", "v", "pattern")


@dataclass(frozen=True)
class Enabled:
    """A later path that loses attention, or its values, when an earlier one is cut."""

    path: HeadPath
    attention: float  # its mean in the intact model
    when_cut: float
    by_query: float  # with only the later head's queries from the cut run
    by_key: float  # with only its keys from the cut run
    by_value: float  # its attention times the share of its values that the cut run has

    @property
    def side(self) -> str:
        """The input of the later head through which most is lost: `query`, `key` or `value`.

        `query and key` if neither alone loses half of the lost attention.
        """
        lost = self.attention - self.when_cut
        if self.attention - self.by_value > lost:
            return "value"
        if self.attention - min(self.by_query, self.by_key) < lost / 2:
            return "query and key"
        return "query" if self.by_query < self.by_key else "key"

    @property
    def text(self) -> str:
        """As in `key 0.99 to 0.06`: the side, and its measure before and after the cut."""
        after = self.by_value if self.side == "value" else self.when_cut
        return f"{self.side} {self.attention:.2f} to {after:.2f}"


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

    with the means V̄ over n, so that what is the same everywhere does not count (for a single n they
    are 0). The path is listed if either is at least `least_drop`. Its side is `value` if more is
    lost by values than by attention; else `query` or `key`, by the lower of Ā(p, 0) and Ā(0, p), or
    `query and key` if neither loses half of the lost attention. If the side is `value`, the later
    path *passes on* what p writes; otherwise p *enables* it to attend.

    Args:
        model: a hooked model.
        batch: the examples; those that fit in one run are used.
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
    comparison = AttentionComparison(model, hooks.parts_of(model, batch)[0], empty)
    return {
        cut: tuple(comparison.enabled(with_cut(empty, cut), later, least_drop))
        for cut in progress(cuts, "finding enabled paths")
    }


class AttentionComparison:
    """The attention of a model with a circuit in place, compared with that under other circuits."""

    def __init__(
        self, model: HookedModel, batch: Batch, circuit: Circuit, scored_roles: tuple[int, ...] = ()
    ):
        self.model, self.batch = model, batch
        self.runs = HookRuns(model, batch, scored_roles)
        with hooks.noting(model, *_NOTED) as self.before:
            self.base = self.runs.base(circuit)

    @torch.no_grad()
    def enabled(
        self, circuit: Circuit, later: Sequence[HeadPath], least_drop: float = 0.1
    ) -> Iterator[Enabled]:
        """Yield the later paths that lose under another circuit, the largest loss first."""
        first = self.runs.first_layer(circuit, self.base)
        later = [path for path in later if path.head.layer > first]
        if not later:
            return
        with hooks.noting(self.model, *_NOTED) as after:
            self.runs.outputs(circuit, self.base)
        intact = {path: self._along(self.before, path) for path in later}
        by_value = {path: intact[path] * self._share_of_values(after, path) for path in later}
        lower = {path: min(self._along(after, path), by_value[path]) for path in later}
        served = [path for path in later if intact[path] - lower[path] >= least_drop]
        if not served:
            return
        by_query = self._mixed(first + 1, queries=after, keys=self.before)
        by_key = self._mixed(first + 1, queries=self.before, keys=after)
        for path in sorted(served, key=lambda path: lower[path] - intact[path]):
            yield Enabled(
                path=path,
                attention=intact[path],
                when_cut=self._along(after, path),
                by_query=self._along(by_query, path),
                by_key=self._along(by_key, path),
                by_value=by_value[path],
            )

    def _along(self, seen: Seen, path: HeadPath) -> float:
        pattern = seen["pattern"][path.head.layer][:, path.head.head]
        return float(attention_along(pattern, path.path, self.batch.roles)[0])

    def _share_of_values(self, after: Seen, path: HeadPath) -> float:
        """Return which share of the values at a path's sources remains (`enabled_by`)."""
        (layer, head), roles = path.head, self.batch.roles
        dest, src = roles[:, :, path.path.dest], roles[:, :, path.path.src]
        example, chain = ((dest >= 0) & (src >= 0)).nonzero(as_tuple=True)
        group = self.model.cfg.n_heads // self.before["v"][layer].shape[2]  # share their values
        place = example, src[example, chain], head // group
        intact, cut = (seen["v"][layer][place].float() for seen in (self.before, after))
        if len(intact) > 1:
            intact, cut = intact - intact.mean(0), cut - cut.mean(0)
        norm = float(intact.square().sum())
        return float((cut * intact).sum()) / norm if norm > 0 else 1.0

    def _mixed(self, layer: int, queries: Seen, keys: Seen) -> Seen:
        """Run from a layer on with the queries of one run and the keys of another."""

        def set_to(values: Mapping[int, Tensor]) -> Callable[..., Tensor | None]:
            return lambda x, hook: values.get(hook.layer())

        mixing = hooks.in_all_layers(self.model, "hook_q", set_to(queries["q"]))
        mixing += hooks.in_all_layers(self.model, "hook_k", set_to(keys["k"]))
        before = self.base.returned[layer - 1] if self.base.returned else None
        with hooks.hooked(self.model, mixing), hooks.noting(self.model, "pattern") as seen:
            hooks.run_model(self.model, self.batch, layer if before is not None else 0, before)
        return seen
