"""Build circuits by clicking, in a browser: `retrieval-interp explore --ckpt small`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import retrieval_interp as ri
from retrieval_interp.commands.command import check_sampling, load_model, named_in, parse_options
from retrieval_interp.storage.files import find_checkpoint


@dataclass(frozen=True)
class ExploreOptions:
    """Open a trained model in a browser and build circuits by clicking.

    Attributes:
        ckpt: a shipped name (small), a checkpoint file, or a run folder (its last checkpoint).
        model: instead of that, FILE.py:NAME of a hooked model, the folder of a Hugging Face model,
            or `smollm2`; with a task.
        task: FILE.py:NAME of an `ri.Task`, or of a function that makes it from the tokenizer.
        circuit: begin with this circuit.
        examples: how many examples to measure on.
        seed: which examples.
        tolerance: the loss that a working circuit stays below; by default the task's own.
        port: of 127.0.0.1; by default any free one.
        browser: open a browser; the address is printed either way.
        device: auto, cpu or cuda.
    """

    ckpt: str = "small"
    model: str | None = None
    task: str | None = None
    circuit: Path | None = None
    examples: int = 512
    seed: int = 0
    tolerance: float | None = None
    port: int = 0
    browser: bool = True
    device: str = "auto"


def main(argv: Sequence[str], prog: str = "retrieval-interp explore") -> None:
    options = parse_options(ExploreOptions, argv, prog)
    check_sampling(options.examples, options.seed, options.tolerance)
    if not 0 <= options.port < 65536:
        raise ri.InputError(f"--port: expected 0 to 65535, found {options.port}")
    if (options.model is None) != (options.task is None):
        raise ri.InputError("expected --model and --task together, found one of them")
    if options.model is None:
        find_checkpoint(options.ckpt)  # before the libraries are loaded that take seconds
    print(f"opening {options.model or options.ckpt} ...", flush=True)

    from retrieval_interp.explorer.server import serve_explorer

    how = {name: getattr(options, name) for name in ("examples", "seed", "tolerance", "device")}
    bench = ri.open(*_asked(options), **how)
    if options.circuit is not None:
        bench.load(options.circuit)
    serve_explorer(bench, options.port, options.browser)


def _asked(options: ExploreOptions) -> tuple[Any, ...]:
    """What `ri.open` takes: a checkpoint, or a model and a task."""
    if options.model is None or options.task is None:
        return (options.ckpt,)
    own = ".py:" in options.model
    model = named_in(options.model) if own else load_model(options.model, options.device)[0]
    task = named_in(options.task)
    return model, task if isinstance(task, ri.Task) else task(model.tokenizer)
