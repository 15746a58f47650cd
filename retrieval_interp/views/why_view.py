"""Why a model answers as it does: what heads bring, as a page, text and JSON."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import Any

from markupsafe import Markup

from retrieval_interp.circuits.circuit import Circuit, Head, HeadPath, RolePath
from retrieval_interp.circuits.counterfactual.explanation import LEVEL_HEADER, Explanation
from retrieval_interp.circuits.counterfactual.question import PromptQuestion
from retrieval_interp.circuits.counterfactual.search import Share
from retrieval_interp.circuits.counterfactual.units import MetricTask, Unit
from retrieval_interp.circuits.draw.layout import role_order, worth_of_paths
from retrieval_interp.circuits.draw.svg import draw_circuit
from retrieval_interp.circuits.hooks import is_causal
from retrieval_interp.circuits.mechanisms import Shared
from retrieval_interp.views.attention import checked, patterns_on, position_labels, thousandths
from retrieval_interp.views.page import View, record_rows, render
from retrieval_interp.views.tables import wrapped

UNITS = (
    "kept",
    "kind",
    "attention",
    "counterfactual",
    "without it",
    "without its attention",
    "without its values",
    "in redraws",
    "enables",
)


class _Kept(Shared):
    """A head with what it keeps, as arrows."""


_Kept.kind = "keeps"  # set here, as circuits are not written with it


_COLUMNS = 10  # roles that are all drawn; of more, those that paths join


def why_text(found: Explanation, width: int | None = None) -> str:
    """The finding, its levels and what each unit does."""
    finding, others = "\n".join(found.finding), repr(found).split("\n")[len(found.finding) :]
    return "\n".join([*wrapped(finding, width), *wrapped("\n".join(others), width, 2)])


def why_to_dict(found: Explanation) -> dict[str, Any]:
    """All numbers as JSON data, under the names that they have in `Explanation`."""
    names, others = found.task.role_names, ("task", "batch", "other", "circuit")
    numbers = {key: _plain(x, names) for key, x in vars(found).items() if key not in others}
    about = {"task": found.task.to_dict(), "description": found.task.description}
    return {**about, "examples": len(found.batch), **numbers}


def _plain(value: Any, names: Sequence[str]) -> Any:
    """Records and numbers as JSON data; units and paths as text."""
    if isinstance(value, (Unit, HeadPath)):
        return value.text(names)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {key: _plain(x, names) for key, x in value._asdict().items()}
    if isinstance(value, tuple):
        return [_plain(each, names) for each in value]
    if is_dataclass(value):
        return {key: _plain(each, names) for key, each in vars(value).items()}
    return value


def why_view(
    found: Explanation, model: Any, example: int = 0, record: Mapping[str, Any] | None = None
) -> View:
    """An explanation as a page or in a notebook.

    The prompt's tokens in a row and an arrow for each path; a click on a path shows its head's
    attention, and that on the counterfactual prompt, on one example.

    Args:
        found: what `ri.why` returned.
        model: the model that was asked.
        example: which of the examples of `found.batch`.
        record: how it was made.
    """
    checked([example], len(found.batch), "example")
    some, other = found.batch[[example]], found.other[[example]]
    labels = position_labels(model, found.task, some, 0)
    names, there = found.task.role_names, some.counterfactual
    assert there is not None
    here = patterns_on(model, some)
    patterns = {
        str(head): [
            thousandths(here[head.layer][0, head.head]),
            thousandths(there[head.layer].pattern[0, head.head].float().cpu()),
        ]
        for head in sorted({score.unit.head for score in found.units})
    }
    html = render(
        "why.html",
        name=f"why-{uuid.uuid4().hex[:12]}",
        finding=" ".join(found.finding),
        strip=_strip(found.question),
        prompts=[" ".join(labels), " ".join(position_labels(model, found.task, other, 0))],
        drawing=Markup(why_drawing(found, model)),
        level_header=LEVEL_HEADER,
        levels=found.level_rows,
        header=UNITS,
        rows=_unit_rows(found),
        keys=[(score.path or score.unit).text(names) for score in found.units],
        record=record_rows(record or {}),
        data={"tokens": labels, "heads": patterns, "causal": is_causal(model, some)},
    )
    return View(f"Why? {found.task.description}", html, why_text(found), found)


def _strip(question: PromptQuestion | None) -> list[tuple[str, float, str]]:
    """Tokens that were tried, how much hangs on each as a share of the most, and that in nats."""
    places = () if question is None else question.places
    most = max((place.falls for place in places), default=0.0)
    return [
        (place.text, max(0.0, place.falls / most) if most > 0 else 0.0, f"{place.falls:.1f}")
        for place in places
    ]


def with_arrows(circuit: Circuit, kept: Mapping[Head, Iterable[RolePath]]) -> Circuit:
    """A circuit to draw, with the paths that heads keep."""
    arrows = {head: _Kept(tuple(dict.fromkeys(paths))) for head, paths in kept.items()}
    return replace(circuit, mechanisms={**circuit.mechanisms, **arrows})


def why_drawing(found: Explanation, model: Any) -> str:
    """The paths of an explanation as SVG, layer by layer from the bottom."""
    scores = {score.path: score for score in found.units if score.path is not None}
    kept = {one.head: [path.path for path in scores if path.head == one.head] for one in scores}
    circuit = with_arrows(found.circuit, kept)
    order, ends = role_order(found.batch), {role for path in scores for role in path.path}
    whole = found.levels[-1].kept.share if found.levels else 1.0
    task, when = MetricTask(found.task), "it writes what it writes on the counterfactual"
    losses = {path: whole - score.without.share for path, score in scores.items()}
    arrows = worth_of_paths(losses, loss_name=task.loss_name, when=when)
    for path, score in scores.items():
        note = f"{score.without.share - whole:+.0%}"
        arrows[path] = replace(arrows[path], note=note)
    return draw_circuit(
        circuit,
        model.cfg.n_layers,
        order if len(order) <= _COLUMNS else [role for role in order if role in ends],
        task=task,
        batch=found.batch,
        enables={path: score.enables for path, score in scores.items()},
        arrows=arrows,
    )


def _unit_rows(found: Explanation) -> list[list[str]]:
    names = found.task.role_names

    def percent(share: Share | None) -> str:
        return "" if share is None else f"{share.share:.0%}"

    return [
        [
            score.unit.text(names),
            score.kind,
            f"{score.attention:.2f}",
            f"{score.other:.2f}",
            percent(score.without),
            percent(score.attention_gone),
            percent(score.values_gone),
            f"{score.stability:.0%}",
            ", ".join(f"{later.path.text(names)} ({later.text})" for later in score.enables),
        ]
        for score in found.units
    ]
