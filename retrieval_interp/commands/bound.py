"""How many layers retrieval needs: `retrieval-interp bound --steps 1 2 3`.

Prints the paper's lower bound (theorem 1) and the exact depths under its assumptions, each in
closed form and by simulation, and draws which position can hold what (figures 3 and 8).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from retrieval_interp.commands.command import check_outputs, parse_options, saying, tell_files
from retrieval_interp.tasks.errors import InputError

DEFAULT_STEPS = (1, 2, 3, 4, 5, 8, 16, 32, 64, 128)
MOST_STEPS = 512
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
    drawn = () if options.draw is None else (options.draw,)
    checks = [("--steps", MOST_STEPS, number) for number in options.steps]
    for name, most, number in (*checks, *(("--draw", MOST_DRAWN, steps) for steps in drawn)):
        if not 1 <= number <= most:
            raise InputError(f"{name}: expected a number from 1 to {most}, found {number}")
    if not drawn and (options.html is not None or not options.mask):
        name = "--no-mask" if options.html is None else "--html"
        raise InputError(f"{name}: expected a drawing to apply to, found none; add --draw 5")
    check_outputs({"--json": options.json, "--html": options.html}, [])

    with saying("loading PyTorch"):
        from retrieval_interp.storage.files import write_json, write_whole
        from retrieval_interp.views.flow import bound_row, bound_table, flow_figure, flow_text
        from retrieval_interp.views.tables import terminal_width

    rows = [bound_row(steps) for steps in options.steps or drawn or DEFAULT_STEPS]
    print(bound_table(rows, terminal_width()))
    if options.json is not None:
        write_json(options.json, rows)
    for steps in drawn:
        print("\n" + flow_text(steps, options.mask, terminal_width()))
        if options.html is not None:
            page = flow_figure(steps, options.mask).to_html(include_plotlyjs=True, div_id="flow")
            write_whole(options.html, page)
    if options.json or options.html:
        print()
    tell_files(numbers=options.json, drawing=options.html)
