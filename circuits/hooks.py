"""What a hooked model is, and helpers for any: its hook points, positions, parts and runs."""

import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from retrieval_interp.circuits.paths import Head, Mask, Positions
from retrieval_interp.tasks import Batch, InputError

_PROBED: "weakref.WeakKeyDictionary[Any, dict[Any, Probed]]" = weakref.WeakKeyDictionary()
_POINTS: "weakref.WeakKeyDictionary[Any, Mapping[str, Any]]" = weakref.WeakKeyDictionary()
_MOST_AT_ONCE = 512  # examples per run; more are no faster and take memory
_PER_PART = 256  # examples per part of a larger batch; as fast as 512; 2.2 GB, not 2.5, for 4,096
_MOST_LOGITS = 300_000_000  # numbers that a run's logits may have, as vocabularies may be large
_MEASURED: "weakref.WeakSet[Any]" = weakref.WeakSet()  # models that are inside `measuring`
HookFunction = Callable[..., Tensor | None]


@runtime_checkable
class HookedModel(Protocol):
    """A `HookedTransformer`, a `TransformerBridge`, or what has their named hook points."""

    cfg: Any  # n_layers, n_heads, d_model, d_head, d_vocab, d_vocab_out, ...
    blocks: Any  # the layers, each a module
    context_level: int  # of hooks that are set inside others

    if TYPE_CHECKING:  # what is too slow to look for at run time, or only a language model has
        hook_dict: Mapping[str, Any]  # hook points by name, as blocks.0.attn.hook_pattern
        W_E: Tensor  # [d_vocab d_model]
        W_U: Tensor  # [d_model d_vocab_out]
        tokenizer: Any

    def __call__(self, inputs: Tensor, **options: Any) -> Any: ...
    def hooks(self, *, fwd_hooks: Any) -> AbstractContextManager[Any]: ...
    def run_with_hooks(self, inputs: Tensor, **options: Any) -> Any: ...
    def run_with_cache(self, inputs: Tensor, **options: Any) -> Any: ...
    def parameters(self) -> Iterator[nn.Parameter]: ...
    def buffers(self) -> Iterator[Tensor]: ...
    def modules(self) -> Iterator[nn.Module]: ...


def pattern_hook_name(layer: int) -> str:
    """Return the hook name of a layer's attention pattern, [batch head dest src]."""
    return f"blocks.{layer}.attn.hook_pattern"


def hook_points(model: HookedModel) -> Mapping[str, Any]:
    """Return hook points by name; kept, as a bridge takes long to collect them."""
    if "hook_dict" in vars(model):
        return model.hook_dict
    if model not in _POINTS:
        _POINTS[model] = dict(model.hook_dict)
    return _POINTS[model]


@contextmanager
def hooked(model: HookedModel, hooks: Iterable[tuple[str, HookFunction]]) -> Iterator[None]:
    """Set hooks, and remove these alone; like `model.hooks`, slow on a bridge."""
    points, used = hook_points(model), []
    model.context_level += 1
    try:
        for name, function in hooks:
            if name in points:
                used.append(points[name])
                points[name].add_hook(function, level=model.context_level)
        yield
    finally:
        for point in used:
            point.remove_hooks(level=model.context_level)
        model.context_level -= 1


def in_all_layers(
    model: HookedModel, name: str, function: HookFunction
) -> list[tuple[str, HookFunction]]:
    """Return a hook on this part of every layer's attention."""
    return [(f"blocks.{n}.attn.{name}", function) for n in range(model.cfg.n_layers)]


@contextmanager
def noting(model: HookedModel, *names: str) -> Iterator[dict[str, dict[int, Tensor]]]:
    """Note what passes hook points of every layer's attention, such as `v`, by name and layer."""
    noted: dict[str, dict[int, Tensor]] = {name: {} for name in names}

    def note(name: str, x: Tensor, hook: Any) -> None:
        noted[name][hook.layer()] = x

    hooks = [in_all_layers(model, f"hook_{name}", partial(note, name)) for name in names]
    with hooked(model, chain.from_iterable(hooks)):
        yield noted


def answer_hooks(
    model: HookedModel, batch: Batch, scored_roles: tuple[int, ...]
) -> list[tuple[str, Callable[..., Tensor]]]:
    """Return hooks that keep only the scored roles' positions before logits are computed.

    For an absent role some position is kept, which `Task.answers` leaves out. There are no hooks if
    there are as many answers as positions: `Task.answers` could not tell them from whole sequences.
    """
    positions = batch.roles[:, :, list(scored_roles)].flatten(1).clamp(min=0)
    if not scored_roles or positions.shape[1] == batch.inputs.shape[1]:
        return []
    example = torch.arange(len(batch), device=positions.device)[:, None]

    def at_answers(residual: Tensor, hook: Any) -> Tensor:
        return residual[example, positions]

    # A bridge needs whole sequences up to its last layer norm.
    bridged = "unembed.hook_in" in hook_points(model)
    last = f"blocks.{model.cfg.n_layers - 1}.hook_resid_post"
    return [("unembed.hook_in" if bridged else last, at_answers)]


def check_fired(model: HookedModel, name: str, count: int) -> None:
    """Check that a hook on the attention of every layer fired."""
    if count != model.cfg.n_layers:
        raise InputError(
            f"attention: expected hook_{name} to fire in {model.cfg.n_layers} layers, found "
            f"{count}; load the model as a HookedTransformer or TransformerBridge"
        )


def is_hooked_transformer(model: HookedModel) -> bool:
    """Whether a model is a `HookedTransformer`, by class name, as TransformerLens 4 has none."""
    names = {(kind.__module__.split(".")[0], kind.__name__) for kind in type(model).__mro__}
    return ("transformer_lens", "HookedTransformer") in names


def is_transformers(model: HookedModel) -> bool:
    """Whether a model is a bridge to one of Hugging Face."""
    names = {kind.__name__ for kind in type(getattr(model, "original_model", None)).__mro__}
    return "PreTrainedModel" in names


def call_options(batch: Batch) -> dict[str, Tensor]:
    """Return a call's options besides the inputs: the attention mask, if needed."""
    mask = batch.attention_mask
    return {} if mask is None else {"attention_mask": mask.long()}


def has_hooks(model: HookedModel) -> bool:
    """Whether any hook is set on the model."""
    return any(point.has_hooks() for point in hook_points(model).values())


def heads_of(model: HookedModel) -> list[Head]:
    """Return all heads of a model, by layer."""
    layers, heads = range(model.cfg.n_layers), range(model.cfg.n_heads)
    return [Head(layer, head) for layer in layers for head in heads]


def parts_of(model: HookedModel, batch: Batch) -> list[Batch]:
    """Split a large batch, unless the model has hooks, which may be made for this batch."""
    fitting = max(1, _MOST_LOGITS // (batch.inputs.shape[1] * model.cfg.d_vocab_out))
    if has_hooks(model) or len(batch) <= min(_MOST_AT_ONCE, fitting):
        return [batch]
    return list(batch.parts(min(_PER_PART, fitting)))


@contextmanager
def measuring(model: HookedModel, alone: bool = False) -> Iterator[None]:
    """Turn off dropout in a model, and if `alone` all hooks; restore both at the end.

    A nested block has nothing to do, which saves 20 ms on a bridge.
    """
    if model in _MEASURED and not alone:
        yield
        return
    nested, wrapped = model in _MEASURED, getattr(model, "original_model", model)
    # A bridge does not list all modules of the model that it wraps.
    training = [part for part in {*model.modules(), *wrapped.modules()} if part.training]
    points = hook_points(model).values() if alone else ()
    before = {point: point._forward_hooks for point in points}
    try:
        for module in training:
            module.training = False
        for point in before:
            point._forward_hooks = OrderedDict()
        _MEASURED.add(model)
        yield
    finally:
        if not nested:
            _MEASURED.discard(model)
        for module in training:
            module.training = True
        for point, hooks in before.items():
            point._forward_hooks = hooks


@contextmanager
def late_edits_allowed() -> Iterator[None]:
    """Ignore TransformerLens 4's warning about edits of patterns that are shown after their use."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "A hook on .* returned a modified tensor", UserWarning)
        yield


class Probed(NamedTuple):
    """What a run with all queries and keys at zero shows of a model (`probed`)."""

    masks: list[Mask]  # of the layers: the softmax of zeros is positive wherever nothing is masked
    pattern_is_used: bool  # whether the model uses what a hook at `hook_pattern` returns


@torch.no_grad()
def probed(model: HookedModel, batch: Batch) -> Probed:
    """Measure a model's masks, which configs name in many ways, once for a length."""
    by_length = _PROBED.setdefault(model, {})
    key = batch.inputs.shape[1], versions(model.buffers())  # buffers may have a mask
    if key in by_length:
        return by_length[key]
    masks, changed = dict[int, Mask](), list[bool]()

    def zero(x: Tensor, hook: Any) -> Tensor:
        return torch.zeros_like(x)

    def hide(pattern: Float[Tensor, "batch head dest src"], hook: Any) -> Tensor:
        masks[hook.layer()] = _mask_of((pattern > 0).flatten(0, 1).any(0), hook.layer())
        return torch.zeros_like(pattern)

    def note(z: Tensor, hook: Any) -> None:
        changed.append(not bool(z.nan_to_num().any()))

    places = ("hook_q", zero), ("hook_k", zero), ("hook_pattern", hide), ("hook_z", note)
    hooks = [hook for place in places for hook in in_all_layers(model, *place)]
    with measuring(model, alone=True), hooked(model, hooks), late_edits_allowed():
        model(batch.inputs[:1], return_type=None)
    causal = getattr(model.cfg, "attention_dir", "causal") == "causal"
    if is_hooked_transformer(model) and causal and not all(m.causal for m in masks.values()):
        raise InputError(
            "model: expected a causal model, as its config says, found attention to later "
            "positions; was its buffer IGNORE changed?"
        )
    layers = [masks.get(layer, Mask(causal)) for layer in range(model.cfg.n_layers)]
    by_length[key] = Probed(layers, bool(changed) and all(changed))
    return by_length[key]


def _mask_of(allowed: Bool[Tensor, "dest src"], layer: int) -> Mask:
    window = int(allowed.nonzero().diff(dim=1).abs().max()) + 1
    mask = Mask(not bool(allowed.triu(1).any()), window if window < len(allowed) else None)
    position = torch.arange(len(allowed), device=allowed.device)
    if not torch.equal(mask.allows(position[:, None] - position), allowed):
        raise InputError(
            "model: expected layers that may attend to all positions, to earlier or to near ones, "
            f"found another mask in layer {layer}"
        )
    return mask


def versions(tensors: Iterable[Tensor]) -> tuple[tuple[int, int], ...]:
    """Return a key that changes when a tensor is written to, or replaced by another."""
    return tuple((id(x), 0 if x.is_inference() else x._version) for x in tensors)


def is_causal(model: HookedModel, batch: Batch) -> bool:
    """Whether positions attend only to themselves and earlier ones."""
    return all(mask.causal for mask in probed(model, batch).masks)


def positions_by_layer(model: HookedModel, batch: Batch) -> list[Positions]:
    """Return a batch's positions for each layer; layers with one mask share them."""
    masks = probed(model, batch).masks
    by_mask = {mask: Positions.of(batch, mask) for mask in masks}
    return [by_mask[mask] for mask in masks]


def run_model(
    model: HookedModel, batch: Batch, layer: int = 0, before: Any = None
) -> Float[Tensor, "batch answer d_out"]:
    """Run a model on a batch and return its outputs.

    With a `layer`, the blocks before it are skipped; `before` is what the last of them returned in
    another run.
    """
    skipped = model.blocks[:layer]
    try:
        for block in skipped:
            vars(block)["forward"] = lambda *_, **__: before  # found before the class's method
        with measuring(model):
            outputs: Tensor = model(batch.inputs, **call_options(batch))
    finally:
        for block in skipped:
            vars(block).pop("forward", None)
    return outputs
