"""Which later paths lose attention when a path is cut in the intact model (*enabling*).

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
from retrieval_interp.circuits.hooks import in_all_layers
from retrieval_interp.circuits.runs.runs import HookRuns, parts_of
from retrieval_interp.circuits.scores.scorer import Cut, Progress, no_progress, paths_of
from retrieval_interp.tasks import Batch

Seen = dict[str, dict[int, Tensor]]  # queries, keys and own patterns by layer


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
        model: a hooked model.
        batch: the examples, of which those are used that fit in one run.
        cuts: what to cut in the intact model, one after the other: a path, or several at once.
        later: the paths to examine; those up to the layer of the (first) path cut are skipped.
        least_drop: the smallest loss of mean attention that counts.
        progress: as in `ablations`.
    """
    empty = Circuit({}, batch.roles.shape[-1])
    sight = Sight(model, parts_of(model, batch)[0], empty)
    return {
        cut: tuple(sight.enabled(empty.cut(*paths_of(cut)), later, least_drop))
        for cut in progress(cuts, "finding enabled paths")
    }


class Sight:
    """What heads attend to in a run of a circuit, and in those of others that differ from it."""

    def __init__(self, model: Any, batch: Batch, circuit: Circuit, answers: tuple[int, ...] = ()):
        self.model, self.batch = model, batch
        self.runs = HookRuns(model, batch, answers)
        with self._noting("q", "k", "pattern") as self.before:
            self.base = self.runs.base(circuit)

    @torch.no_grad()
    def enabled(
        self, circuit: Circuit, later: Sequence[HeadPath], least_drop: float = 0.1
    ) -> Iterator[Enabled]:
        """Later paths that lose attention in another circuit, those that lose most first."""
        first = self.runs.first_layer(circuit, self.base)
        later = [path for path in later if path.head.layer > first]
        if not later:
            return
        with self._noting("q", "k", "pattern") as after:
            self.runs.outputs(circuit, self.base)
        drops = {path: self._along(self.before, path) - self._along(after, path) for path in later}
        lost = [path for path in later if drops[path] >= least_drop]
        pairs = [(after, self.before), (self.before, after)] if lost else []
        sides = [self._mixed(first + 1, *pair) for pair in pairs]
        for path in sorted(lost, key=drops.__getitem__, reverse=True):
            yield Enabled(path, *(self._along(x, path) for x in (self.before, after, *sides)))

    @contextmanager
    def _noting(self, *names: str) -> Iterator[Seen]:
        seen: Seen = {name: {} for name in names}

        def note(name: str, x: Tensor, hook: Any) -> None:
            seen[name][hook.layer()] = x.detach()

        hooks = [in_all_layers(self.model, f"hook_{name}", partial(note, name)) for name in names]
        with self.model.hooks(fwd_hooks=[hook for each in hooks for hook in each]):
            yield seen

    def _along(self, seen: Seen, path: HeadPath) -> float:
        pattern = seen["pattern"][path.head.layer][:, path.head.head]
        return float(attention_along(pattern, path.path, self.batch.roles)[0])

    def _mixed(self, layer: int, queries: Seen, keys: Seen) -> Seen:
        """What heads attend to, from a layer on, by the queries of one run and keys of another."""

        def set_to(values: Mapping[int, Tensor]) -> Callable[..., Tensor | None]:
            return lambda x, hook: values.get(hook.layer())

        put = in_all_layers(self.model, "hook_q", set_to(queries["q"]))
        put += in_all_layers(self.model, "hook_k", set_to(keys["k"]))
        before = self.base.returned[layer - 1] if self.base.returned else None
        with self.model.hooks(fwd_hooks=put), self._noting("pattern") as seen:
            self.runs.hooked.run(self.batch, layer if self.base.returned else 0, before)
        return seen
