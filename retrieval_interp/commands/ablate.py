"""Which attention paths do the work: `retrieval-interp ablate --ckpt small` (paper, appendix E)."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import retrieval_interp as ri
from retrieval_interp.commands.command import say, status, tell_files
from retrieval_interp.commands.options import (
    OUTPUT,
    SearchCommandOptions,
    check_outputs,
    parse_options,
)
from retrieval_interp.progress import progress_bar
from retrieval_interp.storage import models_by_name
from retrieval_interp.storage.files import provenance, write_json, write_whole
from retrieval_interp.tasks.structured import number_field
from retrieval_interp.views.tables import terminal_width


@dataclass(frozen=True)
class AblateOptions(SearchCommandOptions):
    """Find which attention paths of a trained transformer do the work.

    Attributes:
        ckpt: a shipped name (small), a checkpoint file, or a run folder (its last checkpoint). With
            a task, also a model of your own, FILE.py:NAME, or any that `scan` takes.
        task: a task of your own, FILE.py:NAME; by default the checkpoint's.
        circuit: score this circuit instead of finding one: a file that --save-circuit wrote. A head
            in it with the mechanism one-hot and no paths is zero-ablated.
        save_circuit: write the circuit to this file, to edit it or give it to --circuit.
        tolerance: the loss that a working circuit stays below; by default the task's own.
        one_hot: search as in the paper: idle heads uniform or identity, all others one-hot.
        fewest: what to minimize first, paths or heads.
        alternatives: for this many seconds, look for other circuits that do as well.
    """

    ckpt: Annotated[str, "--model", "--ckpt"] = "small"
    task: str | None = None
    circuit: Path | None = None
    save_circuit: Path | None = field(default=None, metadata=OUTPUT)
    tolerance: float | None = number_field(None, above=0)
    one_hot: bool = False
    fewest: Literal["paths", "heads"] = "paths"
    alternatives: float | None = number_field(None, above=0)


def main(argv: Sequence[str], prog: str = "retrieval-interp ablate") -> None:
    """Find a circuit or read one, score it on other examples, write files, and print."""
    options = parse_options(AblateOptions, argv, prog)
    _check(options)
    with status("loading PyTorch and the model"):
        from retrieval_interp.views.score_text import describe, score_to_dict

        model, task, training = _open(options)
    typed = f"{prog} {shlex.join(argv)}"
    device = next(model.parameters()).device
    batch = task.sample(options.examples, options.seed, device, split="test")
    circuit, remarks = _find_or_read(options, model, task)
    if options.save_circuit is not None:
        record = None if options.circuit else provenance(typed)
        write_whole(options.save_circuit, circuit.to_json(record))
    score = ri.score_circuit(model, task, circuit, batch, options.tolerance, progress=progress_bar)
    if options.alternatives is not None:
        others = ri.alternatives(
            model,
            task,
            circuit,
            tolerance=options.tolerance,
            examples=options.examples,
            seed=options.seed,
            time=options.alternatives,
            progress=progress_bar,
        )
        remarks.append(others.text(task))
    # Files first: the output pipe may close.
    if options.json is not None:
        write_json(options.json, score_to_dict(score, options.ckpt, task, options.seed))
    if options.report is not None:
        page = ri.render_report(
            score,
            model,
            task,
            batch,
            training,
            name=options.ckpt,
            seed=options.seed,
            command=typed,
            beside=remarks,
        )
        write_whole(options.report, page)
    source = f"found on {options.examples} other examples, confirmed on as many more"
    if options.circuit is not None:
        source = f"read from {options.circuit}"
    measured = f"measured on {options.examples} examples, seed {options.seed}"
    say(f"{options.ckpt}: {describe(model, task)}")
    say(f"circuit {source}; every {task.loss_name} is {measured}")
    say(task.loss_meaning)
    print(f"\n{ri.score_table(score, task, terminal_width())}")
    for text in (ri.verdict(score, task), *remarks):
        say(text)
    if task.graph is not None and score.circuit.mechanisms:
        say(ri.describe_flow(score.circuit, model.cfg.n_layers, model.cfg.n_heads))
    tell_files(numbers=options.json, circuit=options.save_circuit, report=options.report)


def _check(options: AblateOptions) -> None:
    check_outputs(options, options.ckpt, options.task, options.circuit)
    searching = options.one_hot or options.time is not None or options.fewest == "heads"
    if options.circuit is not None and searching:
        raise ri.InputError(
            "--one-hot, --time, --fewest: expected a search, found --circuit; leave one out"
        )
    needs = "a task for a model without one; add --task FILE.py:NAME"
    models_by_name.check_model(options.ckpt, needs if options.task is None else "")


def _open(options: AblateOptions) -> "tuple[Any, ri.Task, Mapping[str, Any]]":
    """Load the model, its task, and a checkpoint's training record."""
    if options.task is None:
        checkpoint = ri.load_checkpoint(options.ckpt, options.device)
        return checkpoint.model, checkpoint.task, checkpoint.training
    return *models_by_name.load_model(options.ckpt, options.device, options.task), {}


def _find_or_read(
    options: AblateOptions, model: Any, task: "ri.Task"
) -> "tuple[ri.Circuit, list[str]]":
    """Return the circuit, and remarks on the search."""
    if options.circuit is not None:
        from retrieval_interp.storage.checkpoint import read_circuit

        return read_circuit(options.circuit, task, model, f"{options.ckpt} was trained on"), []
    search_options = ri.SearchOptions(
        tolerance=options.tolerance,
        examples=options.examples,
        seed=options.seed,
        time=options.time,
        shared=not options.one_hot,
        fewest=options.fewest,
    )
    search = ri.Search(model, task, search_options)
    circuit = search.run(progress_bar)
    return circuit, [front] if (front := search.front_text()) else []
