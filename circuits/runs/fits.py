"""Whether a model, a batch and a task fit each other."""

from typing import Any

from tasks import Batch, InputError, Task, TrainingTask, role_name


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
