"""Running a model under many circuits without computing anything twice.

Two ways with one interface: `HookRuns` on any hooked model, here, and `circuits.role_runs`, exact
and much faster, on plain transformers in which every position has a role.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuits.ablation import ablated
from circuits.circuit import Circuit
from circuits.role_runs import RoleRuns
from tasks import Batch, InputError, Task


def make_runs(model: Any, batch: Batch, task: Task) -> "HookRuns | RoleRuns":
    """The fastest way that is exact for this model, batch and loss."""
    empty = Circuit({}, batch.roles.shape[-1])
    if task.answers_at_s0 and RoleRuns.supports(model, batch):
        runs = RoleRuns(model, batch, empty)
        example = torch.arange(len(batch), device=batch.roles.device)[:, None]
        with torch.no_grad():
            outputs = model(batch.inputs)[example, batch.roles[:, :, 0]]
        # Whatever `supports` does not know of, such as a foreign hook, shows here.
        if torch.allclose(runs.base_outputs, outputs, atol=1e-4, rtol=1e-4, equal_nan=True):
            return runs
    return HookRuns(model, batch, empty)


class HookRuns:
    """Whole layers of a hooked model, from the first in which a circuit differs from the base.

    A model that cannot start at a layer (`TransformerBridge`) is run from its first.
    """

    def __init__(self, model: Any, batch: Batch, circuit: Circuit):
        from transformer_lens import HookedTransformer

        self.model, self.batch = model, batch
        # A hook of the user's in front of a layer would act twice on what is kept there.
        hooked = any(
            point.has_hooks() for name, point in model.hook_dict.items() if "resid_pre" in name
        )
        self.starts_anywhere = (
            isinstance(model, HookedTransformer)
            and model.cfg.positional_embedding_type != "shortformer"
            and not hooked
        )
        self.rebase(circuit)

    @torch.no_grad()
    def rebase(self, circuit: Circuit) -> Float[Tensor, "batch pos d_out"]:
        residuals: list[Tensor] = []

        def keep(residual: Tensor, hook: Any) -> None:
            residuals.append(residual.detach())

        n_layers = self.model.cfg.n_layers if self.starts_anywhere else 0
        names = [f"blocks.{layer}.hook_resid_pre" for layer in range(n_layers)]
        with (
            self.model.hooks(fwd_hooks=[(name, keep) for name in names]),
            ablated(self.model, circuit, self.batch),
        ):
            outputs: Tensor = self.model(self.batch.inputs)
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
            with ablated(self.model, circuit, self.batch):
                outputs = self.model(self.batch.inputs)
            return outputs
        with ablated(self.model, circuit, self.batch, first_layer=layer):
            outputs = self.model(self.residuals[layer], start_at_layer=layer)
        return outputs

    def _first_difference(self, circuit: Circuit) -> int | None:
        if circuit.rest != self.base.rest:
            return 0
        heads = circuit.mechanisms.keys() | self.base.mechanisms.keys()
        return min((head.layer for head in heads if circuit[head] != self.base[head]), default=None)
