"""Build circuits by clicking, in a browser: `retrieval-interp explore --ckpt small`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import retrieval_interp as ri
from retrieval_interp.commands.options import ExampleOptions, parse_options
from retrieval_interp.storage import models_by_name
from retrieval_interp.tasks.structured import number_field


@dataclass(frozen=True)
class ExploreOptions(ExampleOptions):
    """Open a trained model in a browser and build circuits by clicking.

    Attributes:
        ckpt: a shipped name (small), a checkpoint file, or a run folder (its last checkpoint).
            With a task, also a model of your own, FILE.py:NAME, or any that `scan` takes.
        task: FILE.py:NAME of an `ri.Task`; by default the checkpoint's.
        prompt: a text, up to where the answer comes, instead of a task.
        answer: what follows the prompt; by default what the model says.
        place: the words of the prompt to change; by default the word the answer depends on most.
        circuit: start with this circuit.
        tolerance: the loss that a working circuit stays below; by default the task's own.
        port: of 127.0.0.1; by default any free one.
        browser: open a browser; the address is printed either way.
    """

    ckpt: Annotated[str, "--model", "--ckpt"] = "small"
    task: str | None = None
    prompt: str | None = None
    answer: str = ""
    place: str = ""
    circuit: Path | None = None
    tolerance: float | None = number_field(None, above=0)
    port: int = number_field(0, minimum=0, maximum=65535)
    browser: bool = True


def main(argv: Sequence[str], prog: str = "retrieval-interp explore") -> None:
    options = parse_options(ExploreOptions, argv, prog)
    if options.task is not None and options.prompt is not None:
        raise ri.InputError("expected one of --prompt and --task, found both")
    without_task = options.task is None and options.prompt is None
    needs = "a task for a model without one; add --task FILE.py:NAME, or --prompt TEXT"
    models_by_name.check_model(options.ckpt, needs if without_task else "")
    print(f"opening {options.ckpt} ...", flush=True)

    from retrieval_interp.explorer.server import serve_explorer

    model, task = options.ckpt, None
    if not without_task:
        model, task = models_by_name.load_model(options.ckpt, options.device, options.task)
    bench = ri.open(
        model,
        task if options.prompt is None else options.prompt,
        answer=options.answer,
        place=options.place,
        examples=options.examples,
        seed=options.seed,
        tolerance=options.tolerance,
        device=options.device,
    )
    if options.circuit is not None:
        bench.load(options.circuit)
    serve_explorer(bench, options.port, options.browser)
