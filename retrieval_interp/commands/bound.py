"""How many layers retrieval needs: `python -m retrieval_interp bound --steps 1 2 3`.

Prints the paper's lower bound (theorem 1) beside the exact depths under its assumptions, each as a
closed form and by simulation, and draws which position can hold what (figures 3 and 8).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from retrieval_interp.commands.command import (
    check_outputs,
    parse_options,
    saying,
    tell_files,
)
from retrieval_interp.tasks.errors import InputError

DEFAULT_STEPS = (1, 2, 3, 4, 5, 8, 16, 32, 64, 128)
MOST_STEPS = 512  # simulated in about a second
MOST_DRAWN = 25  # symbols have letters up to there


@dataclass(frozen=True)
class BoundOptions:
    """Say how many layers the retrieval problem needs under the paper's assumptions.

    Attributes:
        steps: chain lengths D to put in the table; if none, some up to 128, or the one drawn.
        json: write the numbers to this file.
        draw: draw what each position of a chain of this length can hold after each layer.
        html: write the drawing as a page that needs no network to this file.
        mask: draw with the causal mask, or without.
    """

    steps: tuple[int, ...] = ()
    json: Path | None = None
    draw: int | None = None
    html: Path | None = None
    mask: bool = True


def main(argv: Sequence[str], prog: str = "retrieval-interp bound") -> None:
    options = parse_options(BoundOptions, argv, prog)
    _check_options(options)

    with saying("loading PyTorch"):
        from retrieval_interp.storage.files import write_json, write_whole
        from retrieval_interp.views.flow import bound_row, bound_table, flow_figure, flow_text
        from retrieval_interp.views.tables import terminal_width

    drawn = DEFAULT_STEPS if options.draw is None else (options.draw,)
    rows = [bound_row(steps) for steps in options.steps or drawn]
    width = terminal_width()
    print(bound_table(rows, width))
    if options.json is not None:
        write_json(options.json, rows)
        print()
        tell_files(numbers=options.json)
    if options.draw is not None:
        print("\n" + flow_text(options.draw, options.mask, width))
        if options.html is not None:
            figure = flow_figure(options.draw, options.mask)
            write_whole(options.html, figure.to_html(include_plotlyjs=True, div_id="flow"))
            print()
            tell_files(drawing=options.html)


def _check_options(options: BoundOptions) -> None:
    for steps in options.steps:
        if not 1 <= steps <= MOST_STEPS:
            raise InputError(f"--steps: expected numbers from 1 to {MOST_STEPS}, found {steps}")
    if options.draw is None:
        if options.html is not None or not options.mask:
            name = "--no-mask" if options.html is None else "--html"
            raise InputError(f"{name}: expected a drawing to apply to, found none; add --draw 5")
    elif not 1 <= options.draw <= MOST_DRAWN:
        raise InputError(f"--draw: expected a number from 1 to {MOST_DRAWN}, found {options.draw}")
    check_outputs({"--json": options.json, "--html": options.html}, [])
