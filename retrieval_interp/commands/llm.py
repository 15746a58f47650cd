"""How well language models answer the paper's questions (section 4, figure 2).

`retrieval-interp llm score --model smollm2` computes it from probabilities. For models behind an
API, Inspect does the asking (`inspect eval retrieval_interp/retrieval --model ...`).
`retrieval-interp llm plot` shows the numbers of both.
"""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any
from warnings import warn

from retrieval_interp.commands.command import status, tell_files
from retrieval_interp.commands.options import OUTPUT, check_outputs, parse_options
from retrieval_interp.llm import results
from retrieval_interp.progress import progress_bar
from retrieval_interp.storage.files import provenance, write_json, write_whole
from retrieval_interp.storage.models_by_name import load_model
from retrieval_interp.tasks.messages import InputError, InputWarning
from retrieval_interp.tasks.structured import number_field
from retrieval_interp.views.tables import terminal_width


@dataclass(frozen=True)
class RowsOptions:
    """Where to write the rows.

    Attributes:
        out: write the figure as an HTML page that works offline to this file.
        json: write the numbers to this file.
    """

    out: Annotated[Path | None, "--out", "--html"] = field(default=None, metadata=OUTPUT)
    json: Path | None = field(default=None, metadata=OUTPUT)


@dataclass(frozen=True)
class PlotOptions(RowsOptions):
    """Show how well language models solve the problem in words (paper, figure 2).

    Attributes:
        logs: files that `llm score --json` wrote, Inspect's log files, or folders of those.
    """

    logs: Annotated[tuple[Path, ...], "logs"] = ()


@dataclass(frozen=True)
class ScoreOptions(RowsOptions):
    """Compute how often a language model solves the problem in words, without sampling.

    Attributes:
        model: the folder of a Hugging Face model, `smollm2` or `gemma3`, hf:NAME on the Hugging
            Face hub, or your own, FILE.py:NAME.
        formulation: which formulations; by default all five.
        steps: statements per chain, D, of equations and lives-with.
        questions: how many for every formulation and D, rounded up to whole texts, at least two.
        solved: how many solved examples come before each question.
        chat: ask in a chat, with the model's chat template.
        seed: which questions.
        device: auto, cpu or cuda.
    """

    model: Annotated[str, "--model", "--ckpt"] = "smollm2"
    formulation: tuple[str, ...] = results.FORMULATIONS
    steps: tuple[int, ...] = (1, 2, 3, 4, 5)
    questions: int = number_field(500, minimum=1)
    solved: int = number_field(0, minimum=0)
    chat: bool = False
    seed: int = number_field(0, minimum=0)
    device: str = "auto"


def main(argv: Sequence[str], prog: str = "retrieval-interp llm") -> None:
    commands: dict[str, Any] = {"score": (ScoreOptions, score), "plot": (PlotOptions, plot)}
    name = argv[0] if argv else ""
    if name in ("--help", "-h"):
        return print(f"usage: {prog} [-h] {{score,plot}} ...")
    if name not in commands:
        raise InputError(f"expected score or plot, found {name or 'nothing'}; see {prog} --help")
    kind, run = commands[name]
    options = parse_options(kind, argv[1:], f"{prog} {name}")
    check_outputs(options, *vars(options).get("logs", ()))
    record = provenance(f"{prog} {shlex.join(argv)}")
    rows = [replace(row, command=row.command or record["command"]) for row in run(options)]
    print(results.results_table(rows, terminal_width()))
    if options.json is not None:
        write_json(options.json, {**record, "rows": [asdict(row) for row in rows]})
    if options.out is not None:
        page = results.accuracy_figure(rows).to_html(include_plotlyjs=True, div_id="accuracy")
        write_whole(options.out, page)
    tell_files(numbers=options.json, figure=options.out)


def score(options: ScoreOptions) -> list[results.AccuracyRow]:
    """Score every formulation; after Ctrl-C return the rows that are finished."""
    if unknown := [name for name in options.formulation if name not in results.FORMULATIONS]:
        known = ", ".join(results.FORMULATIONS)
        raise InputError(f"--formulation: expected some of {known}, found {unknown[0]!r:.40}")
    with status("loading PyTorch and the model"):
        from retrieval_interp.llm.probabilities import expected_accuracy
        from retrieval_interp.tasks.words import prompts

        questions: list[prompts.Prompt] = []
        for name in options.formulation:
            with_steps = name in results.WITH_STEPS
            parameters = [{"steps": n} for n in options.steps] if with_steps else [{}]
            questions += [prompts.FORMULATIONS[name](**chosen) for chosen in parameters]
        model, _ = load_model(options.model, options.device)
    if getattr(model, "tokenizer", None) is None:
        raise InputError(f"{options.model}: expected a model that reads words, found no tokenizer")
    rows = list[results.AccuracyRow]()
    for prompt in questions:
        task = prompts.PromptTask(prompt, model.tokenizer, options.solved, options.chat)
        try:
            row = expected_accuracy(
                model, task, options.questions, options.seed, progress=progress_bar
            )
            rows.append(row)
        except KeyboardInterrupt:
            if not rows:
                raise
            warn(f"{len(rows)} of {len(questions)} rows are done", InputWarning, stacklevel=2)
            break
    return rows


def plot(options: PlotOptions) -> list[results.AccuracyRow]:
    rows = results.read_results(options.logs)
    if not rows:
        raise InputError("expected logs of inspect eval, found none; name files or their folder")
    return rows
