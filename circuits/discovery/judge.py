"""Which circuits hold: whether a model with a circuit in place stays below the tolerance.

A circuit *holds* if its loss is two standard errors below the tolerance, on the examples that
decide and on as many others. The best of many may hold on the first set by chance, but hardly on
both. A circuit that is far off after some examples is not run on the rest.
"""

import math
from collections.abc import Iterator
from functools import cached_property
from time import monotonic
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.discovery.attribution import Attribution, Changed, attribute
from retrieval_interp.circuits.losses import Scorer
from retrieval_interp.circuits.means import allowed_attention, mean_attention
from retrieval_interp.circuits.mechanisms import Mechanism
from retrieval_interp.circuits.paths import Head
from retrieval_interp.circuits.tolerance import Bar, has_learned, uninformed_loss, unlearned_text
from retrieval_interp.tasks import Batch, InputError, Task

_PARTS = (16, 64, 192)  # examples after which a circuit may be given up
_ESTIMATED = 64  # examples of estimates


class OutOfTime(Exception):
    """The time of a search is over."""


class Deadline:
    """When the time of a search is over, in seconds of `time.monotonic`."""

    at = math.inf
    passed = False

    def check(self, *_: Any) -> None:
        """Raise OutOfTime if it is over."""
        if monotonic() > self.at:
            raise OutOfTime

    def steps_until(self, end: float, steps: Iterator[str], model: Any) -> Iterator[str]:
        """Take steps until they are done or the time is over; `passed` says that it is.

        It is checked before every block of the model too, as a single run may take long.
        """
        self.passed = False
        while not self.passed:
            self.at = end
            checks = [block.register_forward_pre_hook(self.check) for block in model.blocks]
            try:
                self.check()
                step = next(steps, None)
            except OutOfTime:
                step, self.passed = None, True
            finally:
                self.at = math.inf
                for check in checks:
                    check.remove()
            if step is None:
                return
            yield step


class Judge:
    """Measures losses on one set of examples, decides which circuits hold, and remembers.

    What holds has to hold for the `other` judge, too. Where a circuit is measured `near` another
    one, of which it differs in few heads, only what differs is run, if the model allows it. After
    the deadline nothing is measured, but OutOfTime is raised.
    """

    def __init__(
        self,
        model: Any,
        task: Task,
        batch: Batch,
        tolerance: float | None = None,
        other: "Judge | None" = None,
        deadline: Deadline | None = None,
    ):
        self.deadline = deadline or Deadline()
        if tolerance is None and task.tolerance is None:  # few examples may make most of the loss
            batch = batch[_spread(Scorer(model, task, batch).each(Circuit.empty(task)))]
        self.model, self.task, self.batch, self.other = model, task, batch, other
        ends = [*(count for count in _PARTS if count < len(batch)), len(batch)]
        self.stages = [
            Scorer(model, task, batch[start:end]) for start, end in zip([0, *ends], ends)
        ]
        self.known: dict[Circuit, bool] = {}  # whether a circuit holds
        self.holding: list[Circuit] = []  # those that do, in the order in which they were tried
        self.scored: dict[Circuit, list[Float[Tensor, " part"]]] = {}  # losses, stage by stage
        self.empty = self.stages[0].empty_circuit
        intact = self._first_losses(self.empty, len(self.stages))
        self.uninformed = uninformed_loss(model, task, batch, self.losses)
        self.bar = Bar(task, intact, self.uninformed.loss, tolerance)
        for stage in self.stages if self.fast else []:
            stage.kept = stage.runs.base(self.empty)  # frees what the intact run has left
        self._estimates: tuple[Circuit, Attribution] | None = None  # around the last circuit

    @cached_property
    def attention(self) -> Float[Tensor, "layer head dest src"]:
        """The intact model's mean attention by role, where it may attend."""
        means = mean_attention(self.model, self.batch).cpu()
        return allowed_attention(means, self.batch, self.model)

    @property
    def learned(self) -> bool:
        """Whether the intact model does better than one that knows nothing (`has_learned`)."""
        return has_learned(self.losses(self.empty), self.uninformed)

    @property
    def unlearned_text(self) -> str:
        """That the model has not learned the task."""
        intact = float(self.losses(self.empty).mean())
        return unlearned_text(intact, *self.uninformed[:2], self.task.loss_name)

    @property
    def fast(self) -> bool:
        """Whether a run computes only what differs, so that many cost little."""
        return self.stages[0].runs.compute_changes_only

    def holds(self, circuit: Circuit, near: Circuit | None = None) -> bool:
        """Whether the loss is two standard errors below the tolerance, on both sets of examples."""
        if circuit not in self.known:
            holds = self.keeps(circuit, near) and (self.other is None or self.other.keeps(circuit))
            self.known[circuit] = holds
            if holds:
                self.holding.append(circuit)
        return self.known[circuit]

    def keeps(self, circuit: Circuit, near: Circuit | None = None) -> bool:
        """As `holds`, on these examples alone."""
        return self._is_below(circuit, 2.0, near)

    def exceeds(self, circuit: Circuit, near: Circuit | None = None) -> bool:
        """Whether the loss exceeds the tolerance by two standard errors."""
        return not self._is_below(circuit, -2.0, near)

    def loss(self, circuit: Circuit, stages: int = 2, near: Circuit | None = None) -> float:
        """The mean loss on the first 16 examples (1 stage), 64 (2), 192 (3) or all."""
        return float(self._first_losses(circuit, stages, near).mean())

    def losses(self, circuit: Circuit) -> Float[Tensor, " batch"]:
        """The loss of every example."""
        return self._first_losses(circuit, len(self.stages))

    def changes(self, circuit: Circuit) -> "Attribution | MeasuredChanges":
        """What other mechanisms do to a circuit's loss: estimated, or measured on few examples."""
        if self._estimates is None or self._estimates[0] != circuit:
            try:
                estimates = attribute(self.model, self.task, self.batch[:_ESTIMATED], circuit)
            except InputError:  # the loss has no gradient, or none that is finite
                return MeasuredChanges(self, circuit)
            self._estimates = circuit, estimates
        return self._estimates[1]

    def _first_losses(
        self, circuit: Circuit, stages: int, near: Circuit | None = None
    ) -> Float[Tensor, " few"]:
        """Each example's loss, on those of the first stages."""
        known = self.scored.setdefault(circuit, [])
        for number, stage in enumerate(self.stages[len(known) : stages], len(known)):
            self.deadline.check()
            if near is not None and number < len(self.scored.get(near, [])):
                stage.rebase(near)
            known.append(stage.each(circuit))
        return torch.cat(known[:stages])

    def _is_below(self, circuit: Circuit, errors: float, near: Circuit | None) -> bool:
        """Whether the loss, with so many standard errors added, is below the tolerance.

        The first examples decide if all of them would do otherwise only by a chance of two
        standard errors. Where errors are taken away, that a loss is above the tolerance is a claim:
        then it is three, and from 64 examples on they decide that it is below, too.
        """
        for stages in range(1, len(self.stages)):
            losses = self._first_losses(circuit, stages, near)
            seen = len(losses) / len(self.batch)
            doubt, expected = (3 if errors < 0 else 2) * (1 - seen) ** 0.5, errors * seen**0.5
            if self.bar.above(losses, expected - doubt) > 0:
                return False
            if errors < 0 and stages > 1 and self.bar.above(losses, expected + doubt) < 0:
                return True
        return self.bar.above(self._first_losses(circuit, len(self.stages), near), errors) < 0


def _spread(losses: Float[Tensor, " batch"]) -> list[int]:
    """An order in which the first examples have losses like those of all.

    Examples in the order of their losses are taken as counted with reversed binary digits: the
    first, the middle one, those at a quarter and three quarters, and so on.
    """
    ranked, digits = losses.argsort().tolist(), len(losses).bit_length()
    return [ranked[n] for n in sorted(range(len(ranked)), key=lambda n: f"{n:0{digits}b}"[::-1])]


class MeasuredChanges:
    """What another mechanism of one head does to a circuit's loss, on the first examples."""

    def __init__(self, judge: Judge, circuit: Circuit):
        self.judge, self.circuit = judge, circuit

    def change(self, head: Head, mechanism: Mechanism) -> Changed:
        """As of `Attribution`, without a second part."""
        changed = self.judge.loss(self.circuit.replace(head, mechanism), 1, self.circuit)
        return Changed(changed - self.judge.loss(self.circuit, 1), torch.zeros(0))
