"""What a loss means: the loss of a model that knows nothing, and the tolerance of a circuit."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.hooks import HookedModel, heads_of
from retrieval_interp.circuits.losses import standard_error
from retrieval_interp.circuits.mechanisms import UNIFORM
from retrieval_interp.tasks import Batch, Task
from retrieval_interp.tasks.structured import check_tolerance

ExampleLosses = Float[Tensor, " batch"]  # the loss of every example
KEPT = 0.95  # share of what was learned that a circuit has to keep, where a task has no tolerance
_RELEVANT = 0.01  # share of what was learned; losses that differ by less count as equal


class Uninformed(NamedTuple):
    """The loss of a model that knows nothing."""

    loss: float
    description: str  # what such a model is, such as "every head uniform"
    by_example: ExampleLosses


def measure_uninformed(
    model: HookedModel, task: Task, batch: Batch, losses: Callable[[Circuit], ExampleLosses]
) -> Uninformed:
    """Return the task's plateau, or the loss of the best constant output, or of uniform heads.

    The lower of the last two; but if this model loses nothing with every head uniform, it attends
    uniformly anyway, and the constant counts. `losses` measures the model with a circuit in place.
    """
    if task.plateau is not None:
        guessing = torch.full((len(batch),), task.plateau, device=batch.inputs.device)
        return Uninformed(task.plateau, "the task's plateau", guessing)
    empty = Circuit.empty(task)
    uniform = losses(replace(empty, mechanisms=dict.fromkeys(heads_of(model), UNIFORM)))
    rise = uniform - losses(empty)
    rises = float(rise.mean()) > 2 * standard_error(rise)
    constant = constant_losses(task, batch, model.cfg.d_vocab_out)
    if constant.mean() < uniform.mean() or not rises:
        return Uninformed(float(constant.mean()), "the best constant output", constant)
    return Uninformed(float(uniform.mean()), "every head uniform", uniform)


@torch.enable_grad()
def constant_losses(task: Task, batch: Batch, d_out: int) -> ExampleLosses:
    """Return the losses of the best output that is the same everywhere, or of zeros if lower.

    The output is fitted on each half of the examples and measured on the other.
    """
    zeros = torch.zeros(d_out, device=batch.inputs.device)
    of_zeros = _constant_losses(task, batch, zeros).mean(dim=1)
    first, second = batch.parts(-(-len(batch) // 2)) if len(batch) > 1 else (batch, batch)
    try:
        fits = [_fitted(task, fitted, zeros) for fitted in (second, first)]
    except RuntimeError:  # the loss has no gradient
        return of_zeros
    parts = [_constant_losses(task, part, fit) for part, fit in zip((first, second), fits)]
    return min(of_zeros, torch.cat(parts)[: len(batch)].mean(dim=1), key=torch.mean)


def _fitted(task: Task, batch: Batch, start: Float[Tensor, " d_out"]) -> Float[Tensor, " d_out"]:
    """Fit the constant output with the lowest loss on a batch, given a standard normal prior."""
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
    asked = batch.roles.shape[1] * len(task.scored_roles) or batch.inputs.shape[1]
    return task.example_losses(output.expand(len(batch), asked, -1), batch)


def kept_share(loss: float, intact: float, uninformed: float) -> float:
    """Return the share of what was learned that is kept; NaN if nothing was learned."""
    learned = uninformed - intact
    return (uninformed - loss) / learned if learned > 0 else float("nan")


def is_better(loss: float, se: float, intact: float, uninformed: float) -> bool:
    """Whether a loss is below the intact model's by two standard errors and 1% of what was learned.

    `se` is the standard error of the difference.
    """
    learned, gain = uninformed - intact, intact - loss
    return learned > 0 and gain > max(2 * se, _RELEVANT * learned)


def tolerance_of(task: Task, intact: float, uninformed: float) -> float:
    """Return the task's tolerance, or the loss at which 95% of what was learned is kept."""
    return uninformed - KEPT * (uninformed - intact) if task.tolerance is None else task.tolerance


def has_learned(intact: ExampleLosses, uninformed: Uninformed) -> bool:
    """Whether a model does better than one that knows nothing, by two standard errors.

    The standard error is that of the difference, example by example.
    """
    lead = uninformed.by_example - intact
    return float(lead.mean()) > 2 * standard_error(lead)


def unlearned_text(intact: float, uninformed: float, description: str, loss_name: str) -> str:
    """Say that a model has not learned the task; `description` names the one that knows nothing."""
    return (
        f"The model has not learned the task: its {loss_name} of {intact:.4f} is not clearly below "
        f"that of knowing nothing, {uninformed:.4f} ({description})."
    )


class Limit:
    """The loss that circuits must stay below: the tolerance, or that of knowing nothing if lower.

    If no tolerance is stated, it depends on the intact model's loss on the same examples. Standard
    errors then are those of the excess over the intact model, example by example.
    """

    def __init__(
        self, task: Task, intact: ExampleLosses, uninformed: float, tolerance: float | None
    ):
        check_tolerance(tolerance)
        relative = tolerance is None and task.tolerance is None
        if tolerance is None:
            tolerance = tolerance_of(task, float(intact.mean()), uninformed)
        self.tolerance, self.loss = tolerance, min(tolerance, uninformed)
        self._subtracted = intact if relative else torch.zeros_like(intact)

    def excess(self, losses: Float[Tensor, " few"], errors: float = 0.0) -> float:
        """Return the mean loss plus some standard errors, minus the limit; below 0 is below it.

        Of all examples, or the first.
        """
        rise = losses - self._subtracted[: len(losses)]
        allowed = self.loss - float(self._subtracted.mean())
        return float(rise.mean()) + errors * standard_error(rise) - allowed

    def clearly_above(self, losses: Float[Tensor, " few"]) -> bool | None:
        """Whether losses are above the limit, or below (False), by two standard errors; or None."""
        if self.excess(losses, -2.0) > 0:
            return True
        return False if self.excess(losses, 2.0) < 0 else None
