"""What does each head look at, and does the model need it?

1. Describe every head by the rule that shares most of its attention (`circuits.scan.describe`), on
   one half of the examples.
2. Replace each head alone by its rule, on the other half (of text, on some 500 tokens of it): the
   exact loss, beside its estimate.
3. Replace as many heads together as the tolerance allows: in the order of what they cost alone, the
   longest beginning that holds, found by doubling and bisecting; then the heads after it, until
   eight in a row cannot be added. The others are tried in the same way with their mean pattern, in
   the order of what that is estimated to cost beside those already replaced.
"""

import dataclasses
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal

import torch

from circuits.attribution.estimates import attribute, rank_correlation
from circuits.circuit import Circuit, Head, Mechanism
from circuits.runs.fits import draw_batch
from circuits.runs.losses import mean_loss
from circuits.scan.describe import describe_heads
from circuits.scan.text import next_token_task
from circuits.scores.scorer import Progress, Scorer, no_progress
from circuits.scores.tolerance import has_learned, kept_share, tolerance_of, uninformed_loss
from tasks import Batch, InputError, Task
from tasks.words.next_token_task import NextTokenTask

_FEW = 512  # tokens of text for estimates, which hold all activations, and for heads alone
_PATIENCE = 8  # heads in a row that cannot be added end the search


@dataclass(frozen=True)
class HeadScan:
    """One head.

    Attributes:
        head: the head.
        rule: the rule that describes its attention best.
        share: the share of its attention that the rule has, from 0 to 1.
        mean_share: the same for its mean pattern, which does not depend on content.
        estimate: the estimated change of the loss when the rule (or the mean pattern, as asked for)
            replaces the head; NaN where the loss has no gradient.
        loss: the exact loss then, all other heads intact, to be compared with
            `Scan.alone_intact_loss`; NaN if it was not asked for.
        replaced: what takes its place in the joint circuit; None if it was not replaced.
    """

    head: Head
    rule: Mechanism
    share: float
    mean_share: float
    estimate: float
    loss: float
    replaced: Mechanism | None


@dataclass(frozen=True, repr=False)
class Scan:
    """What `scan` found.

    Attributes:
        task: what the model was asked.
        batch: the examples on which losses were measured.
        heads: one row per head, by layer.
        intact_loss: the loss of the model as it is.
        alone_intact_loss: the same on the first of these examples, on which heads were replaced
            alone; of text, those with some 500 tokens, of a task all.
        uninformed_loss: the loss of knowing nothing (`circuits.scores.tolerance`).
        tolerance: the loss that the joint circuit has to stay below.
        circuit: the joint circuit; empty if the model knows nothing here.
        joint_loss: its loss.
        random_loss: the loss with the same mechanisms in as many other heads, drawn at random, as
            far as there are others; a control.
        finished: False if the time was over before the search ended.
        means: the mean pattern of every head, on the other half of the examples.
    """

    task: Task
    batch: Batch
    heads: list[HeadScan]
    intact_loss: float
    alone_intact_loss: float
    uninformed_loss: float
    tolerance: float
    circuit: Circuit
    joint_loss: float
    random_loss: float
    finished: bool
    means: dict[Head, Mechanism]

    @property
    def learned(self) -> bool:
        """Whether the model does better than one that knows nothing."""
        return has_learned(self.task, self.intact_loss, self.uninformed_loss)

    @property
    def kept(self) -> float:
        """The share of what the model knows that the joint circuit keeps."""
        return kept_share(self.joint_loss, self.intact_loss, self.uninformed_loss)

    @property
    def rank_correlation(self) -> float:
        """Spearman's, of estimates and exact changes; NaN for fewer than two."""
        both = [row for row in self.heads if not math.isnan(row.loss + row.estimate)]
        return rank_correlation([row.estimate for row in both], [row.loss for row in both])


def scan(
    model: Any,
    text: str | Sequence[Any] | torch.Tensor | Task,
    *,
    length: int = 128,
    examples: int = 128,
    seed: int = 0,
    prepend_bos: bool | None = None,
    tolerance: float | None = None,
    by: Literal["rule", "mean"] = "rule",
    alone: int | None = None,
    time: float | None = None,
    progress: Progress = no_progress,
) -> Scan:
    """Say what every head attends to, and which heads rules can replace together.

    With loss(C) the mean loss with circuit C in place, the joint circuit has to keep 95% of what
    the model knows, unless the task or the caller states a tolerance:

        (uninformed - loss(C)) / (uninformed - intact) > 0.95

    Heads are described, and means measured, on one half of the examples, and losses are measured on
    the other half. (A single sequence serves as both.) The joint circuit is found greedily: there
    may be larger ones.

    Args:
        model: a hooked model; left unchanged.
        text: a text or several, token ids (a tensor [batch pos], or lists), or a task.
        length: most tokens of a window that text is cut into.
        examples: number of examples drawn from a task, for each half.
        seed: of these examples.
        prepend_bos: whether windows of text start with a beginning-of-sequence token; by default as
            the model was trained, if its tokenizer has one.
        tolerance: the loss that the joint circuit stays below.
        by: what takes a head's place: its rule (and in the joint circuit its mean pattern, where
            the rule will not do), or always its mean pattern, which keeps only what of its
            attention does not depend on content.
        alone: number of heads, those with the largest estimates, whose loss alone is measured
            exactly; by default all.
        time: seconds after which the joint circuit so far is taken; by default there is no limit.
            What heads cost alone is measured in any case.
        progress: wraps an iterable to show a bar, as `(items, text)`.

    Raises:
        InputError: there is no text, or too little; it needs a tokenizer that the model lacks; or
            the model has no attention hooks.

    Examples:
        >>> import retrieval_interp as ri
        >>> small = ri.load_checkpoint("small")
        >>> found = ri.scan(small.model, small.task, examples=64)
        >>> print(found.heads[3].rule, round(found.heads[3].share, 1), round(found.kept, 2))
        uniform 0.6 1.0
    """
    _check(model, by, alone, tolerance, time)
    deadline = monotonic() + (math.inf if time is None else time)
    task = text if isinstance(text, Task) else next_token_task(model, text, length, prepend_bos)
    one, other = _halves(model, task, examples, seed)
    described = describe_heads(model, one)
    mechanisms = {head: f.mean if by == "mean" else f.rule for head, f in described.items()}
    scorer = Scorer(model, task, other)
    intact = mean_loss(scorer.base_losses)
    uninformed = min(uninformed_loss(model, task, scorer.loss), _guess(model, task))
    if tolerance is None:
        tolerance = tolerance_of(task, intact, uninformed)
    tolerance = min(tolerance, uninformed)
    empty = scorer.empty_circuit
    effects = _estimates(model, task, one, empty, mechanisms)
    known = [head for head in described if not math.isnan(effects[head])]
    order = sorted(known, key=lambda head: -abs(effects[head])) or list(described)
    few = _first(task, other)
    by_few = scorer if len(few) == len(other) else Scorer(model, task, few)
    alone_intact = mean_loss(by_few.base_losses)
    losses = {
        head: by_few.loss(empty.replace(head, mechanisms[head]))
        for head in progress(order[:alone], "replacing each head")
    }
    joint = _Joint(scorer, empty, tolerance, deadline)
    if has_learned(task, intact, uninformed):
        costs = effects | {head: loss - alone_intact for head, loss in losses.items()}
        joint.replace(mechanisms, costs, progress, f"replacing heads by their {by}")
        left = {head: described[head].mean for head in described.keys() - joint.replaced}
        if by == "rule" and left and joint.finished:
            beside = _estimates(model, task, one, joint.circuit, left)
            joint.replace(left, beside, progress, "replacing others by their mean")
    circuit = joint.circuit
    rows = [
        HeadScan(
            head,
            found.rule,
            found.share,
            found.mean_share,
            effects[head],
            losses.get(head, math.nan),
            circuit.mechanisms.get(head),
        )
        for head, found in described.items()
    ]
    return Scan(
        task, other, rows, intact, alone_intact, uninformed, tolerance, circuit,
        scorer.loss(circuit), scorer.loss(_shuffled(circuit, described, seed)), joint.finished,
        {head: found.mean for head, found in described.items()},
    )  # fmt: skip


def _check(
    model: Any, by: str, alone: int | None, tolerance: float | None, time: float | None
) -> None:
    if not hasattr(model, "hook_dict"):
        raise InputError(
            "scan: expected a hooked model (a HookedTransformer, a TransformerBridge), found "
            f"{type(model).__name__}"
        )
    if by not in ("rule", "mean"):
        raise InputError(f"by: expected 'rule' or 'mean', found {by!r:.40}")
    if alone is not None and alone < 0:
        raise InputError(f"alone: expected 0 heads or more, found {alone}")
    if tolerance is not None and not 0 < tolerance < math.inf:
        raise InputError(f"tolerance: expected a number above 0, found {tolerance}")
    if time is not None and not time > 0:
        raise InputError(f"time: expected more than 0 seconds, found {time}")


def _halves(model: Any, task: Task, examples: int, seed: int) -> tuple[Batch, Batch]:
    """Examples to describe heads on, and others to measure losses on."""
    device = next(model.parameters()).device
    if not isinstance(task, NextTokenTask):
        one = draw_batch(task, examples, seed, device, "discovery")
        return one, draw_batch(task, examples, seed, device, "test")
    if len(task) == 1:
        return task.whole(device), task.whole(device)
    half = len(task) // 2
    one = task.sample(len(task) - half, device=device)
    other = task.sample(half, device=device, split="test")
    # A mean pattern is known up to the longest sequence that it was measured on.
    return (one, other) if one.inputs.shape[1] >= other.inputs.shape[1] else (other, one)


def _first(task: Task, batch: Batch) -> Batch:
    """Few sequences of text, or all examples of a task."""
    count = max(1, _FEW // batch.inputs.shape[1]) if isinstance(task, NextTokenTask) else len(batch)
    return batch[:count]


def _guess(model: Any, task: Task) -> float:
    """The loss of a guess among all tokens, where the next one is asked."""
    return math.log(model.cfg.d_vocab_out) if isinstance(task, NextTokenTask) else math.inf


def _estimates(
    model: Any, task: Task, batch: Batch, circuit: Circuit, mechanisms: dict[Head, Mechanism]
) -> dict[Head, float]:
    """The estimated effect of replacing each head beside a circuit; NaN without a gradient."""
    few = _first(task, batch)
    trials = [circuit.replace(head, mechanism) for head, mechanism in mechanisms.items()]
    try:
        attribution = attribute(model, task, few, circuit)
    except InputError as error:
        if "gradient" not in str(error):
            raise
        return dict.fromkeys(mechanisms, math.nan)
    return dict(zip(mechanisms, attribution.effects(trials)))


class _Joint:
    """The joint circuit while it grows."""

    def __init__(self, scorer: Scorer, empty: Circuit, tolerance: float, deadline: float):
        self.scorer, self.circuit = scorer, empty
        self.tolerance, self.deadline = tolerance, deadline
        self.finished = True

    @property
    def replaced(self) -> set[Head]:
        return set(self.circuit.mechanisms)

    def replace(
        self,
        mechanisms: dict[Head, Mechanism],
        costs: dict[Head, float],
        progress: Progress,
        what: str,
    ) -> None:
        """Replace the first heads, by what they cost alone, as many as hold; then go on after the
        one that does not, until several in a row do not.
        """
        todo = sorted(mechanisms, key=lambda head: (math.isnan(costs[head]), costs[head], head))
        bar = iter(progress(range(len(todo)), what))
        failed = 0
        while todo and failed < _PATIENCE and self.finished:
            count = self._most(todo, mechanisms)
            failed = 0 if count else failed + 1
            for _ in todo[: count + 1]:
                next(bar, None)
            todo = todo[count + 1 :]

    def _most(self, heads: list[Head], mechanisms: dict[Head, Mechanism]) -> int:
        """Replace as many of the first heads as hold, found by doubling and bisecting."""
        held, broken = 0, len(heads) + 1
        before = self.circuit
        while broken - held > 1:
            if monotonic() > self.deadline:
                self.finished = False
                break
            doubled = min(max(1, 2 * held), len(heads))
            count = doubled if broken > len(heads) else (held + broken) // 2
            chosen = {head: mechanisms[head] for head in heads[:count]}
            trial = dataclasses.replace(before, mechanisms={**before.mechanisms, **chosen})
            if self.scorer.loss(trial) < self.tolerance:
                held, self.circuit = count, trial
            else:
                broken = count
        return held


def _shuffled(circuit: Circuit, heads: Iterable[Head], seed: int) -> Circuit:
    """The same mechanisms in as many other heads, as far as there are others."""
    draw = random.Random(seed)
    own = sorted(circuit.mechanisms)
    others = sorted(set(heads) - circuit.mechanisms.keys())
    count = min(len(own), len(others))
    chosen = [*draw.sample(others, count), *draw.sample(own, len(own) - count)]
    mechanisms = list(circuit.mechanisms.values())
    draw.shuffle(mechanisms)
    return dataclasses.replace(circuit, mechanisms=dict(zip(chosen, mechanisms)))
