"""Do heads emerge one at a time, starting with an induction head (paper, section 9.2; C11)?

The paper first sees "an induction head that can retrieve token B", in two layers: one joins pairs,
the other lets the query find x_1 (B) behind its own token. Then one more head of the query follows
for each further token and drives down the next partial loss. A series shows this if

1. *induction first*: `s0<-s2`, by which the query finds x_1, is the first path whose attention
   passes 0.5. Two kinds of path may come earlier: those that join a pair (`s2<-s1`, `s4<-s3`, ...),
   which are the other half of an induction head, and positions that attend to themselves, which
   move nothing and are named beside the verdict;
2. *a head each*: the query finds every symbol with a different head: for each d, the head of the
   first path to pass 0.5 from the query to a position that holds x_d;
3. *in order*: these paths pass 0.5 in the order x_1, x_2, ...;
4. *losses in order*: the partial losses fall below 0.5 in that order.

Steps are compared as in `retrieval_interp.emergence.crossing`. The decision to ignore positions
that attend to themselves in the first condition was made after seeing transformer D's series.
"""

import itertools
import math
from dataclasses import dataclass

from retrieval_interp.circuits import HeadPath, RolePath
from retrieval_interp.emergence.crossing import Crossing, in_order, interpolated_pairs
from retrieval_interp.emergence.series import Series
from retrieval_interp.emergence.times import (
    loss_emergence,
    paper_epochs,
    path_emergence,
    symbols,
)

INDUCTION = RolePath(0, 2)
Passed = tuple[HeadPath, Crossing]


@dataclass(frozen=True)
class HeadOrder:
    """The order in which heads emerge in a series.

    Attributes:
        first: the first path to pass 0.5 that neither joins a pair nor leads from a position to
            itself; several if they pass at the same step.
        joined: the first path that joins the pair of x_0 and x_1, if any.
        before: positions that attend to themselves before any other path passes 0.5.
        finders: the first path by which the query finds each symbol, None if there is none.
        heads_in_order: whether the finders pass in the order of the symbols; None if undecided.
        interpolated: pairs of symbols whose finders are ordered by interpolation alone.
        losses: when each partial loss falls below 0.5.
        losses_in_order: whether they fall in the order of the symbols; None if undecided.
    """

    first: tuple[Passed, ...]
    joined: Passed | None
    before: tuple[Passed, ...]
    finders: dict[str, Passed | None]
    heads_in_order: bool | None
    interpolated: tuple[tuple[str, str], ...]
    losses: dict[str, Crossing | None]
    losses_in_order: bool | None

    @property
    def induction_first(self) -> bool:
        """The first condition."""
        return {path.path for path, _ in self.first} == {INDUCTION}

    @property
    def missing(self) -> list[str]:
        """Symbols that no head of the query finds."""
        return [name for name, found in self.finders.items() if found is None]

    @property
    def a_head_each(self) -> bool:
        """The second condition."""
        heads = [found[0].head for found in self.finders.values() if found is not None]
        return not self.missing and len(set(heads)) == len(heads)

    @property
    def holds(self) -> bool:
        """All four conditions."""
        orders = self.heads_in_order is True and self.losses_in_order is True
        return self.induction_first and self.a_head_each and orders


def head_order(series: Series) -> HeadOrder:
    """The order of emergence in a series of a model of `RetrievalTask`."""
    rows = path_emergence(series)
    passed = [(row.path, row.above) for row in rows if row.above is not None]
    passed.sort(key=lambda one: (one[1].step, one[0]))
    moving = [one for one in passed if one[0].path.dest != one[0].path.src]
    others = [one for one in moving if not joins_pair(one[0].path)]
    start = moving[0][1].step if moving else math.inf
    losses, pairs = loss_emergence(series), series.recipe.task.steps_between
    finders = {
        name: next((one for one in others if _finds(one[0].path, place)), None)
        for place, name in enumerate(symbols(series.recipe), start=1)
    }
    crossings = {name: found and found[1] for name, found in finders.items()}
    return HeadOrder(
        tuple(one for one in others if one[1].step == others[0][1].step),
        next((one for one in moving if one[0].path == RolePath(2, 1)), None),
        tuple(one for one in passed if one not in moving and one[1].step < start),
        finders,
        in_order(crossings, pairs),
        tuple(interpolated_pairs(crossings, list(itertools.combinations(crossings, 2)))),
        losses,
        in_order(losses, pairs),
    )


def order_text(series: Series) -> str:
    """Whether each condition holds, with the steps that decide it."""
    order = head_order(series)
    first = " and ".join(map(_text, order.first)) or "no path does"
    if order.first and paper_epochs(series.recipe):
        first += f", epoch {order.first[0][1].step / 8:.0f}"
    if order.joined:
        first += f"; its pair joined by {_text(order.joined)}"
    if order.before:
        listed = ", ".join(map(_text, order.before))
        first += f"; before all others only positions that attend to themselves, {listed}"
    each = f", as none finds {' or '.join(order.missing)}" if order.missing else ""
    found = ", ".join(
        f"{name} {_text(one)}" for name, one in order.finders.items() if one is not None
    )
    alone = "; ".join(f"{one} and {other}" for one, other in order.interpolated)
    fell = ", ".join(f"{name} {at or 'never'}" for name, at in order.losses.items())
    return (
        f"Induction head first: {_said(order.induction_first)} ({first}). "
        f"A head of the query for each symbol: {_said(order.a_head_each)}{each}. "
        f"In order: {_said(order.heads_in_order)} ({found or 'none'}"
        f"{f'; {alone} by interpolation alone' if alone else ''}). "
        f"Losses in order: {_said(order.losses_in_order)} ({fell})"
    )


def joins_pair(path: RolePath) -> bool:
    """Whether it brings a pair's first element to its second."""
    return path.dest > 0 and path.dest % 2 == 0 and path.src == path.dest - 1


def _finds(path: RolePath, place: int) -> bool:
    """Whether the query attends to a position that holds x_place.

    That symbol is second in pair `place` and first in the next pair, which comes earlier in the
    sequence. The query cannot find x_1 there, as nothing brings x_0 to that position.
    """
    holders = (2,) if place == 1 else (2 * place, 2 * place + 1)
    return path.dest == 0 and path.src in holders


def _said(held: bool | None) -> str:
    return "cannot be told" if held is None else "yes" if held else "no"


def _text(one: Passed) -> str:
    path, crossing = one
    return f"{path} by {crossing.by}" if crossing.after is None else f"{path} at {crossing}"
