"""Replacing attention in models that only show their pattern.

A `TransformerBridge` may compute attention first and show the pattern afterwards, so replacing it
changes nothing. There the head's result is replaced: `hook_z` returns the wanted pattern times the
values, which were recorded at `hook_v`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.attention import allowed_positions, softmax_attention
from retrieval_interp.circuits.mechanisms import Mechanism
from retrieval_interp.tasks import Batch, InputError


def value_hooks(
    layer: int,
    mechanisms: Mapping[int, Mechanism],
    pattern_of: Callable[[Mechanism], Tensor],
    batch: Batch,
    causal: bool,
) -> list[tuple[str, Callable[..., Any]]]:
    """Hooks that replace a layer's attention through its values, by head; to be set together."""
    real, n_positions = batch.attention_mask, batch.inputs.shape[1]
    allowed = allowed_positions(n_positions, causal, batch.inputs.device, real)
    if real is not None:
        allowed = allowed | ~real[:, :, None]  # rows of padding, which nothing attends to
    seen: dict[str, Float[Tensor, "batch pos head d_head"]] = {}
    own: dict[int, Tensor] = {}
    used: dict[int, Tensor] = {}

    def keep(name: str) -> Callable[[Tensor, Any], None]:
        def hold(activation: Tensor, hook: Any) -> None:
            seen[name] = activation

        return hold

    def replace(z: Float[Tensor, "batch pos head d_head"], hook: Any) -> Tensor:
        if len(z) != len(batch):
            raise InputError(
                f"ablation: the circuit was applied for a batch of {len(batch)} examples, but the "
                f"model ran on {len(z)}; run the same batch"
            )
        z = z.clone()
        group = z.shape[2] // seen["v"].shape[2]  # query heads may share a key-value head
        for head, mechanism in mechanisms.items():
            if mechanism.keeps_own:
                queries, keys = seen["q"][:, :, head], seen["k"][:, :, head // group]
                own[head] = softmax_attention(queries, keys, allowed, queries.shape[-1] ** 0.5)
                other = batch.counterfactual_of(layer, head)
                used[head] = mechanism.changed(own[head], batch.roles, other)
            else:
                used[head] = pattern_of(mechanism).to(z).expand(len(z), -1, -1)
            z[:, :, head] = used[head] @ seen["v"][:, :, head // group]
        return z

    def show(pattern: Float[Tensor, "batch head dest src"], hook: Any) -> Tensor:
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
    some_cut = any(mechanism.keeps_own for mechanism in mechanisms.values())
    hooks = [(f"{place}{name}", keep(name)) for name in ("vqk" if some_cut else "v")]
    return [*hooks, (f"{place}z", replace), (f"{place}pattern", show)]
