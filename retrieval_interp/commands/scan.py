"""What each head looks at, writes and is worth: `retrieval-interp scan --model small`."""

import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from tqdm.auto import tqdm

import retrieval_interp as ri
from retrieval_interp.commands.command import say, status, tell_files
from retrieval_interp.commands.options import (
    OUTPUT,
    SearchCommandOptions,
    check_outputs,
    parse_options,
)
from retrieval_interp.storage import models_by_name
from retrieval_interp.storage.files import provenance, read_text, write_json, write_whole
from retrieval_interp.tasks.structured import EXAMPLES, number_field
from retrieval_interp.views.tables import terminal_width


@dataclass(frozen=True)
class ScanOptions(SearchCommandOptions):
    """Show what each head looks at and writes, and what replacing or zero-ablating it costs.

    Attributes:
        model: a shipped checkpoint, a checkpoint file, a run folder, the folder of a Hugging Face
            model, `smollm2` or `gemma3`, hf:NAME on the Hugging Face hub, or your own,
            FILE.py:NAME.
        text: a file of text, cut into windows of 128 tokens; by default the task of the checkpoint.
        task: a task of your own, FILE.py:NAME.
        examples: how many examples of a task to describe heads on, and as many others to measure
            on; with a text, half of the windows each.
        joint: also look for the joint circuit: the heads that rules can replace together. It takes
            half of --time.
        tolerance: loss that the joint circuit stays below; by default the task's, or what keeps 95%
            of what the model knows.
        save_circuit: look for the joint circuit, and write it to this file.
    """

    model: Annotated[str, "--model", "--ckpt"] = "small"
    text: Path | None = None
    task: str | None = None
    examples: int = number_field(128, **EXAMPLES)
    joint: bool = False
    tolerance: float | None = number_field(None, above=0)
    save_circuit: Path | None = field(default=None, metadata=OUTPUT)


def main(argv: Sequence[str], prog: str = "retrieval-interp scan") -> None:
    options = parse_options(ScanOptions, argv, prog)
    check_outputs(options, options.model, options.task, options.text)
    text = None if options.text is None else read_text(options.text, "text")
    if options.text is not None and options.task is not None:
        raise ri.InputError("expected one of --text and --task, found both")
    needs = "text for a model without a task, found none; add --text FILE"
    without_task = text is None and options.task is None
    models_by_name.check_model(options.model, needs if without_task else "")
    with status("loading PyTorch and the model"):
        from retrieval_interp.views.scan_view import scan_text, scan_to_dict

        model, task = models_by_name.load_model(options.model, options.device, options.task)
    if text is not None and getattr(model, "tokenizer", None) is None:
        raise ri.InputError(
            f"--text: expected a model that reads words, found {options.model}, which has no "
            "tokenizer; leave it out to scan the model on its own task"
        )
    scan = ri.scan(
        model,
        task if text is None else text,
        examples=options.examples,
        seed=options.seed,
        joint=options.joint or options.save_circuit is not None,
        tolerance=options.tolerance,
        time=options.time,
        progress=bar_or_lines,
    )
    record = {"model": options.model, **provenance(f"{prog} {shlex.join(argv)}")}
    if options.json is not None:
        write_json(options.json, {"model": options.model, **scan_to_dict(scan), "record": record})
    if options.save_circuit is not None:
        write_whole(options.save_circuit, scan.circuit.to_json(record))
    if options.report is not None:
        ri.scan_view(scan, model, record).save_html(options.report)
    say(f"{options.model}: {scan.task.description}")
    print(f"\n{scan_text(scan, terminal_width())}")
    tell_files(numbers=options.json, circuit=options.save_circuit, report=options.report)


def bar_or_lines(items: Iterable[Any], text: str) -> Iterator[Any]:
    """Show a bar; in a pipe a line a minute, from the tenth second on."""
    seldom = {} if sys.stderr.isatty() else {"delay": 10, "mininterval": 60}
    yield from tqdm(items, desc=text, leave=False, dynamic_ncols=True, **seldom)
