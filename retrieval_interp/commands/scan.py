"""What each attention head looks at, and which heads rules replace: `retrieval-interp scan`.

`retrieval-interp scan --model small`, or on any text with a model that reads words:
`--model FOLDER --text FILE`, where the folder holds a Hugging Face model, or `--model smollm2`.
"""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from retrieval_interp.commands.command import (
    check_outputs,
    check_sampling,
    parse_options,
    progress_bar,
    say,
    saying,
    tell_files,
)
from retrieval_interp.tasks.errors import InputError


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
    _check_options(options)

    with saying("loading PyTorch and the model"):
        from retrieval_interp.circuits.scan.scan import scan
        from retrieval_interp.storage.files import read_text, write_json, write_whole
        from retrieval_interp.storage.provenance import provenance
        from retrieval_interp.views.scan_view import scan_text, scan_to_dict
        from retrieval_interp.views.tables import terminal_width

        text = None if options.text is None else read_text(options.text, "text")
        model, task = _load(options)
    found = scan(
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
    record = provenance(" ".join([prog, shlex.join(argv)]))
    if options.json is not None:
        write_json(options.json, {"model": options.model, **scan_to_dict(found), "record": record})
    if options.save_circuit is not None:
        write_whole(options.save_circuit, found.circuit.to_json(record))
    if options.report is not None:
        from retrieval_interp.views.scan_view import scan_view

        scan_view(found, model).save_html(options.report)
    say(f"{options.model}: {found.task.description}")
    print()
    print(scan_text(found, terminal_width()))
    tell_files(numbers=options.json, circuit=options.save_circuit, report=options.report)


def _load(options: ScanOptions) -> tuple[Any, Any]:
    """The model, and its task if it has one."""
    from retrieval_interp.training.device import choose_device

    device = choose_device(options.device)
    folder = Path(options.model)
    foreign = (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
    if not foreign and options.model != "smollm2":
        from retrieval_interp.storage.checkpoint import load_checkpoint

        checkpoint = load_checkpoint(options.model, device)
        return checkpoint.model, checkpoint.task
    if options.text is None:
        raise InputError(
            f"{options.model}: expected text for a model without a task, found none; add --text "
            "FILE"
        )
    if foreign and not any(any(folder.glob(name)) for name in ("tokenizer*", "vocab.*")):
        raise InputError(
            f"{folder}: expected a tokenizer beside the model (tokenizer.json), found none; save "
            "it there with tokenizer.save_pretrained"
        )
    if not sys.stderr.isatty():
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
    if not foreign:
        from retrieval_interp.storage.smollm2 import smollm2

        return smollm2(device=str(device)), None
    from transformer_lens.model_bridge.bridge import TransformerBridge

    try:
        return TransformerBridge.boot_transformers(str(folder), device=str(device)).eval(), None
    except (ValueError, KeyError, OSError) as error:
        raise InputError(
            f"{folder}: expected a causal language model of Hugging Face that TransformerLens "
            f"knows, found: {error!s:.150}"
        ) from error


def _check_options(options: ScanOptions) -> None:
    check_sampling(options.examples, options.seed, options.tolerance)
    if options.length < 3:
        raise InputError(f"--length: expected at least 3 tokens, found {options.length}")
    if options.alone is not None and options.alone < 0:
        raise InputError(f"--alone: expected 0 heads or more, found {options.alone}")
    if options.time is not None and not options.time > 0:
        raise InputError(f"--time: expected more than 0 seconds, found {options.time:g}")
    outputs = {
        "--json": options.json,
        "--report": options.report,
        "--save-circuit": options.save_circuit,
    }
    check_outputs(outputs, [Path(options.model), options.text])
