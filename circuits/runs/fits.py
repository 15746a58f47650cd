"""Whether a model, a batch and a task fit each other."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from retrieval_interp.circuits.attention import first_real
from retrieval_interp.circuits.hooks.points import is_causal, is_hooked_transformer
from retrieval_interp.tasks import Batch, InputError, Split, Task, TrainingTask
from retrieval_interp.tasks.roles import check_role_names

_DRAWN = 16  # examples that are drawn to see whether a task heeds split, seed and start
_SEEDS = 2**63 - 1
_DEFINED = {  # what a task has to define, and how it is called
    "role_names": "role_names = ('s0', 's1'), or names of your own",
    "sample": "sample(n, seed, device, split)",
    "example_losses": "example_losses(outputs, batch)",
}


def draw_batch(task: Task, n: int, seed: int, device: str | torch.device, split: Split) -> Batch:
    """Examples of a task, checked.

    Raises:
        InputError: the task lacks one of its three parts or takes other arguments, what it draws is
            no batch of n examples with its roles, or it draws the same for another split, seed or
            start, so that what is decided on some examples would be measured on the same.
    """
    if not isinstance(task, Task):
        raise InputError(f"expected a task, an instance of ri.Task, found {task!r:.60}")
    for name, form in _DEFINED.items():
        if getattr(type(task), name) is getattr(Task, name) and name not in vars(task):
            raise InputError(
                f"task: expected {type(task).__name__} to define {form}, found nothing; see ri.Task"
            )
    _check_call(task.sample, "sample", n, seed, device, split=split)
    _check_call(task.example_losses, "example_losses", None, None)
    batch = task.sample(n, seed, device, split=split)
    if not isinstance(batch, Batch):
        raise InputError(
            "task: expected sample to return an ri.Batch of inputs, targets and roles, found "
            f"{shape_text(batch)}"
        )
    check_batch_fits(batch, task)
    if len(batch) != n:
        raise InputError(
            f"task: expected {n} examples from sample({n}, ...), found {len(batch)}: inputs of "
            f"{shape_text(batch.inputs)}"
        )
    _check_draws(task, n, seed, device)
    return batch


def _check_draws(task: Task, n: int, seed: int, device: str | torch.device) -> None:
    """Check that a task draws other examples for another split, seed and start."""

    def drawn(count: int, **other: Any) -> Batch:
        return task.sample(count, **{"seed": seed, "device": device, "split": "discovery"} | other)

    others: dict[str, Any] = {"split": "test"}
    if not task.fixed:
        others["seed"] = seed + 1 if seed < _SEEDS else seed - 1
    if "start" in inspect.signature(task.sample).parameters:
        others["start"] = n
    for what, value in others.items():
        for count in (min(n, _DRAWN), 4 * _DRAWN):  # few may be the same by chance
            try:
                one, other = drawn(count), drawn(count, **{what: value})
            except InputError:
                break  # there are too few to tell
            if not _same(one, other):
                break
        else:
            own = {"split": "discovery", "seed": seed, "start": 0}[what]
            raise InputError(
                f"task: expected sample to draw other examples for another {what}, found the same "
                f"for {what}={own!r} and {what}={value!r}; let what it draws depend on {what}"
            )


def _same(one: Batch, other: Batch) -> bool:
    """Whether two batches have the same inputs and targets."""
    return torch.equal(one.inputs, other.inputs) and torch.equal(one.targets, other.targets)


def _check_call(method: Callable[..., Any], name: str, *arguments: Any, **options: Any) -> None:
    """Check that a method takes what it is called with."""
    try:
        inspect.signature(method).bind(*arguments, **options)
    except TypeError as error:
        found = inspect.signature(method)
        raise InputError(
            f"task: expected {_DEFINED[name]}, found {name}{found} ({error}); change its arguments"
        ) from None


def shape_text(found: Any) -> str:
    """`float32 of [8, 13]` for a tensor, the type of anything else."""
    if not isinstance(found, Tensor):
        return f"{found!r:.40}" if found is None else type(found).__name__
    return f"{str(found.dtype).removeprefix('torch.')} of {list(found.shape)}"


def check_losses(losses: Any, batch: Batch) -> None:
    """Check the losses that a task gives.

    Raises:
        InputError: not a tensor [batch, asked] of floating-point numbers.
    """
    if not isinstance(losses, Tensor) or losses.ndim != 2 or len(losses) != len(batch):
        raise InputError(
            f"task: expected example_losses of shape [{len(batch)}, asked], one row per example "
            f"and one column if one thing is asked, found {shape_text(losses)}"
        )
    if not losses.is_floating_point():
        raise InputError(
            "task: expected example_losses in floating point, of which a mean can be taken, found "
            f"{shape_text(losses)}; use .float()"
        )


def check_answers(task: Task, batch: Batch, outputs: Tensor) -> None:
    """Check that the losses of an own task with answer roles need the outputs at these alone.

    Args:
        task: any.
        batch: as a model was run on.
        outputs: what it gave; only their number of features and their type matter.

    Raises:
        InputError: the losses differ if other positions are left out.
    """
    one = batch[:1]
    positions = one.roles[:, :, list(task.answer_roles)].flatten(1).clamp(min=0)
    n_positions = one.inputs.shape[1]
    if isinstance(task, TrainingTask) or positions.shape[1] in (0, n_positions):
        return
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(1, n_positions, outputs.shape[-1], generator=generator).to(outputs)
    whole, found = task.example_losses(drawn, one), "other losses"
    try:
        alone = task.example_losses(drawn[:, positions[0]], one)
        if alone.shape == whole.shape and torch.allclose(alone, whole, 1e-3, 1e-3, equal_nan=True):
            return
    except (IndexError, RuntimeError, ValueError) as error:
        found = f"{type(error).__name__}: {error!s:.60}"
    raise InputError(
        "task: expected example_losses to read outputs by self.answers(outputs, batch), as only "
        f"those of answer_roles may be computed; without the others found {found}"
    )


def check_batch_fits(batch: Batch, task: Task) -> None:
    """Check that a batch belongs to a task, and that the task names its roles.

    Raises:
        InputError: saying what is wrong.
    """
    names, roles = task.role_names, batch.roles
    if not names or isinstance(names, str):
        raise InputError(
            "task: expected role_names such as ('s0', 's1') or ('query', 'key'), found "
            f"{names!r:.40}"
        )
    check_role_names(names)
    if len(task.role_labels) != len(names) or len(task.role_symbols) != len(names):
        raise InputError(f"task: expected a label and a symbol for each of {len(names)} roles")
    for what, tensor in (("inputs", batch.inputs), ("targets", batch.targets), ("roles", roles)):
        if not isinstance(tensor, Tensor) or tensor.ndim < 1:
            raise InputError(f"batch: expected {what} as a tensor, found {shape_text(tensor)}")
    if batch.inputs.ndim not in (2, 3) or not batch.inputs.shape[1]:
        raise InputError(
            "batch: expected inputs of shape [batch, pos] (token ids) or [batch, pos, d_in] "
            f"(vectors), found {shape_text(batch.inputs)}"
        )
    if roles.ndim != 3 or roles.dtype != torch.long or not all(roles.shape):
        raise InputError(
            "batch: expected roles as int64, whole numbers of shape [batch, chain, role], found "
            f"{shape_text(roles)}"
        )
    if len(batch.targets) != len(batch):
        raise InputError(
            f"batch: expected targets of {len(batch)} examples, as many as inputs, found "
            f"{shape_text(batch.targets)}"
        )
    if roles.shape[-1] != len(names):
        raise InputError(
            f"expected a batch with the task's {len(names)} roles, {names[0]} to {names[-1]}, "
            f"found one with {roles.shape[-1]}"
        )
    lowest, highest = int(roles.min()), int(roles.max())
    if len(roles) != len(batch) or not -1 <= lowest <= highest < batch.inputs.shape[1]:
        raise InputError(
            f"batch: expected roles of {len(batch)} examples at positions 0 to "
            f"{batch.inputs.shape[1] - 1}, or -1 where absent, found {len(roles)} at {lowest} to "
            f"{highest}"
        )
    if (
        task.vocabulary
        and batch.tokens is not None
        and ((most := int(batch.tokens.max())) >= len(task.vocabulary))
    ):
        raise InputError(
            "task: expected a vocabulary with a word for every token, found "
            f"{len(task.vocabulary)} words and the token {most}"
        )
    if batch.attention_mask is not None:
        _check_padding(batch)


def _check_padding(batch: Batch) -> None:
    real, shape = batch.attention_mask, batch.inputs.shape[:2]
    if not isinstance(real, Tensor) or real.shape != shape:
        raise InputError(
            f"batch: expected attention_mask of shape {list(shape)}, True at real positions, found "
            f"{shape_text(real)}"
        )
    position = torch.arange(shape[1], device=real.device)
    count, start = real.sum(1, keepdim=True), first_real(real)[:, None]
    whole = (real == ((position >= start) & (position < start + count))).all(1) & (count[:, 0] > 0)
    if not bool(whole.all()):
        raise InputError(
            "batch: expected padding before or after the real positions of an example, found "
            f"another attention_mask in example {int((~whole).int().argmax())}"
        )
    flat = batch.roles.flatten(1)
    padded = (flat >= 0) & ~real.gather(1, flat.clamp(min=0))
    if bool(padded.any()):
        raise InputError(
            "batch: expected roles at real positions, or -1 where absent, found one at padding in "
            f"example {int(padded.any(1).int().argmax())}"
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
    if batch.attention_mask is not None and not is_causal(model):
        raise InputError(
            "batch: expected a causal model for a batch with an attention_mask, found one that "
            "sees later positions, in which TransformerLens does not mask padding; run each length "
            "alone"
        )
    if isinstance(task, TrainingTask) and (model.cfg.d_vocab, model.cfg.d_vocab_out) != (
        task.d_in,
        task.d_out,
    ):
        raise InputError(
            f"expected a model with {task.d_in} inputs and {task.d_out} outputs, as the task has, "
            f"found {model.cfg.d_vocab} and {model.cfg.d_vocab_out}"
        )
    stock = type(model).__module__.startswith("transformer_lens") and is_hooked_transformer(model)
    if batch.tokens is not None or stock:  # others may read vectors
        _check_tokens(batch.inputs, model)


def _check_tokens(tokens: Tensor, model: Any) -> None:
    """Check that a model knows every token and has a place for it."""
    cfg = model.cfg
    if tokens.dtype not in (torch.int32, torch.long):
        raise InputError(
            f"batch: expected token ids as int64, which the model reads, found {shape_text(tokens)}"
        )
    lowest, highest = int(tokens.min()), int(tokens.max())
    if not 0 <= lowest <= highest < cfg.d_vocab:  # an embedding reads -1 as its last token
        raise InputError(
            f"batch: expected token ids from 0 to {cfg.d_vocab - 1}, which the model knows, found "
            f"{lowest if lowest < 0 else highest}"
        )
    if cfg.positional_embedding_type == "standard" and tokens.shape[1] > cfg.n_ctx:
        raise InputError(
            f"batch: expected sequences of at most {cfg.n_ctx} tokens, for which the model has "
            f"positions, found {tokens.shape[1]}"
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
