"""Why a model answers as it does: find counterfactuals, search, and measure the result."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

from retrieval_interp.circuits.counterfactual.explanation import Explanation, explain
from retrieval_interp.circuits.counterfactual.keep_search import KeepSearch, check_goal
from retrieval_interp.circuits.counterfactual.question import ask
from retrieval_interp.circuits.counterfactual.units import Metric, MetricTask
from retrieval_interp.circuits.fits import sample_batch
from retrieval_interp.circuits.hooks import HookedModel, measuring
from retrieval_interp.circuits.losses import Progress, no_progress
from retrieval_interp.circuits.patched_heads import PATCHES, Patch
from retrieval_interp.circuits.replacement import with_counterfactual
from retrieval_interp.tasks import Batch, InputError, Task
from retrieval_interp.tasks.sampling import Split
from retrieval_interp.tasks.structured import from_data
from retrieval_interp.tasks.words.given_texts import Pair, PairsTask

_LEAST_DECIDING = 4  # with fewer prompts than this in a half, all of them decide


def why(
    model: HookedModel,
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
    circuit K keep P V, and all others are patched to write P' V'; embeddings are those of the
    prompt, and MLPs compute on the patched residual stream. With M a metric,

        recovered(K) = (M(K) - M(nothing kept)) / (M(intact) - M(nothing kept))

    `why` finds K on some examples and measures it on others. For one prompt, the examples are
    changes of the word that its answer depends on most (`question.ask`): every second one decides,
    the others are measured. If you give the counterfactual of a prompt, this one pair serves for
    both.

    Args:
        model: a hooked model; left unchanged.
        what: a prompt, pairs of prompts, or a task with counterfactuals (`Task.counterfactual`).
        answer: what follows a prompt; by default what the model says.
        wrong: what could follow instead; by default what the model says after each change.
        counterfactual: a prompt with as many tokens that asks something else. For a task, a
            function that makes such prompts from a batch and a seed; by default
            `task.counterfactual`.
        place: words of a prompt to change; by default the one that the answer depends on most.
        keep: the share of the metric to recover.
        upto: the last level: `heads`, `rows` or `paths`.
        examples: how many decide; as many others confirm, and as many more are measured and
            reported.
        seed: for drawing these examples.
        time: seconds for everything except a few runs that are always needed. When they are over,
            the best circuit so far is reported, and `unfinished` says what was not measured.
        controls: number of random sets of as many units to compare with.
        metric: a function of outputs and batch, with a number for each example; by default the
            logit difference, the log probability of an answer of several tokens, or, for a task
            with neither, minus the loss.
        patch: what units that are not kept take from the counterfactual: whole paths (`z`,
            activation patching at `hook_z`), attention alone (`pattern`), or values alone (`v`).
        progress: wraps an iterable to show a progress bar.
    """
    if patch not in PATCHES:
        raise InputError(f"patch: expected one of {', '.join(PATCHES)}, found {patch!r:.40}")
    check_goal(keep, upto)
    from_data(int, examples, "examples")
    for name, text in {"answer": answer, "wrong": wrong, "place": place}.items():
        from_data(str, text, name)
    start, seconds = monotonic(), math.inf if time is None else time
    if isinstance(what, str) and not isinstance(counterfactual, str):
        with measuring(model):
            question = ask(model, what, answer, wrong, place, seed, seconds, progress)
        task: Task = question.task(model.tokenizer)
    else:
        task, question = _task(model, what, answer, wrong, place, counterfactual), None
    metric_task = MetricTask(task, metric)
    make = counterfactual if callable(counterfactual) else None
    prompts, counterfactuals = sample_prompts(model, task, 2 * examples, seed, "discovery", make)
    held_out = sample_prompts(model, task, examples, seed, "test", make)
    half = (len(prompts) + 1) // 2
    deciding, confirming = prompts, None
    if half >= _LEAST_DECIDING and question is None:
        deciding, confirming = prompts[:half], prompts[half:]
    with measuring(model):
        search = KeepSearch(
            model,
            metric_task,
            deciding,
            confirming,
            counterfactual=counterfactuals[: len(deciding)],
            keep=keep,
            upto=upto,
            patch=patch,
            time=None if time is None else max(0.0, time - (monotonic() - start)),
        )
        try:
            for _ in progress(search, "searching"):
                pass
        except KeyboardInterrupt:
            if not search.levels:
                raise
        explanation = explain(search, *held_out, controls=controls, seed=seed, progress=progress)
    return replace(explanation, question=question)


def sample_prompts(
    model: HookedModel,
    task: Task,
    count: int,
    seed: int,
    split: Split,
    make: Callable[[Batch, int], Batch] | None = None,
) -> tuple[Batch, Batch]:
    """Draw a task's prompts with the attention on their counterfactuals; and these.

    `make` makes counterfactuals of a batch and a seed, by default the task does.
    """
    device = next(model.parameters()).device
    if isinstance(task, PairsTask):
        batch, prompts = task.with_others(min(count, max(1, len(task) // 2)), device, split)
    else:
        batch, make = sample_batch(task, count, seed, device, split), make or task.counterfactual
    if make is not None:
        prompts = make(batch, seed)
    return with_counterfactual(model, batch, prompts), prompts


def _task(
    model: HookedModel,
    what: str | Task | Sequence[Pair],
    answer: str,
    wrong: str,
    place: str,
    counterfactual: Any,
) -> Task:
    """What is asked as a task: one that is given, or pairs of prompts."""
    if isinstance(what, str):
        if not (answer and wrong):
            raise InputError("expected an answer and a wrong one with a counterfactual, found none")
        right, other = (word if word[:1].isspace() else f" {word}" for word in (answer, wrong))
        return _pairs(model, [Pair(what, counterfactual, (right,), (other,))])
    words = {"answer": answer, "wrong": wrong, "place": place}
    words |= {} if callable(counterfactual) else {"counterfactual": counterfactual or ""}
    if unused := [name for name in words if words[name]]:
        raise InputError(f"{unused[0]}: expected a prompt with it, found {type(what).__name__}")
    return what if isinstance(what, Task) else _pairs(model, what)


def _pairs(model: HookedModel, pairs: Sequence[Pair]) -> PairsTask:
    given = pairs if isinstance(pairs, (list, tuple)) else [pairs]
    if wrong := [type(pair).__name__ for pair in given if not isinstance(pair, Pair)]:
        raise InputError(f"expected a prompt, a task or a list of ri.Pair, found {wrong[0]}")
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None:
        raise InputError("expected a model with a tokenizer, found none; use a task")
    return PairsTask(pairs, tokenizer)
