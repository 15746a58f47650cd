"""Depth bounds as a table; what each position can hold as text and as a figure (figures 3, 8)."""

import math
import re
from collections.abc import Callable, Sequence
from functools import partial

import plotly.graph_objects as go
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from retrieval_interp.circuits.flow import (
    causal_depth,
    least_depth,
    paper_bound,
    simulate,
    unmasked_depth,
)
from retrieval_interp.circuits.flow.pieces import piece_name
from retrieval_interp.tasks import role_letters, role_name, symbol_letter
from retrieval_interp.views.tables import text_table

_CELL = 6  # characters per role
_BOUNDS: dict[str, tuple[str, Callable[[int], int]]] = {
    "paper": ("paper's bound", paper_bound),
    "unmasked": ("no mask", unmasked_depth),
    "causal": ("causal mask", causal_depth),
    "simulated_unmasked": ("simulated, no mask", partial(least_depth, causal=False)),
    "simulated_causal": ("simulated, causal", partial(least_depth, causal=True)),
}


def bound_row(steps: int) -> dict[str, int]:
    """The least depths for chains of `steps` steps.

    Raises:
        InputError: steps below 1.
    """
    return {"steps": steps} | {key: bound(steps) for key, (_, bound) in _BOUNDS.items()}


def bound_table(rows: Sequence[dict[str, int]], width: int | None = None) -> str:
    """The rows of `bound_row` as text, in lines of at most `width` characters."""
    header = ["D", *(title for title, _ in _BOUNDS.values())]
    cells = [[str(row[key]) for key in ("steps", *_BOUNDS)] for row in rows]
    lines = text_table(header, cells, right=range(len(header)), width=width)
    return "\n".join(["Layers needed before the query can hold x_D", "", *lines])


def held_text(pieces: int) -> str:
    """A set of pieces in short: `p0 A`, and `p0..B` for three or more neighbours."""
    runs = []
    for bits in re.finditer("1+", f"{pieces:b}"[::-1]):
        names = [piece_name(bit) for bit in range(*bits.span())]
        runs.append(f"{names[0]}..{names[-1]}" if len(names) > 2 else " ".join(names))
    return ", ".join(runs)


def flow_text(steps: int, causal: bool, width: int | None = None) -> str:
    """Which positions share pieces at the start, and what each can hold after each layer.

    Args:
        steps: induction steps of the chain, D.
        causal: whether a position sees itself and earlier ones only.
        width: characters per line, by default as many as needed; a longer chain goes on in a row
            of its own, which begins with the last role of the row above.

    Raises:
        InputError: steps below 1.
    """
    depth, roles = least_depth(steps, causal), range(2 * steps + 1)
    states = simulate(steps, depth, causal)
    rows = [
        [role_name(role), role_letters(role), *(held_text(held[role]) for held in states)]
        for role in roles
    ]
    layers = [f"after layer {layer}" for layer in range(1, depth + 1)]
    pairs = steps if width is None else max(1, (width - _CELL) // (2 * _CELL))
    rows_of_chain = [_chain(first, min(first + pairs, steps)) for first in range(0, steps, pairs)]
    title, conclusion = _words(steps, depth, causal)
    lines = [
        "Pieces shared at the start: tokens above, encodings of pairs below",
        "",
        *"\n\n".join(rows_of_chain).splitlines(),
        "",
        title,
        "",
        *text_table(["role", "in letters", "at the start", *layers], rows, width=width),
        "",
        conclusion,
    ]
    return "\n".join(line.rstrip() for line in lines)


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
    """Figure 3 for any D, above a map of the first layer after which a role can hold a piece.

    Args:
        steps: induction steps of the chain, D.
        causal: whether a position sees itself and earlier ones only.

    Returns:
        A Plotly figure with a template of its own.

    Raises:
        InputError: steps below 1.
    """
    depth = least_depth(steps, causal)
    figure = make_subplots(rows=2, shared_xaxes=True, row_heights=[0.2, 0.8], vertical_spacing=0.03)
    _add_arcs(figure, steps)
    _add_arrivals(figure, steps, depth, causal)
    figure.update_xaxes(showgrid=False, zeroline=False)
    title, conclusion = _words(steps, depth, causal)
    figure.update_layout(
        template="plotly_white",
        title=f"{title}, D = {steps}<br><sup>{conclusion}</sup>",
        height=320 + 24 * (2 * steps + 2),
        showlegend=False,
    )
    return figure


def _add_arcs(figure: go.Figure, steps: int) -> None:
    angles = [math.pi * step / 24 for step in range(25)]
    above = {"row": 1, "col": 1}
    for role in range(2 * steps):  # role and role+1 share the piece of bit role+1
        side = 1 if role % 2 == 0 else -1
        figure.add_scatter(
            x=[role + 0.5 - 0.5 * math.cos(angle) for angle in angles],
            y=[side * math.sin(angle) for angle in angles],
            mode="lines",
            line={"color": "#4c78a8" if side > 0 else "#f58518", "width": 2},
            hoverinfo="skip",
            **above,
        )
        figure.add_annotation(
            x=role + 0.5, y=1.3 * side, text=piece_name(role + 1), showarrow=False, **above
        )
    roles = range(2 * steps + 1)
    figure.add_scatter(
        x=list(roles),
        y=[0] * len(roles),
        mode="markers",
        marker={"color": "#333333", "size": 8},
        hovertext=[role_letters(role) for role in roles],
        hoverinfo="text",
        **above,
    )
    figure.update_yaxes(
        title="shared",
        tickvals=[1, -1],
        ticktext=["token", "encoding"],
        range=[-1.7, 1.7],
        showgrid=False,
        zeroline=False,
        **above,
    )


def _add_arrivals(figure: go.Figure, steps: int, depth: int, causal: bool) -> None:
    states = simulate(steps, depth, causal)
    roles, bits = range(2 * steps + 1), range(2 * steps + 2)
    arrivals = [
        [
            next((t for t, held in enumerate(states) if held[role] >> bit & 1), None)
            for role in roles
        ]
        for bit in bits
    ]
    shades = sample_colorscale("YlGnBu", [0.15 + 0.75 * t / depth for t in range(depth + 1)])
    scale = [(edge / (depth + 1), shade) for t, shade in enumerate(shades) for edge in (t, t + 1)]
    figure.add_heatmap(
        z=arrivals,
        x=list(roles),
        y=list(bits),
        zmin=-0.5,
        zmax=depth + 0.5,
        colorscale=scale,
        colorbar={
            "title": {"text": "held after layer"},
            "tickvals": list(range(depth + 1)),
            "ticktext": ["start", *map(str, range(1, depth + 1))],
            "len": 0.75,
            "yanchor": "bottom",
            "y": 0,
        },
        xgap=2,
        ygap=2,
        text=[["" if t is None else str(t) for t in row] for row in arrivals],
        texttemplate="%{text}" if steps <= 8 else None,
        customdata=[[f"{role_letters(r)}: {piece_name(bit)}" for r in roles] for bit in bits],
        hovertemplate="%{customdata}, held after layer %{z}<extra></extra>",
        hoverongaps=False,
        row=2,
        col=1,
    )
    figure.update_xaxes(
        title="position of the chain, in order of reachability from the query",
        tickvals=list(roles),
        ticktext=[f"{role_name(role)}<br>{_letter(role)}" for role in roles],
        row=2,
        col=1,
    )
    figure.update_yaxes(
        title="piece of information",
        tickvals=list(bits),
        ticktext=[piece_name(bit) for bit in bits],
        showgrid=False,
        zeroline=False,
        row=2,
        col=1,
    )
