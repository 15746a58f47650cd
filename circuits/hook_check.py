"""Check that a hook changes the output of one head, and nothing else.

What a layer's attention writes is a constant plus the sum of z W_O over heads. So its change in the
first layer that differs tells whose z changed: the change seen at `hook_z` if that explains it, or
else the one we solve for. This change alone, put in place without the hook, has to give the same
run.
"""

from functools import partial
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor

from retrieval_interp.circuits.hooks import HookedModel, heads_of, measuring
from retrieval_interp.circuits.paths import Head
from retrieval_interp.tasks import InputError
from retrieval_interp.tasks.messages import listed

_ROUNDING = 64 * torch.finfo(torch.float32).eps  # relative difference that is rounding
_CACHED = ("hook_resid_pre", "attn.hook_z", "attn.hook_out", "hook_attn_out")
Cache = dict[str, Tensor]  # activations by hook name


class HookCheck(NamedTuple):
    """The result of `check_hook`; true if nothing but the head's output changed."""

    right: bool
    changed: tuple[Head, ...]  # heads of the first layer that differs whose output changed
    said: str  # what the hook did, as a sentence

    def __bool__(self) -> bool:
        return self.right

    def __repr__(self) -> str:
        return self.said


@torch.no_grad()
def check_hook(
    model: HookedModel, hook: Any, head: str | Head, inputs: Tensor | None = None
) -> HookCheck:
    """Say whether a hook changes the attention or output of a head, and nothing else.

    Args:
        model: a hooked model in 32-bit floats; left unchanged.
        hook: a pair `(name, function)` of TransformerLens, or a list of them; or a function that
            returns a context manager, as `lambda: part.register_forward_pre_hook(function)` does.
        head: such as `L0.H1`.
        inputs: what the model reads; by default four sequences of random tokens or vectors.
    """
    head, heads = Head.parse(str(head)), heads_of(model)
    if head not in heads:
        raise InputError(f"head: expected one from {heads[0]} to {heads[-1]}, found {head}")
    run = partial(_run, model, _random_inputs(model) if inputs is None else inputs)
    intact = run()
    with _set(model, hook):
        hooked = run()
    layer = _first_different(hooked, intact)
    if layer is None:
        return HookCheck(False, (), "It changed nothing: it does not run, or has no effect.")
    if layer < 0:
        return HookCheck(False, (), f"It changed what layer 0 reads, before {head}.")
    by_head, hook_name, seen = _changes(hooked, intact, layer, model.blocks[layer].attn.W_O)
    changed = tuple(Head(layer, number) for number, of in enumerate(by_head) if of.any())
    with model.hooks(fwd_hooks=[(hook_name, lambda x, hook: hooked[hook_name])]):
        later_layer = _first_different(hooked, run())
    besides = [str(changed_head) for changed_head in changed if changed_head != head]
    if later_layer is not None:
        besides.append(f"layer {later_layer}" + " after its heads" * (later_layer == layer))
    if not besides:
        return HookCheck(bool(changed), changed, f"It changed {head} and nothing else.")
    end = ", too" if head in changed else f", not {head}"
    positions = by_head.any(0).any(0).any(-1).nonzero().flatten().tolist()
    if not seen and 1 < len(changed) == len(by_head) and "hook_result" not in str(hook):
        name = hook[0] if isinstance(hook, tuple) else "its place"
        end += f": {name} is after the heads are mixed"
    elif len(positions) == 1 < len(changed):
        end += f", at position {positions[0]} alone"
    return HookCheck(False, changed, f"It changed {listed(besides, 'and')}{end}.")


def _run(model: HookedModel, inputs: Tensor) -> Cache:
    """Cache z, what attention writes, and what enters each layer (outputs: a last)."""
    with measuring(model):
        outputs, cache = model.run_with_cache(inputs, names_filter=lambda n: n.endswith(_CACHED))
    return {**cache, f"blocks.{model.cfg.n_layers}.{_CACHED[0]}": outputs}


def _first_different(run: Cache, other: Cache) -> int | None:
    """Return the first layer that differs between runs; -1 if their inputs do."""
    streams = [(run[name], other[name]) for name in run if name.endswith(_CACHED[0])]
    return next((layer - 1 for layer, (a, b) in enumerate(streams) if _differ(a, b, b)), None)


def _differ(a: Tensor, b: Tensor, scale: Tensor) -> bool:
    """Whether tensors differ by more than rounding of numbers as large as `scale`."""
    return not ((a - b).abs().max() <= _ROUNDING * scale.abs().max())


def _changes(hooked: Cache, intact: Cache, layer: int, weights: Tensor) -> tuple[Tensor, str, bool]:
    """Return a layer's change by head, [head batch pos d_model], its hook, and if z explains it."""
    block, shape = f"blocks.{layer}.", "bphd,hdm->hbpm"
    z = block + _CACHED[1]
    name = next(block + part for part in _CACHED[2:] if block + part in intact)
    scale = intact[name]
    constant = scale - torch.einsum(shape, intact[z], weights).sum(0)
    if _differ(constant, constant[:1, :1], scale):
        raise InputError("model: expected 32-bit attention that adds up its heads, found other")
    change = hooked[name] - scale
    by_head = torch.einsum(shape, hooked[z] - intact[z], weights)
    seen = not _differ(by_head.sum(0), change, scale)
    if not seen:
        rows, change = weights.flatten(0, 1).double(), change.double()
        if len(rows) > rows.shape[1]:
            raise InputError("hook: expected one up to hook_z in heads so wide, found a later one")
        solved = (change @ torch.linalg.pinv(rows, rtol=1e-4)).unflatten(-1, weights.shape[:2])
        by_head = torch.einsum(shape, solved, weights.double())
        if _differ(by_head.sum(0), change, scale):
            by_head = change.expand_as(by_head)
    return by_head * (by_head.abs() > _ROUNDING * scale.abs().max()), name, seen


def _random_inputs(model: HookedModel) -> Tensor:
    draw, size = torch.Generator().manual_seed(0), (4, min(model.cfg.n_ctx, 12))
    if getattr(model, "reads_vectors", False):
        return torch.randn(*size, len(model.W_E), generator=draw).to(model.W_E)
    return torch.randint(model.cfg.d_vocab, size, generator=draw).to(model.W_E.device)


def _set(model: HookedModel, hook: Any) -> Any:
    if callable(hook) and not signature(hook).parameters:
        return hook()
    pairs = [hook] if isinstance(hook, tuple) else hook
    if not isinstance(pairs, list):
        raise InputError(f"hook: expected (name, function) or a list of them, found {hook!r:.60}")
    if unknown := [name for name, _ in pairs if not callable(name) and name not in model.hook_dict]:
        raise InputError(f"hook: expected a name such as blocks.0.{_CACHED[1]}, found {unknown[0]}")
    return model.hooks(fwd_hooks=pairs)
