"""Which attention paths do the work: `python -m retrieval_interp.ablate --ckpt small`.

Finds a circuit (or takes one), replaces the attention of a trained model by it, and says what each
replacement costs (paper, appendix E).
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from retrieval_interp.commands.command import (
    check_outputs,
    check_sampling,
    parse_options,
    progress_bar,
    say,
    saying,
    tell_files,
)
from retrieval_interp.storage.find_checkpoint import find_checkpoint
from retrieval_interp.tasks.errors import InputError


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
    _check_options(options)

    with saying("loading PyTorch and the model"):
        from retrieval_interp.circuits import Head, SearchOptions, discover, score_circuit
        from retrieval_interp.circuits.flow.delivery import describe_flow
        from retrieval_interp.commands.search_line import search_line
        from retrieval_interp.storage.checkpoint import load_checkpoint
        from retrieval_interp.storage.circuit_file import read_circuit
        from retrieval_interp.storage.files import write_json, write_whole
        from retrieval_interp.storage.provenance import provenance
        from retrieval_interp.training.device import choose_device
        from retrieval_interp.views.paper import paper_reports
        from retrieval_interp.views.score_text import (
            describe,
            score_table,
            score_to_dict,
            verdict,
        )
        from retrieval_interp.views.tables import terminal_width

        device = choose_device(options.device)
        checkpoint = load_checkpoint(options.ckpt, device)
    model, task = checkpoint.model, checkpoint.task
    if options.circuit is not None:
        trained_on = f"{checkpoint.name} was trained on"
        circuit = read_circuit(
            options.circuit, task, model.cfg.n_layers, model.cfg.n_heads, trained_on
        )
    else:
        heads = None if options.heads is None else [Head.parse(head) for head in options.heads]
        search = SearchOptions(
            options.tolerance,
            options.examples,
            options.seed,
            options.restarts,
            not options.one_hot,
            options.time,
            heads,
        )
        circuit = discover(model, task, options=search, progress=search_line)
    batch = task.sample(options.examples, options.seed, device, split="test")
    score = score_circuit(
        model, task, circuit, batch, options.tolerance, options.controls, progress_bar
    )
    reported = paper_reports(task)
    # Files first: whoever reads what is printed may stop listening.
    command = " ".join([prog, shlex.join(argv)])
    if options.json is not None:
        write_json(options.json, score_to_dict(score, checkpoint.name, task, options.seed))
    if options.save_circuit is not None:
        made = provenance(command) if options.circuit is None else None
        write_whole(options.save_circuit, circuit.to_json(made))
    if options.report is not None:
        from retrieval_interp.views.report import render_report

        page = render_report(
            score,
            model,
            task,
            name=checkpoint.name,
            seed=options.seed,
            command=command,
            training=checkpoint.training,
            batch=batch,
            reported=reported,
        )
        write_whole(options.report, page)
    measured = f"every {task.loss_name} is measured on"
    found = (
        f"read from {options.circuit}; {measured} {options.examples} examples"
        if options.circuit
        else f"found on {options.examples} examples; {measured} as many others"
    )
    say(f"{checkpoint.name}: {describe(model, task)}")
    say(f"circuit {found}, seed {options.seed}")
    say(task.loss_meaning)
    print(f"\n{score_table(score, task, terminal_width())}")
    say(verdict(score, task, reported))
    if task.graph is not None and circuit.mechanisms:
        say(describe_flow(circuit, checkpoint.config.layers, checkpoint.config.heads))
    tell_files(numbers=options.json, circuit=options.save_circuit, report=options.report)


def _check_options(options: AblateOptions) -> None:
    check_sampling(options.examples, options.seed, options.tolerance)
    if options.restarts < 1:
        raise InputError(f"--restarts: expected at least 1, found {options.restarts}")
    if options.circuit is not None:
        for name in ("heads", "restarts", "time", "one_hot"):
            if getattr(options, name) != getattr(AblateOptions, name):
                option = f"--{name.replace('_', '-')}"
                raise InputError(
                    f"{option}: expected a search, found --circuit, whose circuit is scored as it "
                    "is; leave one of them out"
                )
    if options.controls < 0:
        raise InputError(f"--controls: expected 0 or more, found {options.controls}")
    outputs = {
        "--json": options.json,
        "--report": options.report,
        "--save-circuit": options.save_circuit,
    }
    check_outputs(outputs, [Path(options.ckpt), options.circuit])
    find_checkpoint(options.ckpt)  # before the libraries are loaded that take seconds
