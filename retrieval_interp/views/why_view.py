"""Why a model answers as it does: what heads bring, as a page, text and JSON."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from itertools import groupby
from typing import Any

from retrieval_interp.circuits.counterfactual.explanation import Explanation
from retrieval_interp.circuits.counterfactual.question import PromptQuestion
from retrieval_interp.circuits.counterfactual.units import Unit
from retrieval_interp.circuits.hooks import HookedModel, is_causal
from retrieval_interp.circuits.paths import HeadPath
from retrieval_interp.tasks import Batch, Task
from retrieval_interp.tasks.words.text_task import AnswerTask, token_ids
from retrieval_interp.views import why_text
from retrieval_interp.views.attention import checked, patterns_on, position_labels, thousandths
from retrieval_interp.views.page import View, record_rows, render
from retrieval_interp.views.why_drawing import draw_units

_FIRST = 8  # units that are drawn at first


def why_to_dict(explanation: Explanation) -> dict[str, Any]:
    """Return all numbers as JSON data, under the names that they have in `Explanation`."""
    names, others = explanation.task.role_names, ("task", "batch", "counterfactual", "circuit")
    numbers = {key: _plain(x, names) for key, x in vars(explanation).items() if key not in others}
    about: dict[str, Any] = {"schema": "retrieval-interp/why/1"}
    about |= {"task": explanation.task.to_dict(), "description": explanation.task.description}
    return {**about, "examples": len(explanation.batch), **numbers}


def _plain(value: Any, names: Sequence[str]) -> Any:
    """Return records and numbers as JSON data; units and paths as text."""
    if isinstance(value, (Unit, HeadPath)):
        return value.text(names)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {key: _plain(x, names) for key, x in value._asdict().items()}
    if isinstance(value, tuple):
        return [_plain(member, names) for member in value]
    if is_dataclass(value):
        return {key: _plain(member, names) for key, member in vars(value).items()}
    return value


def why_view(
    explanation: Explanation,
    model: HookedModel,
    example: int = 0,
    record: Mapping[str, Any] | None = None,
) -> View:
    """Show an explanation as a page or in a notebook.

    The prompt's tokens below, the answer on top, and an arrow for each unit; a click on one shows
    its head's attention, and that on the counterfactual prompt, on one example.

    Args:
        explanation: what `ri.why` returned.
        model: the model that was asked.
        example: which of the examples of `explanation.batch`.
        record: how it was made.
    """
    checked([example], len(explanation.batch), "example")
    prompt, counterfactual = explanation.batch[[example]], explanation.counterfactual[[example]]
    task, question, there = explanation.task, explanation.question, prompt.counterfactual_attention
    assert there is not None
    here = patterns_on(model, prompt)
    patterns = {
        str(head): [
            thousandths(here[head.layer][0, head.head]),
            thousandths(there[head.layer].pattern[0, head.head].float().cpu()),
        ]
        for head in sorted({score.unit.head for score in explanation.units})
    }
    units = sorted(explanation.units, key=lambda score: score.without.share)
    first = explanation.first_units[:_FIRST] or units[:1]
    parts = [first, units] if len(first) < len(units) else [units]
    html = render(
        "why.html",
        name=f"why-{uuid.uuid4().hex[:12]}",
        explanation=explanation,
        summary=why_text.finding(explanation),
        asked=why_text.question_text(question) if question else [],
        needs=why_text.needs_text(explanation),
        strip=question_tokens(question, model.tokenizer) if question else [],
        prompts=[
            prompt_text(task, model, prompt, counterfactual),
            prompt_text(task, model, counterfactual, prompt),
        ],
        drawings=[draw_units(explanation, scores) for scores in parts if scores],
        levels=(why_text.LEVEL_HEADER, why_text.level_rows(explanation)),
        rows=[
            (why_text.unit_text(explanation, score), f"{score.stability:.0%}") for score in units
        ],
        keys=[(score.path or score.unit).text(task.role_names) for score in units],
        record=record_rows(record or {}),
        data={
            "tokens": position_labels(model, task, prompt, 0),
            "heads": patterns,
            "causal": is_causal(model, prompt),
        },
    )
    title = f"Why {question.word.strip()!r}?" if question else f"Why? {task.description}"
    return View(title, html, why_text.why_text(explanation), explanation)


def question_tokens(question: PromptQuestion, tokenizer: Any) -> list[dict[str, Any]]:
    """List a prompt's tokens, and how much depends on those tried, as a share of the most."""
    most = max(place.falls for place in question.places)
    places = {number: place for place in question.places for number in place.span}
    return [
        {
            "text": tokenizer.decode([token]),
            "place": places.get(number),
            "share": max(0.0, places[number].falls / most) if number in places and most > 0 else 0,
            "asked": number in question.place.span,
        }
        for number, token in enumerate(token_ids(tokenizer, question.prompt))
    ]


def prompt_text(
    task: Task, model: HookedModel, batch: Batch, other: Batch
) -> list[tuple[str, bool]]:
    """Cut a prompt into pieces of text, and say whether each differs from another prompt."""
    if not isinstance(task, AnswerTask):
        return [(" ".join(position_labels(model, task, batch, 0)), False)]
    begin, end = len(task.begin), 1 + int(batch.roles.max())  # padding comes behind
    tokens, others = (prompt.inputs[0, begin:end].tolist() for prompt in (batch, other))
    differ = [(token, token != other) for token, other in zip(tokens, others)]
    return [
        (task.tokenizer.decode([token for token, _ in piece]), changed)
        for changed, piece in groupby(differ, key=lambda pair: pair[1])
    ]
