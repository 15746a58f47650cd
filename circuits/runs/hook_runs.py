"""Running any hooked model under many circuits, from the first layer in which they differ."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.hooks.ablated import Patterns, ablated
from retrieval_interp.circuits.hooks.points import call_options, is_causal, is_hooked_transformer
from retrieval_interp.circuits.hooks.skipped import blocks_skipped, can_skip_blocks
from retrieval_interp.tasks import Batch, InputError

WHOLE = 512  # examples per run; more are no faster and take memory
PART = 256  # examples per part of a larger batch; as fast as 512; 2.2 GB, not 2.5, for 4,096
LOGITS = 300_000_000  # numbers that a run's logits may have; a language model has many a position


def parts_of(model: Any, batch: Batch) -> list[Batch]:
    """Split a large batch, unless the model has hooks, which may be made for this batch."""
    fitting = max(1, LOGITS // (batch.inputs.shape[1] * model.cfg.d_vocab_out))
    if has_hooks(model) or len(batch) <= min(WHOLE, fitting):
        return [batch]
    return list(batch.parts(min(PART, fitting)))


def has_hooks(model: Any) -> bool:
    """Whether somebody has set a hook on the model."""
    return any(point.has_hooks() for point in model.hook_dict.values())


class HookRuns:
    """Runs of a hooked model, from the first layer in which a circuit differs from the base.

    In a `TransformerBridge` the blocks before it are skipped (`circuits.hooks.skipped`), or if that
    is not possible the model is run from its first layer. If the task has answer roles, logits are
    computed at these only; with a large vocabulary all would fill the memory.
    """

    def __init__(
        self, model: Any, batch: Batch, circuit: Circuit, answer_roles: tuple[int, ...] = ()
    ):
        self.model, self.batch, self.options = model, batch, call_options(batch)
        # A user's hook before a layer would act twice on the activation kept there.
        hooked = any(
            point.has_hooks() for name, point in model.hook_dict.items() if "resid_pre" in name
        )
        self.starts_anywhere = not hooked and (
            model.cfg.positional_embedding_type != "shortformer"
            if is_hooked_transformer(model)
            else can_skip_blocks(model, batch)
        )
        self.reading = answer_hooks(model, batch, answer_roles)
        self.patterns = Patterns(batch, is_causal(model))
        self.rebase(circuit)

    @torch.no_grad()
    def rebase(self, circuit: Circuit) -> Float[Tensor, "batch pos d_out"]:
        residuals: list[Tensor] = []

        def keep(residual: Tensor, hook: Any) -> None:
            residuals.append(residual.detach())

        n_layers = self.model.cfg.n_layers if self.starts_anywhere else 0
        names = [f"blocks.{layer}.hook_resid_pre" for layer in range(n_layers)]
        with (
            ablated(self.model, circuit, self.batch, known=self.patterns),
            self.model.hooks(fwd_hooks=[*((name, keep) for name in names), *self.reading]),
        ):
            outputs: Tensor = self.model(self.batch.inputs, **self.options)
        if len(residuals) != len(names):
            raise InputError(
                f"scoring: expected hook_resid_pre to fire once in each of {len(names)} layers, "
                f"found {len(residuals)} times"
            )
        self.base, self.residuals = circuit, residuals
        self.base_outputs = outputs
        return outputs

    @torch.no_grad()
    def outputs(self, circuit: Circuit) -> Float[Tensor, "batch pos d_out"]:
        layer = self._first_difference(circuit)
        if layer is None:
            return self.base_outputs
        outputs: Tensor
        if not self.starts_anywhere:
            with self._answering(circuit):
                outputs = self.model(self.batch.inputs, **self.options)
        elif is_hooked_transformer(self.model):
            with self._answering(circuit, layer):
                outputs = self.model(self.residuals[layer], start_at_layer=layer, **self.options)
        else:
            with (
                self._answering(circuit, layer),
                blocks_skipped(self.model, layer, self.residuals[layer]),
            ):
                outputs = self.model(self.batch.inputs, **self.options)
        return outputs

    @contextmanager
    def _answering(self, circuit: Circuit, first_layer: int = 0) -> Iterator[None]:
        with (
            ablated(self.model, circuit, self.batch, first_layer, self.patterns),
            self.model.hooks(fwd_hooks=self.reading),
        ):
            yield

    def _first_difference(self, circuit: Circuit) -> int | None:
        heads = circuit.mechanisms.keys() | self.base.mechanisms.keys()
        return min((head.layer for head in heads if circuit[head] != self.base[head]), default=None)


def answer_hooks(
    model: Any, batch: Batch, answer_roles: tuple[int, ...]
) -> list[tuple[str, Callable[..., Tensor]]]:
    """Hooks that keep only the answer roles' positions before logits are computed.

    For an absent role any position is kept; `Task.answers` leaves it out. As many answers as there
    are positions are not picked out: `Task.answers` could not tell them from whole sequences.
    """
    positions = batch.roles[:, :, list(answer_roles)].flatten(1).clamp(min=0)
    if not answer_roles or positions.shape[1] == batch.inputs.shape[1]:
        return []
    example = torch.arange(len(batch), device=positions.device)[:, None]

    def at_answers(residual: Tensor, hook: Any) -> Tensor:
        return residual[example, positions]

    # A bridge needs whole sequences up to its last layer norm.
    bridged = "unembed.hook_in" in model.hook_dict
    last = f"blocks.{model.cfg.n_layers - 1}.hook_resid_post"
    return [("unembed.hook_in" if bridged else last, at_answers)]
