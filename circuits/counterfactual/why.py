"""Why a model answers as it does: a search, and its measurement, behind one call."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

from retrieval_interp.circuits.counterfactual.explanation import Explanation, explain
from retrieval_interp.circuits.counterfactual.mechanism import (
    PATCHES,
    Patch,
    with_counterfactual,
)
from retrieval_interp.circuits.counterfactual.question import ask
from retrieval_interp.circuits.counterfactual.search import KeepSearch
from retrieval_interp.circuits.counterfactual.units import Metric, MetricTask
from retrieval_interp.circuits.fits import draw_batch
from retrieval_interp.circuits.hooks import measuring
from retrieval_interp.circuits.losses import Progress, no_progress
from retrieval_interp.tasks import Batch, InputError, Task
from retrieval_interp.tasks.sampling import Split
from retrieval_interp.tasks.structured import from_data
from retrieval_interp.tasks.words.given_texts import Pair, PairsTask

_LEAST = 4  # prompts that decide, if others are to confirm it


def why(
    model: Any,
    what: str | Task | Sequence[Pair],
    answer: str = "",
    wrong: str = "",
    counterfactual: str | Callable[[Batch, int], Batch] | None = None,
    *,
    place: str = "",
    keep: float = 0.9,
    upto: str = "paths",
    examples: int = 32,
    seed: int = 0,
    time: float | None = None,
    controls: int = 20,
    metric: Metric | None = None,
    patch: Patch = "z",
    progress: Progress = no_progress,
) -> Explanation:
    """Find the heads, rows and paths that an answer comes from.

    A head writes, at dest, the sum over src of P[dest, src] V[src]. Let P' and V' be its attention
    and values on a counterfactual prompt of the same length, in the intact model. The paths of a
    circuit K keep P V, all others write P' V'; embeddings are those of the prompt, and MLPs compute
    on what arrives. With M a metric,

        recovered(K) = (M(K) - M(nothing kept)) / (M(intact) - M(nothing kept))

    K is searched for on some examples and reported on others. For one prompt these are changes of
    the token on which its answer hangs most (`question.ask`): every second one decides, the others
    are reported. A prompt with a counterfactual that is given serves as both.

    Args:
        model: a hooked model; left unchanged.
        what: a prompt, pairs of prompts, or a task with counterfactuals (`Task.counterfactual`).
        answer: what follows a prompt; by default what the model says.
        wrong: what could follow instead; by default what the model says after each change.
        counterfactual: a prompt with as many tokens that asks something else. For a task, what
            makes such prompts of a batch and a seed, by default `task.counterfactual`.
        place: the words of a prompt that are changed; by default the word on which most hangs.
        keep: the share of the metric that is to be recovered.
        upto: the last level: `heads`, `rows` or `paths`.
        examples: that decide; as many others confirm it, and as many more are reported.
        seed: of these examples.
        time: seconds that all may take, besides what has to be run once. Then the best circuit so
            far is reported, and what was not measured is said.
        controls: random sets of as many units, for each level.
        metric: of each example, from outputs and batch; by default the logit difference, the log
            probability of a prompt's answer of several tokens, or minus the loss where a task has
            neither.
        patch: what is taken from the counterfactual where nothing is kept: whole paths (`z`,
            activation patching at `hook_z`), attention alone (`pattern`), or values alone (`v`).
        progress: wraps an iterable to show a bar.
    """
    if patch not in PATCHES:
        raise InputError(f"patch: expected one of {', '.join(PATCHES)}, found {patch!r:.40}")
    from_data(int, examples, "examples")
    words = {"answer": answer, "wrong": wrong, "place": place}
    words |= {} if callable(counterfactual) else {"counterfactual": counterfactual or ""}
    if not isinstance(what, str) and (unused := [name for name in words if words[name]]):
        raise InputError(f"{unused[0]}: expected a prompt with it, found {type(what).__name__}")
    start, question = monotonic(), None
    if isinstance(what, Task):
        task = what
    elif not isinstance(what, str):
        task = _pairs(model, what)
    elif isinstance(counterfactual, str):
        if not (answer and wrong):
            raise InputError("expected an answer and a wrong one with a counterfactual, found none")
        right, other = (word if word[:1].isspace() else f" {word}" for word in (answer, wrong))
        task = _pairs(model, [Pair(what, counterfactual, (right,), (other,))])
    else:
        limit = math.inf if time is None else time
        with measuring(model):
            question = ask(model, what, answer, wrong, place, seed, limit, progress)
        task = question.task(model.tokenizer)
    measured, device = MetricTask(task, metric), next(model.parameters()).device

    def draw(count: int, split: Split) -> tuple[Batch, Batch]:
        """Some prompts, with what attention does on their counterfactuals; and these."""
        others: Batch | None = None
        if isinstance(task, PairsTask):
            batch, others = task.with_others(min(count, max(1, len(task) // 2)), device, split)
        else:
            batch = draw_batch(task, count, seed, device, split)
        if callable(counterfactual):
            others = counterfactual(batch, seed)
        elif others is None:
            others = task.counterfactual(batch, seed)
        return with_counterfactual(model, batch, others), others

    drawn, others = draw(2 * examples, "discovery")
    telling, telling_others = draw(examples, "test")
    half = (len(drawn) + 1) // 2
    deciding, fresh = drawn, None
    if half >= _LEAST and question is None:
        deciding, fresh = drawn[:half], drawn[half:]
    left = None if time is None else max(0.0, time - (monotonic() - start))
    with measuring(model):
        search = KeepSearch(
            model, measured, deciding, fresh, keep, upto, left, patch, others[: len(deciding)]
        )
        try:
            for _ in progress(search, "searching"):
                pass
        except KeyboardInterrupt:
            if not search.levels:
                raise
        made = explain(model, measured, search, telling, telling_others, controls, seed, progress)
    return replace(made, question=question)


def _pairs(model: Any, pairs: Sequence[Pair]) -> PairsTask:
    given = pairs if isinstance(pairs, (list, tuple)) else [pairs]
    if wrong := [type(pair).__name__ for pair in given if not isinstance(pair, Pair)]:
        raise InputError(f"expected a prompt, a task or a list of ri.Pair, found {wrong[0]}")
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None:
        raise InputError("expected a model with a tokenizer, found none; use a task")
    return PairsTask(pairs, tokenizer)
