"""Other circuits of the same cost that also stay below the tolerance."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.discovery.search import Search, SearchOptions
from retrieval_interp.circuits.discovery.space import Neighbourhood
from retrieval_interp.circuits.hooks import HookedModel
from retrieval_interp.circuits.losses import Progress, no_progress
from retrieval_interp.circuits.mechanisms import OneHot
from retrieval_interp.circuits.paths import HeadPath
from retrieval_interp.tasks import Task


@dataclass(frozen=True)
class Alternatives:
    """Circuits of one cost, with different paths, whose loss stays below the tolerance.

    Attributes:
        circuits: the given one first, each with its loss on the examples that decided.
        complete: whether the search around each of them ended in time. Even then there may be more.
    """

    circuits: dict[Circuit, float]
    complete: bool

    @property
    def core(self) -> list[HeadPath]:
        """The paths that all of them have in common."""
        return sorted(frozenset.intersection(*map(_paths, self.circuits)))

    @property
    def exchanges(self) -> list[tuple[HeadPath, HeadPath]]:
        """Pairs of paths that stand in for each other: two of the circuits differ only in these."""
        paths = list(map(_paths, self.circuits))
        differ = [a ^ b for a in paths for b in paths if len(a - b) == len(b - a) == 1]
        return sorted({(min(pair), max(pair)) for pair in differ})

    def text(self, task: Task) -> str:
        """Say in a few lines what they have in common and where they differ."""
        names, count = task.role_names, len(self.circuits)
        if count == 1:
            time = "" if self.complete else " in the time"
            return f"No other circuit of this cost was found that holds{time}."
        core = ", ".join(path.text(names) for path in self.core) or "no path"
        lines = [
            f"{count} circuits of this cost hold{'' if self.complete else ' so far'}. "
            f"All of them have {core}."
        ]
        pairs = [" or ".join(path.text(names) for path in pair) for pair in self.exchanges]
        return "\n".join([*lines, *([f"Where they differ: {'; '.join(pairs)}."] if pairs else [])])


def _paths(circuit: Circuit) -> frozenset[HeadPath]:
    return frozenset(circuit.paths())


def alternatives(
    model: HookedModel,
    task: Task,
    circuit: Circuit,
    tolerance: float | None = None,
    examples: int = 512,
    seed: int = 0,
    time: float = 60.0,
    progress: Progress = no_progress,
) -> Alternatives:
    """Find other circuits of the same cost that hold, as `discover` defines it.

    Faithful circuits of one model need not overlap (https://arxiv.org/abs/2605.12671), so one
    circuit alone may mislead. It tries circuits near the given one, then those near each circuit it
    finds. Those that differ only in which idle heads are uniform or identity count once.

    Args:
        circuit: one with mechanisms for all heads that count; others are as in `discover`.
        time: seconds to search.
    """
    one_hot = all(isinstance(m, OneHot) or not m.paths for m in circuit.mechanisms.values())
    options = SearchOptions(tolerance, examples, seed, shared=not one_hot)
    end, losses, complete = monotonic() + time, {circuit: math.nan}, True
    search = Search(model, task, options)
    steps = search.deadline.steps_until(end, _alike(search, circuit, losses), model)
    try:
        for _ in progress(steps, "looking for others that do as well"):
            pass
    except KeyboardInterrupt:
        complete = False
    return Alternatives(losses, complete and not search.deadline.passed)


def _alike(search: Search, circuit: Circuit, losses: dict[Circuit, float]) -> Iterator[str]:
    """Try circuits near one, then near each that holds; add these to `losses`."""
    yield "measuring the intact model"
    judge, space = search.judge, search.space
    given = space.circuit([circuit[head] for head in space.heads])
    losses.clear()
    losses[given] = judge.loss(given, examples=None)
    complexity, waiting, tried = space.complexity(given), [given], {_paths(given)}
    while waiting:
        centre = waiting.pop(0)
        yield f"{len(losses)} circuits"
        nearby = Neighbourhood(space, centre, judge)
        alike = [predicted for predicted in nearby.around() if predicted.complexity == complexity]
        for trial in map(nearby.circuit_of, alike):
            yield f"{len(losses)} circuits"
            if _paths(trial) not in tried and judge.holds(trial, centre):
                tried.add(_paths(trial))
                losses[trial] = judge.loss(trial, examples=None)
                waiting.append(trial)
