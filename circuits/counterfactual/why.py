"""Why a model answers as it does: a search, and its measurement, behind one call."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.counterfactual.explanation import Explanation, explain
from retrieval_interp.circuits.counterfactual.mechanism import (
    PATCHES,
    Counterfactual,
    Patch,
    with_counterfactual,
)
from retrieval_interp.circuits.counterfactual.search import KeepSearch
from retrieval_interp.circuits.counterfactual.units import Metric, MetricTask
from retrieval_interp.circuits.fits import draw_batch
from retrieval_interp.circuits.hooks import ablated, heads_of, run_model
from retrieval_interp.circuits.losses import Progress, no_progress
from retrieval_interp.tasks import Batch, InputError, Task
from retrieval_interp.tasks.words.given_texts import Pair, PairsTask
from retrieval_interp.tasks.words.text_task import answer_tokens, token_ids

_AT_ONCE = 64  # prompts of a proposal that are run at once
_LEAST = 4  # prompts that decide, if others are to confirm it
_TRIED = 16  # of those that turn the answer, how many are tried by their attention


def why(
    model: Any,
    what: str | Task | Sequence[Pair],
    answer: str = "",
    wrong: str = "",
    counterfactual: str | Callable[[Batch, int], Batch] | None = None,
    *,
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

    K is searched for on some examples and reported on others (a single prompt serves as both).

    Args:
        model: a hooked model; left unchanged.
        what: a prompt, pairs of prompts, or a task with counterfactuals (`Task.counterfactual`).
        answer: what follows a prompt.
        wrong: what could follow instead.
        counterfactual: a prompt with as many tokens that asks something else; by default one that
            differs in one token and turns the answer. For a task, what makes such prompts of a
            batch and a seed, by default `task.counterfactual`.
        keep: the share of the metric that is to be recovered.
        upto: the last level: `heads`, `rows` or `paths`.
        examples: that decide; as many others confirm it, and as many more are reported.
        seed: of these examples.
        time: seconds that all may take; only the run under way is finished. Then the best circuit
            so far is reported, and what was not measured is said.
        controls: random sets of as many units, for each level.
        metric: of each example, from outputs and batch; by default the logit difference, or minus
            the loss where a task has none.
        patch: what is taken from the counterfactual where nothing is kept: whole paths (`z`,
            activation patching at `hook_z`), attention alone (`pattern`), or values alone (`v`).
        progress: wraps an iterable to show a bar.
    """
    if patch not in PATCHES:
        raise InputError(f"patch: expected one of {', '.join(PATCHES)}, found {patch!r:.40}")
    if isinstance(what, Task):
        task = what
    elif isinstance(what, str):
        given = counterfactual if isinstance(counterfactual, str) else None
        task = _prompt_task(model, what, answer, wrong, given)
    else:
        task = PairsTask(what, _tokenizer(model))
    draw: Callable[..., Batch] = partial(draw_batch, task)
    sizes = 2 * examples, examples
    if isinstance(task, PairsTask):  # given prompts, of which one may serve as both
        half = max(1, len(task) // 2)
        draw, sizes = task.sample, (min(sizes[0], half), min(examples, half))
    others = counterfactual if callable(counterfactual) else task.counterfactual
    measured, device = MetricTask(task, metric), next(model.parameters()).device
    drawn = draw(sizes[0], seed, device, "discovery")
    telling = draw(sizes[1], seed, device, "test")
    prompts = others(drawn, seed)
    drawn = with_counterfactual(model, drawn, prompts)
    other = others(telling, seed)
    telling = with_counterfactual(model, telling, other)
    half = (len(drawn) + 1) // 2
    deciding, fresh = (drawn[:half], drawn[half:]) if half >= _LEAST else (drawn, None)
    search = KeepSearch(
        model, measured, deciding, fresh, keep, upto, time, patch, prompts[: len(deciding)]
    )
    try:
        for _ in progress(search, "searching"):
            pass
    except KeyboardInterrupt:
        if not search.levels:
            raise
    return explain(model, measured, search, telling, other, controls, seed, progress)


def _tokenizer(model: Any) -> Any:
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None:
        raise InputError("expected a model with a tokenizer, found none; use a task")
    return tokenizer


def _prompt_task(model: Any, prompt: str, answer: str, wrong: str, other: str | None) -> PairsTask:
    if not answer or not wrong:
        raise InputError("expected an answer and a wrong one, found a prompt without them")
    tokenizer = _tokenizer(model)
    blank = "" if prompt[-1:].isspace() else " "
    answer, wrong = (w if w[:1].isspace() else blank + w for w in (answer, wrong))
    other = propose(model, prompt, answer, wrong) if other is None else other
    return PairsTask([Pair(prompt, other, (answer,), (wrong,))], tokenizer)


@torch.no_grad()
def propose(model: Any, prompt: str, answer: str, wrong: str) -> str:
    """The prompt with one token changed, so that the model answers otherwise.

    Each token is replaced by the prompt's others and by the answers, where they are written alike
    (a blank before it, a capital, letters). Of the changes that make the wrong answer lead, the one
    is taken whose attention, in the prompt, takes most of the difference away.
    """
    tokenizer = _tokenizer(model)
    ids, device = token_ids(tokenizer, prompt), next(model.parameters()).device
    whole, sides, _ = answer_tokens(tokenizer, prompt, (answer, wrong))
    shared = whole[len(ids) :]  # a blank that both answers begin with, or nothing
    forms = {token: _form(tokenizer.decode([token])) for token in {*sides, *ids}}
    rows = [
        [*ids[:at], new, *ids[at + 1 :]]
        for at, old in enumerate(ids)
        for new, form in forms.items()
        if new != old and form == forms[old]
    ]
    rows = [row for row in rows if token_ids(tokenizer, tokenizer.decode(row)) == row]
    begin = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]

    def leads(batch: Batch) -> list[float]:
        logits = run_model(model, batch)[:, -1, sides]
        return (logits[:, 0] - logits[:, 1]).tolist()

    def batch_of(some: Sequence[Sequence[int]]) -> Batch:
        tokens = torch.tensor([[*begin, *row, *shared] for row in some]).to(device)
        end = torch.full_like(tokens[:, :1, None], tokens.shape[1] - 1)
        return Batch(tokens, tokens[:, -1:], end)

    parts = [rows[start : start + _AT_ONCE] for start in range(0, len(rows), _AT_ONCE)]
    found = [lead for part in parts for lead in leads(batch_of(part))]
    turned = sorted((lead, row) for lead, row in zip(found, rows) if lead < 0)[:_TRIED]
    if not turned:
        best = f"one that leaves {min(found):.2f} of it" if found else "none"
        raise InputError(
            f"counterfactual: expected a change of one token, to another of the prompt, that turns "
            f"the logit difference of {answer!r:.40} and {wrong!r:.40}, found {best}; give a "
            "prompt of the same length"
        )
    others = batch_of([row for _, row in turned])
    same = with_counterfactual(model, batch_of([ids] * len(turned)), others)
    with ablated(model, Circuit(dict.fromkeys(heads_of(model), Counterfactual()), 1), same):
        left = leads(same)
    return str(tokenizer.decode(turned[min(range(len(turned)), key=left.__getitem__)][1]))


def _form(text: str) -> tuple[bool, bool, bool]:
    """How a token is written: behind a blank, with a capital, in letters."""
    word = text.strip()
    return text[:1].isspace(), word[:1].isupper(), word.isalpha()
