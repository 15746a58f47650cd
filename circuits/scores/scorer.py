"""Losses of a model under many circuits.

Each run computes only what differs from a run that is kept (`circuits.runs.make_runs`); the
results equal those of whole runs with hooks.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.hooks.hooked import is_causal
from retrieval_interp.circuits.mechanisms import Where
from retrieval_interp.circuits.runs.fits import (
    check_answers,
    check_batch_fits,
    check_losses,
    check_model_fits,
)
from retrieval_interp.circuits.runs.make_runs import make_runs
from retrieval_interp.circuits.runs.means import mean_loss
from retrieval_interp.tasks import Batch, InputError, Task

Progress = Callable[[Iterable[Any], str], Iterable[Any]]


def no_progress(items: Iterable[Any], what: str) -> Iterable[Any]:
    """Show no progress bar."""
    return items


class Scorer:
    """Losses of one model on one batch under many circuits."""

    def __init__(self, model: Any, task: Task, batch: Batch):
        check_model_fits(model, batch, task)
        check_batch_fits(batch, task)
        self.model, self.task, self.batch = model, task, batch
        self.where = Where.of(batch, is_causal(model))
        self.runs = make_runs(model, batch, task)
        self.base = self.runs.base(self.empty_circuit)
        outputs = self.runs.outputs(self.base.circuit, self.base)
        check_answers(task, batch, outputs)
        self.base_losses = self._losses(outputs)
        if not bool(torch.isfinite(self.base_losses).all()):
            raise InputError(
                "scoring: expected finite losses of the intact model, found NaN or infinity; its "
                "weights are broken"
            )

    @property
    def empty_circuit(self) -> Circuit:
        """The circuit that leaves every head as it is."""
        return Circuit.empty(self.task)

    def rebase(self, circuit: Circuit) -> float:
        """Run a circuit, keep what later runs can reuse, and return its loss.

        Raises:
            InputError: the circuit does not fit the model or the batch.
        """
        self._check(circuit)
        base = self.runs.base(circuit, self.base)
        losses = self._losses(self.runs.outputs(circuit, base))
        self.base, self.base_losses = base, losses
        return mean_loss(self.base_losses)

    def losses(self, circuit: Circuit) -> Float[Tensor, "batch target"]:
        """The loss of every example and asked symbol, with a circuit in place.

        Raises:
            InputError: the circuit does not fit the model or the batch.
        """
        self._check(circuit)
        return self._losses(self.runs.outputs(circuit, self.base))

    def each(self, circuit: Circuit) -> Float[Tensor, " batch"]:
        """The loss of every example, the mean over what is asked."""
        return self.losses(circuit).mean(dim=1)

    def _check(self, circuit: Circuit) -> None:
        circuit.check_fits(self.model.cfg.n_layers, self.model.cfg.n_heads)
        circuit.check_roles(self.task)
        for mechanism in circuit.mechanisms.values():
            self.where.check(mechanism.paths, names=circuit.role_names)

    def loss(self, circuit: Circuit) -> float:
        """The mean of `losses`, by `mean_loss`."""
        return mean_loss(self.losses(circuit))

    def _losses(self, outputs: Tensor) -> Float[Tensor, "batch target"]:
        # Otherwise half-precision losses would be averaged in half precision.
        outputs = outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs
        losses = self.task.example_losses(outputs, self.batch)
        check_losses(losses, self.batch)
        return losses


def is_unlearned(loss: float, task: Task) -> bool:
    """Whether a model does no better than guessing among the candidates.

    The paper calls a run unlearned above 0.7, where such a guess gives 0.75 (section 7.2).
    """
    return task.plateau is not None and loss > task.plateau * 0.7 / 0.75
