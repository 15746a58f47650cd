"""Do heads emerge one at a time, starting with an induction head (paper, section 9.2; C11)?

The four conditions, and why they are these, are in docs/emergence.md.
"""

import itertools
import math

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


def heads_emerge(series: Series) -> tuple[str, bool]:
    """Whether each condition holds, with the steps that decide it, and whether all four do."""
    passed = [(row.above, row.path) for row in path_emergence(series) if row.above is not None]
    passed.sort(key=lambda one: (one[0].step, one[1]))
    moving = [one for one in passed if one[1].path.dest != one[1].path.src]
    others = [one for one in moving if not joins_pair(one[1].path)]
    first = [one for one in others if one[0].step == others[0][0].step]
    task, losses = series.recipe.task, loss_emergence(series)
    finders = {
        name: next((one for one in others if _finds(one[1].path, place)), None)
        for place, name in enumerate(task.asked, start=1)
    }
    crossings = {name: one and one[0] for name, one in finders.items()}
    heads = {one[1].head for one in finders.values() if one is not None}
    held = (
        {path.path for _, path in first} == {RolePath(0, 2)},
        len(heads) == len(finders),
        in_order(crossings, task.steps_between),
        in_order(losses, task.steps_between),
    )
    what = " and ".join(map(_text, first)) or "no path does"
    if first and paper_epochs(series.recipe):
        what += f", epoch {first[0][0].step / 8:.0f}"
    if joined := next((one for one in moving if one[1].path == RolePath(2, 1)), None):
        what += f"; its pair joined by {_text(joined)}"
    start = moving[0][0].step if moving else math.inf
    if before := [one for one in passed if one not in moving and one[0].step < start]:
        listed = ", ".join(map(_text, before))
        what += f"; before all others only positions that attend to themselves, {listed}"
    missing = " or ".join(name for name, one in finders.items() if one is None)
    found = ", ".join(f"{name} {_text(one)}" for name, one in finders.items() if one is not None)
    pairs = interpolated_pairs(crossings, list(itertools.combinations(crossings, 2)))
    close = "; ".join(map(" and ".join, pairs))
    fell = ", ".join(f"{name} {at or 'never'}" for name, at in losses.items())
    said = ["cannot be told" if one is None else "yes" if one else "no" for one in held]
    text = (
        f"Induction head first: {said[0]} ({what}). "
        f"A head of the query for each symbol: {said[1]}"
        f"{f', as none finds {missing}' if missing else ''}. "
        f"In order: {said[2]} ({found or 'none'}"
        f"{f'; {close} by interpolation alone' if close else ''}). "
        f"Losses in order: {said[3]} ({fell})"
    )
    return text, all(held)


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


def _text(one: tuple[Crossing, HeadPath]) -> str:
    crossing, path = one
    return f"{path} by {crossing.by}" if crossing.after is None else f"{path} at {crossing}"
