"""Losses of a model under many circuits, equal to those of whole runs with hooks."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.circuit import Circuit, Head, HeadPath
from retrieval_interp.circuits.counterfactual.mechanism import keeps_some
from retrieval_interp.circuits.hooks import where_by_layer
from retrieval_interp.circuits.mechanisms import UNIFORM, OneHot
from retrieval_interp.circuits.runs import fits
from retrieval_interp.circuits.runs.means import mean_loss, standard_error
from retrieval_interp.circuits.runs.runs import make_runs
from retrieval_interp.tasks import Batch, InputError, Task
from retrieval_interp.tasks.structured import check_tolerance

Progress = Callable[[Iterable[Any], str], Iterable[Any]]
Cut = HeadPath | tuple[HeadPath, ...] | Head  # a path, several at once, or all of a head
SomeCut = TypeVar("SomeCut", bound=Cut)
Each = Float[Tensor, " batch"]  # the loss of every example


def no_progress(items: Iterable[Any], what: str) -> Iterable[Any]:
    """Show no progress bar."""
    return items


def heads_of(model: Any) -> list[Head]:
    """All heads of a model, by layer."""
    layers, heads = range(model.cfg.n_layers), range(model.cfg.n_heads)
    return [Head(layer, head) for layer in layers for head in heads]


class Measured(NamedTuple):
    """A mean loss over examples, and its standard error."""

    loss: float
    se: float

    @classmethod
    def of(cls, losses: Tensor) -> "Measured":
        """From the loss of each example, or of each of its asked symbols."""
        each = losses.mean(dim=1) if losses.ndim > 1 else losses
        return cls(float(each.mean()), standard_error(each))


class Scorer:
    """Losses of one model on one batch under many circuits."""

    def __init__(self, model: Any, task: Task, batch: Batch):
        fits.check_model_fits(model, batch, task)
        fits.check_batch_fits(batch, task)
        self.model, self.task, self.batch = model, task, batch
        self.heads = heads_of(model)
        self.runs = make_runs(model, batch, task)
        self.where = where_by_layer(model, batch)
        self.kept = self.runs.base(self.empty_circuit)
        outputs = self.runs.outputs(self.base, self.kept)
        fits.check_answers(task, batch, outputs)
        self.base_losses = self._losses(outputs)
        if not bool(torch.isfinite(self.base_losses).all()):
            raise InputError(
                "scoring: expected finite losses of the intact model, found NaN or infinity; its "
                "weights are broken"
            )

    @property
    def base(self) -> Circuit:
        """The circuit of the run that is kept."""
        return self.kept[0].circuit

    @property
    def empty_circuit(self) -> Circuit:
        """The circuit that leaves every head as it is."""
        return Circuit.empty(self.task)

    def rebase(self, circuit: Circuit) -> float:
        """Run a circuit, keep what later runs can reuse, and return its loss."""
        if circuit != self.base:
            self._check(circuit)
            kept = self.runs.base(circuit, self.kept)
            losses = self._losses(self.runs.outputs(circuit, kept))
            self.kept, self.base_losses = kept, losses
        return mean_loss(self.base_losses)

    def losses(self, circuit: Circuit) -> Float[Tensor, "batch target"]:
        """The loss of every example and asked symbol, with a circuit in place."""
        self._check(circuit)
        return self._losses(self.runs.outputs(circuit, self.kept))

    def each(self, circuit: Circuit) -> Each:
        """The loss of every example, the mean over what is asked."""
        return self.losses(circuit).mean(dim=1)

    def loss(self, circuit: Circuit) -> float:
        """The mean of `losses`, by `mean_loss`."""
        return mean_loss(self.losses(circuit))

    def _check(self, circuit: Circuit) -> None:
        circuit.check_fits(self.model.cfg.n_layers, self.model.cfg.n_heads)
        circuit.check_roles(self.task)
        for head, mechanism in circuit.mechanisms.items():
            self.where[head.layer].check(mechanism.paths, f"{head}: ", circuit.role_names)
        if keeps_some(circuit) and self.batch.counterfactual is None:
            raise InputError("circuit: expected a batch with a counterfactual, found one without")

    def _losses(self, outputs: Tensor) -> Float[Tensor, "batch target"]:
        # Otherwise half-precision losses would be averaged in half precision.
        outputs = outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs
        losses = self.task.example_losses(outputs, self.batch)
        fits.check_losses(losses, self.batch)
        return losses


def with_cut(circuit: Circuit, cut: Cut) -> Circuit:
    """A circuit with one more path cut, or several, or with all attention of a head at zero."""
    if isinstance(cut, Head):
        return circuit.replace(cut, OneHot(()))
    return circuit.cut(*((cut,) if isinstance(cut, HeadPath) else cut))


def all_but_one(paths: tuple[HeadPath, ...]) -> list[tuple[HeadPath, ...]]:
    """All of them except the first, then all except the second, and so on."""
    return [tuple(other for other in paths if other != path) for path in paths]


def cut_losses(
    scorer: Scorer, cuts: Sequence[SomeCut], progress: Progress = no_progress
) -> Iterator[tuple[SomeCut, Float[Tensor, "batch target"]]]:
    """Cut each path, or set of paths, in the intact model: what it carries, or enables.

    Its attention is set to zero, its row is not rescaled, and all later attention is recomputed.
    """
    empty = scorer.empty_circuit
    for cut in progress(cuts, "cutting paths"):
        yield cut, scorer.losses(with_cut(empty, cut))


def removed_losses(
    scorer: Scorer, circuit: Circuit, progress: Progress = no_progress
) -> Iterator[tuple[HeadPath, Float[Tensor, "batch target"]]]:
    """Remove each path from a circuit, in which all attention is fixed: what the path carries."""
    scorer.rebase(circuit)
    for path in progress(list(circuit.paths()), "removing paths"):
        yield path, scorer.losses(circuit.without(path))


KEPT = 0.95
_RELEVANT = 0.01  # of what was learned; losses that differ by less are as good


class Uninformed(NamedTuple):
    """The loss of a model that knows nothing, what such a model is, and each example's loss."""

    loss: float
    what: str
    each: Each


def uninformed_loss(
    model: Any, task: Task, batch: Batch, losses: Callable[[Circuit], Each]
) -> Uninformed:
    """The task's plateau, or the better of the best constant output and of every head uniform.

    A model that loses nothing with every head uniform attends uniformly already; then the constant
    counts. `losses` gives the model's loss on each example with a circuit in place.
    """
    if task.plateau is not None:
        guessing = torch.full((len(batch),), task.plateau, device=batch.inputs.device)
        return Uninformed(task.plateau, "the task's plateau", guessing)
    empty = Circuit.empty(task)
    blind = losses(replace(empty, mechanisms=dict.fromkeys(heads_of(model), UNIFORM)))
    rise = blind - losses(empty)
    lost = float(rise.mean()) > 2 * standard_error(rise)
    constant = constant_losses(task, batch, model.cfg.d_vocab_out)
    if constant.mean() < blind.mean() or not lost:
        return Uninformed(float(constant.mean()), "the best constant output", constant)
    return Uninformed(float(blind.mean()), "every head uniform", blind)


@torch.enable_grad()
def constant_losses(task: Task, batch: Batch, d_out: int) -> Each:
    """The losses of the best output that is the same everywhere, or of zeros, a guess.

    It is fitted on each half of the examples and measured on the other one.
    """
    zeros = torch.zeros(d_out, device=batch.inputs.device)
    guess = _constant_losses(task, batch, zeros).mean(dim=1)
    one, other = batch.parts(-(-len(batch) // 2)) if len(batch) > 1 else (batch, batch)
    try:
        fits = [_fitted(task, fitted, zeros) for fitted in (other, one)]
    except RuntimeError:  # there is nothing to differentiate
        return guess
    parts = [_constant_losses(task, part, fit) for part, fit in zip((one, other), fits)]
    return min(guess, torch.cat(parts)[: len(batch)].mean(dim=1), key=torch.mean)


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


def is_better(loss: float, se: float, intact: float, uninformed: float) -> bool:
    """Whether a loss is clearly below the intact model's, and by enough to matter.

    By two standard errors (`se` is that of the difference) and by 1% of what the model has learned.
    """
    learned, gain = uninformed - intact, intact - loss
    return learned > 0 and gain > max(2 * se, _RELEVANT * learned)


def tolerance_of(task: Task, intact: float, uninformed: float) -> float:
    """The loss that a working circuit stays below: the task's, or that which keeps 95%."""
    return uninformed - KEPT * (uninformed - intact) if task.tolerance is None else task.tolerance


def has_learned(intact: Each, uninformed: Uninformed) -> bool:
    """Whether a model does better than one that knows nothing, by two standard errors.

    They are of the difference, example by example.
    """
    ahead = uninformed.each - intact
    return float(ahead.mean()) > 2 * standard_error(ahead)


def unlearned_text(intact: float, nothing: float, what: str, loss_name: str) -> str:
    """That a model with this loss, where `what` knows nothing, has not learned the task."""
    return (
        f"The model has not learned the task: its {loss_name} of {intact:.4f} is not clearly below "
        f"that of knowing nothing, {nothing:.4f} ({what})."
    )


class Bar:
    """The tolerance, or the loss of knowing nothing if it is lower; others are compared with it.

    Where no one has stated a tolerance, the intact model sets it on the same examples, and the
    error is that of the excess over the intact model, example by example.
    """

    def __init__(self, task: Task, intact: Each, uninformed: float, tolerance: float | None):
        check_tolerance(tolerance)
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
