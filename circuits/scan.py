"""What each head does: where it looks, what it writes, and what replacing or zero-ablating it
costs.

1. Heads are described on one half of the examples: the rule that shares most of a head's attention,
   what such a head is called (`head_kinds`), and on a text whether it copies and what it adds to
   the logit of the next token (`direct_effect`).
2. On the other half, the rule replaces the head's attention, or the head writes nothing. Heads that
   are estimated to matter most come first.
3. If asked for, as many heads as possible are replaced together: the joint circuit.
"""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.direct_effect import copy_scores, direct_effects
from retrieval_interp.circuits.discovery.attribution import attribute
from retrieval_interp.circuits.discovery.judge import Judge
from retrieval_interp.circuits.fits import check_model_fits, sample_batch
from retrieval_interp.circuits.head_kinds import (
    KINDS,
    attention_kinds,
    closest_rules,
    head_kind,
    kind_by_attention,
)
from retrieval_interp.circuits.hooks import HookedModel, is_causal
from retrieval_interp.circuits.losses import Measured, Progress, no_progress
from retrieval_interp.circuits.mechanisms import Mechanism, OneHot
from retrieval_interp.circuits.paths import Head, HeadPath
from retrieval_interp.circuits.tolerance import kept_share
from retrieval_interp.tasks import Batch, InputError, InputWarning, Task
from retrieval_interp.tasks.messages import shown
from retrieval_interp.tasks.words.given_texts import NextTokenTask

_PATIENCE = 8  # heads in a row that cannot be added end the search
_ESTIMATED = 64  # examples of estimates, at most ...
_LOGITS = 20_000_000  # ... or as many as have so many logits
_COPIED = 256  # tokens that are tried to be copied
_SEQUENCES, _TOKENS = 8, 500  # of less text little can be said
_UNKNOWN = Measured(math.nan, math.nan)


@dataclass(frozen=True)
class HeadScan:
    """One head's attention and output, and what it costs to replace or zero-ablate it.

    What a pattern and a rule share is Σ min(pattern, rule) over sources, as a mean over positions.
    What was not measured, or does not exist for the model, is NaN.
    """

    head: Head
    rule: Mechanism  # shares most; of rules that share nearly as much, the simplest
    share: float  # from 0 to 1
    attention: Mapping[str, float] = field(default_factory=dict)  # by kind (`attention_kinds`)
    kind: str = ""  # what it is commonly called
    copies: float = math.nan  # share of the text's tokens that it copies (`copy_scores`)
    direct: Measured = _UNKNOWN  # effect on the logit of the next token (`direct_effects`)
    change: Measured = _UNKNOWN  # of the loss, with the rule in its place
    zero_ablated: Measured = _UNKNOWN  # of the loss, with the head zero-ablated
    replaced: Mechanism | None = None  # what takes its place in the joint circuit


@dataclass(frozen=True, repr=False)
class Scan:
    """What `scan` found.

    Without a joint circuit, `circuit` is empty and its loss NaN.
    """

    task: Task
    batch: Batch  # on which losses were measured
    heads: list[HeadScan]  # by layer
    intact_loss: float
    uninformed_loss: float  # of knowing nothing (`circuits.tolerance`)
    uninformed_model: str  # what knows nothing
    joint: bool  # whether a joint circuit was asked for
    tolerance: float  # the loss that it has to stay below
    circuit: Circuit  # the joint circuit; empty if the model knows nothing here
    joint_loss: float
    joint_se: float  # of what it costs, example by example
    tried: frozenset[Head]  # the heads that were replaced in some trial of the joint circuit
    finished: bool  # False if the time was over before the search ended
    learned: bool  # whether the model does better than one that knows nothing

    def __repr__(self) -> str:
        return shown(self)

    @property
    def kept(self) -> float:
        """The share of what the model knows that the joint circuit keeps; NaN if it knows none."""
        shares = self.joint_loss, self.intact_loss, self.uninformed_loss
        return kept_share(*shares) if self.learned else math.nan


def scan(
    model: HookedModel,
    text: str | Path | Sequence[Any] | torch.Tensor | Task,
    *,
    length: int = 128,
    examples: int = 128,
    seed: int = 0,
    joint: bool = False,
    tolerance: float | None = None,
    time: float | None = None,
    progress: Progress = no_progress,
) -> Scan:
    """Find what every head attends to and writes, and what replacing or ablating it costs.

    It describes heads on one half of the examples, and measures losses on the other half, first for
    the heads that are estimated to matter most. The joint circuit has to keep 95% of what the model
    knows, by two standard errors, unless the task or the caller states a tolerance. The search for
    it is greedy, so there may be larger ones.

    Args:
        model: a hooked model; left unchanged.
        text: a text or several, the path of a file of text, token ids (a tensor [batch pos], or
            lists), or a task.
        length: text is cut into windows of at most this many tokens.
        examples: number of examples drawn from a task, for each half.
        seed: of these examples.
        joint: also look for the joint circuit, the heads that rules can replace together.
        tolerance: the loss that the joint circuit stays below.
        time: seconds for all heads; with a joint circuit, half for the heads and the rest for the
            circuit.
        progress: wraps an iterable to show a progress bar, as `(items, text)`.
    """
    if not hasattr(model, "hook_dict"):
        hooked = "a hooked model (a HookedTransformer, a TransformerBridge)"
        raise InputError(f"scan: expected {hooked}, found {type(model).__name__}")
    start, seconds = monotonic(), math.inf if time is None else time
    task = text if isinstance(text, Task) else next_token_task(model, text, length)
    described_on, measured_on = _halves(model, task, examples, seed)
    check_model_fits(model, described_on, task)
    if isinstance(task, NextTokenTask):
        _check_amount(task)
    described = _named(model, task, described_on)
    rules = {head: row.rule for head, row in described.items()}
    judge = Judge(model, task, measured_on, tolerance)
    intact = judge.losses_by_example(judge.empty)
    costs = _estimates(judge, rules)

    def rise(circuit: Circuit) -> Measured:
        return Measured.of(judge.losses_by_example(circuit) - intact)

    until = start + (seconds / 2 if joint else seconds)
    for head in progress(sorted(costs, key=lambda head: -costs[head]), "replacing each head"):
        if monotonic() < until:
            change = rise(judge.empty.replace(head, rules[head]))
            zero_ablated = rise(judge.empty.replace(head, OneHot()))
            described[head] = replace(described[head], change=change, zero_ablated=zero_ablated)
            costs[head] = change.mean
    finished, growing = True, _Joint(judge)
    if joint and judge.learned:
        trials = progress(growing.replace(rules, costs), "replacing heads together")
        finished = all(monotonic() < start + seconds for _ in trials)
    together = rise(growing.circuit) if joint else _UNKNOWN
    replaced = growing.circuit.mechanisms
    return Scan(
        task=task,
        batch=measured_on,
        heads=[replace(row, replaced=replaced.get(head)) for head, row in described.items()],
        intact_loss=float(intact.mean()),
        uninformed_loss=judge.uninformed.loss,
        uninformed_model=judge.uninformed.description,
        joint=joint,
        tolerance=judge.limit.loss,
        circuit=growing.circuit,
        joint_loss=float(intact.mean()) + together.mean,
        joint_se=together.se,
        tried=frozenset(growing.tried),
        finished=finished,
        learned=judge.learned,
    )


def _named(model: HookedModel, task: Task, batch: Batch) -> dict[Head, HeadScan]:
    """Heads as described and called, and on a text what they copy and add to logits."""
    rules, attention = closest_rules(model, batch), attention_kinds(model, task, batch)
    rows = {head: HeadScan(head, *rule_and_share) for head, rule_and_share in rules.items()}
    for head, row in rows.items():
        paths = [HeadPath(head, path) for path in row.rule.paths if path.dest != path.src]
        kind = head_kind(paths, batch) or KINDS.get(kind_by_attention(attention[head]), "")
        rows[head] = replace(row, attention=attention[head], kind=kind)
    if isinstance(task, NextTokenTask):
        tokens = batch.targets[batch.targets >= 0].unique()
        tokens = tokens[:: math.ceil(len(tokens) / _COPIED)]
        copied = copy_scores(model, tokens, int(batch.inputs[0, 0]))
        direct = direct_effects(model, batch)
        for head, row in rows.items():
            rows[head] = replace(row, copies=copied[head], direct=direct[head])
    return rows


def _estimates(judge: Judge, mechanisms: dict[Head, Mechanism]) -> dict[Head, float]:
    """What each head should lose when it is replaced; zeros where the loss has no gradient."""
    most = _LOGITS // (judge.batch.inputs.shape[1] * judge.model.cfg.d_vocab_out)
    few = judge.batch[: max(1, min(_ESTIMATED, most))]
    try:
        estimates = attribute(judge.model, judge.task, few)
    except InputError:
        return dict.fromkeys(mechanisms, 0.0)
    return {head: estimates.change(head, new).effect for head, new in mechanisms.items()}


def _halves(model: HookedModel, task: Task, examples: int, seed: int) -> tuple[Batch, Batch]:
    """Examples on which heads are described, and others on which losses are measured."""
    device = next(model.parameters()).device
    if not isinstance(task, NextTokenTask):
        described_on = sample_batch(task, examples, seed, device, "discovery")
        return described_on, sample_batch(task, examples, seed, device, "test")
    if len(task) == 1:
        return task.whole(device), task.whole(device)
    half = len(task) // 2
    first = task.sample(len(task) - half, device=device)
    return first, task.sample(half, device=device, split="test")


def _check_amount(task: NextTokenTask) -> None:
    """Warn of less text than numbers can be trusted of."""
    if len(task) >= _SEQUENCES and sum(map(len, task.sequences)) >= _TOKENS:
        return
    found = task.description.removeprefix("the next token of ")
    least = f"at least {_SEQUENCES} sequences and {_TOKENS} tokens"
    text = f"scan: expected {least}, found {found}, of which errors mean little; give more text"
    warnings.warn(text, InputWarning, stacklevel=3)


class _Joint:
    """The joint circuit while it grows, and the heads that some trial replaced."""

    def __init__(self, judge: Judge):
        self.judge, self.circuit, self.tried = judge, judge.empty, set[Head]()

    def replace(
        self, mechanisms: dict[Head, Mechanism], costs: dict[Head, float]
    ) -> Iterator[None]:
        """Replace heads in the order of their costs, cheapest first; yields before every trial.

        As many of the first heads are replaced as the loss stays below the tolerance with, found by
        doubling and bisection. The next head is skipped, and the same is done with those after it,
        until several in a row could not be replaced.
        """
        todo = sorted(mechanisms, key=lambda head: (costs[head], head))
        failed = 0
        while todo and failed < _PATIENCE:
            before, held, broken = self.circuit, 0, len(todo) + 1
            while broken - held > 1:
                yield
                doubled = min(max(1, 2 * held), len(todo))
                count = doubled if broken > len(todo) else (held + broken) // 2
                chosen = {head: mechanisms[head] for head in todo[:count]}
                trial = replace(before, mechanisms={**before.mechanisms, **chosen})
                self.tried.update(chosen)
                if self.judge.holds(trial):
                    held, self.circuit = count, trial
                else:
                    broken = count
            failed = 0 if held else failed + 1
            todo = todo[held + 1 :]


def next_token_task(model: HookedModel, text: Any, length: int = 128) -> NextTokenTask:
    """Text or token ids as a task, in the tokens of a model."""
    length, d_vocab = min(length, model.cfg.n_ctx), model.cfg.d_vocab
    two = torch.zeros(1, 2, dtype=torch.long, device=next(model.parameters()).device)
    causal = is_causal(model, Batch(two, two, two[:, None]))
    if not causal or model.cfg.d_vocab_out != d_vocab:
        found = f"{d_vocab} tokens and {model.cfg.d_vocab_out} outputs"
        raise InputError(
            "text: expected a model that predicts the next of its tokens, found one with "
            f"{found if causal else 'sight of later tokens'}; give its task instead"
        )
    tokenizer = getattr(model, "tokenizer", None)
    if isinstance(text, str) and len(text) < 256 and "\n" not in text and Path(text).is_file():
        raise InputError(f"text: expected a text, found the name of a file; give Path({text!r})")
    if isinstance(text, Path):
        try:
            text = text.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{text}: expected a file of text, found: {error!s:.100}") from None
    items: Any = text.tolist() if hasattr(text, "tolist") else text
    if not isinstance(items, Sequence):
        raise InputError(
            f"text: expected text, its file as a Path, token ids or a task, found {items!r:.40}"
        )
    items = [items] if isinstance(items, str) else items
    if items and all(isinstance(item, str) for item in items):
        if tokenizer is None:
            raise InputError("text: expected token ids or a model with a tokenizer, found none")
        prepend_bos = bool(getattr(model.cfg, "default_prepend_bos", True))
        return NextTokenTask.from_text(items, tokenizer, length, prepend_bos)
    sequences = items if items and isinstance(items[0], Sequence) else [items]
    return NextTokenTask(sequences, tokenizer)
