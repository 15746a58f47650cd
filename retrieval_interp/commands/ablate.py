"""Which attention paths do the work: `retrieval-interp ablate --ckpt small` (paper, appendix E)."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import retrieval_interp as ri
from retrieval_interp.commands.command import (
    check_outputs,
    check_sampling,
    parse_options,
    say,
    saying,
    tell_files,
)
from retrieval_interp.progress import progress_bar
from retrieval_interp.storage.files import find_checkpoint, provenance, write_json, write_whole
from retrieval_interp.views.tables import terminal_width


@dataclass(frozen=True)
class AblateOptions:
    """Find which attention paths of a trained transformer do the work.

    Attributes:
        ckpt: a shipped name (small), a checkpoint file, or a run folder (its last checkpoint).
        circuit: score this circuit instead of finding one.
        json: write the numbers to this file.
        report: write an HTML page that needs no network to this file.
        save_circuit: write the circuit to this file, to be edited or given to --circuit.
        examples: how many examples to measure on (and as many others to find the circuit on).
        seed: which examples.
        tolerance: the loss that a working circuit stays below; by default the task's own, which
            for vectors is 0.05 of a symbol's variance.
        one_hot: find a circuit of one-hot paths alone, as in the paper: no two sources share.
        heads: search for replacements of these heads alone, such as L0.H0 L2.H0; default all.
        restarts: how many starting circuits to search from.
        time: end the search after so many seconds, with the best circuit so far. Ctrl-C ends it
            likewise.
        controls: how many random circuits to compare with.
        device: auto, cpu or cuda.
    """

    ckpt: str = "small"
    circuit: Path | None = None
    json: Path | None = None
    report: Path | None = None
    save_circuit: Path | None = None
    examples: int = 512
    seed: int = 0
    tolerance: float | None = None
    one_hot: bool = False
    heads: tuple[str, ...] | None = None
    restarts: int = 4
    time: float | None = None
    controls: int = 20
    device: str = "auto"


def main(argv: Sequence[str], prog: str = "retrieval-interp ablate") -> None:
    options = parse_options(AblateOptions, argv, prog)
    _check(options)
    with saying("loading PyTorch and the model"):
        from retrieval_interp.storage.checkpoint import read_circuit
        from retrieval_interp.training import choose_device

        device = choose_device(options.device)
        checkpoint = ri.load_checkpoint(options.ckpt, device)
    model, task, sizes = checkpoint.model, checkpoint.task, checkpoint.config
    batch = task.sample(options.examples, options.seed, device, split="test")
    if options.circuit is None:
        circuit = _search(options, checkpoint)
    else:
        trained = f"{checkpoint.name} was trained on"
        circuit = read_circuit(options.circuit, task, sizes.layers, sizes.heads, trained)
    score = ri.score_circuit(
        model, task, circuit, batch, options.tolerance, options.controls, progress_bar
    )
    # Files first: the output pipe may close.
    _write(options, checkpoint, batch, score, " ".join([prog, shlex.join(argv)]))
    _show(options, checkpoint, score)


def _check(options: AblateOptions) -> None:
    """Everything that can be known before libraries are loaded, which takes seconds."""
    check_sampling(options.examples, options.seed, options.tolerance)
    for name, least in (("restarts", 1), ("controls", 0)):
        if (found := getattr(options, name)) < least:
            raise ri.InputError(f"--{name}: expected at least {least}, found {found}")
    for name in ("heads", "restarts", "time", "one_hot") if options.circuit else ():
        if getattr(options, name) != getattr(AblateOptions, name):
            raise ri.InputError(
                f"--{name.replace('_', '-')}: expected a search, found --circuit, whose circuit is "
                "scored as it is; leave one of them out"
            )
    outputs = {
        "--json": options.json,
        "--report": options.report,
        "--save-circuit": options.save_circuit,
    }
    check_outputs(outputs, [Path(options.ckpt), options.circuit])
    find_checkpoint(options.ckpt)


def _search(options: AblateOptions, checkpoint: "ri.Checkpoint") -> "ri.Circuit":
    search = ri.SearchOptions(
        tolerance=options.tolerance,
        examples=options.examples,
        seed=options.seed,
        restarts=options.restarts,
        shared=not options.one_hot,
        time=options.time,
        heads=None if options.heads is None else [ri.Head.parse(head) for head in options.heads],
    )
    return ri.discover(checkpoint.model, checkpoint.task, options=search, progress=progress_bar)


def _write(
    options: AblateOptions,
    checkpoint: "ri.Checkpoint",
    batch: "ri.Batch",
    score: "ri.CircuitScore",
    command: str,
) -> None:
    from retrieval_interp.views.paper import paper_reports
    from retrieval_interp.views.score_text import score_to_dict

    name, task = checkpoint.name, checkpoint.task
    if options.json is not None:
        write_json(options.json, score_to_dict(score, name, task, options.seed))
    if options.save_circuit is not None:
        made = None if options.circuit else provenance(command)
        write_whole(options.save_circuit, score.circuit.to_json(made))
    if options.report is not None:
        page = ri.render_report(
            score,
            checkpoint.model,
            task,
            name=name,
            seed=options.seed,
            command=command,
            training=checkpoint.training,
            batch=batch,
            reported=paper_reports(task),
        )
        write_whole(options.report, page)


def _show(options: AblateOptions, checkpoint: "ri.Checkpoint", score: "ri.CircuitScore") -> None:
    from retrieval_interp.views.paper import paper_reports
    from retrieval_interp.views.score_text import describe

    task, config = checkpoint.task, checkpoint.config
    measured = f"every {task.loss_name} is measured on"
    found = f"found on {options.examples} examples; {measured} as many others"
    if options.circuit:
        found = f"read from {options.circuit}; {measured} {options.examples} examples"
    say(f"{checkpoint.name}: {describe(checkpoint.model, task)}")
    say(f"circuit {found}, seed {options.seed}")
    say(task.loss_meaning)
    print(f"\n{ri.score_table(score, task, terminal_width())}")
    say(ri.verdict(score, task, paper_reports(task)))
    if task.graph is not None and score.circuit.mechanisms:
        say(ri.describe_flow(score.circuit, config.layers, config.heads))
    tell_files(numbers=options.json, circuit=options.save_circuit, report=options.report)
