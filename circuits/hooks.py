"""What a hooked model is, helpers for any, and running it with a circuit in place (`ablated`).

At the end is what such a run may need: attention on counterfactual prompts.
"""

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.mechanisms import Mechanism, Positions, pattern_of
from retrieval_interp.circuits.paths import Head, Mask, softmax_attention
from retrieval_interp.tasks import Batch, InputError
from retrieval_interp.tasks.messages import check_type
from retrieval_interp.tasks.task import Attended

_PROBED: "weakref.WeakKeyDictionary[Any, dict[Any, Probed]]" = weakref.WeakKeyDictionary()
_POINTS: "weakref.WeakKeyDictionary[Any, Mapping[str, Any]]" = weakref.WeakKeyDictionary()
_KEPT = 64_000_000  # attention weights of patterns that are kept
WHOLE = 512  # examples per run; more are no faster and take memory
PART = 256  # examples per part of a larger batch; as fast as 512; 2.2 GB, not 2.5, for 4,096
LOGITS = 300_000_000  # numbers that a run's logits may have, as vocabularies may be large
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
    model: HookedModel, batch: Batch, answer_roles: tuple[int, ...]
) -> list[tuple[str, Callable[..., Tensor]]]:
    """Return hooks that keep only the answer roles' positions before logits are computed.

    For an absent role some position is kept, which `Task.answers` leaves out. There are no hooks if
    there are as many answers as positions: `Task.answers` could not tell them from whole sequences.
    """
    positions = batch.roles[:, :, list(answer_roles)].flatten(1).clamp(min=0)
    if not answer_roles or positions.shape[1] == batch.inputs.shape[1]:
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
    fitting = max(1, LOGITS // (batch.inputs.shape[1] * model.cfg.d_vocab_out))
    if has_hooks(model) or len(batch) <= min(WHOLE, fitting):
        return [batch]
    return list(batch.parts(min(PART, fitting)))


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
    with measuring(model, alone=True), hooked(model, hooks):
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


class KeptPatterns:
    """Keeps patterns of mechanisms on a batch, as circuits have most in common."""

    def __init__(self, batch: Batch, model: HookedModel):
        self.positions = positions_by_layer(model, batch)
        self._kept: dict[tuple[Mechanism, Mask], Tensor] = {}

    def of(self, mechanism: Mechanism, layer: int) -> Float[Tensor, "#batch dest src"]:
        positions = self.positions[layer]
        key = mechanism, positions.mask
        if key not in self._kept:
            if sum(pattern.numel() for pattern in self._kept.values()) > _KEPT:
                self._kept.clear()
            self._kept[key] = pattern_of(mechanism, positions)
        return self._kept[key]


@contextmanager
def ablated(
    model: HookedModel,
    circuit: Circuit,
    batch: Batch,
    first_layer: int = 0,
    patterns: KeptPatterns | None = None,
) -> Iterator[HookedModel]:
    """Run a model with a circuit in place of its attention.

    The pattern of every head that the circuit names is replaced after the softmax, so the head
    writes pattern(mechanism) · values. In a `cut` head the attention of its paths is set to zero
    and the rest kept, without rescaling.

    Blocks nest: an inner one acts after an outer one on the same head. Leaving a block, normally or
    by an exception, removes only the hooks that it set.

    Args:
        model: a hooked model (`HookedTransformer` or similar), unchanged afterwards.
        circuit: mechanisms for some or all of its heads.
        batch: the batch that will be run; its roles say at which positions paths begin and end.
        first_layer: apply the circuit from this layer on, for runs that start there.
        patterns: patterns of this batch that were kept from other circuits.

    Examples:
        >>> import retrieval_interp as ri
        >>> small = ri.load_checkpoint("small")
        >>> batch = small.task.sample(64, split="test")
        >>> circuit = ri.parse_circuit(["L2.H0 one-hot s0<-s2 s4<-s6", "L3.H0 uniform"], small.task)
        >>> with ri.ablated(small.model, circuit, batch):
        ...     outputs = small.model(batch.inputs)
        >>> round(small.task.loss(outputs, batch).item(), 3)
        0.034
    """
    Circuit.check(circuit)
    check_type(batch, Batch, "batch")
    circuit.check_fits(model.cfg.n_layers, model.cfg.n_heads)
    patterns = patterns or KeptPatterns(batch, model)
    layers: dict[int, dict[int, Mechanism]] = {}
    for head, mechanism in circuit.mechanisms.items():
        if head.layer >= first_layer:
            layers.setdefault(head.layer, {})[head.head] = mechanism
            patterns.positions[head.layer].check(mechanism.paths, f"{head}: ", circuit.role_names)
    uses_pattern = not layers or probed(model, batch).pattern_is_used
    fired: set[str] = set()

    def fire(name: str, function: HookFunction, activation: Tensor, hook: Any) -> Tensor | None:
        fired.add(name)
        return function(activation, hook)

    replacing = [
        (name, partial(fire, name, function))
        for layer, heads in layers.items()
        for name, function in LayerHooks(layer, heads, patterns, batch, uses_pattern).hooks()
    ]
    with hooked(model, replacing):
        yield model
    for name, _ in replacing:
        if name not in fired:
            raise InputError(
                f"ablation: expected every hook to fire, but {name} did not; the model was not "
                "run, or does not pass its attention through that hook"
            )


class LayerHooks:
    """Hooks that put mechanisms in place of the heads of one layer.

    If the model uses what a hook at `hook_pattern` returns, patterns are replaced there. If it only
    shows its pattern, z is replaced at `hook_z` instead, as it always is by mechanisms that define
    what a head writes. A bridge that only shows its pattern does so after `hook_z`: there a head's
    own attention is computed from its queries and keys, and compared with the shown one later.
    """

    def __init__(
        self,
        layer: int,
        mechanisms: Mapping[int, Mechanism],
        patterns: KeptPatterns,
        batch: Batch,
        uses_pattern: bool,
    ):
        self.layer, self.patterns, self.batch = layer, patterns, batch
        self.uses_pattern = uses_pattern
        self.at_pattern: dict[int, Mechanism] = {}
        self.at_z: dict[int, Mechanism] = {}
        for head, mechanism in mechanisms.items():
            goes_in_early = uses_pattern and not mechanism.replaces_output
            (self.at_pattern if goes_in_early else self.at_z)[head] = mechanism
        self.seen: dict[str, Tensor] = {}  # q, k, v and pattern of all heads, in this run
        self.computed: dict[int, Float[Tensor, "batch dest src"]] = {}  # own attention, from q, k
        self.put_in: dict[int, Float[Tensor, "batch dest src"]] = {}  # patterns used at `hook_z`

    def hooks(self) -> list[tuple[str, HookFunction]]:
        """Return the hooks by name, in the order in which they fire."""
        place, hooks = f"blocks.{self.layer}.attn.hook_", list[tuple[str, HookFunction]]()
        if self.at_pattern:
            hooks.append((f"{place}pattern", self.replace_patterns))
        if self.at_z:
            names = ["v"]
            if any(mechanism.reads_pattern for mechanism in self.at_z.values()):
                names += ["pattern"] if self.uses_pattern else ["q", "k"]
            hooks += [(place + name, partial(self.note, name)) for name in names]
            hooks.append((f"{place}z", self.replace_outputs))
            if not self.uses_pattern:
                hooks.append((f"{place}pattern", self.show_patterns))
        return hooks

    def note(self, name: str, activation: Tensor, hook: Any) -> None:
        """Keep an activation for `replace_outputs`."""
        self.seen[name] = activation

    def replace_patterns(self, pattern: Float[Tensor, "batch head dest src"], hook: Any) -> Tensor:
        """Replace heads' patterns."""
        _check_run(len(pattern), pattern.shape[-1], self.batch)
        pattern = pattern.clone()
        for head, mechanism in self.at_pattern.items():
            pattern[:, head] = self._new_pattern(mechanism, pattern[:, head]).to(pattern)
        return pattern

    def replace_outputs(self, z: Float[Tensor, "batch pos head d_head"], hook: Any) -> Tensor:
        """Replace what heads write, z = pattern · values."""
        _check_run(len(z), z.shape[1], self.batch)
        z = z.clone()
        group = z.shape[2] // self.seen["v"].shape[2]  # query heads may share a key-value head
        for head, mechanism in self.at_z.items():
            v = self.seen["v"][:, :, head // group]
            computed = self._own_pattern(head) if mechanism.reads_pattern else v.new_zeros(0)
            if mechanism.replaces_output:
                here = Attended(computed, v, z[:, :, head])
                there = self.batch.counterfactual_of(self.layer, head)
                z[:, :, head] = mechanism.output(here, there, self.batch.roles)
            else:
                pattern = self._new_pattern(mechanism, computed).to(z).expand(len(z), -1, -1)
                self.put_in[head] = pattern
                z[:, :, head] = pattern @ v
        return z

    def show_patterns(self, pattern: Float[Tensor, "batch head dest src"], hook: Any) -> Tensor:
        """Show other hooks the patterns used at `hook_z`; check those computed."""
        real = self.batch.attention_mask
        for head, computed in self.computed.items():
            difference = (computed - pattern[:, head]).abs().amax(-1)
            if bool((difference if real is None else difference * real).max() > 1e-4):
                raise InputError(
                    f"ablation: expected L{self.layer}.H{head} to attend by its queries and keys "
                    "alone, found another pattern; paths of this model cannot be cut, only replaced"
                )
        pattern = pattern.clone()
        for head, replaced in self.put_in.items():
            pattern[:, head] = replaced
        return pattern

    def _new_pattern(self, mechanism: Mechanism, seen: Tensor) -> Float[Tensor, "#batch dest src"]:
        if mechanism.keeps_own:
            return mechanism.changed(seen, self.batch.roles)
        return self.patterns.of(mechanism, self.layer)

    def _own_pattern(self, head: int) -> Float[Tensor, "batch dest src"]:
        if self.uses_pattern:
            return self.seen["pattern"][:, head]
        allowed, real = self.patterns.positions[self.layer].allowed, self.batch.attention_mask
        if real is not None:
            allowed = allowed | ~real[:, :, None]  # rows of padding, which nothing attends to
        group = self.seen["q"].shape[2] // self.seen["k"].shape[2]
        queries, keys = self.seen["q"][:, :, head], self.seen["k"][:, :, head // group]
        self.computed[head] = softmax_attention(queries, keys, allowed, queries.shape[-1] ** 0.5)
        return self.computed[head]


def _check_run(examples: int, positions: int, batch: Batch) -> None:
    n, size = batch.inputs.shape[:2]
    if (n, size) != (examples, positions):
        raise InputError(
            f"ablation: the circuit was applied for a batch of {n} examples and {size} positions, "
            f"but the model ran on {examples} and {positions}; run the same batch"
        )


# Attention on counterfactual prompts, from which heads are patched


def with_counterfactual(model: HookedModel, batch: Batch, other: Batch) -> Batch:
    """Add to a batch the attention and values of a model on counterfactual prompts.

    Args:
        model: a hooked model; left unchanged.
        batch: the examples.
        other: as many, of the same length and with the same padding, that ask something else.
    """
    mask, masked = batch.attention_mask, other.attention_mask
    if batch.inputs.shape != other.inputs.shape or not (
        mask is masked if mask is None or masked is None else torch.equal(mask, masked)
    ):
        raise InputError(
            f"counterfactual: expected prompts of the same length and padding, inputs of "
            f"{list(batch.inputs.shape)}, found {list(other.inputs.shape)}"
        )
    parts = [attended(model, part) for part in parts_of(model, other)]
    layers = (Attended(*map(torch.cat, zip(*of_layer))) for of_layer in zip(*parts))
    return replace(batch, counterfactual_attention=tuple(layers))


@torch.no_grad()
def attended(model: HookedModel, batch: Batch) -> list[Attended]:
    """Run a model once and return pattern, v and z of each layer."""
    with measuring(model), noting(model, "pattern", "v", "z") as noted:
        model(batch.inputs, **call_options(batch), return_type=None)
    for name, layers in noted.items():
        check_fired(model, name, len(layers))
    return [Attended(*(noted[name][n] for name in noted)) for n in range(model.cfg.n_layers)]
