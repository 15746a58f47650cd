"""What does each head look at, and does the model need it?

1. Describe every head by the rule that shares most of its attention (`circuits.scan.describe`), on
   one half of the examples.
2. Replace each head alone by its rule, on the other half (of text, on some 500 tokens of it): the
   exact loss, beside its estimate.
3. Replace as many heads together as the tolerance allows: in the order of what they cost alone, the
   longest beginning that holds, found by doubling and bisecting; then the heads after it, until
   eight in a row cannot be added. The others are tried in the same way with their mean pattern, in
   the order of what that is estimated to cost beside those already replaced.
4. Compare with the same mechanisms in other heads, drawn at random. If these do better, they are
   the joint circuit.
"""

import dataclasses
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.attribution.estimates import attribute, rank_correlation
from retrieval_interp.circuits.circuit import Circuit, Head
from retrieval_interp.circuits.mechanisms import Mechanism
from retrieval_interp.circuits.runs.fits import draw_batch
from retrieval_interp.circuits.runs.losses import mean_loss, standard_error
from retrieval_interp.circuits.scan.describe import describe_heads
from retrieval_interp.circuits.scan.text import next_token_task
from retrieval_interp.circuits.scores.scorer import Progress, Scorer, no_progress
from retrieval_interp.circuits.scores.tolerance import Bar, has_learned, kept_share, uninformed_loss
from retrieval_interp.tasks import Batch, InputError, Task
from retrieval_interp.tasks.words.next_token_task import NextTokenTask

_FEW = 512  # tokens of text for estimates, which hold all activations, and for heads alone
_PATIENCE = 8  # heads in a row that cannot be added end the search
_CONTROLS = 4  # controls that are taken, at most, as they do better
_REDRAWS = 20  # a control may equal the circuit that it is drawn for


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
        uninformed: what knows nothing, in words.
        tolerance: the loss that the joint circuit has to stay below.
        circuit: the joint circuit; empty if the model knows nothing here.
        joint_loss: its loss.
        joint_se: the standard error of what it costs, example by example.
        random_loss: the loss with the same mechanisms in as many other heads, drawn at random, as
            far as there are others; a control. NaN where there is no other such circuit, as where
            all heads are replaced alike.
        tried: the heads that the search for the joint circuit came to.
        finished: False if the time was over before the search ended.
        means: the mean pattern of every head, on the other half of the examples.
    """

    task: Task
    batch: Batch
    heads: list[HeadScan]
    intact_loss: float
    alone_intact_loss: float
    uninformed_loss: float
    uninformed: str
    tolerance: float
    circuit: Circuit
    joint_loss: float
    joint_se: float
    random_loss: float
    tried: frozenset[Head]
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

    by two standard errors (`circuits.scores.tolerance.Bar`).

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
        time: seconds that it may take; by default there is no limit. Heads are replaced alone in
            the first half; when the time is over, the joint circuit so far is taken. Describing the
            heads and the estimates are not cut short.
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
    start, limit = monotonic(), math.inf if time is None else time
    task = text if isinstance(text, Task) else next_token_task(model, text, length, prepend_bos)
    one, other = _halves(model, task, examples, seed)
    described = describe_heads(model, one)
    mechanisms = {head: f.mean if by == "mean" else f.rule for head, f in described.items()}
    before = monotonic()
    scorer = Scorer(model, task, other)
    a_run = float(monotonic() - before)
    intact = mean_loss(scorer.base_losses)
    uninformed = uninformed_loss(model, task, other, scorer.each)
    rows_of = scorer.base_losses.mean(dim=1)
    bar = Bar(task, rows_of, uninformed.loss, tolerance)
    empty = scorer.empty_circuit
    estimated = monotonic()
    effects = _estimates(model, task, one, empty, mechanisms)
    estimating = float(monotonic() - estimated)
    known = [head for head in described if not math.isnan(effects[head])]
    order = sorted(known, key=lambda head: -abs(effects[head])) or list(described)
    few = _first(task, other)
    by_few = scorer if len(few) == len(other) else Scorer(model, task, few)
    alone_intact = mean_loss(by_few.base_losses)
    losses: dict[Head, float] = {}
    for head in progress(order[:alone], "replacing each head"):
        if monotonic() < start + limit / 2:
            losses[head] = by_few.loss(empty.replace(head, mechanisms[head]))
    joint = _Joint(scorer, bar, start + limit, a_run)
    high = intact + 2 * standard_error(rows_of)
    control = math.nan
    if has_learned(task, high, uninformed.loss):
        costs = effects | {head: loss - alone_intact for head, loss in losses.items()}
        joint.replace(mechanisms, costs, progress, f"replacing heads by their {by}")
        if by == "rule" and joint.left and joint.has(estimating):
            left = {head: described[head].mean for head in joint.left}
            beside = _estimates(model, task, one, joint.circuit, left)
            joint.replace(left, beside, progress, "replacing others by their mean")
        control = joint.compare(described, seed)
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
        task, other, rows, intact, alone_intact, uninformed.loss, uninformed.what, bar.loss,
        circuit, mean_loss(joint.losses), standard_error(joint.losses.mean(dim=1) - rows_of),
        control,
        frozenset(joint.tried), joint.finished,
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
    """The joint circuit while it grows.

    Attributes:
        circuit: the circuit so far.
        losses: its losses, by example.
        tried: the heads that it came to.
        finished: False if the time was over before all were.
    """

    def __init__(self, scorer: Scorer, bar: Bar, deadline: float, a_run: float):
        self.scorer, self.circuit, self.losses = scorer, scorer.empty_circuit, scorer.base_losses
        self.bar, self.deadline = bar, deadline
        self.tried, self.finished = set[Head](), True
        self._longest = a_run  # seconds

    @property
    def left(self) -> set[Head]:
        """The heads that were not replaced, of those that were tried."""
        return self.tried - self.circuit.mechanisms.keys()

    def has(self, seconds: float) -> bool:
        """Whether there is so much time, and that for a run and a control."""
        if monotonic() + seconds + 2 * self._longest > self.deadline:
            self.finished = False
        return self.finished

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
        todo = [head for head in mechanisms if head not in self.circuit.mechanisms]
        todo.sort(key=lambda head: (math.isnan(costs[head]), costs[head], head))
        bar = iter(progress(range(len(todo)), what))
        failed = 0
        while todo and failed < _PATIENCE and self.finished:
            count = self._most(todo, mechanisms)
            failed = 0 if count else failed + 1
            for _ in todo[: count + 1]:
                next(bar, None)
            todo = todo[count + 1 :]
        if self.finished:
            self.tried.update(mechanisms)

    def _most(self, heads: list[Head], mechanisms: dict[Head, Mechanism]) -> int:
        """Replace as many of the first heads as hold, found by doubling and bisecting."""
        held, broken = 0, len(heads) + 1
        before = self.circuit
        while broken - held > 1:
            if not self.has(0.0):
                break
            doubled = min(max(1, 2 * held), len(heads))
            count = doubled if broken > len(heads) else (held + broken) // 2
            chosen = {head: mechanisms[head] for head in heads[:count]}
            trial = dataclasses.replace(before, mechanisms={**before.mechanisms, **chosen})
            self.tried.update(chosen)
            losses = self._run(trial)
            if self.bar.keeps(losses.mean(dim=1)):
                held, self.circuit, self.losses = count, trial, losses
            else:
                broken = count
        return held

    def compare(self, heads: Iterable[Head], seed: int) -> float:
        """The loss of the same mechanisms in other heads; while it is lower, these are taken.

        NaN where no other circuit is drawn.
        """
        worse, draw = math.nan, random.Random(seed)
        for _ in range(_CONTROLS):
            other = _shuffled(self.circuit, heads, draw)
            if other is None:
                break
            losses = self._run(other)
            if mean_loss(losses) >= mean_loss(self.losses):
                return mean_loss(losses)
            worse, self.circuit, self.losses = mean_loss(self.losses), other, losses
        return worse

    def _run(self, circuit: Circuit) -> Float[Tensor, "batch target"]:
        start = monotonic()
        losses = self.scorer.losses(circuit)
        self._longest = max(self._longest, monotonic() - start)
        return losses


def _shuffled(circuit: Circuit, heads: Iterable[Head], draw: random.Random) -> Circuit | None:
    """The same mechanisms in as many other heads, as far as there are others; None if in vain."""
    own = sorted(circuit.mechanisms)
    others = sorted(set(heads) - circuit.mechanisms.keys())
    count = min(len(own), len(others))
    for _ in range(_REDRAWS):
        chosen = [*draw.sample(others, count), *draw.sample(own, len(own) - count)]
        mechanisms = list(circuit.mechanisms.values())
        draw.shuffle(mechanisms)
        drawn = dataclasses.replace(circuit, mechanisms=dict(zip(chosen, mechanisms)))
        if drawn != circuit:
            return drawn
    return None
