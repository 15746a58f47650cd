"""How many heads a run's circuit needs as training goes on.

    python benchmarks/circuit_by_step.py --run runs/NAME --every 2000 [--json FILE]

At every checkpoint: the loss on fresh examples, the one-hot circuit that a search of its own finds,
and how what its paths cost compares with the paper's ranges (appendix E). Rows that are in the file
already are kept; a search takes minutes.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measure import arguments, machine, prepare, report

from retrieval_interp.circuits.notation import circuit_text
from retrieval_interp.circuits.scores.scorer import no_progress
from retrieval_interp.reproduce.claims import useful_heads
from retrieval_interp.reproduce.evidence import Trained
from retrieval_interp.reproduce.paper import FIRST_LAYER, PATHS, side
from retrieval_interp.storage.run_folder import checkpoint_files


def row(step: int, file: Path) -> dict[str, Any]:
    """One checkpoint."""
    trained = Trained(file.stem, str(file), None, no_progress)
    loss, error = trained.fresh_loss
    circuit, costs = trained.circuit, trained.worth.ablated
    first = min((path.head.layer for path in costs), default=0)
    sides = [
        side(cost, FIRST_LAYER if path.head.layer == first else PATHS)
        for path, cost in costs.items()
    ]
    return {
        "step": step,
        "loss": loss,
        "standard error": error,
        "with circuit": trained.worth.combined_loss,
        "heads": useful_heads(circuit),
        "paths": len(costs),
        **{place: sides.count(place) for place in ("inside", "below", "above")},
        "circuit": circuit_text(circuit, trained.checkpoint.config.layers),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--run", type=Path, required=True, help="a run folder with checkpoints")
    parser.add_argument("--every", type=int, default=2000, help="steps between two circuits")
    options = parser.parse_args(argv)
    device = prepare(options)
    rows: list[dict[str, Any]] = []
    if options.json is not None and options.json.exists():
        rows = json.loads(options.json.read_text())["rows"]
    known = {one["step"] for one in rows}
    files = sorted(checkpoint_files(options.run).items())
    missing = [
        (step, file)
        for step, file in (files[-1:] if options.quick else files)
        if step % options.every == 0 and step not in known
    ]

    def tell() -> None:
        shown = [{key: one[key] for key in one if key != "circuit"} for one in rows]
        report(rows, options, argv, shown, machine=machine(device))

    for step, file in missing:
        rows = sorted([*rows, row(step, file)], key=lambda one: one["step"])
        tell()
    if not missing:
        tell()


if __name__ == "__main__":
    main()
