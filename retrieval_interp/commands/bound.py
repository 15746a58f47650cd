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
        mask: draw with the causal mask, or without.
    """

    steps: tuple[int, ...] = ()
    json: Path | None = None
    draw: int | None = None
    mask: bool = True


def main(argv: Sequence[str], prog: str = "retrieval-interp bound") -> None:
    options = parse_options(BoundOptions, argv, prog)
    drawn = () if options.draw is None else (options.draw,)
    for name, most, numbers in (("steps", MOST_STEPS, options.steps), ("draw", MOST_DRAWN, drawn)):
        for number in numbers:
            if not 1 <= number <= most:
                raise InputError(f"--{name}: expected a number from 1 to {most}, found {number}")
    check_outputs({"--json": options.json}, [])

    with saying("loading PyTorch"):
        from retrieval_interp.storage.files import write_json
        from retrieval_interp.views.flow import bound_row, bound_table, flow_text
        from retrieval_interp.views.tables import terminal_width

    rows = [bound_row(steps) for steps in options.steps or drawn or DEFAULT_STEPS]
    print(bound_table(rows, terminal_width()))
    for steps in drawn:
        print("\n" + flow_text(steps, options.mask, terminal_width()))
    if options.json is not None:
        write_json(options.json, rows)
        print()
    tell_files(numbers=options.json)
