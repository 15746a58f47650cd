"""Which attention paths do the work: `retrieval-interp ablate --ckpt small` (paper, appendix E)."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import retrieval_interp as ri
from retrieval_interp.commands import command
from retrieval_interp.progress import progress_bar
from retrieval_interp.storage.files import provenance, write_json, write_whole
from retrieval_interp.views.tables import terminal_width


@dataclass(frozen=True)
class AblateOptions(command.MeasuringOptions):
    """Find which attention paths of a trained transformer do the work.

    Attributes:
        ckpt: a shipped name (small), a checkpoint file, or a run folder (its last checkpoint). With
            a task, also a model of your own, FILE.py:NAME, or any that `scan` takes.
        task: a task of your own, FILE.py:NAME; by default the checkpoint's.
        circuit: score this circuit instead of finding one: a file that --save-circuit wrote. In it
            a head with the mechanism one-hot and no paths is emptied.
        save_circuit: write the circuit to this file, to be edited or given to --circuit.
        tolerance: the loss that a working circuit stays below; by default the task's own.
        one_hot: search by the paper's rules: idle heads uniform or identity, all others one-hot.
        fewest: what the circuit has fewest of, paths or heads.
        alternatives: for so many seconds, look for other circuits that do as well.
    """

    ckpt: Annotated[str, "--model", "--ckpt"] = "small"
    task: str | None = None
    circuit: Path | None = None
    save_circuit: Path | None = None
    tolerance: float | None = None
    one_hot: bool = False
    fewest: Literal["paths", "heads"] = "paths"
    alternatives: float | None = None


def main(argv: Sequence[str], prog: str = "retrieval-interp ablate") -> None:
    options = command.parse_options(AblateOptions, argv, prog)
    options.check(Path(options.ckpt), options.circuit)
    searching = options.one_hot or options.time is not None or options.fewest == "heads"
    if options.circuit is not None and searching:
        given = "--one-hot, --time, --fewest"
        raise ri.InputError(f"{given}: expected a search, found --circuit; leave one out")
    if options.alternatives is not None and not options.alternatives > 0:
        found = f"found {options.alternatives:g}"
        raise ri.InputError(f"--alternatives: expected more than 0 seconds, {found}")
    command.check_model(options.ckpt, "--task FILE.py:NAME" * (options.task is None))
    with command.saying("loading PyTorch and the model"):
        from retrieval_interp.storage.checkpoint import read_circuit
        from retrieval_interp.views.score_text import describe, score_to_dict

        name, training = options.ckpt, dict[str, Any]()
        if options.task is None:
            checkpoint = ri.load_checkpoint(name, options.device)
            model, task, training = checkpoint.model, checkpoint.task, checkpoint.training
        else:
            model, task = command.load_model(name, options.device, options.task)
    sizes, device = (model.cfg.n_layers, model.cfg.n_heads), next(model.parameters()).device
    typed = f"{prog} {shlex.join(argv)}"
    batch = task.sample(options.examples, options.seed, device, split="test")
    beside = []
    if options.circuit is None:
        names = ("tolerance", "examples", "seed", "time", "fewest")
        asked = {name: getattr(options, name) for name in names}
        search = ri.Search(model, task, ri.SearchOptions(shared=not options.one_hot, **asked))
        circuit = search.run(progress_bar)
        beside = [front] if (front := search.front_text()) else []
        del search  # frees the runs that it keeps
    else:
        circuit = read_circuit(options.circuit, task, *sizes, f"{name} was trained on")
    if options.save_circuit is not None:
        made = None if options.circuit else provenance(typed)
        write_whole(options.save_circuit, circuit.to_json(made))
    score = ri.score_circuit(model, task, circuit, batch, options.tolerance, progress=progress_bar)
    if options.alternatives is not None:
        how = options.tolerance, options.examples, options.seed, options.alternatives
        others = ri.alternatives(model, task, circuit, *how, progress=progress_bar)
        beside.append(others.text(task))
    # Files first: the output pipe may close.
    if options.json is not None:
        write_json(options.json, score_to_dict(score, name, task, options.seed))
    if options.report is not None:
        about: Any = {"name": name, "seed": options.seed, "command": typed, "beside": beside}
        page = ri.render_report(score, model, task, batch, training, **about)
        write_whole(options.report, page)
    source = options.circuit and f"read from {options.circuit}"
    source = source or f"found on {options.examples} other examples, confirmed on as many more"
    command.say(f"{name}: {describe(model, task)}")
    measured = f"measured on {options.examples} examples, seed {options.seed}"
    command.say(f"circuit {source}; every {task.loss_name} is {measured}")
    command.say(task.loss_meaning)
    print(f"\n{ri.score_table(score, task, terminal_width())}")
    command.say(ri.verdict(score, task))
    for text in beside:
        command.say(text)
    if task.graph is not None and circuit.mechanisms:
        command.say(ri.describe_flow(circuit, *sizes))
    command.tell_files(numbers=options.json, circuit=options.save_circuit, report=options.report)
