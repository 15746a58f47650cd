"""A run of a hooked model with a circuit in place (`ablated`).

At the end is what such a run may need: attention on counterfactual prompts.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.hooks import (
    HookedModel,
    HookFunction,
    call_options,
    check_fired,
    hooked,
    late_edits_allowed,
    measuring,
    noting,
    parts_of,
    positions_by_layer,
    probed,
)
from retrieval_interp.circuits.mechanisms import Mechanism, pattern_of
from retrieval_interp.circuits.paths import Mask, softmax_attention
from retrieval_interp.tasks import Batch, InputError
from retrieval_interp.tasks.messages import check_type
from retrieval_interp.tasks.task import HeadActivations

_MAX_KEPT_WEIGHTS = 64_000_000  # attention weights of patterns that are kept


class KeptPatterns:
    """Keeps patterns of mechanisms on a batch, as circuits have most in common."""

    def __init__(self, model: HookedModel, batch: Batch):
        self.positions = positions_by_layer(model, batch)
        self._kept: dict[tuple[Mechanism, Mask], Tensor] = {}

    def of(self, mechanism: Mechanism, layer: int) -> Float[Tensor, "#batch dest src"]:
        positions = self.positions[layer]
        key = mechanism, positions.mask
        if key not in self._kept:
            if sum(pattern.numel() for pattern in self._kept.values()) > _MAX_KEPT_WEIGHTS:
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
    patterns = patterns or KeptPatterns(model, batch)
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
    with hooked(model, replacing), late_edits_allowed():
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
        prefix, hooks = f"blocks.{self.layer}.attn.hook_", list[tuple[str, HookFunction]]()
        if self.at_pattern:
            hooks.append((f"{prefix}pattern", self.replace_patterns))
        if self.at_z:
            names = ["v"]
            if any(mechanism.reads_pattern for mechanism in self.at_z.values()):
                names += ["pattern"] if self.uses_pattern else ["q", "k"]
            hooks += [(prefix + name, partial(self.note, name)) for name in names]
            hooks.append((f"{prefix}z", self.replace_outputs))
            if not self.uses_pattern:
                hooks.append((f"{prefix}pattern", self.show_patterns))
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
                here = HeadActivations(computed, v, z[:, :, head])
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
    parts = [activations_of(model, part) for part in parts_of(model, other)]
    layers = (HeadActivations(*map(torch.cat, zip(*of_layer))) for of_layer in zip(*parts))
    return replace(batch, counterfactual_activations=tuple(layers))


@torch.no_grad()
def activations_of(model: HookedModel, batch: Batch) -> list[HeadActivations]:
    """Run a model once and return pattern, v and z of each layer."""
    with measuring(model), noting(model, "pattern", "v", "z") as noted:
        model(batch.inputs, **call_options(batch), return_type=None)
    for name, layers in noted.items():
        check_fired(model, name, len(layers))
    return [HeadActivations(*(noted[name][n] for name in noted)) for n in range(model.cfg.n_layers)]
