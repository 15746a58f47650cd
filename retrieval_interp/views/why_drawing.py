"""Units of an explanation as arrows between tokens, later layers above, for `why.html`.

Places are in percent of the width and height, so that a drawing fits every page.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from retrieval_interp.circuits.counterfactual.explanation import Explanation, UnitScore
from retrieval_interp.circuits.draw.layout import role_order
from retrieval_interp.circuits.paths import HeadPath
from retrieval_interp.circuits.scores.enabling import Enabled
from retrieval_interp.tasks.words.text_task import AnswerTask
from retrieval_interp.views.why_text import unit_text

_COLUMNS = 16  # roles that all have a column; of more, those that units join
_START = "(start)"  # a token before the prompt's own


def draw_units(explanation: Explanation, scores: Sequence[UnitScore]) -> dict[str, Any]:
    """Draw a lane for each unit, with an arrow from where it looks to where it writes.

    A link leads from a unit to a later one, to the place where that takes its query, key or value.
    """
    scores = sorted(scores, key=lambda score: (-score.unit.head.layer, score.without.share))
    roles = {role for score in scores if score.path for role in score.path.path}
    answer = max(explanation.task.answer_roles, default=max(roles, default=0))
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
    by_where = abs(score.where) > abs(score.what)
    gone = {"where": score.attention_gone, "what": score.values_gone}
    return {
        "key": (path or score.unit).text(explanation.task.role_names),
        "head": score.unit.head,
        "dest": "" if dest == answer else texts[dest],
        "src": "itself" if src == dest else None if src is None else texts[src],
        "about": unit_text(explanation, score),
        "start": None if src is None else x[src],
        "end": x[dest],
        "side": "where" if by_where else "what",
        "less": by_where and score.looks_less,
        "lost": whole - score.without.share,
        "bars": {part: whole - left.share for part, left in gone.items() if left is not None},
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
