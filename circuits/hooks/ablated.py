"""Applying a circuit to a hooked model by replacing attention patterns (paper, appendix E).

Patterns are replaced at TransformerLens's `hook_pattern`, after the softmax, so any model with
these hook points will do. If a model only shows its pattern there, its `hook_z` is replaced instead
(`circuits.hooks.by_values`). Hooks live inside one `with` block.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.attention import check_paths, cut_paths
from retrieval_interp.circuits.circuit import Circuit, Head, RolePath
from retrieval_interp.circuits.hooks.by_values import pattern_is_used, value_hooks
from retrieval_interp.circuits.hooks.points import is_causal, pattern_hook_name
from retrieval_interp.circuits.mechanisms import Mechanism, Where
from retrieval_interp.tasks import Batch, InputError

PatternHook = Callable[..., Tensor | None]
_KEPT = 64_000_000  # weights of patterns that are kept


def circuit_hooks(
    circuit: Circuit,
    batch: Batch,
    causal: bool,
    first_layer: int = 0,
    by_values: bool = False,
    known: "Patterns | None" = None,
) -> list[tuple[str, PatternHook]]:
    """Hooks that replace the attention of a circuit's heads.

    Args:
        circuit: the mechanisms to apply.
        batch: the batch that the hooks are for.
        causal: whether the model masks later positions.
        first_layer: skip the layers before this one.
        by_values: replace the heads' results, for models that ignore the pattern that a hook
            returns (`circuits.hooks.by_values`).
        known: patterns of this batch, kept from other circuits.

    Returns:
        Pairs of hook name and hook, for `model.hooks` or `model.run_with_hooks`.
    """
    layers: dict[int, list[Head]] = {}
    for head in circuit.mechanisms:
        if head.layer >= first_layer:
            layers.setdefault(head.layer, []).append(head)
    hooks: list[tuple[str, PatternHook]] = []
    build = known or Patterns(batch, causal)
    for layer, heads in layers.items():
        patterns, cuts = {}, {}
        for head in heads:
            mechanism = circuit[head]
            if mechanism.keeps_own:
                check_paths(mechanism.paths, batch.roles, causal, names=circuit.role_names)
                cuts[head.head] = mechanism.paths
            else:
                patterns[head.head] = build(mechanism)
        if by_values:
            hooks += value_hooks(layer, patterns, cuts, batch, causal)
        else:
            hook = partial(_replace_heads, patterns=patterns, cuts=cuts, roles=batch.roles)
            hooks.append((pattern_hook_name(layer), hook))
    return hooks


class Patterns:
    """The patterns of mechanisms on a batch; of many circuits, most have most in common.

    Args:
        batch: the batch.
        causal: whether the model masks later positions.
    """

    def __init__(self, batch: Batch, causal: bool):
        self.where = Where.of(batch, causal)
        self._kept: dict[Mechanism, Tensor] = {}
        self._numbers = 0

    def __call__(self, mechanism: Mechanism) -> Float[Tensor, "#batch dest src"]:
        """The pattern of a mechanism."""
        pattern = self._kept.pop(mechanism, None)
        if pattern is None:
            pattern = mechanism.pattern(self.where)
            self._numbers += pattern.numel()
        self._kept[mechanism] = pattern
        while self._numbers > _KEPT and len(self._kept) > 1:  # those used longest ago go first
            self._numbers -= self._kept.pop(next(iter(self._kept))).numel()
        return pattern


def _replace_heads(
    pattern: Float[Tensor, "batch head dest src"],
    hook: Any,
    patterns: dict[int, Tensor],
    cuts: dict[int, tuple[RolePath, ...]],
    roles: Tensor,
) -> Float[Tensor, "batch head dest src"]:
    for replacement in patterns.values():
        if replacement.shape[-2:] != pattern.shape[-2:] or len(replacement) not in (
            1,
            len(pattern),
        ):
            raise InputError(
                f"ablation: the circuit was applied for a batch of {len(replacement)} examples and "
                f"{replacement.shape[-1]} positions, but the model ran on {len(pattern)} and "
                f"{pattern.shape[-1]}; run the same batch"
            )
    if cuts and len(roles) != len(pattern):
        raise InputError(
            f"ablation: the circuit was applied for a batch of {len(roles)} examples, but the "
            f"model ran on {len(pattern)}; run the same batch"
        )
    replaced = pattern.clone()
    for head, paths in cuts.items():
        replaced[:, head] = cut_paths(pattern[:, head], paths, roles)
    for head, replacement in patterns.items():
        replaced[:, head] = replacement.to(pattern)
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

    The pattern of every head that the circuit names is replaced after the softmax:

        head output = pattern(mechanism) · values        instead of softmax(q·k / √d_head) · values

    In a `cut` head the attention of its paths is set to zero and the rest kept, without rescaling.
    Blocks nest: an inner one acts after an outer one on the same head. Leaving a block, normally or
    by an exception, removes only the hooks that it set.

    Args:
        model: a hooked model (`HookedTransformer` or similar), unchanged afterwards.
        circuit: mechanisms for some or all of its heads.
        batch: the batch that will be run; its roles place the paths.
        first_layer: apply the circuit from this layer on, for runs with `start_at_layer`.
        known: patterns of this batch, kept from other circuits.

    Raises:
        InputError: the circuit names a head or role that does not exist, a path violates the mask,
            or a hook did not fire, which would silently leave its head as it was.

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
    by_values = bool(circuit.mechanisms) and not pattern_is_used(model, batch)
    hooks = circuit_hooks(circuit, batch, is_causal(model), first_layer, by_values, known)
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
