"""Running any hooked model under many circuits, from the first layer in which they differ."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.hooks.ablated import Patterns, ablated
from retrieval_interp.circuits.hooks.hooked import Hooked, has_hooks, is_causal
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


@dataclass(frozen=True)
class HookBase:
    """A whole run: its outputs, and the residual stream before every layer if runs start there."""

    circuit: Circuit
    outputs: Float[Tensor, "batch answer d_out"]
    residuals: list[Float[Tensor, "batch pos d_model"]]


class HookRuns:
    """Runs of a hooked model on a batch.

    If the task has answer roles, logits are computed at these only; with a large vocabulary all
    would fill the memory.
    """

    def __init__(self, model: Any, batch: Batch, answer_roles: tuple[int, ...] = ()):
        self.model, self.batch, self.hooked = model, batch, Hooked(model)
        self.starts_anywhere = self.hooked.starts_anywhere(batch)
        self.reading = answer_hooks(model, batch, answer_roles)
        self.patterns = Patterns(batch, is_causal(model))

    @torch.no_grad()
    def base(self, circuit: Circuit, old: HookBase | None = None) -> HookBase:
        residuals: list[Tensor] = []
        n_layers = self.model.cfg.n_layers if self.starts_anywhere else 0

        def keep(residual: Tensor, hook: Any) -> None:
            residuals.append(residual.detach())

        hooks = [(f"blocks.{layer}.hook_resid_pre", keep) for layer in range(n_layers)]
        with (
            ablated(self.model, circuit, self.batch, known=self.patterns),
            self.model.hooks(fwd_hooks=[*hooks, *self.reading]),
        ):
            outputs = self.hooked.run(self.batch)
        if len(residuals) != n_layers:
            raise InputError(
                f"scoring: expected hook_resid_pre to fire once in each of {n_layers} layers, "
                f"found {len(residuals)} times"
            )
        return HookBase(circuit, outputs, residuals)

    @torch.no_grad()
    def outputs(self, circuit: Circuit, base: HookBase) -> Float[Tensor, "batch answer d_out"]:
        """The outputs under a circuit, computed from where it differs from the base."""
        heads = circuit.mechanisms.keys() | base.circuit.mechanisms.keys()
        layers = [head.layer for head in heads if circuit[head] != base.circuit[head]]
        if not layers:
            return base.outputs
        layer = min(layers) if self.starts_anywhere else 0
        residual = base.residuals[layer] if self.starts_anywhere else None
        with (
            ablated(self.model, circuit, self.batch, layer, self.patterns),
            self.model.hooks(fwd_hooks=self.reading),
        ):
            return self.hooked.run(self.batch, layer, residual)


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
