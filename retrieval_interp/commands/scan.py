"""What each head looks at, and which heads rules replace: `retrieval-interp scan --model small`."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import retrieval_interp as ri
from retrieval_interp.commands.command import (
    check_outputs,
    check_sampling,
    load_model,
    parse_options,
    say,
    saying,
    tell_files,
)
from retrieval_interp.progress import progress_bar
from retrieval_interp.storage.files import provenance, read_text, write_json, write_whole
from retrieval_interp.views.tables import terminal_width


@dataclass(frozen=True)
class ScanOptions:
    """Say what each head looks at, and which heads rules can replace together.

    Attributes:
        model: a shipped checkpoint, a checkpoint file, a run folder, the folder of a Hugging Face
            model, or `smollm2`.
        text: a file of text, cut into windows; by default the task of the checkpoint.
        length: most tokens of a window of text.
        examples: number of examples of a task, for describing and for scoring each.
        seed: which examples.
        tolerance: loss that the joint circuit stays below; by default the task's, or what keeps 95%
            of what the model knows.
        by: what takes a head's place: its `rule`, or its `mean` pattern.
        alone: number of heads, those with the largest estimates, that are replaced alone; by
            default all.
        time: seconds after which the joint circuit so far is taken.
        device: auto, cpu or cuda.
        json: write the numbers to this file.
        report: write an HTML page that needs no network to this file.
        save_circuit: write the joint circuit to this file.
    """

    model: str = "small"
    text: Path | None = None
    length: int = 128
    examples: int = 128
    seed: int = 0
    tolerance: float | None = None
    by: Literal["rule", "mean"] = "rule"
    alone: int | None = None
    time: float | None = None
    device: str = "auto"
    json: Path | None = None
    report: Path | None = None
    save_circuit: Path | None = None


def main(argv: Sequence[str], prog: str = "retrieval-interp scan") -> None:
    options = parse_options(ScanOptions, argv, prog)
    _check(options)
    text = None if options.text is None else read_text(options.text, "text")
    with saying("loading PyTorch and the model"):
        model, task = load_model(options.model, options.device)
    if task is None and text is None:
        raise ri.InputError(
            f"{options.model}: expected text for a model without a task, found none; add --text "
            "FILE"
        )
    found = ri.scan(
        model,
        task if text is None else text,
        length=options.length,
        examples=options.examples,
        seed=options.seed,
        tolerance=options.tolerance,
        by=options.by,
        alone=options.alone,
        time=options.time,
        progress=progress_bar,
    )
    _write(options, found, model, provenance(" ".join([prog, shlex.join(argv)])))
    _show(options, found)


def _check(options: ScanOptions) -> None:
    check_sampling(options.examples, options.seed, options.tolerance)
    for name, least in (("length", 3), ("alone", 0), ("time", 0)):
        if (found := getattr(options, name)) is not None and found < least:
            raise ri.InputError(f"--{name}: expected at least {least}, found {found}")
    outputs = {
        "--json": options.json,
        "--report": options.report,
        "--save-circuit": options.save_circuit,
    }
    check_outputs(outputs, [Path(options.model), options.text])


def _write(options: ScanOptions, found: "ri.Scan", model: Any, record: dict[str, Any]) -> None:
    from retrieval_interp.views.scan_view import scan_to_dict

    if options.json is not None:
        write_json(options.json, {"model": options.model, **scan_to_dict(found), "record": record})
    if options.save_circuit is not None:
        write_whole(options.save_circuit, found.circuit.to_json(record))
    if options.report is not None:
        ri.scan_view(found, model).save_html(options.report)


def _show(options: ScanOptions, found: "ri.Scan") -> None:
    from retrieval_interp.views.scan_view import scan_text

    say(f"{options.model}: {found.task.description}")
    print(f"\n{scan_text(found, terminal_width())}")
    tell_files(numbers=options.json, circuit=options.save_circuit, report=options.report)
