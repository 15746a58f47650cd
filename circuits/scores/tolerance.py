"""How much of what a model has learned a circuit keeps, and how much it has to keep.

With *intact* the model's own loss and *uninformed* the loss of one that knows nothing, a circuit
keeps (uninformed - loss) / (uninformed - intact). A task without a tolerance of its own asks for
95% of that.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.mechanisms import UNIFORM
from retrieval_interp.circuits.runs.means import mean_loss, standard_error
from retrieval_interp.circuits.scores.scorer import Scorer, heads_of, is_unlearned
from retrieval_interp.tasks import Batch, Task

KEPT = 0.95


class Uninformed(NamedTuple):
    """The loss of a model that knows nothing, and what such a model is."""

    loss: float
    what: str


def uninformed_loss(
    model: Any, task: Task, batch: Batch, losses: Callable[[Circuit], Float[Tensor, " batch"]]
) -> Uninformed:
    """The task's plateau, or the better of the best constant output and of every head uniform.

    A model that loses nothing with every head uniform attends uniformly already; then the constant
    counts. `losses` gives the model's loss on each example with a circuit in place.
    """
    if task.plateau is not None:
        return Uninformed(task.plateau, "the task's plateau")
    empty = Circuit.empty(task)
    blind = losses(replace(empty, mechanisms=dict.fromkeys(heads_of(model), UNIFORM)))
    rise = blind - losses(empty)
    lost = float(rise.mean()) > 2 * standard_error(rise)
    constant = constant_loss(task, batch, model.cfg.d_vocab_out)
    if constant < float(blind.mean()) or not lost:
        return Uninformed(constant, "the best constant output")
    return Uninformed(float(blind.mean()), "every head uniform")


@torch.enable_grad()
def constant_loss(task: Task, batch: Batch, d_out: int) -> float:
    """The loss of the best output that is the same at every position of every example.

    It is fitted on each half of the examples and measured on the other one, so that few examples
    do not make it look better than it is. Zeros, a guess among all classes, are tried as well.
    """
    zeros = torch.zeros(d_out, device=batch.inputs.device)
    guess = mean_loss(_constant_losses(task, batch, zeros))
    one, other = batch.parts(-(-len(batch) // 2)) if len(batch) > 1 else (batch, batch)
    try:
        fits = [
            _constant_losses(task, measured, _fitted(task, fitted, zeros)).mean(dim=1)
            for fitted, measured in ((one, other), (other, one))
        ]
    except RuntimeError:  # there is nothing to differentiate
        return guess
    fit = float(torch.cat(fits).mean())
    return fit if fit < guess else guess


def _fitted(task: Task, batch: Batch, start: Float[Tensor, " d_out"]) -> Float[Tensor, " d_out"]:
    """The constant output with the lowest loss on a batch, given a standard normal prior."""
    constant = start.clone().requires_grad_()
    steps = torch.optim.LBFGS([constant], max_iter=40, line_search_fn="strong_wolfe")

    def objective() -> Tensor:
        steps.zero_grad()
        loss = _constant_losses(task, batch, constant).mean()
        loss = loss + constant.square().sum() / (2 * len(batch))
        loss.backward()
        return loss

    steps.step(objective)
    return constant.detach()


def _constant_losses(
    task: Task, batch: Batch, output: Float[Tensor, " d_out"]
) -> Float[Tensor, "batch target"]:
    asked = batch.roles.shape[1] * len(task.answer_roles) or batch.inputs.shape[1]
    return task.example_losses(output.expand(len(batch), asked, -1), batch)


def kept_share(loss: float, intact: float, uninformed: float) -> float:
    """The share of what was learned that is kept; NaN if nothing was learned."""
    learned = uninformed - intact
    return (uninformed - loss) / learned if learned > 0 else float("nan")


def tolerance_of(task: Task, intact: float, uninformed: float) -> float:
    """The loss that a working circuit stays below: the task's, or that which keeps 95%."""
    return uninformed - KEPT * (uninformed - intact) if task.tolerance is None else task.tolerance


def default_tolerance(scorer: Scorer, intact: float) -> float:
    """`tolerance_of` for a scorer's model, task and examples."""
    uninformed = uninformed_loss(scorer.model, scorer.task, scorer.batch, scorer.each)
    return tolerance_of(scorer.task, intact, uninformed.loss)


def has_learned(task: Task, intact: float, uninformed: float) -> bool:
    """Whether the intact model does better than one that knows nothing."""
    return not is_unlearned(intact, task) and intact < uninformed


class Bar:
    """A loss that others are compared with, two standard errors over examples apart.

    Where the tolerance is set by the intact model on the same examples (no one has stated it), the
    error is that of the excess over the intact model, example by example. `loss` is the tolerance,
    or that of a model that knows nothing if it is lower.
    """

    def __init__(
        self,
        task: Task,
        intact: Float[Tensor, " batch"],
        uninformed: float,
        tolerance: float | None,
    ):
        relative = tolerance is None and task.tolerance is None
        if tolerance is None:
            tolerance = tolerance_of(task, float(intact.mean()), uninformed)
        self.tolerance, self.loss = tolerance, min(tolerance, uninformed)
        self._common = intact if relative else torch.zeros_like(intact)

    def above(self, losses: Float[Tensor, " few"], errors: float = 0.0) -> float:
        """How far losses of the first examples, or of all, are above it, plus some errors."""
        rise = losses - self._common[: len(losses)]
        allowed = self.loss - float(self._common.mean())
        return float(rise.mean()) + errors * standard_error(rise) - allowed

    def keeps(self, losses: Float[Tensor, " few"]) -> bool:
        """Whether losses are below it, by two standard errors."""
        return self.above(losses, 2.0) < 0

    def breaks(self, losses: Float[Tensor, " few"]) -> bool:
        """Whether losses are above it, by two standard errors."""
        return self.above(losses, -2.0) > 0

    def side(self, losses: Float[Tensor, " few"]) -> bool | None:
        """Whether losses are above it (True) or below (False); None where that is not clear."""
        return True if self.breaks(losses) else False if self.keeps(losses) else None
