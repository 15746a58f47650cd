"""Why a model answers as it does, in words: what was found, then each unit, then what is needed."""

from collections import Counter

from retrieval_interp.circuits.counterfactual.explanation import Explanation, UnitScore
from retrieval_interp.circuits.counterfactual.origin import Origin
from retrieval_interp.circuits.counterfactual.question import PromptQuestion
from retrieval_interp.circuits.counterfactual.units import LEVELS, LOGIT_DIFFERENCE
from retrieval_interp.circuits.paths import HeadPath
from retrieval_interp.tasks import Task
from retrieval_interp.tasks.messages import counted, listed
from retrieval_interp.views.tables import wrapped

LEVEL_HEADER = ("", "kept", "recovered", "all but these")
_PATCHED = {  # what heads do where nothing is kept
    "z": "write what they write on the counterfactual",
    "pattern": "attend as on the counterfactual",
    "v": "read values of the counterfactual",
}
_WEAK_EFFECT = 0.5  # if patching takes a smaller share of the logit difference, that comes first
_NAMED_UNITS = 3  # units that the summary names
_DESCRIBED_UNITS = 8
_NAMED_CHANGES = 6  # of a prompt
_SHARE_OF_MLPS = 0.8  # MLPs are named until they make this share of what all MLPs contribute


def why_text(explanation: Explanation, width: int | None = None) -> str:
    """Write the finding, its levels and what units do, in lines of at most `width` characters."""
    lines: list[str] = []
    if explanation.levels:
        rows = [LEVEL_HEADER, *level_rows(explanation)]
        lines += ["", *(f"{a:6} {b:>5} {c:>13} {d:>14}" for a, b, c, d in rows), ""]
    described = explanation.important_units[:_DESCRIBED_UNITS]
    lines += [unit_text(explanation, score) for score in described]
    if rest := len(explanation.units) - len(described):
        lines.append(f"{counted(rest, 'more unit')} that matter{'s' * (rest == 1)} less.")
    if needs := needs_text(explanation):
        lines.append(needs)
    summary = "\n".join(finding(explanation, explanation.question))
    return "\n".join([*wrapped(summary, width), *wrapped("\n".join(lines), width, 2)])


def finding(explanation: Explanation, question: PromptQuestion | None = None) -> list[str]:
    """Sum up the result in a few sentences, with those of the question if it is given."""
    intact, none_kept, lines = explanation.intact.mean, explanation.none_kept.mean, list[str]()
    is_logits = explanation.metric_name == LOGIT_DIFFERENCE
    if is_logits and intact > 0 and intact - none_kept < _WEAK_EFFECT * intact:
        part = max(0.0, (intact - none_kept) / intact)
        lines.append(
            f"Only {part:.0%} of the {explanation.metric_name} depends on what was changed."
        )
    lines += [] if question is None else question_text(question)
    examples = counted(len(explanation.batch), "example" if question is None else "other change")
    lines.append(_metric_drop(explanation, examples))
    if not explanation.levels:
        return [*lines, f"Nothing was found: {explanation.unfinished}."]
    complement = f"All but these recover {_percent(explanation.levels[-1].complement.share)}"
    if control := explanation.control:
        best = f"the best of {len(control)} random sets of as many recovers"
        complement += f"; {best} {max(0.0, control[-1]):.0%}"
    lines += [_recovered(explanation), f"{complement}."]
    if unfinished := explanation.unfinished:
        lines.append(f"{unfinished[0].upper()}{unfinished[1:]}.")
    if len(explanation.batch) == 1:
        tokens = explanation.task.position_labels(explanation.counterfactual, 0)
        lines.append(f"The counterfactual is: {' '.join(tokens)}.")
    if explanation.on_the_same_examples:
        lines.append("It was found and measured on the same prompt.")
    return lines


def question_text(question: PromptQuestion) -> list[str]:
    """Say what the model says, which words that depends on, and what is changed."""
    says = f"The model says {question.says_token!r} ({question.says_probability:.0%})"
    if question.says != question.says_token:
        says += f", as in {question.says!r}"
    if question.answer != question.says:
        says += f"; {question.answer!r} has {question.probability:.1%}, rank {question.rank}"
    if question.wrong is not None:
        says += "; {!r} has {:.1%}, rank {}".format(*question.wrong)
    changes = [
        change.text.strip() + ("" if question.wrong else f" ({change.answer.strip()})")
        for change in question.changes
    ]
    if len(changes) > _NAMED_CHANGES:
        changes = [*changes[:_NAMED_CHANGES], f"{len(changes) - _NAMED_CHANGES} more"]
    drawn = "tokens drawn at random, " if question.at_random else ""
    put = f"in place of {question.place.text.strip()!r} come {drawn}{listed(changes, 'and')}"
    if question.wrong is not None:
        put += f", after which {question.wrong.answer!r} is likelier than {question.answer!r}"
    first = sorted(question.places, key=lambda place: -place.fall)[:3]
    falls = [f"{(x.text.strip() or x.text)!r} ({x.fall:.1f})" for x in first if x.fall > 0]
    if len(question.places) == 1 or not falls:
        return [f"{says}.", f"{put[0].upper()}{put[1:]}."]
    return [f"{says}.", f"That depends on {listed(falls, 'and')}, in nats; {put}."]


def _metric_drop(explanation: Explanation, examples: str) -> str:
    """Say how far the metric falls when all heads are patched."""
    metric, patch = explanation.metric_name, explanation.patch
    intact, none_kept = explanation.intact.mean, explanation.none_kept.mean
    corrupted = explanation.corrupted.mean
    sign = -1 if metric == explanation.task.loss_name else 1
    text = (
        f"The {metric} is {sign * intact:.2f} on {examples}, and {sign * none_kept:.2f} "
        f"where all heads {_PATCHED[patch]}."
    )
    if intact < 0 and metric == LOGIT_DIFFERENCE:
        text += " The model prefers a wrong answer."
    if none_kept >= intact:
        return f"{text} So nothing is lost on these examples, and the shares mean nothing."
    changed, by_heads = intact - corrupted, intact - none_kept
    if patch == "z" and changed > 0 and by_heads < 0.9 * changed:
        text += (
            f" On the counterfactual prompts themselves it is {sign * corrupted:.2f}: "
            f"{1 - by_heads / changed:.0%} of the change is made by the tokens and MLPs where "
            "the prompts differ, not by heads."
        )
    return text


def _recovered(explanation: Explanation) -> str:
    """Say what the last level's units recover, and which matter most."""
    last, kept = explanation.levels[-1], explanation.levels[-1].kept
    subject = counted(len({unit.head for unit in last.units}), "head")
    if last.name != "heads":
        levels = Counter(unit.level for unit in last.units)
        counts = [counted(levels[name], name[:-1]) for name in reversed(LEVELS) if levels[name]]
        subject = f"{listed(counts, 'and')} of {subject}"
    text = f"{kept.share:.0%} of what is lost is recovered by {subject}"
    if kept.share - 2 * kept.se > 1:
        text += ", more than all: some of what is not kept works against it"
    if kept.share + 2 * kept.se < explanation.keep:
        text += f". That is less than the {explanation.keep:.0%} asked for: it does not hold here"
    names = explanation.task.role_names
    first = [
        f"{score.unit.text(names)} (without it {_percent(score.without.share)})"
        for score in explanation.important_units[:_NAMED_UNITS]
    ]
    return f"{text}{': most by ' if first else ''}{listed(first, 'and')}."


def level_rows(explanation: Explanation) -> list[tuple[str, str, str, str]]:
    """List the levels, with the units kept and what they and all others recover."""
    return [
        (
            level.name,
            f"{len(level.units)}",
            f"{level.kept.share:.0%}" + (f" +- {level.kept.se:.0%}" if level.kept.se else ""),
            _percent(level.complement.share),
        )
        for level in explanation.levels
    ]


def unit_text(explanation: Explanation, score: UnitScore) -> str:
    """Say in words what a unit does."""
    unit, path, labels = score.unit, score.path, explanation.task.role_labels
    last = explanation.levels[-1]
    subject = unit.text(explanation.task.role_names)
    if path is None and unit.dest is not None:
        subject = f"{unit.head}: {labels[unit.dest]} looks at places without a name"
    if path is not None:
        dest, src = labels[path.path.dest], labels[path.path.src]
        less = score.looks_less and abs(score.by_attention) > abs(score.by_values)
        subject = f"{unit.head}: {dest} looks {'less ' * less}at {src}"
        if score.kind and not less:
            subject += f" ({score.kind})"
        subject += (
            f", {score.attention:.2f}; {score.counterfactual_attention:.2f} on the counterfactual"
        )
    if unit.level != last.name:
        subject += f", a whole {unit.level[:-1]}"
    sentences = [
        f"{subject}. Without it {_percent(score.without.share)} is recovered.",
        _where_or_what(score, last.kept.share),
        _origin_text(score.origin, path, explanation.task)
        if score.origin is not None and abs(score.by_values) > abs(score.by_attention)
        else "",
        _enables_text(score, explanation.task),
    ]
    return " ".join(filter(None, sentences))


def _where_or_what(score: UnitScore, kept: float) -> str:
    """Say whether a unit matters by attention or values, from a run without each."""
    if score.without_attention is None or score.without_values is None:
        return ""
    without_attention, without_values = score.without_attention.share, score.without_values.share
    by_attention, by_values = kept - without_attention, kept - without_values
    by = "by where it looks" if by_attention > by_values else "by what it brings"
    if min(by_attention, by_values) > 0.25 * max(by_attention, by_values):
        by = "by both"
    return (
        f"It matters {by}: with the counterfactual's attention {_percent(without_attention)}, "
        f"with its values {_percent(without_values)}."
    )


def _origin_text(origin: Origin, path: HeadPath | None, task: Task) -> str:
    """Say where a path's values come from: the token, attention, MLPs by layer."""
    place = "" if path is None else f" at {task.role_labels[path.path.src]}"
    mlps, named = sum(origin.mlp), list[int]()
    for layer in sorted(range(len(origin.mlp)), key=lambda layer: -origin.mlp[layer]):
        if sum(origin.mlp[n] for n in named) >= _SHARE_OF_MLPS * mlps:
            break
        named.append(layer)
    sources = {
        "the token itself": origin.embedding,
        "attention": sum(origin.attention),
        f"the MLPs, mostly of {listed([f'layer {n}' for n in sorted(named[:4])], 'and')}": mlps,
    }
    large = {name: x for name, x in sources.items() if x > 0.1 * abs(origin.total)}
    shares = [f"{name} ({added / origin.total:.0%})" for name, added in large.items()]
    if not shares or origin.total <= 0:
        return ""
    return f"What it brings is made{place} by {listed(shares, 'and')}."


def _enables_text(score: UnitScore, task: Task) -> str:
    """Say which later units change without this one."""
    if not score.enables:
        return ""
    labels, paths = task.role_labels, [enabled.path for enabled in score.enables]
    alike = Counter((path.head, path.path.src) for path in paths)
    several = {path for path in paths if alike[path.head, path.path.src] > 1}
    later = ", ".join(
        f"{path.head} {f'from {labels[path.path.dest]} ' * (path in several)}"
        f"to {labels[path.path.src]} ({enabled.text})"
        for path, enabled in zip(paths, score.enables)
    )
    return f"It enables {later}."


def needs_text(explanation: Explanation) -> str:
    """Say which paths the whole model needs, each in one head or in one of several."""
    needs = [
        f"{'one of ' if paths[1:] else ''}{listed([str(path.head) for path in paths], 'or')} "
        f"{paths[0].path}"
        for paths in explanation.needed
    ]
    if not needs:
        return ""
    return f"For {explanation.keep:.0%} the whole model needs {listed(needs, 'and')}."


def _percent(share: float) -> str:
    return f"{round(share, 2) + 0.0:.0%}"  # never -0%
