"""A batch of examples: inputs, targets and the position of every role."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

Device = str | torch.device
Outputs = Float[Tensor, "batch pos d_out"]  # of a model


@dataclass(frozen=True)
class Batch:
    """Examples of a task.

    Attributes:
        inputs: what the model reads: vectors [batch pos d_in], or token ids [batch pos].
        targets: one vector or token id per query; the c-th query belongs to chain c.
        roles: the position of every role of every chain, [batch chain role]; -1 where an example
            lacks the role.
        attention_mask: True (or 1) at real positions and False at padding, which is before or after
            an example, [batch pos]; None where all are real.
        counterfactual: what a model attends to on counterfactual prompts of the same length, for
            heads that attend so (`circuits.counterfactual`); None where there are none.
    """

    inputs: Shaped[Tensor, "batch pos *d_in"]
    targets: Shaped[Tensor, "batch query *d_out"]
    roles: Int[Tensor, "batch chain role"]
    attention_mask: Bool[Tensor, "batch pos"] | Int[Tensor, "batch pos"] | None = None
    counterfactual: Float[Tensor, "batch layer head pos pos"] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.attention_mask, Tensor):
            object.__setattr__(self, "attention_mask", self.attention_mask.bool())

    @property
    def tokens(self) -> Int[Tensor, "batch pos"] | None:
        """Token ids, or None where inputs are vectors."""
        return None if self.inputs.is_floating_point() else self.inputs

    def __len__(self) -> int:
        return self.inputs.shape[0]

    def __getitem__(self, examples: slice) -> "Batch":
        return self._each(lambda tensor: tensor[examples])

    def parts(self, most: int) -> Iterator["Batch"]:
        """Split the batch into consecutive parts of at most `most` examples."""
        for start in range(0, len(self), most):
            yield self[start : start + most]

    def take(self, examples: Sequence[int]) -> "Batch":
        """The chosen examples, in the order given."""
        chosen = list(examples)
        return self._each(lambda tensor: tensor[chosen])

    def to(self, device: Device) -> "Batch":
        return self._each(lambda tensor: tensor.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        fields: Any = {name: x if x is None else change(x) for name, x in vars(self).items()}
        return Batch(**fields)

    def counterfactual_of(self, layer: int, head: int) -> Float[Tensor, "batch pos pos"] | None:
        """A head's attention on the counterfactual prompts."""
        return None if self.counterfactual is None else self.counterfactual[:, layer, head]
