"""Do heads emerge one at a time, starting with an induction head (paper, section 9.2; C11)?

The four conditions, and why they are these, are in docs/emergence.md:

1. *induction first*: `s0<-s2`, by which the query finds x_1, is the first path whose attention
   passes 0.5, not counting those that join a pair (`s2<-s1`, `s4<-s3`, ...) and positions that
   attend to themselves;
2. *a head each*: the query finds every symbol with a different head;
3. *in order*: these paths pass 0.5 in the order x_1, x_2, ...;
4. *losses in order*: the partial losses fall below 0.5 in that order.
"""

import itertools
import math
from dataclasses import dataclass

from retrieval_interp.circuits import HeadPath, RolePath
from retrieval_interp.emergence.series import Series
from retrieval_interp.emergence.times import (
    Crossing,
    in_order,
    interpolated_pairs,
    loss_emergence,
    paper_epochs,
    path_emergence,
)

Passed = tuple[HeadPath, Crossing]


@dataclass(frozen=True)
class HeadOrder:
    """The order in which heads emerge in a series."""

    first: list[Passed]  # the first to pass 0.5 by condition 1; several if at the same step
    joined: Passed | None  # the first path that joins the pair of x_0 and x_1
    before: list[Passed]  # positions that attend to themselves before any other path passes 0.5
    finders: dict[str, Passed | None]  # the first path by which the query finds each symbol
    heads_in_order: bool | None  # of the finders; None if undecided
    losses: dict[str, Crossing | None]  # when each partial loss falls below 0.5
    losses_in_order: bool | None

    @property
    def induction_first(self) -> bool:
        """The first condition."""
        return {path.path for path, _ in self.first} == {RolePath(0, 2)}

    @property
    def a_head_each(self) -> bool:
        """The second condition."""
        heads = [found and found[0].head for found in self.finders.values()]
        return None not in heads and len(set(heads)) == len(heads)

    @property
    def holds(self) -> bool:
        """All four conditions."""
        orders = self.heads_in_order is True and self.losses_in_order is True
        return self.induction_first and self.a_head_each and orders


def head_order(series: Series) -> HeadOrder:
    """The order of emergence in a series of a model of `RetrievalTask`."""
    passed = [(row.path, row.above) for row in path_emergence(series) if row.above is not None]
    passed.sort(key=lambda one: (one[1].step, one[0]))
    moving = [one for one in passed if one[0].path.dest != one[0].path.src]
    others = [one for one in moving if not joins_pair(one[0].path)]
    start = moving[0][1].step if moving else math.inf
    task, losses = series.recipe.task, loss_emergence(series)
    finders = {
        name: next((one for one in others if _finds(one[0].path, place)), None)
        for place, name in enumerate(task.asked, start=1)
    }
    return HeadOrder(
        [one for one in others if one[1].step == others[0][1].step],
        next((one for one in moving if one[0].path == RolePath(2, 1)), None),
        [one for one in passed if one not in moving and one[1].step < start],
        finders,
        in_order({name: one and one[1] for name, one in finders.items()}, task.steps_between),
        losses,
        in_order(losses, task.steps_between),
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
    missing = [name for name, one in order.finders.items() if one is None]
    each = f", as none finds {' or '.join(missing)}" if missing else ""
    crossings = {name: one and one[1] for name, one in order.finders.items()}
    found = (
        ", ".join(f"{name} {_text(one)}" for name, one in order.finders.items() if one) or "none"
    )
    pairs = interpolated_pairs(crossings, list(itertools.combinations(crossings, 2)))
    if pairs:
        found += f"; {'; '.join(map(' and '.join, pairs))} by interpolation alone"
    fell = ", ".join(f"{name} {at or 'never'}" for name, at in order.losses.items())
    return (
        f"Induction head first: {_said(order.induction_first)} ({first}). "
        f"A head of the query for each symbol: {_said(order.a_head_each)}{each}. "
        f"In order: {_said(order.heads_in_order)} ({found}). "
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
