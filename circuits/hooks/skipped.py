"""Starting a `TransformerBridge` at a layer: the blocks before it return at once.

A `HookedTransformer` takes the residual stream with `start_at_layer`; a bridge runs the original
model's loop over its blocks. So each block before the layer passes its input on, and a hook at the
layer puts the known residual stream in its place.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.hooks.points import call_options
from retrieval_interp.tasks import Batch

# How many things a model's blocks return, 0 for the stream alone; None if skipping fails.
_RETURNED: "weakref.WeakKeyDictionary[Any, int | None]" = weakref.WeakKeyDictionary()


@contextmanager
def blocks_skipped(
    model: Any, first_layer: int, residual: Float[Tensor, "batch pos d_model"]
) -> Iterator[None]:
    """Run a bridge from a layer on, given the residual stream before it.

    Args:
        model: a `TransformerBridge`, unchanged afterwards.
        first_layer: the first layer that is run.
        residual: its input, for the batch that will be run.
    """

    def start(stream: Tensor, hook: Any) -> Tensor:
        return residual

    returned = _RETURNED.get(model) or 0

    def pass_on(hidden: Any, *args: Any, **options: Any) -> Any:
        return (hidden, *[None] * (returned - 1)) if returned else hidden

    skipped = [model.blocks[layer] for layer in range(first_layer)]
    try:
        for block in skipped:
            vars(block)["forward"] = pass_on  # found before the method of its class
        with model.hooks(fwd_hooks=[(f"blocks.{first_layer}.hook_resid_pre", start)]):
            yield
    finally:
        for block in skipped:
            vars(block).pop("forward", None)


@torch.no_grad()
def can_skip_blocks(model: Any, batch: Batch) -> bool:
    """Whether blocks can be skipped, tried once per model on two examples.

    The outputs have to be those of a whole run, also from the last layer on.
    """
    if model not in _RETURNED:
        _RETURNED[model] = _blocks_return(model, batch[:2])
        if _RETURNED[model] is not None and not _is_exact(model, batch[:2]):
            _RETURNED[model] = None
    return _RETURNED[model] is not None


def _blocks_return(model: Any, batch: Batch) -> int | None:
    returned: list[int] = []

    def note(block: Any, inputs: Any, output: Any) -> None:
        returned.append(len(output) if isinstance(output, tuple) else 0)

    handle = model.blocks[0].register_forward_hook(note)
    try:
        model(batch.inputs, **call_options(batch))
    finally:
        handle.remove()
    return returned[0] if returned else None


def _is_exact(model: Any, batch: Batch) -> bool:
    layers = sorted({model.cfg.n_layers // 2, model.cfg.n_layers - 1})
    residuals: list[Tensor] = []

    def keep(residual: Tensor, hook: Any) -> None:
        residuals.append(residual)

    names = [f"blocks.{layer}.hook_resid_pre" for layer in layers]
    if any(name not in model.hook_dict for name in names):
        return False
    whole = model.run_with_hooks(
        batch.inputs, **call_options(batch), fwd_hooks=[(name, keep) for name in names]
    )
    if len(residuals) != len(layers):
        return False
    try:
        for layer, residual in zip(layers, residuals):
            with blocks_skipped(model, layer, residual):
                again = model(batch.inputs, **call_options(batch))
                if not torch.allclose(again, whole, atol=1e-5, rtol=1e-5):
                    return False
    except (TypeError, ValueError, AttributeError, IndexError, KeyError, RuntimeError):
        return False  # its loop over blocks needs more of them
    return True
