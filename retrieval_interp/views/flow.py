"""Depth bounds as a table; what each position can hold as text and as a figure."""

import re
from collections.abc import Callable, Sequence
from functools import partial

import plotly.graph_objects as go
import torch
from jaxtyping import Bool
from torch import Tensor

from retrieval_interp.circuits import flow as bounds
from retrieval_interp.tasks import role_letters, role_name, symbol_letter
from retrieval_interp.views.tables import text_table

_CELL = 6  # characters per role
_BOUNDS: dict[str, tuple[str, Callable[[int], int]]] = {
    "paper": ("paper's bound", bounds.paper_bound),
    "unmasked": ("no mask", bounds.unmasked_depth),
    "causal": ("causal mask", bounds.causal_depth),
    "simulated_unmasked": ("simulated, no mask", partial(bounds.least_depth, causal=False)),
    "simulated_causal": ("simulated, causal", partial(bounds.least_depth, causal=True)),
}


def bound_row(steps: int) -> dict[str, int]:
    """The least depths for chains of `steps` steps."""
    return {"steps": steps} | {key: bound(steps) for key, (_, bound) in _BOUNDS.items()}


def bound_table(rows: Sequence[dict[str, int]], width: int | None = None) -> str:
    """The rows of `bound_row` as text, in lines of at most `width` characters."""
    header = ["D", *(title for title, _ in _BOUNDS.values())]
    cells = [[str(row[key]) for key in ("steps", *_BOUNDS)] for row in rows]
    lines = text_table(header, cells, right=range(len(header)), width=width)
    return "\n".join(["Layers needed before the query can hold x_D", "", *lines])


def held_text(held: Bool[Tensor, " piece"]) -> str:
    """A set of pieces in short: `p0 A`, and `p0..B` for three or more neighbours."""
    runs = []
    for there in re.finditer("1+", "".join(str(int(one)) for one in held)):
        names = [bounds.piece_name(piece) for piece in range(*there.span())]
        runs.append(f"{names[0]}..{names[-1]}" if len(names) > 2 else " ".join(names))
    return ", ".join(runs)


def flow_text(steps: int, causal: bool, width: int | None = None) -> str:
    """Which positions share pieces at the start, and what each can hold after each layer.

    A chain longer than a line of `width` characters continues in another row, which begins with the
    last role of the row above.
    """
    depth, roles = bounds.least_depth(steps, causal), range(2 * steps + 1)
    states = bounds.simulate(steps, depth, causal)
    rows = [
        [role_name(role), role_letters(role), *map(held_text, states[:, role])] for role in roles
    ]
    layers = [f"after layer {layer}" for layer in range(1, depth + 1)]
    pairs = steps if width is None else max(1, (width - _CELL) // (2 * _CELL))
    chain = [_chain(first, min(first + pairs, steps)) for first in range(0, steps, pairs)]
    title, conclusion = _words(steps, depth, causal)
    lines = [
        "Pieces shared at the start: tokens above, encodings of pairs below",
        *("\n" + row for row in chain),
        f"\n{title}\n",
        *text_table(["role", "in letters", "at the start", *layers], rows, width=width),
        f"\n{conclusion}",
    ]
    return "\n".join(line.rstrip() for line in "\n".join(lines).splitlines())


def _chain(first: int, last: int) -> str:
    """The roles of a chain from the end of one pair to the end of another, and what they share."""
    steps, roles = range(first, last), range(2 * first, 2 * last + 1)
    return "\n".join(
        [
            "".join(f"╭{symbol_letter(k):─^5}╮".ljust(2 * _CELL) for k in steps),
            "".join(role_name(role).ljust(_CELL) for role in roles),
            "".join(_letter(role).ljust(_CELL) for role in roles),
            " " * _CELL + "".join(f"╰{f'p{k + 1}':─^5}╯".ljust(2 * _CELL) for k in steps),
        ]
    )


def _letter(role: int) -> str:
    return symbol_letter(role // 2) + ("?" if role == 0 else "")


def _words(steps: int, depth: int, causal: bool) -> tuple[str, str]:
    """Title and conclusion."""
    mask = "with the causal mask" if causal else "without a mask"
    return (
        f"What each position can hold, {mask}",
        f"The query can hold {symbol_letter(steps)} after {depth} layers, no earlier.",
    )


def flow_figure(steps: int, causal: bool) -> go.Figure:
    """A map of the first layer after which each role can hold each piece."""
    depth = bounds.least_depth(steps, causal)
    states = bounds.simulate(steps, depth, causal)
    layers = torch.where(states.any(0), states.byte().argmax(0), -1)  # the first that has it
    title, conclusion = _words(steps, depth, causal)
    figure = go.Figure(layout={"template": "plotly_white", "height": 270 + 48 * steps})
    figure.add_heatmap(
        z=[[None if layer < 0 else layer for layer in row] for row in layers.T.tolist()],
        x=[f"{role_name(role)}<br>{_letter(role)}" for role in range(2 * steps + 1)],
        y=[bounds.piece_name(piece) for piece in range(2 * steps + 2)],
        colorscale="YlGnBu",
        colorbar={"title": {"text": "held after layer"}, "dtick": 1},
        xgap=2,
        ygap=2,
        texttemplate="%{z}" if steps <= 8 else None,
        hovertemplate="%{x}: %{y}, held after layer %{z}<extra></extra>",
        hoverongaps=False,
    )
    figure.update_xaxes(title="position of the chain, in order of reachability from the query")
    figure.update_yaxes(title="piece of information")
    return figure.update_layout(title=f"{title}, D = {steps}<br><sup>{conclusion}</sup>")
