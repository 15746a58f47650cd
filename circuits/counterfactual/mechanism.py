"""Heads that attend as on a counterfactual prompt, but for what they keep.

The attention on the counterfactual prompts is measured once, in the intact model, and goes with the
batch (`Batch.counterfactual`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from retrieval_interp.circuits.attention import Places, joined
from retrieval_interp.circuits.circuit import Circuit, RolePath
from retrieval_interp.circuits.mechanisms import Mechanism, Own, WithPaths
from retrieval_interp.circuits.runs.means import read_patterns
from retrieval_interp.tasks import Batch, InputError, Task, parse_role, role_name
from retrieval_interp.tasks.roles import Roles

_LEAST = 1e-12  # attention that can be scaled


@dataclass(frozen=True)
class Counterfactual(WithPaths):
    """The attention on the counterfactual prompt, but for the rows and paths that the head keeps.

    In a row with kept paths the other shares are the counterfactual's, scaled so that the row has
    its sum.
    """

    kind = "counterfactual"
    parameters: ClassVar[Mapping[str, Any]] = {"rows": tuple[str, ...]}
    color = "#eeca3b"
    keeps_own = True
    rows: tuple[int, ...] = ()  # roles whose whole rows are kept
    share: float = 0.0  # how far all other attention is moved back to the head's own

    def changed(self, own: Own, roles: Places, other: Own | None) -> Own:
        if other is None:
            raise InputError(
                f"{self.kind}: expected a batch with the attention of a counterfactual prompt, "
                "found one without; see ri.with_counterfactual"
            )
        return self._mixed(own, other.to(own), roles)

    def _mixed(self, own: Tensor, other: Tensor, roles: Tensor) -> Tensor:
        if self.share:
            other = torch.lerp(other, own, self.share)
        if not self.paths and not self.rows:
            return other
        kept = joined(self.paths, roles, own.shape[-1], self.rows)
        from_own = own.masked_fill(~kept, 0.0)
        rest = other.masked_fill(kept, 0.0)
        total = rest.sum(-1, keepdim=True)
        scale = (own.sum(-1, keepdim=True) - from_own.sum(-1, keepdim=True)) / total.clamp(_LEAST)
        rest = torch.where(kept.any(-1, keepdim=True), rest * scale * (total > _LEAST), rest)
        return from_own + rest

    def adding(self, *paths: RolePath) -> Mechanism:
        return replace(self, paths=tuple(dict.fromkeys((*self.paths, *paths))))

    def text(self, names: Sequence[str] = ()) -> str:
        return " ".join([super().text(names), *(role_name(row, names) for row in self.rows)])

    def to_dict(self, names: Sequence[str] = ()) -> dict[str, Any]:
        return {**super().to_dict(names), "rows": [role_name(row, names) for row in self.rows]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], roles: Roles) -> Mechanism:
        rows = tuple(parse_role(name, roles) for name in data.get("rows", ()))
        made: Any = super().from_dict({**data, "rows": []}, roles)
        return cls(made.paths, rows)

    @classmethod
    def from_words(cls, words: Sequence[str], roles: Roles) -> Mechanism:
        made: Any = super().from_words([word for word in words if "<-" in word], roles)
        return cls(made.paths, tuple(parse_role(w, roles) for w in words if "<-" not in w))


@dataclass(frozen=True)
class Patched(Counterfactual):
    """The reverse: its own attention, but for the counterfactual's in some rows and paths."""

    kind = "patched"
    color = "#ff9da6"

    def _mixed(self, own: Tensor, other: Tensor, roles: Tensor) -> Tensor:
        return super()._mixed(other, own, roles)


def keeps_some(circuit: Circuit) -> bool:
    """Whether heads of a circuit attend as on a counterfactual prompt, but for what they keep."""
    return any(isinstance(each, Counterfactual) for each in circuit.mechanisms.values())


def batch_for(circuit: Circuit, model: Any, task: Task, batch: Batch, seed: int = 0) -> Batch:
    """The batch, with the task's counterfactual if the circuit needs one and it has none."""
    if batch.counterfactual is not None or not keeps_some(circuit):
        return batch
    return with_counterfactual(model, batch, task.counterfactual(batch, seed))


def with_counterfactual(model: Any, batch: Batch, other: Batch) -> Batch:
    """The batch, with what a model attends to on counterfactual prompts of the same shape.

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
    patterns = read_patterns(model, other, lambda pattern: pattern)
    return replace(batch, counterfactual=torch.stack(patterns, dim=1))
