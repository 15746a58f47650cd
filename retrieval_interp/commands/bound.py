"""How many layers retrieval needs: `retrieval-interp bound --steps 1 2 3`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from retrieval_interp.commands.command import status, tell_files
from retrieval_interp.commands.options import OUTPUT, check_outputs, parse_options
from retrieval_interp.tasks.structured import number_field

DEFAULT_STEPS = (1, 2, 3, 4, 5, 8, 16, 32, 64, 128)
MOST_STEPS = 512


@dataclass(frozen=True)
class BoundOptions:
    """Show how many layers the retrieval problem needs under the paper's assumptions.

    Attributes:
        steps: chain lengths D.
        json: write the numbers to this file.
    """

    steps: tuple[int, ...] = number_field(DEFAULT_STEPS, minimum=1, maximum=MOST_STEPS)
    json: Path | None = field(default=None, metadata=OUTPUT)


def main(argv: Sequence[str], prog: str = "retrieval-interp bound") -> None:
    """Simulate the information flow for every length, and print the depths."""
    options = parse_options(BoundOptions, argv, prog)
    check_outputs(options)

    with status("loading PyTorch"):
        from retrieval_interp.circuits import flow
        from retrieval_interp.storage.files import write_json
        from retrieval_interp.views.tables import terminal_width, text_table

    bounds: dict[str, tuple[str, Callable[[int], int]]] = {
        "paper": ("paper's bound", flow.paper_bound),
        "unmasked": ("no mask", flow.unmasked_depth),
        "causal": ("causal mask", flow.causal_depth),
        "simulated_unmasked": ("simulated, no mask", partial(flow.least_depth, causal=False)),
        "simulated_causal": ("simulated, causal", partial(flow.least_depth, causal=True)),
    }
    rows = [{"steps": d} | {key: of(d) for key, (_, of) in bounds.items()} for d in options.steps]
    header = ["D", *(title for title, _ in bounds.values())]
    cells = [list(map(str, row.values())) for row in rows]
    print("Layers needed before the query can hold x_D\n")
    print(*text_table(header, cells, range(len(header)), terminal_width()), sep="\n")
    if options.json is not None:
        write_json(options.json, rows)
        print()
    tell_files(numbers=options.json)
