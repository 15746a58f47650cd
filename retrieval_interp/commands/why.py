"""Why a language model answers that: `retrieval-interp why --model smollm2 --prompt ...`."""

import shlex
from collections.abc import Sequence
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
from retrieval_interp.storage.files import provenance, read_text, write_json
from retrieval_interp.tasks.structured import EXAMPLES, number_field
from retrieval_interp.views.tables import terminal_width

_NAMES = "indirect-objects"


@dataclass(frozen=True)
class WhyOptions(SearchCommandOptions):
    """Find the heads, rows and paths that an answer comes from.

    Attributes:
        model: a shipped checkpoint, a checkpoint file, a run folder, the folder of a Hugging Face
            model, `smollm2` or `gemma3`, hf:NAME on the Hugging Face hub, or your own,
            FILE.py:NAME.
        prompt: a text, up to where the answer comes.
        answer: what follows the prompt; by default what the model says.
        wrong: what could follow instead; by default what the model says after each change.
        place: the words of the prompt to change; by default the word the answer depends on most.
        counterfactual: a prompt with as many tokens that asks something else, instead of changes.
        pairs: a file of prompts, each with a counterfactual: JSON of auto-circuit, JSON lines of
            feature-circuits, CSV of EAP-IG or MIB, or two files of PEAP, the second with the
            counterfactual prompts.
        tokenizer: for the token ids in a CSV file: a folder, or a name in Hugging Face's local
            cache; by default the model's.
        task: `indirect-objects`, or a task of your own, FILE.py:NAME; by default the task of the
            checkpoint.
        keep: the share of the difference to recover.
        patch: what to take from the counterfactual where nothing is kept: whole paths (z),
            attention alone (pattern) or values alone (v).
        upto: the last level: heads, rows or paths.
        controls: how many random sets to compare with.
        graph: write the heads to this file, as a graph of EAP-IG.
    """

    model: Annotated[str, "--model", "--ckpt"] = "smollm2"
    prompt: str | None = None
    answer: str = ""
    wrong: str = ""
    place: str = ""
    counterfactual: str | None = None
    pairs: tuple[Path, ...] = ()
    tokenizer: str | None = None
    task: str | None = None
    keep: float = number_field(0.9, above=0, below=1)
    patch: Literal["z", "pattern", "v"] = "z"
    upto: Literal["heads", "rows", "paths"] = "paths"
    examples: int = number_field(32, **EXAMPLES)
    controls: int = number_field(20, minimum=0)
    graph: Path | None = field(default=None, metadata=OUTPUT)


def main(argv: Sequence[str], prog: str = "retrieval-interp why") -> None:
    """Load the model, ask what is asked of it, write files, and print."""
    options = parse_options(WhyOptions, argv, prog)
    check_outputs(options, options.model, options.task, *options.pairs)
    _check(options)
    texts = [read_text(path, "pairs") for path in options.pairs]
    with status("loading PyTorch and the model"):
        from retrieval_interp.tasks.words.pair_files import read_pairs
        from retrieval_interp.views.why_text import why_text
        from retrieval_interp.views.why_view import why_to_dict

        if texts:
            read_pairs(texts[0], None, *texts[1:])  # before a model is loaded
        own_task = None if options.task == _NAMES else options.task
        model, task = models_by_name.load_model(options.model, options.device, own_task)
        if texts:
            pairs = read_pairs(texts[0], _tokenizer(options.tokenizer, model), *texts[1:])
            task = ri.PairsTask(pairs, model.tokenizer)
    if options.task == _NAMES:
        task = ri.IndirectObjectTask(model.tokenizer)
    explanation = ri.why(
        model,
        task if options.prompt is None else options.prompt,
        options.answer,
        options.wrong,
        counterfactual=options.counterfactual,
        place=options.place,
        keep=options.keep,
        patch=options.patch,
        upto=options.upto,
        examples=options.examples,
        seed=options.seed,
        time=options.time,
        controls=options.controls,
        progress=progress_bar,
    )
    record = {"model": options.model, **provenance(f"{prog} {shlex.join(argv)}")}
    if options.json is not None:
        write_json(
            options.json, {"model": options.model, **why_to_dict(explanation), "record": record}
        )
    if options.report is not None:
        ri.why_view(explanation, model, record=record).save_html(options.report)
    if options.graph is not None:
        write_json(options.graph, ri.eap_graph(explanation, model))
    say(f"{options.model}: {explanation.task.description}")
    print(f"\n{why_text(explanation, terminal_width())}")
    tell_files(numbers=options.json, report=options.report, graph=options.graph)


def _check(options: WhyOptions) -> None:
    questions = {"prompt": options.prompt, "pairs": options.pairs, "task": options.task}
    given = [name for name, question in questions.items() if question not in (None, ())]
    expected = "one of --prompt, --pairs and --task, found"
    if len(given) > 1:
        raise ri.InputError(f"expected {expected} {' and '.join(given)}")
    if options.task not in (None, _NAMES) and ".py:" not in options.task:
        raise ri.InputError(f"--task: expected {_NAMES} or FILE.py:NAME, found {options.task!r}")
    if options.counterfactual is not None and not (options.answer and options.wrong):
        raise ri.InputError("--counterfactual: expected --answer and --wrong with it, found none")
    if options.wrong and options.answer.strip() == options.wrong.strip():
        raise ri.InputError(f"--wrong: expected another answer than --answer, {options.answer!r}")
    if len(options.pairs) > 2:
        raise ri.InputError(f"--pairs: expected one or two files, found {len(options.pairs)}")
    if options.tokenizer is not None and not options.pairs:
        raise ri.InputError("--tokenizer: expected --pairs with it, found none")
    models_by_name.check_model(options.model, "" if given else f"{expected} none of them")


def _tokenizer(name: str | None, model: Any) -> Any:
    """Load the tokenizer that is named, without a network, or return the model's."""
    if name is None:
        return getattr(model, "tokenizer", None)
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name, local_files_only=True)
    except (ValueError, KeyError, OSError) as error:
        raise ri.InputError(
            f"--tokenizer {name}: expected a folder or a name in the local cache, found none: "
            f"{error!s:.100}"
        ) from error
