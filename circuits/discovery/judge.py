"""Whether circuits hold the loss, decided by exact losses; and what to try first, estimated.

A circuit that is far off after some examples is not run on the rest.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from time import monotonic
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.attribution import Attribution, Changed, attribute
from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.losses import Scorer
from retrieval_interp.circuits.means import allowed_attention, mean_attention
from retrieval_interp.circuits.mechanisms import Mechanism
from retrieval_interp.circuits.paths import Head
from retrieval_interp.circuits.tolerance import Bar, has_learned, uninformed_loss, unlearned_text
from retrieval_interp.tasks import Batch, InputError, Task

_LOOKS = (16, 64, 192)  # examples after which a circuit may be given up
_ESTIMATED = 64  # examples of estimates


class OutOfTime(Exception):
    """The time of a search is over."""


class Deadline:
    """When the time of a search is over, in seconds of `time.monotonic`."""

    at = math.inf

    def check(self, *_: Any) -> None:
        """Raise OutOfTime if it is over."""
        if monotonic() > self.at:
            raise OutOfTime

    @contextmanager
    def of_passes(self, model: Any) -> Iterator[None]:
        """Check it before every block of a model, as a single pass may take long."""
        handles = [block.register_forward_pre_hook(self.check) for block in model.blocks]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


class Judge:
    """Decides which circuits hold on one set of examples, and remembers.

    The best of many that hold may hold by chance, so `other` judges on other examples what does.
    After the deadline it measures nothing and raises OutOfTime.
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
        ends = [*(count for count in _LOOKS if count < len(batch)), len(batch)]
        self.parts = [Scorer(model, task, batch[start:end]) for start, end in zip([0, *ends], ends)]
        self.known: dict[Circuit, bool] = {}
        self.holding: list[Circuit] = []  # those that are known to hold, as they were found
        self.scored: dict[Circuit, list[Float[Tensor, " part"]]] = {}  # losses, part by part
        self._near = self.empty = self.parts[0].empty_circuit
        intact = self._losses_of(self.empty, len(self.parts))
        self.uninformed = uninformed_loss(model, task, batch, self.losses)
        self.bar = Bar(task, intact, self.uninformed.loss, tolerance)
        for part in self.parts if self.fast else []:
            part.kept = part.runs.base(self.empty)  # frees what the intact run has left
        self._kept: tuple[Circuit, Attribution] | None = None

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
    def most(self) -> float:
        """Halfway from the tolerance to knowing nothing; it does not matter who loses more."""
        return (self.bar.loss + self.uninformed.loss) / 2

    @property
    def fast(self) -> bool:
        """Whether a run computes only what differs, so that many cost little."""
        return self.parts[0].runs.compute_changes_only

    def around(self, circuit: Circuit) -> "Judge":
        """This judge for the neighbours of a circuit, of which only what differs from it is run."""
        self._near = circuit
        return self

    def holds(self, circuit: Circuit) -> bool:
        """Whether the loss stays two standard errors below the tolerance (`Bar`), twice."""
        if circuit not in self.known:
            holds = self.keeps(circuit)
            if holds and self.other is not None:
                holds = self.other.keeps(circuit)
            self.known[circuit] = holds
            if holds:
                self.holding.append(circuit)
        return self.known[circuit]

    def keeps(self, circuit: Circuit) -> bool:
        """As `holds`, on these examples alone, of any circuit."""
        return self._is_below(circuit, 2.0)

    def exceeds(self, circuit: Circuit) -> bool:
        """Whether the loss exceeds the tolerance by two standard errors."""
        return not self._is_below(circuit, -2.0)

    def loss(self, circuit: Circuit, parts: int = 2) -> float:
        """The loss on the first parts of the examples, 64 by default."""
        return float(self._losses_of(circuit, parts).mean())

    def changes(self, circuit: Circuit) -> "Attribution | MeasuredChanges":
        """What other mechanisms do to a circuit's loss: estimated, or measured on few examples."""
        if self._kept is None or self._kept[0] != circuit:
            try:
                few = self.batch[:_ESTIMATED]
                self._kept = circuit, attribute(self.model, self.task, few, circuit)
            except InputError:  # the loss has no gradient, or none that is finite
                return MeasuredChanges(self, circuit)
        return self._kept[1]

    def _losses_of(self, circuit: Circuit, parts: int) -> Float[Tensor, " few"]:
        """Each example's loss, on the first parts of the examples."""
        seen = self.scored.setdefault(circuit, [])
        near = len(self.scored.get(self._near, []))  # parts on which the one near it was run
        for number, part in enumerate(self.parts[len(seen) : parts], len(seen)):
            self.check_time()
            if number < near:
                part.rebase(self._near)
            seen.append(part.each(circuit))
        return torch.cat(seen[:parts])

    def check_time(self) -> None:
        """Raise OutOfTime after the deadline."""
        self.deadline.check()

    def losses(self, circuit: Circuit) -> Float[Tensor, " batch"]:
        """The loss of every example."""
        return self._losses_of(circuit, len(self.parts))

    def _is_below(self, circuit: Circuit, errors: float) -> bool:
        """Whether the loss, with so many standard errors added, is below the tolerance.

        The first examples decide if all of them would do otherwise only by a chance of two
        standard errors. With errors taken away, where "above" is a claim, it is three, and all but
        the first look decide that it is below.
        """
        for parts in range(1, len(self.parts)):
            losses = self._losses_of(circuit, parts)
            seen = len(losses) / len(self.batch)
            doubt, expected = (3 if errors < 0 else 2) * (1 - seen) ** 0.5, errors * seen**0.5
            if self.bar.above(losses, expected - doubt) > 0:
                return False
            if errors < 0 and parts > 1 and self.bar.above(losses, expected + doubt) < 0:
                return True
        return self.bar.above(self.losses(circuit), errors) < 0


def _spread(losses: Float[Tensor, " batch"]) -> list[int]:
    """An order in which the first examples have losses like those of all."""
    ranked, digits = losses.argsort().tolist(), len(losses).bit_length()
    return [ranked[n] for n in sorted(range(len(ranked)), key=lambda n: f"{n:0{digits}b}"[::-1])]


class MeasuredChanges:
    """What another mechanism of one head does to a circuit's loss, on the first examples."""

    def __init__(self, judge: Judge, circuit: Circuit):
        self.judge, self.circuit = judge, circuit

    def change(self, head: Head, mechanism: Mechanism) -> Changed:
        """As of `Attribution`, without a second part."""
        near, trial = self.judge.around(self.circuit), self.circuit.replace(head, mechanism)
        return Changed(near.loss(trial, 1) - near.loss(self.circuit, 1), torch.zeros(0))
