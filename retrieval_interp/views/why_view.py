"""Why a model answers as it does: what heads bring, as a page, text and JSON."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from itertools import groupby
from typing import Any

from retrieval_interp.circuits.counterfactual.explanation import Explanation, UnitScore
from retrieval_interp.circuits.counterfactual.question import PromptQuestion
from retrieval_interp.circuits.counterfactual.units import Unit
from retrieval_interp.circuits.draw.layout import role_order
from retrieval_interp.circuits.hooks import HookedModel, is_causal
from retrieval_interp.circuits.paths import HeadPath
from retrieval_interp.circuits.scores.enabling import Enabled
from retrieval_interp.tasks import Batch, Task
from retrieval_interp.tasks.words.text_task import AnswerTask, token_ids
from retrieval_interp.views import why_text
from retrieval_interp.views.attention import checked, patterns_on, position_labels, thousandths
from retrieval_interp.views.page import View, record_rows, render

_FIRST = 8  # units that are drawn at first
_COLUMNS = 16  # roles that all have a column; of more, those that units join
_START = "(start)"  # a token before the prompt's own


def why_to_dict(explanation: Explanation) -> dict[str, Any]:
    """Return all numbers as JSON data, under the names that they have in `Explanation`."""
    names, others = explanation.task.role_names, ("task", "batch", "counterfactual", "circuit")
    numbers = {key: _plain(x, names) for key, x in vars(explanation).items() if key not in others}
    about: dict[str, Any] = {"schema": "retrieval-interp/why/2"}
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

    The prompt's tokens are at the bottom and the answer is on top, with an arrow for each unit.
    Click an arrow to see the attention of its head, on the prompt and on the counterfactual, for
    one example.

    Args:
        explanation: what `ri.why` returned.
        model: the model that was asked.
        example: which of the examples of `explanation.batch`.
        record: how it was made.
    """
    checked([example], len(explanation.batch), "example")
    prompt, counterfactual = explanation.batch[[example]], explanation.counterfactual[[example]]
    task, question, there = (
        explanation.task,
        explanation.question,
        prompt.counterfactual_activations,
    )
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
    first = explanation.important_units[:_FIRST] or units[:1]
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
    title = f"Why {question.answer.strip()!r}?" if question else f"Why? {task.description}"
    return View(title, html, why_text.why_text(explanation), explanation)


def question_tokens(question: PromptQuestion, tokenizer: Any) -> list[dict[str, Any]]:
    """List a prompt's tokens, and how much depends on those tried, as a share of the most."""
    largest_fall = max(place.fall for place in question.places)
    places = {number: place for place in question.places for number in place.span}
    return [
        {
            "text": tokenizer.decode([token]),
            "place": places.get(number),
            "share": max(0.0, places[number].fall / largest_fall)
            if number in places and largest_fall > 0
            else 0,
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


# Units as arrows between tokens, later layers above


def draw_units(explanation: Explanation, scores: Sequence[UnitScore]) -> dict[str, Any]:
    """Draw a lane for each unit, with an arrow from where it looks to where it writes.

    A link leads from a unit to a later one, to the place where that takes its query, key or value.
    Places are in percent of the width and height, so that a drawing fits every page.
    """
    scores = sorted(scores, key=lambda score: (-score.unit.head.layer, score.without.share))
    roles = {role for score in scores if score.path for role in score.path.path}
    answer = max(explanation.task.scored_roles, default=max(roles, default=0))
    texts = role_texts(explanation)
    columns = draw_columns(explanation, {*roles, answer}, texts)
    x = {column["role"]: column["middle"] for column in columns}
    heights = [100 * (n + 0.5) / len(scores) for n in range(len(scores))]
    y = {score.path: height for score, height in zip(scores, heights) if score.path}
    return {
        "columns": columns,
        "lanes": [
            {"height": height, **draw_lane(explanation, score, texts, x, answer)}
            for score, height in zip(scores, heights)
        ],
        "links": [
            draw_link(score.path, later, x, y)
            for score in scores
            for later in score.enables
            if score.path and later.path in y
        ],
        "letters": len(columns) * max(len(column["text"]) for column in columns),
        "answer": x[answer],
    }


def role_texts(explanation: Explanation) -> list[str]:
    """Return the token that stands at each role of all prompts, or the name of the role."""
    task, batch = explanation.task, explanation.batch
    texts = list(task.role_labels)
    if not isinstance(task, AnswerTask):
        return texts
    labels, examples = task.position_labels(batch, 0), range(len(batch))
    for role, places in enumerate(batch.roles[:, 0].T.tolist()):
        if max(places) < len(task.begin):
            texts[role] = _START
        elif min(places) >= 0 and len(set(batch.inputs[examples, places].tolist())) == 1:
            texts[role] = labels[places[0]]
    return texts


def draw_columns(
    explanation: Explanation, joined: set[int], texts: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the roles in the order of the prompt; of many, those that are joined, and gaps."""
    order, changed = role_order(explanation.batch), changed_roles(explanation)
    order = [role for role in order if role in joined or texts[role] != _START]
    shown = joined if len(order) > _COLUMNS else {*joined, *order}
    columns: list[dict[str, Any]] = []
    for seen, roles in groupby(order, shown.__contains__):
        for role in roles if seen else [None]:
            text, width = ("...", 0.5) if role is None else (texts[role], 1.0)
            changes = role in changed
            columns.append({"role": role, "text": text, "width": width, "changed": changes})
    whole, left = sum(column["width"] for column in columns), 0.0
    for column in columns:
        column["middle"] = 100 * (left + column["width"] / 2) / whole
        left += column["width"]
    return columns


def changed_roles(explanation: Explanation) -> set[int]:
    """Return the roles at which the counterfactual differs; none where all do."""
    places = explanation.batch.roles[:, 0]
    differ = explanation.batch.inputs != explanation.counterfactual.inputs
    differ = differ.flatten(2).any(-1) if differ.dim() > 2 else differ
    changes = (differ.gather(1, places.clamp(min=0)) & (places >= 0)).any(0).tolist()
    return set() if all(changes) else {role for role, change in enumerate(changes) if change}


def draw_lane(
    explanation: Explanation,
    score: UnitScore,
    texts: Sequence[str],
    x: Mapping[int, float],
    answer: int,
) -> dict[str, Any]:
    """Describe a unit, and what is lost without it, without its attention and its values."""
    path, whole = score.path, explanation.levels[-1].kept.share
    dest, src = path.path if path is not None else (answer, None)
    by_where = abs(score.by_attention) > abs(score.by_values)
    without = {"where": score.without_attention, "what": score.without_values}
    return {
        "key": (path or score.unit).text(explanation.task.role_names),
        "head": score.unit.head,
        "dest": "" if dest == answer else texts[dest],
        "src": "itself" if src == dest else None if src is None else texts[src],
        "about": why_text.unit_text(explanation, score),
        "start": None if src is None else x[src],
        "end": x[dest],
        "side": "where" if by_where else "what",
        "less": by_where and score.looks_less,
        "lost": whole - score.without.share,
        "bars": {part: whole - left.share for part, left in without.items() if left is not None},
    }


def draw_link(
    path: HeadPath, later: Enabled, x: Mapping[int, float], y: Mapping[HeadPath, float]
) -> dict[str, Any]:
    """Draw a curve to the query, at the later path's destination, or to its key or value."""
    dest, src = later.path.path
    by_query = later.side.startswith("query")
    start, end = x[path.path.dest], x[dest if by_query else src]
    bottom, top = y[path], y[later.path]
    bend, middle = 4 + (bottom - top) / 10, (bottom + top) / 2
    bent = max(start, end) + bend if by_query else min(start, end) - bend
    return {
        "side": later.side,
        "curve": f"M{start:.2f} {bottom:.2f} Q{bent:.2f} {middle:.2f} {end:.2f} {top:.2f}",
        "x": (start + 2 * bent + end) / 4,
        "y": middle,
        "about": f"{path} to {later.path}: {later.text}",
    }
