"""Losses of a model under many circuits.

Each run computes only what differs from a run that is kept (`circuits.runs.hook_runs`); the results
equal those of whole runs with hooks.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuits.attention import check_paths
from circuits.circuit import Circuit
from circuits.hooks.points import is_causal
from circuits.runs.hook_runs import make_runs
from tasks import Batch, InputError, Task, TrainingTask, role_name

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
        self.runs = make_runs(model, batch, task)
        self.base_losses = self._losses(self.runs.outputs(self.runs.base))
        if self.base_losses.ndim != 2 or len(self.base_losses) != len(batch):
            raise InputError(
                f"task: expected example_losses of shape [{len(batch)}, asked], found "
                f"{list(self.base_losses.shape)}"
            )
        if not bool(torch.isfinite(self.base_losses).all()):
            raise InputError(
                "scoring: expected finite losses of the intact model, found NaN or infinity; its "
                "weights are broken"
            )

    @property
    def empty_circuit(self) -> Circuit:
        """The circuit that leaves every head as it is."""
        return Circuit({}, len(self.task.role_names), task=self.task.to_dict())

    def rebase(self, circuit: Circuit) -> float:
        """Run a circuit, keep what later runs can reuse, and return its loss.

        Raises:
            InputError: the circuit does not fit the model or the batch.
        """
        self._check(circuit)
        self.base_losses = self._losses(self.runs.rebase(circuit))
        return mean_loss(self.base_losses)

    def losses(self, circuit: Circuit) -> Float[Tensor, "batch target"]:
        """The loss of every example and asked symbol, with a circuit in place.

        Raises:
            InputError: the circuit does not fit the model or the batch.
        """
        self._check(circuit)
        return self._losses(self.runs.outputs(circuit))

    def _check(self, circuit: Circuit) -> None:
        circuit.check_fits(self.model.cfg.n_layers, self.model.cfg.n_heads)
        if circuit.n_roles != len(self.task.role_names):
            raise InputError(
                f"circuit: expected one for the task's {len(self.task.role_names)} roles, found "
                f"one for {circuit.n_roles}"
            )
        for mechanism in circuit.mechanisms.values():
            check_paths(mechanism.paths, self.batch.roles, is_causal(self.model))

    def loss(self, circuit: Circuit) -> float:
        """The mean of `losses`, by `mean_loss`."""
        return mean_loss(self.losses(circuit))

    def _losses(self, outputs: Tensor) -> Float[Tensor, "batch target"]:
        # Otherwise half-precision losses would be averaged in half precision.
        outputs = outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs
        return self.task.example_losses(outputs, self.batch)


def check_batch_fits(batch: Batch, task: Task) -> None:
    """Check that a batch belongs to a task, and that the task names its roles.

    Raises:
        InputError: saying what is wrong.
    """
    names, roles = task.role_names, batch.roles
    if tuple(names) != tuple(map(role_name, range(len(names)))) or not names:
        raise InputError(
            f"task: expected role_names s0, s1, ... (role_labels are for people), found "
            f"{', '.join(map(str, names)):.80}"
        )
    if len(task.role_labels) != len(names) or len(task.role_symbols) != len(names):
        raise InputError(f"task: expected a label and a symbol for each of {len(names)} roles")
    if roles.ndim != 3 or roles.is_floating_point() or not all(roles.shape):
        raise InputError(
            f"batch: expected roles as whole numbers of shape [batch, chain, role], found "
            f"{str(roles.dtype).removeprefix('torch.')} of {list(roles.shape)}"
        )
    if roles.shape[-1] != len(names):
        raise InputError(
            f"expected a batch with the task's {len(names)} roles, s0 to {names[-1]}, found one "
            f"with {roles.shape[-1]}"
        )
    if (
        len(roles) != len(batch)
        or not 0 <= int(roles.min()) <= int(roles.max()) < (batch.inputs.shape[1])
    ):
        raise InputError(
            f"batch: expected roles of {len(batch)} examples at positions 0 to "
            f"{batch.inputs.shape[1] - 1}, found {len(roles)} at {int(roles.min())} to "
            f"{int(roles.max())}"
        )


def mean_loss(losses: Float[Tensor, "batch target"]) -> float:
    """The mean over targets, then over examples; the same everywhere, so equal runs score equal."""
    return float(losses.mean(dim=1).mean())


def standard_error(losses: Float[Tensor, " batch"]) -> float:
    """The standard error of the mean over n examples, s / √n; 0 for a single one."""
    return float(losses.std()) / len(losses) ** 0.5 if len(losses) > 1 else 0.0


def check_model_fits(model: Any, batch: Batch, task: Task) -> None:
    """Check that a model can read and answer a task.

    Raises:
        InputError: the model's input or output size or type is not the task's, or the model is on
            another device than the batch.
    """
    check_devices(model, batch)
    dtype = next(model.parameters()).dtype
    if batch.inputs.is_floating_point() and batch.inputs.dtype != dtype:
        raise InputError(
            f"expected inputs of the model's type, {dtype}, found {batch.inputs.dtype}; use "
            "model.float()"
        )
    if isinstance(task, TrainingTask) and (model.cfg.d_vocab, model.cfg.d_vocab_out) != (
        task.d_in,
        task.d_out,
    ):
        raise InputError(
            f"expected a model with {task.d_in} inputs and {task.d_out} outputs, as the task has, "
            f"found {model.cfg.d_vocab} and {model.cfg.d_vocab_out}"
        )


def check_devices(model: Any, batch: Batch) -> None:
    """Check that the model and the batch are on the same device.

    Raises:
        InputError: saying what to do.
    """
    device = next(model.parameters()).device
    if device != batch.inputs.device:
        raise InputError(
            f"expected the batch on the model's device, {device}, found it on "
            f"{batch.inputs.device}; use batch.to({str(device)!r})"
        )


def is_unlearned(loss: float, task: Task) -> bool:
    """Whether a model does no better than guessing among the candidates.

    The paper calls a run unlearned above 0.7, where such a guess gives 0.75 (section 7.2).
    """
    return task.plateau is not None and loss > task.plateau * 0.7 / 0.75
