"""Run a hooked model under many circuits, from the first layer that differs from a base.

`circuits.losses` says what is kept of the base, and what is computed again. `ContinuedRuns` keeps
what was read of a text, to run others that begin alike.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.hooks import (
    HookedModel,
    KeptPatterns,
    ablated,
    has_hooks,
    hook_points,
    hooked,
    is_transformers,
    measuring,
    run_model,
)
from retrieval_interp.tasks import Batch


@dataclass(frozen=True)
class HookBase:
    """A whole run; `returned` is of each block but the last, or empty if no run can start there."""

    circuit: Circuit
    outputs: Float[Tensor, "batch answer d_out"]
    returned: Sequence[Any]


class HookRuns:
    """Runs of a hooked model on a batch, from the first layer that differs from a base.

    If the task has answer roles, logits are computed at these only; with a large vocabulary all
    would fill the memory.
    """

    def __init__(self, model: HookedModel, batch: Batch, answers: tuple[int, ...] = ()):
        self.model, self.batch = model, batch
        self.reading = answer_hooks(model, batch, answers)
        self.patterns = KeptPatterns(batch, model)

    @torch.no_grad()
    def base(self, circuit: Circuit, old: HookBase | None = None) -> HookBase:
        """Run a circuit as a base, from where it differs from an old one."""
        layer = self.first_layer(circuit, old)
        if old is not None and layer == len(self.model.blocks):
            return replace(old, circuit=circuit)
        returned = list(old.returned[:layer]) if old else []
        before = returned[-1] if returned else None
        handles = [
            block.register_forward_hook(lambda block, inputs, output: returned.append(output))
            for block in self.model.blocks[layer:-1]
        ]
        try:
            outputs = self._run(circuit, layer, before)
        finally:
            for handle in handles:
                handle.remove()
        if returned:  # a model may do more between blocks than pass on what they return
            again = self._run(circuit, len(returned), returned[-1])
            same = torch.allclose(again, outputs, atol=1e-5, rtol=1e-5, equal_nan=True)
            returned = returned if same and len(returned) == len(self.model.blocks) - 1 else []
        return HookBase(circuit, outputs, returned)

    @torch.no_grad()
    def outputs(self, circuit: Circuit, base: HookBase) -> Float[Tensor, "batch answer d_out"]:
        """Return the outputs under a circuit, run from where it differs from the base."""
        layer = self.first_layer(circuit, base)
        if layer == len(self.model.blocks):
            return base.outputs
        return self._run(circuit, layer, [None, *base.returned][layer])

    def first_layer(self, circuit: Circuit, base: HookBase | None) -> int:
        """Return the first layer that differs from a base; n_layers if none does."""
        if base is None:
            return 0
        heads = circuit.mechanisms.keys() | base.circuit.mechanisms.keys()
        layers = [head.layer for head in heads if circuit[head] != base.circuit[head]]
        layer = min(layers, default=len(self.model.blocks))
        return layer if base.returned or not layers else 0

    def _run(self, circuit: Circuit, layer: int, before: Any) -> Tensor:
        reading = hooked(self.model, self.reading)
        with ablated(self.model, circuit, self.batch, layer, self.patterns), reading:
            return run_model(self.model, self.batch, layer, before)


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


class ContinuedRuns:
    """Runs rows of tokens; a bridge goes on where they begin like one that is kept (KV cache)."""

    def __init__(self, model: HookedModel):
        self.model, self.device = model, next(model.parameters()).device
        self.continues = is_transformers(model) and not has_hooks(model)
        self.read: list[int] = []  # the row that is kept, with its keys and values by layer
        self.kept: list[tuple[Tensor, Tensor]] = []

    def logits(
        self, rows: Int[Tensor, "row pos"], size: int, keep: bool = False
    ) -> Float[Tensor, "row size vocab"]:
        """Return the logits at the last `size` positions of rows; `keep` is for a single row."""
        begun, options = 0, dict[str, Any]()
        if self.continues:
            from transformers import DynamicCache

            read = rows.new_tensor(self.read)[: rows.shape[1]]
            same = (rows[:, : len(read)] == read).all(0).long().cumprod(0).sum()
            begun, shape = min(int(same), rows.shape[1] - size), (len(rows), -1, -1, -1)
            layers = [[part[:, :, :begun].expand(shape) for part in layer] for layer in self.kept]
            options = {"past_key_values": DynamicCache(layers), "use_cache": True}
        inputs = rows[:, begun:]
        positions = torch.arange(inputs.shape[1], device=rows.device)[-size:]
        batch = Batch(inputs, inputs[:, -1:], positions.expand(len(rows), 1, -1))
        hooks = answer_hooks(self.model, batch, tuple(range(size)))
        with measuring(self.model), hooked(self.model, hooks):
            logits: Tensor = self.model(inputs, **options)
        if self.continues and keep:
            cache = options["past_key_values"]
            self.read = rows[0].tolist()
            self.kept = [(layer.keys, layer.values) for layer in cache.layers]
        return logits[:, -size:].float()
