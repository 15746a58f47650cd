"""When attention paths appear in training: `python -m retrieval_interp emergence --run runs/d`."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from retrieval_interp.commands.command import say, status, tell_files
from retrieval_interp.commands.options import OUTPUT, ExampleOptions, check_outputs, parse_options
from retrieval_interp.progress import progress_bar
from retrieval_interp.tasks.structured import EXAMPLES, number_field


@dataclass(frozen=True)
class EmergenceOptions(ExampleOptions):
    """Show when each attention path of a circuit appears in a training run.

    Attributes:
        run: a run folder with checkpoints.
        circuit: follow the paths of this circuit; default: one found in its last checkpoint.
        examples: how many examples to measure each checkpoint on.
        json: write the numbers to this file.
        tolerance: the loss that a working circuit stays below; a path is necessary if cutting it
            at the last step costs more. Default: the task's own, for vectors 0.05 of a symbol's
            variance.
    """

    run: Path = field(kw_only=True)
    circuit: Path | None = None
    examples: int = number_field(32, **EXAMPLES)
    json: Path | None = field(default=None, metadata=OUTPUT)
    tolerance: float | None = number_field(None, above=0)


def main(argv: Sequence[str], prog: str = "retrieval-interp emergence") -> None:
    options = parse_options(EmergenceOptions, argv, prog)
    checkpoints = options.run.glob("checkpoints/*")
    check_outputs(options, *options.run.glob("*"), *checkpoints, options.circuit)

    with status("loading PyTorch"):
        from retrieval_interp.device import choose_device
        from retrieval_interp.emergence import report
        from retrieval_interp.emergence.series import follow_run
        from retrieval_interp.storage.checkpoint import load_checkpoint, read_circuit
        from retrieval_interp.storage.files import write_whole
        from retrieval_interp.views.tables import terminal_width

    circuit = None
    if options.circuit is not None:
        last = load_checkpoint(options.run)
        trained = f"{options.run} was trained on"
        circuit = read_circuit(options.circuit, last.task, last.model, trained)
    series = follow_run(
        options.run,
        circuit,
        examples=options.examples,
        seed=options.seed,
        tolerance=options.tolerance,
        device=choose_device(options.device),
        progress=progress_bar,
        circuit_from=f"read from {options.circuit}",
    )
    if options.json is not None:
        typed = f"{prog} {shlex.join(argv)}"
        text = report.emergence_json(series, typed, options.examples, options.seed)
        write_whole(options.json, text)
    for line in report.summary(series):
        say(line)
    print(f"\n{report.emergence_table(series, terminal_width())}")
    tell_files(numbers=options.json)
