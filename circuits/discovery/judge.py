"""Decide by exact losses which circuits *hold*: stay below the tolerance.

A circuit holds if its loss is two standard errors below the tolerance, on the examples that decide
and on as many others: the best of many may pass on the first set by chance, but hardly on both. A
circuit that is far above the tolerance after the first examples is not run on the rest.
"""

from bisect import bisect_left
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.deadline import Deadline
from retrieval_interp.circuits.discovery.attribution import Attribution, Estimate, attribute
from retrieval_interp.circuits.hooks import HookedModel
from retrieval_interp.circuits.losses import Scorer
from retrieval_interp.circuits.means import allowed_attention, mean_attention
from retrieval_interp.circuits.mechanisms import Mechanism
from retrieval_interp.circuits.paths import Head
from retrieval_interp.circuits.tolerance import (
    Limit,
    has_learned,
    measure_uninformed,
    unlearned_text,
)
from retrieval_interp.tasks import Batch, InputError, Task

_STAGES = (16, 64, 192)  # numbers of examples after which a circuit may be given up
_ESTIMATED = 64  # examples of the gradients by which changes are estimated


class Judge:
    """Measures losses of circuits on some examples, and decides which of them hold.

    Losses and decisions are kept. Circuits that hold here must hold for the judge `confirming`, on
    its examples, too. With `near`, a circuit that differs in few heads, a run computes only what
    differs, if the model allows it. After the deadline a measurement raises OutOfTime.
    """

    def __init__(
        self,
        model: HookedModel,
        task: Task,
        batch: Batch,
        tolerance: float | None = None,
        confirming: "Judge | None" = None,
        deadline: Deadline | None = None,
    ):
        self.deadline = deadline or Deadline()
        if tolerance is None and task.tolerance is None:  # few examples may make most of the loss
            intact = Scorer(model, task, batch).losses_by_example(Circuit.empty(task))
            batch = batch[_spread(intact)]
        self.model, self.task, self.batch, self.confirming = model, task, batch, confirming
        ends = [*(count for count in _STAGES if count < len(batch)), len(batch)]
        self.ends = ends  # numbers of examples after each stage
        self.scorers = [
            Scorer(model, task, batch[start:end]) for start, end in zip([0, *ends], ends)
        ]
        self.decided: dict[Circuit, bool] = {}  # whether a circuit holds
        self.holding: list[Circuit] = []  # circuits that hold, in the order of their trial
        self.scored: dict[Circuit, list[Float[Tensor, " few"]]] = {}  # losses, stage by stage
        self.empty = self.scorers[0].empty_circuit
        intact = self.losses_by_example(self.empty)
        self.uninformed = measure_uninformed(model, task, batch, self.losses_by_example)
        self.limit = Limit(task, intact, self.uninformed.loss, tolerance)
        for scorer in self.scorers if self.runs_are_cheap else []:
            scorer.free_base_run()
        self._estimates: tuple[Circuit, Attribution] | None = None  # around the last circuit

    @cached_property
    def attention(self) -> Float[Tensor, "layer head dest src"]:
        """The intact model's mean attention by role; 0 where the mask forbids it."""
        means = mean_attention(self.model, self.batch).cpu()
        return allowed_attention(means, self.batch, self.model)

    @property
    def learned(self) -> bool:
        """Whether the intact model does better than one that knows nothing (`has_learned`)."""
        return has_learned(self.losses_by_example(self.empty), self.uninformed)

    @property
    def unlearned_text(self) -> str:
        """The sentence that the model has not learned the task."""
        intact, (uninformed, description, _) = self.losses_by_example(self.empty), self.uninformed
        return unlearned_text(float(intact.mean()), uninformed, description, self.task.loss_name)

    @property
    def runs_are_cheap(self) -> bool:
        """Whether a run computes only what differs, so that many cost little."""
        return self.scorers[0].runs.are_cheap

    def holds(self, circuit: Circuit, near: Circuit | None = None) -> bool:
        """Whether the loss is two standard errors below the tolerance, on both sets of examples."""
        if circuit not in self.decided:
            holds = self.holds_here(circuit, near)
            if holds and self.confirming:
                holds = self.confirming.holds_here(circuit)
            self.decided[circuit] = holds
            if holds:
                self.holding.append(circuit)
        return self.decided[circuit]

    def holds_here(self, circuit: Circuit, near: Circuit | None = None) -> bool:
        """As `holds`, on these examples alone."""
        return self._is_below(circuit, 2.0, near)

    def exceeds(self, circuit: Circuit, near: Circuit | None = None) -> bool:
        """Whether the loss exceeds the tolerance by two standard errors."""
        return not self._is_below(circuit, -2.0, near)

    def loss(
        self, circuit: Circuit, near: Circuit | None = None, examples: int | None = 64
    ) -> float:
        """Return the mean loss on the first 16, 64 or 192 examples, or on all (None)."""
        return float(self._first_losses(circuit, examples or len(self.batch), near).mean())

    def losses_by_example(self, circuit: Circuit) -> Float[Tensor, " batch"]:
        """Return the loss of every example."""
        return self._first_losses(circuit, len(self.batch))

    def estimates_around(self, circuit: Circuit) -> "Attribution | MeasuredChanges":
        """Return what other mechanisms do to a loss, estimated or else measured."""
        if self._estimates is None or self._estimates[0] != circuit:
            try:
                estimates = attribute(self.model, self.task, self.batch[:_ESTIMATED], circuit)
            except InputError:  # the loss has no gradient, or none that is finite
                return MeasuredChanges(self, circuit)
            self._estimates = circuit, estimates
        return self._estimates[1]

    def _first_losses(
        self, circuit: Circuit, examples: int, near: Circuit | None = None
    ) -> Float[Tensor, " few"]:
        """Return, or measure, the losses of the first examples, up to the end of a stage."""
        losses, stages = self.scored.setdefault(circuit, []), 1 + bisect_left(self.ends, examples)
        for number, scorer in enumerate(self.scorers[len(losses) : stages], len(losses)):
            self.deadline.check()
            if near is not None and number < len(self.scored.get(near, [])):
                scorer.losses(near, as_base=True)
            losses.append(scorer.losses_by_example(circuit))
        return torch.cat(losses[:stages])

    def _is_below(self, circuit: Circuit, errors: float, near: Circuit | None) -> bool:
        """Whether the loss plus so many standard errors is below the tolerance.

        The first examples may decide alone. After a share p of all, with mean m and standard error
        s, the mean of all will be m give or take s √(1 - p), and its standard error s √p. So it is
        not below where m + errors s √p - 2 s √(1 - p) is above the tolerance. With negative
        `errors`, where being above is the claim, 3 replaces 2, and 64 examples or more may in the
        same way decide that it is below.
        """
        for examples in self.ends[:-1]:
            losses = self._first_losses(circuit, examples, near)
            share = examples / len(self.batch)
            errors_then, doubt = errors * share**0.5, (3 if errors < 0 else 2) * (1 - share) ** 0.5
            if self.limit.excess(losses, errors_then - doubt) > 0:
                return False
            is_enough = errors < 0 and examples > _STAGES[0]
            if is_enough and self.limit.excess(losses, errors_then + doubt) < 0:
                return True
        return self.limit.excess(self._first_losses(circuit, len(self.batch), near), errors) < 0


def _spread(losses: Float[Tensor, " batch"]) -> list[int]:
    """Order examples so that the first ones have losses spread like those of all.

    Of the examples sorted by loss: the first, the middle one, those at a quarter and at three
    quarters, and so on, by counting with reversed binary digits (van der Corput).
    """
    ranked, digits = losses.argsort().tolist(), len(losses).bit_length()
    return [ranked[n] for n in sorted(range(len(ranked)), key=lambda n: f"{n:0{digits}b}"[::-1])]


class MeasuredChanges:
    """Changes of a circuit's loss by single heads, measured on 16 examples."""

    def __init__(self, judge: Judge, circuit: Circuit):
        self.judge, self.circuit = judge, circuit

    def change(self, head: Head, mechanism: Mechanism) -> Estimate:
        """As `Attribution.change`, without a second-order part."""
        changed = self.circuit.replace(head, mechanism)
        loss = self.judge.loss(changed, near=self.circuit, examples=16)
        return Estimate(loss - self.judge.loss(self.circuit, examples=16), torch.zeros(0))
