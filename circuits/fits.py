"""Check that a user's model, batch and task fit each other."""

import inspect
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from retrieval_interp.circuits.hooks import HookedModel, is_causal, is_hooked_transformer
from retrieval_interp.circuits.paths import first_real
from retrieval_interp.tasks import Batch, InputError, InputWarning, Split, Task, TrainingTask
from retrieval_interp.tasks.messages import check_type
from retrieval_interp.tasks.structured import check_tolerance
from retrieval_interp.tasks.task import check_role_names

_DRAWN = 16  # examples that tell whether what a task draws depends on split, seed and start
_DEFINED = {  # what a task has to define, and in which form
    "role_names": "role_names = ('s0', 's1'), or names of your own",
    "sample": "sample(n, seed, device, split)",
    "example_losses": "example_losses(outputs, batch)",
}


def sample_batch(task: Task, n: int, seed: int, device: str | torch.device, split: Split) -> Batch:
    """Draw examples of a task, and check them and the task.

    For another split, seed or start a task has to draw other examples: otherwise a circuit would be
    measured on the examples on which it was chosen.
    """
    check_type(task, Task, "task", ", an instance")
    for name, form in _DEFINED.items():
        if getattr(type(task), name) is getattr(Task, name) and name not in vars(task):
            raise InputError(
                f"task: expected {type(task).__name__} to define {form}, found nothing; see ri.Task"
            )
    parameters = inspect.signature(task.sample)
    try:
        parameters.bind(n, seed, device, split=split)
    except TypeError as error:
        raise InputError(
            f"task: expected sample(n, seed, device, split), found sample{parameters}: {error}"
        ) from None
    batch = task.sample(n, seed, device, split=split)
    if not isinstance(batch, Batch) or len(batch) != n:
        returned = f"{len(batch)} of them" if isinstance(batch, Batch) else type(batch).__name__
        raise InputError(
            f"task: expected sample({n}, ...) to return an ri.Batch of {n} examples, with inputs, "
            f"targets and roles, found {returned}"
        )
    check_batch_fits(batch, task)
    changes: dict[str, Any] = {"split": "test"} if task.fixed else {"split": "test", "seed": 1}
    if "start" in parameters.parameters:
        changes["start"] = n
    for option, value in changes.items():  # few examples may be the same by chance
        if all(_draws_same(task, count, device, option, value) for count in (_DRAWN, 4 * _DRAWN)):
            raise InputError(
                f"task: expected sample to draw other examples for another {option}, found the "
                f"same for {option}={value!r}; let what it draws depend on {option}"
            )
    return batch


def _draws_same(task: Task, n: int, device: str | torch.device, option: str, value: Any) -> bool:
    usual: dict[str, Any] = {"seed": 0, "device": device, "split": "discovery"}
    try:
        with warnings.catch_warnings():  # these examples are not used
            warnings.simplefilter("ignore", InputWarning)
            first, second = task.sample(n, **usual), task.sample(n, **usual | {option: value})
    except InputError:
        return False  # the task has too few examples to tell
    return torch.equal(first.inputs, second.inputs) and torch.equal(first.targets, second.targets)


def _shape(value: Any) -> str:
    """`float32 of [8, 13]` for a tensor, the type of anything else."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} of {list(value.shape)}"


def check_losses(losses: Any, batch: Batch) -> None:
    """Check that the losses of a task are floating-point numbers, [batch, asked]."""
    shaped = isinstance(losses, Tensor) and losses.ndim == 2 and len(losses) == len(batch)
    if not shaped or not losses.is_floating_point():
        raise InputError(
            f"task: expected example_losses of shape [{len(batch)}, asked] in floating point, one "
            "row per example and one column if one thing is asked, found " + _shape(losses)
        )


def check_answers(task: Task, batch: Batch, outputs: Tensor) -> None:
    """Check that a task's losses need the outputs at its scored roles alone."""
    example = batch[:1]
    positions = example.roles[:, :, list(task.scored_roles)].flatten(1).clamp(min=0)
    n_positions = example.inputs.shape[1]
    if isinstance(task, TrainingTask) or positions.shape[1] in (0, n_positions):
        return
    generator = torch.Generator().manual_seed(0)
    random_outputs = torch.randn(1, n_positions, outputs.shape[-1], generator=generator).to(outputs)
    whole = task.example_losses(random_outputs, example)
    alone = task.example_losses(random_outputs[:, positions[0]], example)
    if not torch.allclose(alone, whole, 1e-3, 1e-3, equal_nan=True):
        raise InputError(
            "task: expected example_losses to read outputs by self.answers(outputs, batch), as "
            "only those of scored_roles may be computed; without the others found other losses"
        )


def check_batch_fits(batch: Batch, task: Task) -> None:
    """Check that a batch belongs to a task, and that the task names its roles."""
    names, roles, n = task.role_names, batch.roles, len(batch)
    check_role_names(names)
    check_tolerance(task.tolerance, "task: ")

    def expect(holds: Any, requirement: str, value: Any) -> None:
        if not holds:
            text = value if isinstance(value, str) else _shape(value)
            raise InputError(f"batch: expected {requirement}, found {text}")

    for name, tensor in (("inputs", batch.inputs), ("targets", batch.targets), ("roles", roles)):
        is_some = isinstance(tensor, Tensor) and tensor.ndim and len(tensor) == n
        expect(is_some, f"{name} of {n} examples, as a tensor", tensor)
    shapes = "inputs of shape [batch, pos] (token ids) or [batch, pos, d_in] (vectors)"
    expect(batch.inputs.ndim in (2, 3) and batch.inputs.shape[1], shapes, batch.inputs)
    shapes = "roles as int64, whole numbers of shape [batch, chain, role]"
    expect(roles.ndim == 3 and roles.dtype == torch.long and all(roles.shape), shapes, roles)
    expect(names, "a task with role_names such as ('s0', 's1')", "none")
    for name in ("role_labels", "role_symbols"):
        texts = getattr(task, name)
        expect(len(texts) == len(names), f"{name} of {len(names)} roles", f"{len(texts)}")
    shapes = f"the task's {len(names)} roles, {names[0]} to {names[-1]}"
    expect(roles.shape[-1] == len(names), shapes, f"{roles.shape[-1]}")
    words, tokens = len(task.vocabulary), batch.tokens
    most = 0 if tokens is None or not words else int(tokens.max())
    expect(most < max(words, 1), f"a vocabulary of more than {most} words", f"{words}")
    expect(
        isinstance(task.plateau, (int, float, type(None))),
        "a task whose plateau is a number or None",
        f"{task.plateau!r:.40}",
    )
    answers = isinstance(task.scored_roles, Sequence) and all(
        role in range(len(names)) for role in task.scored_roles
    )
    expect(answers, f"scored_roles from 0 to {len(names) - 1}", f"{task.scored_roles!r:.60}")
    lowest, highest, last = int(roles.min()), int(roles.max()), batch.inputs.shape[1] - 1
    places = f"roles at positions 0 to {last}, or -1 where absent"
    expect(-1 <= lowest <= highest <= last, places, f"{lowest} to {highest}")
    if batch.attention_mask is not None:
        _check_padding(batch)


def _check_padding(batch: Batch) -> None:
    real, shape = batch.attention_mask, batch.inputs.shape[:2]
    if not isinstance(real, Tensor) or real.shape != shape:
        raise InputError(
            f"batch: expected attention_mask of shape {list(shape)}, True at real positions, found "
            f"{_shape(real)}"
        )
    position = torch.arange(shape[1], device=real.device)
    count, start = real.sum(1, keepdim=True), first_real(real)[:, None]
    whole = (real == ((position >= start) & (position < start + count))).all(1) & (count[:, 0] > 0)
    flat = batch.roles.flatten(1)
    padded = ((flat >= 0) & ~real.gather(1, flat.clamp(min=0))).any(1)
    if not bool(whole.all()) or bool(padded.any()):
        raise InputError(
            "batch: expected padding before or after the real positions of an example, and roles "
            "at real positions, or -1 where absent, found another attention_mask in example "
            f"{int((~whole | padded).int().argmax())}"
        )


def check_model_fits(model: HookedModel, batch: Batch, task: Task) -> None:
    """Check that a model can read and answer a task."""
    check_type(batch, Batch, "batch")
    check_devices(model, batch)
    inference = batch.inputs.is_inference() or next(model.parameters()).is_inference()
    if inference or torch.is_inference_mode_enabled():
        raise InputError(
            "expected a model, examples and calls outside torch.inference_mode(), which leaves no "
            "gradients, found it on; use torch.no_grad()"
        )
    cfg, tokens = model.cfg, batch.inputs
    if batch.attention_mask is not None and not is_causal(model, batch):
        raise InputError(
            "batch: expected a causal model for a batch with an attention_mask, found one that "
            "sees later positions, whose padding is not always masked; run each length "
            "on its own"
        )
    if isinstance(task, TrainingTask) and (cfg.d_vocab, cfg.d_vocab_out) != (task.d_in, task.d_out):
        raise InputError(
            f"expected a model with {task.d_in} inputs and {task.d_out} outputs, as the task has, "
            f"found {cfg.d_vocab} and {cfg.d_vocab_out}"
        )
    stock = type(model).__module__.startswith("transformer_lens") and is_hooked_transformer(model)
    if batch.tokens is None and not stock:  # others may read vectors
        return
    whole = tokens.dtype in (torch.int32, torch.long)
    # An embedding reads -1 as its last token.
    if not whole or not 0 <= int(tokens.min()) <= int(tokens.max()) < cfg.d_vocab:
        given = f"{int(tokens.min())} to {int(tokens.max())}" if whole else _shape(tokens)
        raise InputError(
            f"batch: expected token ids as int64 from 0 to {cfg.d_vocab - 1}, which the model "
            f"knows, found {given}"
        )
    if cfg.positional_embedding_type == "standard" and tokens.shape[1] > cfg.n_ctx:
        raise InputError(
            f"batch: expected sequences of at most {cfg.n_ctx} tokens, for which the model has "
            f"positions, found {tokens.shape[1]}"
        )


def check_devices(model: HookedModel, batch: Batch) -> None:
    """Check that the model and the batch are on the same device."""
    device = next(model.parameters()).device
    if device != batch.inputs.device:
        raise InputError(
            f"expected the batch on the model's device, {device}, found it on "
            f"{batch.inputs.device}; use batch.to({str(device)!r})"
        )
