"""Runs of rows of tokens that begin alike, as a prompt with several answers."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from retrieval_interp.circuits.hooks import (
    HookedModel,
    answer_hooks,
    has_hooks,
    hooked,
    is_transformers,
    measuring,
)
from retrieval_interp.tasks import Batch


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
