"""Replacing attention in models that ignore what a pattern hook returns.

A `HookedTransformer` uses what a hook at `hook_pattern` returns. A `TransformerBridge` may compute
attention first and only show the pattern afterwards, so replacing it silently changes nothing. For
such models the head's result is replaced: `hook_z` returns the wanted pattern times the values,
which were recorded at `hook_v`.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.attention import allowed_positions, cut_paths, softmax_attention
from retrieval_interp.circuits.circuit import RolePath
from retrieval_interp.circuits.hooks.points import call_options, is_hooked_transformer
from retrieval_interp.tasks import Batch, InputError

_USED: "weakref.WeakKeyDictionary[Any, bool]" = weakref.WeakKeyDictionary()


@torch.no_grad()
def pattern_is_used(model: Any, batch: Batch) -> bool:
    """Whether a model uses the pattern that a hook at `hook_pattern` returns.

    Determined once per model: by its class, or by zeroing a layer's attention on one example and
    checking whether its heads still return anything.
    """
    if is_hooked_transformer(model):
        return True
    if model not in _USED:
        gathered: list[Tensor] = []
        model.run_with_hooks(
            batch.inputs[:1],
            **call_options(batch[:1]),
            fwd_hooks=[
                ("blocks.0.attn.hook_pattern", lambda pattern, hook: torch.zeros_like(pattern)),
                ("blocks.0.attn.hook_z", lambda z, hook: gathered.append(z)),
            ],
        )
        if not gathered:
            raise InputError(
                "ablation: expected blocks.0.attn.hook_z to fire, but it did not; the model does "
                "not pass its attention through TransformerLens's hooks"
            )
        _USED[model] = not bool(gathered[0].any())
    return _USED[model]


def value_hooks(
    layer: int,
    patterns: dict[int, Tensor],
    cuts: dict[int, tuple[RolePath, ...]],
    batch: Batch,
    causal: bool,
) -> list[tuple[str, Callable[..., Any]]]:
    """Hooks that replace a layer's attention through its values.

    Args:
        layer: its number.
        patterns: the pattern of each replaced head, [batch dest src].
        cuts: the paths to cut in each head.
        batch: the examples, whose roles place the paths.
        causal: whether the model masks later positions.

    Returns:
        Pairs of hook name and hook. Set them all together, for a run of this batch.
    """
    real = batch.attention_mask
    allowed = allowed_positions(batch.inputs.shape[1], causal, batch.inputs.device, real)
    if real is not None:
        allowed = allowed | ~real[:, :, None]  # rows of padding, which nothing attends to
    seen: dict[str, Float[Tensor, "batch pos head d_head"]] = {}
    own: dict[int, Tensor] = {}
    used: dict[int, Tensor] = {}

    def keep(name: str) -> Callable[[Tensor, Any], None]:
        def hold(activation: Tensor, hook: Any) -> None:
            seen[name] = activation

        return hold

    def replace(
        z: Float[Tensor, "batch pos head d_head"], hook: Any
    ) -> Float[Tensor, "batch pos head d_head"]:
        if len(z) != len(batch):
            raise InputError(
                f"ablation: the circuit was applied for a batch of {len(batch)} examples, but the "
                f"model ran on {len(z)}; run the same batch"
            )
        z = z.clone()
        # Several query heads may share one key-value head.
        group = z.shape[2] // seen["v"].shape[2]
        for head, paths in cuts.items():
            queries, keys = seen["q"][:, :, head], seen["k"][:, :, head // group]
            own[head] = softmax_attention(queries, keys, allowed, queries.shape[-1] ** 0.5)
            used[head] = cut_paths(own[head], paths, batch.roles)
        for head, pattern in patterns.items():
            used[head] = pattern.to(z).expand(len(z), -1, -1)
        for head, pattern in used.items():
            z[:, :, head] = pattern @ seen["v"][:, :, head // group]
        return z

    def show(
        pattern: Float[Tensor, "batch head dest src"], hook: Any
    ) -> Float[Tensor, "batch head dest src"]:
        """Show the pattern that was actually used to other hooks."""
        for head, mine in own.items():
            apart = (mine - pattern[:, head]).abs().amax(-1)
            if bool((apart if real is None else apart * real).max() > 1e-4):
                raise InputError(
                    f"ablation: expected L{layer}.H{head} to attend by its queries and keys alone, "
                    "found another pattern; paths of this model cannot be cut, only replaced"
                )
        pattern = pattern.clone()
        for head, replaced in used.items():
            pattern[:, head] = replaced
        return pattern

    place = f"blocks.{layer}.attn.hook_"
    hooks: list[tuple[str, Callable[..., Any]]] = [(f"{place}v", keep("v"))]
    if cuts:
        hooks += [(f"{place}q", keep("q")), (f"{place}k", keep("k"))]
    return [*hooks, (f"{place}z", replace), (f"{place}pattern", show)]
