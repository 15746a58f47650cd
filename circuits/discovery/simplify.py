"""The strategy of `discover`: look around a circuit, and go on from what is simpler and holds.

A work list says what to look around next, and with which aim: fewer paths, or fewer heads.

1. Around a circuit, `candidates` are tried by exact losses, the simplest first.
2. From the first that holds the work begins again: look around it with both aims, and around the
   best so far. If none holds, look around the one that loses least, if it leads closer.
3. Where nothing is left to do, look around circuits that lack a head or a path of the best one: to
   do without it may take many changes, which are predicted better from there.
"""

import sys
from collections.abc import Iterator, Sequence
from operator import ne
from typing import TYPE_CHECKING, NamedTuple

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.discovery.judge import Judge
from retrieval_interp.circuits.discovery.nearby import EFFORT, Effort, Near, Nearby
from retrieval_interp.circuits.discovery.space import Space
from retrieval_interp.circuits.mechanisms import IDENTITY, UNIFORM

if TYPE_CHECKING:
    from retrieval_interp.circuits.discovery.search import Search

_IDLE = IDENTITY, UNIFORM
_SAME_LOSS = 1e-4  # difference of measured losses that is none


class Look(NamedTuple):
    """A circuit to look around, for circuits that are simpler by an aim than the best so far."""

    aim: Space
    centre: Circuit
    closer: int = 0  # looks that led here, from one that does not hold to the nearest to holding


def simplify(search: "Search", effort: Effort = EFFORT) -> Iterator[str]:
    """Simplify the best circuit that treats all heads alike, or the intact model if none holds.

    Fewest paths lead to few heads, too, so fewest heads are looked for from there.
    """
    judge, space = search.judge, search.space
    aims = [space.aiming("paths"), space.aiming("heads")]
    looked = set[tuple[str, int, Circuit]]()  # with which aim and limit, and around what
    yield "starting"
    start = min(space.starts, key=search.rank)
    yield from _simplify_one(start, judge, aims, effort, looked)
    if not judge.holding:
        yield from _simplify_one(space.empty, judge, aims, effort, looked)
    if space.fewest == "heads" and judge.holding:
        start = min(judge.holding, key=space.key)
        yield from _simplify_one(start, judge, aims[::-1], effort, looked)


def _simplify_one(
    circuit: Circuit,
    judge: Judge,
    aims: Sequence[Space],
    effort: Effort,
    looked: set[tuple[str, int, Circuit]],
) -> Iterator[str]:
    """Simplify a circuit until no look finds a simpler one that holds."""
    first, second = aims

    def first_loss(circuit: Circuit) -> float:
        return judge.loss(circuit, parts=1)

    def best() -> Circuit:
        return min(judge.holding, key=first.key, default=circuit)

    def looks_around(circuit: Circuit) -> list[Look]:
        return [Look(first, circuit), Look(second, circuit), Look(first, best())]

    work, is_stuck = looks_around(circuit), False
    while work:
        aim, centre, closer = work.pop(0)
        centre_holds, limit, largest = judge.holds(centre), sys.maxsize, sys.maxsize
        if judge.holding:
            limit = min(map(aim.key, judge.holding))
            largest = first.size(first.key(best())) if aim is second else largest
        if (aim.fewest, limit, centre) not in looked:
            looked.add((aim.fewest, limit, centre))
            yield f"looking for fewer {aim.fewest}"
            trials = candidates(Nearby(aim, centre, judge, effort), limit, largest)
            for number, trial in enumerate(trials, 1):
                yield f"trying circuits, {number} of {len(trials)}"
                if judge.holds(trial, centre):
                    break
            else:
                trial = settled(min(trials, key=first_loss), judge, aim) if trials else centre
            if trials and judge.holds(trial):
                work, is_stuck = looks_around(trial), False
            elif not centre_holds and closer + 1 < (2 if judge.holding else effort.looks):
                gain = first_loss(centre) - first_loss(trial)
                work[:0] = [Look(aim, trial, closer + 1)] if gain > 10 * _SAME_LOSS else []
        if not work and not is_stuck and judge.holds(best()):
            is_stuck, lacking = True, list[Circuit]()
            for lesser in lacking_a_part(best(), judge, first):
                yield "taking parts away from the best circuit"
                lacking.append(lesser)
            lacking.sort(key=first_loss)
            work = [Look(first, lesser) for lesser in lacking[: effort.lacking]]


def candidates(nearby: Nearby, limit: int, largest: int) -> list[Circuit]:
    """Circuits to try around one, simpler than the best so far, the simplest of them first.

    These are long leaps, of which each step saves most for what it should lose; circuits that
    should hold; those that should lose least; and those with fewest changes, as few changes are
    predicted best.

    Args:
        nearby: the circuits near one, and what they should lose.
        limit: the key of the best circuit so far, which has to be lower.
        largest: cost and useful heads together, at most.
    """
    judge, effort, aim = nearby.judge, nearby.effort, nearby.space
    holds, bar = judge.holds(nearby.circuit), judge.bar.loss
    start = nearby.start.parts[0].tolist()

    def is_simpler(near: Near) -> bool:
        return near.key < limit and aim.size(near.key) <= largest

    def changes(near: Near) -> int:
        return sum(map(ne, near.parts, start))

    around = [near for near in nearby.around(limit if judge.holding else 0) if is_simpler(near)]
    around = [near for near in around if nearby.circuit_of(near) not in judge.known]
    chain = nearby.chain(bar, holds)
    ends = [len(chain) >> halved for halved in range(len(chain).bit_length())]
    hold = sorted([near for near in around if near.loss < bar], key=lambda near: near.key)
    others = effort.others if holds else effort.others_far
    chosen = [chain[end - 1] for end in ends if is_simpler(chain[end - 1])]
    chosen += [*hold[: effort.hold], *around[:others], *sorted(around, key=changes)[:others]]
    chosen.sort(key=lambda near: (near.key, near.loss))
    return list(dict.fromkeys(map(nearby.circuit_of, chosen)))


def settled(circuit: Circuit, judge: Judge, space: Space) -> Circuit:
    """Uniform or identity for each idle head, whichever loses less on the first examples.

    Where a run is not cheap, the circuit as it is.
    """
    idle = [head for head in space.heads if judge.fast and circuit[head] in _IDLE]
    base, todo = circuit, list(idle)
    while todo:
        head = todo.pop(0)
        exchanged = circuit.replace(head, UNIFORM if circuit[head] == IDENTITY else IDENTITY)
        gain = judge.loss(circuit, 1, base) - judge.loss(exchanged, 1, base)
        if gain > _SAME_LOSS:
            circuit, todo = exchanged, [other for other in idle if other != head]
    return circuit


def lacking_a_part(best: Circuit, judge: Judge, space: Space) -> Iterator[Circuit]:
    """The best circuit without a path, or with a head uniform or identity, as loses less."""
    for head in space.useful(best):
        without = [best.replace(head, idle) for idle in _IDLE]
        yield min(without, key=lambda circuit: judge.loss(circuit, 1, best))
    yield from (best.without(path) for path in best.paths() if len(best[path.head].paths) > 1)
