"""How many layers retrieval needs: `python -m retrieval_interp.bound --steps 1 2 3`.

Prints the paper's lower bound (theorem 1) beside the exact depths under its assumptions, each as a
closed form and by simulation, and draws which position can hold what (figures 3 and 8).
"""

if __name__ == "__main__":  # before anything that takes time to load
    from retrieval_interp.interrupts import end_at_once

    end_at_once("bound")

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from retrieval_interp.commands import parse_options, run_command
from tasks.errors import InputError
from tasks.roles import role_letters, role_name, symbol_letter

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

PROG = "python -m retrieval_interp.bound"
DEFAULT_STEPS = (1, 2, 3, 4, 5, 8, 16, 32, 64, 128)
MOST_STEPS = 512  # simulated in about a second
MOST_DRAWN = 25  # symbols have letters up to there
_CELL = 6
_COLUMNS = {
    "steps": "D",
    "paper": "paper's bound",
    "unmasked": "no mask",
    "causal": "causal mask",
    "simulated_unmasked": "simulated, no mask",
    "simulated_causal": "simulated, causal",
}


@dataclass(frozen=True)
class BoundOptions:
    """Say how many layers the retrieval problem needs under the paper's assumptions.

    Attributes:
        steps: chain lengths D to put in the table; if none, some up to 128, or the one drawn.
        json: write the table to this file.
        draw: draw what each position of a chain of this length can hold after each layer.
        html: write the drawing as a page that needs no network to this file.
        mask: draw with the causal mask, or without.
    """

    steps: tuple[int, ...] = ()
    json: Path | None = None
    draw: int | None = None
    html: Path | None = None
    mask: bool = True


def main(argv: Sequence[str]) -> None:
    options = parse_options(BoundOptions, argv, PROG)
    _check_options(options)
    drawn = DEFAULT_STEPS if options.draw is None else (options.draw,)
    rows = [bound_row(steps) for steps in options.steps or drawn]
    print(bound_table(rows))
    if options.json is not None:
        import json

        from retrieval_interp.files import write_whole

        write_whole(options.json, json.dumps(rows, indent=2) + "\n")
        print(f"\nnumbers: {options.json}")
    if options.draw is not None:
        print("\n" + flow_text(options.draw, options.mask))
        if options.html is not None:
            from retrieval_interp.files import write_whole

            figure = flow_figure(options.draw, options.mask)
            write_whole(options.html, figure.to_html(include_plotlyjs=True, div_id="flow"))
            print(f"\ndrawing: {options.html}")


def _check_options(options: BoundOptions) -> None:
    from retrieval_interp.files import check_writable

    for steps in options.steps:
        if not 1 <= steps <= MOST_STEPS:
            raise InputError(f"--steps: expected numbers from 1 to {MOST_STEPS}, found {steps}")
    if options.draw is None:
        if options.html is not None or not options.mask:
            name = "--no-mask" if options.html is None else "--html"
            raise InputError(f"{name}: expected a drawing to apply to, found none; add --draw 5")
    elif not 1 <= options.draw <= MOST_DRAWN:
        raise InputError(f"--draw: expected a number from 1 to {MOST_DRAWN}, found {options.draw}")
    for path in (options.json, options.html):
        check_writable(path)
    if options.json and options.html and options.json.resolve() == options.html.resolve():
        raise InputError("expected a different file for --json and --html")


# The table


def bound_row(steps: int) -> dict[str, int]:
    """The least depths for chains of `steps` steps.

    Raises:
        InputError: steps below 1.
    """
    from circuits.flow import causal_depth, least_depth, paper_bound, unmasked_depth

    return {
        "steps": steps,
        "paper": paper_bound(steps),
        "unmasked": unmasked_depth(steps),
        "causal": causal_depth(steps),
        "simulated_unmasked": least_depth(steps, causal=False),
        "simulated_causal": least_depth(steps, causal=True),
    }


def bound_table(rows: Sequence[dict[str, int]]) -> str:
    """The rows as a table for people."""
    cells = [[str(row[key]) for key in _COLUMNS] for row in rows]
    lines = _table(list(_COLUMNS.values()), cells, numbers=True)
    return "\n".join(["Layers needed before the query can hold x_D", "", *lines])


def _table(header: list[str], rows: list[list[str]], numbers: bool = False) -> list[str]:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    table = [header, ["-" * width for width in widths], *rows]
    return [
        "  ".join(
            cell.rjust(width) if numbers else cell.ljust(width) for cell, width in zip(row, widths)
        ).rstrip()
        for row in table
    ]


# The drawing


def held_text(pieces: int) -> str:
    """A set of pieces in short: `p0 A`, and `p0..B` for three or more neighbours."""
    from circuits.flow import piece_name

    runs, bit = [], 0
    while pieces >> bit:
        first = bit
        while pieces >> bit & 1:
            bit += 1
        names = [piece_name(held) for held in range(first, bit)]
        if names:
            runs.append(f"{names[0]}..{names[-1]}" if len(names) > 2 else " ".join(names))
        bit += 1
    return ", ".join(runs)


def flow_text(steps: int, causal: bool) -> str:
    """Which positions share pieces at the start, and what each can hold after each layer.

    Args:
        steps: induction steps of the chain, D.
        causal: whether a position sees itself and earlier ones only.

    Raises:
        InputError: steps below 1.
    """
    from circuits.flow import least_depth, simulate

    depth = least_depth(steps, causal)
    states = simulate(steps, depth, causal)
    rows = [
        [role_name(role), role_letters(role), *(held_text(held[role]) for held in states)]
        for role in range(2 * steps + 1)
    ]
    layers = [f"after layer {layer}" for layer in range(1, depth + 1)]
    return "\n".join(
        [
            "Pieces shared at the start: tokens above, encodings of pairs below",
            "",
            *_chain(steps),
            "",
            f"What each position can hold, {_mask(causal)}",
            "",
            *_table(["role", "in letters", "at the start", *layers], rows),
            "",
            _conclusion(steps, depth),
        ]
    )


def _chain(steps: int) -> list[str]:
    roles = range(2 * steps + 1)
    above = "".join(f"╭{symbol_letter(k):─^5}╮".ljust(2 * _CELL) for k in range(steps))
    below = "".join(f"╰{f'p{k}':─^5}╯".ljust(2 * _CELL) for k in range(1, steps + 1))
    names = "".join(role_name(role).ljust(_CELL) for role in roles)
    letters = "".join(_letter(role).ljust(_CELL) for role in roles)
    return [line.rstrip() for line in (above, names, letters, " " * _CELL + below)]


def _letter(role: int) -> str:
    return symbol_letter(role // 2) + ("?" if role == 0 else "")


def _mask(causal: bool) -> str:
    return "with the causal mask" if causal else "without a mask"


def _conclusion(steps: int, depth: int) -> str:
    return f"The query can hold {symbol_letter(steps)} after {depth} layers, no earlier."


def flow_figure(steps: int, causal: bool) -> "Figure":
    """Figure 3 for any D, above a map of the first layer after which a role can hold a piece.

    Args:
        steps: induction steps of the chain, D.
        causal: whether a position sees itself and earlier ones only.

    Returns:
        A Plotly figure; the caller's templates are left alone.

    Raises:
        InputError: steps below 1.
    """
    from plotly.subplots import make_subplots

    from circuits.flow import least_depth

    depth = least_depth(steps, causal)
    figure = make_subplots(rows=2, shared_xaxes=True, row_heights=[0.2, 0.8], vertical_spacing=0.03)
    _add_arcs(figure, steps)
    _add_arrivals(figure, steps, depth, causal)
    figure.update_xaxes(showgrid=False, zeroline=False)
    figure.update_layout(
        template="plotly_white",
        title=f"What each position can hold, D = {steps}, {_mask(causal)}<br>"
        f"<sup>{_conclusion(steps, depth)}</sup>",
        height=320 + 24 * (2 * steps + 2),
        showlegend=False,
    )
    return figure


def _add_arcs(figure: "Figure", steps: int) -> None:
    import math

    import plotly.graph_objects as go

    from circuits.flow import piece_name

    angles = [math.pi * step / 24 for step in range(25)]
    for role in range(2 * steps):  # role and role+1 share the piece of bit role+1
        side = 1 if role % 2 == 0 else -1
        figure.add_trace(
            go.Scatter(
                x=[role + 0.5 - 0.5 * math.cos(angle) for angle in angles],
                y=[side * math.sin(angle) for angle in angles],
                mode="lines",
                line={"color": "#4c78a8" if side > 0 else "#f58518", "width": 2},
                hoverinfo="skip",
            ),
            row=1,
            col=1,
        )
        figure.add_annotation(
            x=role + 0.5, y=1.3 * side, text=piece_name(role + 1), showarrow=False, row=1, col=1
        )
    roles = range(2 * steps + 1)
    figure.add_trace(
        go.Scatter(
            x=list(roles),
            y=[0] * len(roles),
            mode="markers",
            marker={"color": "#333333", "size": 8},
            hovertext=[role_letters(role) for role in roles],
            hoverinfo="text",
        ),
        row=1,
        col=1,
    )
    figure.update_yaxes(
        title="shared",
        tickvals=[1, -1],
        ticktext=["token", "encoding"],
        range=[-1.7, 1.7],
        showgrid=False,
        zeroline=False,
        row=1,
        col=1,
    )


def _add_arrivals(figure: "Figure", steps: int, depth: int, causal: bool) -> None:
    import plotly.graph_objects as go
    from plotly.colors import sample_colorscale

    from circuits.flow import piece_name, simulate

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
    figure.add_trace(
        go.Heatmap(
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
        ),
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


if __name__ == "__main__":
    run_command(main, PROG)
