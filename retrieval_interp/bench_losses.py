"""What a workbench measures on its examples: the losses of circuits, and what to compare them with.

All of it belongs to one set of examples: a bench that asks something else makes a new one.
"""

from functools import cached_property
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits import Circuit, Scorer, mean_attention
from retrieval_interp.circuits.counterfactual.units import keep_units
from retrieval_interp.circuits.fits import sample_batch
from retrieval_interp.circuits.hooks import HookedModel, hook_points, versions
from retrieval_interp.circuits.losses import standard_error
from retrieval_interp.circuits.means import allowed_attention
from retrieval_interp.circuits.replacement import with_counterfactual
from retrieval_interp.circuits.tolerance import (
    Uninformed,
    has_learned,
    is_better,
    measure_uninformed,
    tolerance_of,
    unlearned_text,
)
from retrieval_interp.tasks import Batch, InputError, Task
from retrieval_interp.tasks.words.given_texts import PairsTask


class Step(NamedTuple):
    """A circuit that was supposed, and what it loses."""

    circuit: Circuit
    loss: float
    se: float  # standard error of the loss
    better: bool  # than the intact model (`is_better`)


class BenchLosses:
    """The losses of circuits on `examples` examples of the `test` split, drawn by `seed`.

    `stated` is the tolerance that was stated, or None if it depends on the examples.
    """

    def __init__(
        self, model: HookedModel, task: Task, examples: int, seed: int, stated: float | None
    ):
        self.model, self.task, self.examples, self.seed = model, task, examples, seed
        self.stated = stated
        device = next(model.parameters()).device
        batch = sample_batch(task, examples, seed, device, "test")
        self._plain_scorer = Scorer(model, task, batch)
        self.intact_by_example = self._plain_scorer.base_losses.mean(dim=1)
        self.intact = self.measure(self._plain_scorer.empty_circuit)
        self._model_measured = _fingerprint(model)

    def check_unchanged(self) -> None:
        """Refuse a model that is not as it was when its examples were first measured."""
        if _fingerprint(self.model) != self._model_measured:
            raise InputError(
                "expected the model as it was opened, found other weights or hooks; open it again"
            )

    @property
    def plain_batch(self) -> Batch:
        """The examples, without the attention on counterfactual prompts."""
        return self._plain_scorer.batch

    @cached_property
    def counterfactual(self) -> Batch:
        """The counterfactual prompts of the examples."""
        if isinstance(self.task, PairsTask):
            device = self.plain_batch.inputs.device
            return self.task.with_others(self.examples, device, "test")[1]
        return self.task.counterfactual(self.plain_batch, self.seed)

    @cached_property
    def _counterfactual_scorer(self) -> Scorer:
        """The scorer of the same examples with the counterfactuals' attention; it is slower."""
        batch = with_counterfactual(self.model, self.plain_batch, self.counterfactual)
        return Scorer(self.model, self.task, batch)

    def scorer_for(self, circuit: Circuit) -> Scorer:
        """Return the scorer that has what a circuit needs."""
        return self._counterfactual_scorer if circuit.is_patched else self._plain_scorer

    def loss(self, circuit: Circuit) -> float:
        """Measure a circuit once."""
        return self.scorer_for(circuit).loss(circuit)

    def measure(self, circuit: Circuit) -> Step:
        """Run a circuit as the base of later runs (`Scorer.losses`), and return its loss."""
        scorer = self.scorer_for(circuit)
        losses = scorer.losses(circuit, as_base=True).mean(dim=1)
        loss = float(losses.mean())
        gain, intact = self.intact_by_example - losses, float(self.intact_by_example.mean())
        better = float(gain.mean()) > 2 * standard_error(gain)
        better = better and is_better(loss, 0.0, intact, self.uninformed.loss)
        return Step(circuit=circuit, loss=loss, se=standard_error(losses), better=better)

    @cached_property
    def lost_with_none_kept(self) -> Float[Tensor, " batch"]:
        """By how much the loss rises with all heads patched from the counterfactual prompts."""
        none_kept = keep_units(self._plain_scorer.empty_circuit, self._plain_scorer.heads, ())
        losses = self._counterfactual_scorer.losses_by_example(none_kept)
        return losses - self.intact_by_example

    @cached_property
    def tolerance(self) -> float:
        """The loss that a working circuit stays below."""
        if self.stated is not None:
            return self.stated
        return tolerance_of(self.task, self.intact.loss, self.uninformed.loss)

    @cached_property
    def uninformed(self) -> Uninformed:
        """The loss of a model that knows nothing."""
        losses = self._plain_scorer.losses_by_example
        return measure_uninformed(self.model, self.task, self.plain_batch, losses)

    @cached_property
    def unlearned_text(self) -> str:
        """The sentence that the model has not learned the task; empty if it has."""
        if has_learned(self.intact_by_example, self.uninformed):
            return ""
        loss, description, _ = self.uninformed
        return unlearned_text(self.intact.loss, loss, description, self.task.loss_name)

    @cached_property
    def intact_attention(self) -> Float[Tensor, "layer head dest src"]:
        """Mean attention by role of the intact model, on the CPU; 0 along paths that are masked."""
        attention = mean_attention(self.model, self.plain_batch).cpu()
        return allowed_attention(attention, self.plain_batch, self.model)


def _fingerprint(model: HookedModel) -> tuple[Any, ...]:
    """Return the model's hooks, and counters that change when a weight is written to."""
    points = hook_points(model).values()
    hooked = tuple(id(point) for point in points if point.has_hooks())
    return hooked, versions(model.parameters())
