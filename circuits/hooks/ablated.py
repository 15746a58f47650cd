"""Applying a circuit to a hooked model by replacing attention patterns (paper, appendix E).

Patterns are replaced at TransformerLens's `hook_pattern`, after the softmax, so any model with
these hook points will do.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.hooks.by_values import value_hooks
from retrieval_interp.circuits.hooks.hooked import Hooked, is_causal, pattern_hook_name
from retrieval_interp.circuits.mechanisms import Mechanism, Where
from retrieval_interp.tasks import Batch, InputError

PatternHook = Callable[..., Tensor | None]
_KEPT = 64_000_000  # weights of patterns that are kept


class Patterns:
    """The patterns of mechanisms on a batch, kept, as many circuits have most in common."""

    def __init__(self, batch: Batch, causal: bool):
        self.where = Where.of(batch, causal)
        self._kept: dict[Mechanism, Tensor] = {}
        self._numbers = 0

    def __call__(self, mechanism: Mechanism) -> Float[Tensor, "#batch dest src"]:
        pattern = self._kept.pop(mechanism, None)
        if pattern is None:
            pattern = mechanism.pattern(self.where)
            self._numbers += pattern.numel()
        self._kept[mechanism] = pattern
        while self._numbers > _KEPT and len(self._kept) > 1:  # those used longest ago go first
            self._numbers -= self._kept.pop(next(iter(self._kept))).numel()
        return pattern


def _circuit_hooks(
    model: Any, circuit: Circuit, batch: Batch, first_layer: int, pattern_of: Patterns
) -> list[tuple[str, PatternHook]]:
    layers: dict[int, dict[int, Mechanism]] = {}
    for head, mechanism in circuit.mechanisms.items():
        if head.layer >= first_layer:
            layers.setdefault(head.layer, {})[head.head] = mechanism
            pattern_of.where.check(mechanism.paths, names=circuit.role_names)
    if not layers:
        return []
    if not Hooked(model).pattern_is_used(batch):
        return [
            hook
            for layer, heads in layers.items()
            for hook in value_hooks(layer, heads, pattern_of, batch, is_causal(model))
        ]
    replace = partial(_replace_heads, pattern_of=pattern_of, batch=batch)
    return [
        (pattern_hook_name(layer), partial(replace, mechanisms=heads))
        for layer, heads in layers.items()
    ]


def _replace_heads(
    pattern: Float[Tensor, "batch head dest src"],
    hook: Any,
    mechanisms: dict[int, Mechanism],
    pattern_of: Patterns,
    batch: Batch,
) -> Float[Tensor, "batch head dest src"]:
    examples, length = batch.inputs.shape[:2]
    if (examples, length) != (len(pattern), pattern.shape[-1]):
        raise InputError(
            f"ablation: the circuit was applied for a batch of {examples} examples and {length} "
            f"positions, but the model ran on {len(pattern)} and {pattern.shape[-1]}; run the same "
            "batch"
        )
    replaced = pattern.clone()
    for head, mechanism in mechanisms.items():
        if mechanism.keeps_own:
            other = batch.counterfactual_of(hook.layer(), head)
            replaced[:, head] = mechanism.changed(pattern[:, head], batch.roles, other)
        else:
            replaced[:, head] = pattern_of(mechanism).to(pattern)
    return replaced


@contextmanager
def ablated(
    model: Any,
    circuit: Circuit,
    batch: Batch,
    first_layer: int = 0,
    known: Patterns | None = None,
) -> Iterator[Any]:
    """Run a model with a circuit in place of its attention.

    The pattern of every head that the circuit names is replaced after the softmax, so the head
    writes pattern(mechanism) · values. In a `cut` head the attention of its paths is set to zero
    and the rest kept, without rescaling.

    Blocks nest: an inner one acts after an outer one on the same head. Leaving a block, normally or
    by an exception, removes only the hooks that it set.

    Args:
        model: a hooked model (`HookedTransformer` or similar), unchanged afterwards.
        circuit: mechanisms for some or all of its heads.
        batch: the batch that will be run; its roles place the paths.
        first_layer: apply the circuit from this layer on, for runs with `start_at_layer`.
        known: patterns of this batch, kept from other circuits.

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
    circuit.check_fits(model.cfg.n_layers, model.cfg.n_heads)
    pattern_of = known or Patterns(batch, is_causal(model))
    hooks = _circuit_hooks(model, circuit, batch, first_layer, pattern_of)
    fired: set[str] = set()

    def noting(name: str, function: PatternHook) -> PatternHook:
        def replace(activation: Tensor, hook: Any) -> Tensor | None:
            fired.add(name)
            return function(activation, hook=hook)

        return replace

    with model.hooks(fwd_hooks=[(name, noting(name, function)) for name, function in hooks]):
        yield model
    for name, _ in hooks:
        if name not in fired:
            raise InputError(
                f"ablation: expected every hook to fire, but {name} did not; the model was not "
                "run, or does not pass its attention through that hook"
            )
