"""When attention paths appear in training: `python -m retrieval_interp emergence --run runs/d`."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from retrieval_interp.commands.command import (
    check_outputs,
    check_sampling,
    parse_options,
    say,
    saying,
    tell_files,
)
from retrieval_interp.progress import progress_bar
from retrieval_interp.storage.files import check_run_folder


@dataclass(frozen=True)
class EmergenceOptions:
    """Say when each attention path of a circuit appears in a training run.

    Attributes:
        run: a run folder with checkpoints.
        circuit: follow the paths of this circuit; default: the one that the run was watched with,
            else one found in its last checkpoint.
        examples: how many examples to measure each checkpoint on.
        seed: which examples.
        json: write the numbers to this file.
        report: write an HTML page that needs no network to this file.
        tolerance: the loss that a working circuit stays below; a path is necessary if cutting it
            at the last step costs more. Default: the task's own, for vectors 0.05 of a symbol's
            variance.
        device: auto, cpu or cuda.
    """

    run: Path
    circuit: Path | None = None
    examples: int = 32
    seed: int = 0
    json: Path | None = None
    report: Path | None = None
    tolerance: float | None = None
    device: str = "auto"


def main(argv: Sequence[str], prog: str = "retrieval-interp emergence") -> None:
    options = parse_options(EmergenceOptions, argv, prog)
    check_sampling(options.examples, options.seed, options.tolerance)
    check_run_folder(options.run)
    read = [*options.run.glob("*"), *options.run.glob("checkpoints/*"), options.circuit]
    outputs = {"--json": options.json, "--report": options.report}
    check_outputs(outputs, read)

    with saying("loading PyTorch"):
        from retrieval_interp.emergence.measure import follow_run
        from retrieval_interp.emergence.report import (
            emergence_json,
            emergence_table,
            render_emergence,
        )
        from retrieval_interp.storage.checkpoint import read_circuit
        from retrieval_interp.storage.files import write_whole
        from retrieval_interp.storage.run_folder import read_recipe
        from retrieval_interp.training import choose_device
        from retrieval_interp.views.score_text import describe_config
        from retrieval_interp.views.tables import terminal_width

    examples, seed, circuit = options.examples, options.seed, None
    if options.circuit is not None:
        recipe, whose = read_recipe(options.run), f"{options.run} was trained on"
        sizes = recipe.model.layers, recipe.model.heads
        circuit = read_circuit(options.circuit, recipe.task, *sizes, whose)
    series = follow_run(
        options.run,
        circuit,
        examples,
        seed,
        options.tolerance,
        choose_device(options.device),
        progress_bar,
        circuit_from=f"read from {options.circuit}",
    )
    command = f"{prog} {shlex.join(argv)}"
    # Files first: the output pipe may close.
    if options.json is not None:
        write_whole(options.json, emergence_json(series, command, examples, seed))
    if options.report is not None:
        write_whole(options.report, render_emergence(series, command, examples, seed))
    steps, watched = series.steps, [row for row in series.snapshots if row.source == "watch"]
    say(f"{options.run}: {describe_config(series.recipe.model, series.recipe.task)}")
    say(f"circuit {series.circuit_from}, {len(series.paths)} paths")
    say(
        f"{len(steps)} steps measured, {steps[0]} to {steps[-1]}; {examples} examples, seed {seed}"
        + (f"; {len(watched)} of them while training, in watch.jsonl" if watched else "")
    )
    for note in series.notes:
        say(f"note: {note}")
    print(f"\n{emergence_table(series, terminal_width())}")
    tell_files(numbers=options.json, report=options.report)
