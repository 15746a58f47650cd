"""When attention paths appear in training: `python -m retrieval_interp.emergence --run runs/d`.

Measures a circuit's paths at every checkpoint of a run: how much attention each gets, what each is
worth, when it appears, and which of both comes first (paper, section 9 and appendix D).
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from retrieval_interp.cli.command import (
    check_outputs,
    check_sampling,
    parse_options,
    progress_bar,
    run_command,
    tell_files,
)
from retrieval_interp.storage.files import check_run_folder

if TYPE_CHECKING:
    from retrieval_interp.emergence.probe import Snapshot

PROG = "python -m retrieval_interp.emergence"


@dataclass(frozen=True)
class EmergenceOptions:
    """Say when each attention path of a circuit appears in a training run.

    Attributes:
        run: a run folder with checkpoints.
        circuit: follow the paths of this circuit; default: the one that the run was watched with,
            else the one found in its last checkpoint.
        examples: how many examples to measure every checkpoint on.
        seed: which examples.
        json: write the numbers to this file.
        csv: write the series in long form (step, quantity, path, value) to this file.
        report: write an HTML page that needs no network to this file.
        tolerance: the loss that a working circuit stays below, and that cutting a path must cost
            at the last step to count it as necessary; by default the task's own, which for vectors
            is 0.05 of a symbol's variance.
        device: auto, cpu or cuda.
    """

    run: Path
    circuit: Path | None = None
    examples: int = 32
    seed: int = 0
    json: Path | None = None
    csv: Path | None = None
    report: Path | None = None
    tolerance: float | None = None
    device: str = "auto"


def main(argv: Sequence[str], prog: str = PROG) -> None:
    options = parse_options(EmergenceOptions, argv, prog)
    check_sampling(options.examples, options.seed, options.tolerance)
    check_run_folder(options.run)
    read = [*options.run.glob("*"), *options.run.glob("checkpoints/*"), options.circuit]
    outputs = {"--json": options.json, "--csv": options.csv, "--report": options.report}
    check_outputs(outputs, read)

    from retrieval_interp.emergence.follow import follow_run
    from retrieval_interp.emergence.text import emergence_csv, emergence_json, emergence_table
    from retrieval_interp.storage.circuit_file import read_circuit
    from retrieval_interp.storage.files import write_whole
    from retrieval_interp.storage.run_folder import read_recipe
    from retrieval_interp.training.device import choose_device
    from retrieval_interp.views.score_text import describe_config

    device = choose_device(options.device)
    circuit = None
    if options.circuit is not None:
        recipe = read_recipe(options.run)
        trained = f"{options.run} was trained on"
        circuit = read_circuit(
            options.circuit, recipe.task, recipe.model.layers, recipe.model.heads, trained
        )
    series = follow_run(
        options.run,
        circuit,
        options.examples,
        options.seed,
        options.tolerance,
        device,
        progress_bar,
        f"read from {options.circuit}",
    )
    command = " ".join([prog, shlex.join(argv)])
    # Files first: whoever reads what is printed may stop listening.
    if options.json is not None:
        text = emergence_json(series, command, options.examples, options.seed)
        write_whole(options.json, text)
    if options.csv is not None:
        write_whole(options.csv, emergence_csv(series))
    if options.report is not None:
        from retrieval_interp.emergence.report import render_emergence

        page = render_emergence(series, command, options.examples, options.seed)
        write_whole(options.report, page)
    steps = series.steps
    watched = [row for row in series.snapshots if row.source == "watch"]
    print(f"{options.run}: {describe_config(series.recipe.model, series.recipe.task)}")
    print(f"circuit {series.circuit_from}, {len(series.paths)} paths")
    print(
        f"{len(steps)} steps measured, {steps[0]} to {steps[-1]}"
        + f"; {options.examples} examples, seed {options.seed}"
        + (f"; {_while_training(watched)}" if watched else "")
    )
    for note in series.notes:
        print(f"note: {note}")
    print(f"\n{emergence_table(series)}")
    tell_files(numbers=options.json, series=options.csv, report=options.report)


def _while_training(watched: "Sequence[Snapshot]") -> str:
    one = watched[0]
    return (
        f"{len(watched)} of them while training, in watch.jsonl ({one.examples} examples, "
        f"seed {one.seed})"
    )


if __name__ == "__main__":
    run_command(main, PROG)
