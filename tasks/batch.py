"""A batch of examples: what goes in, what should come out, and who is who."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int, Shaped
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Examples of a task.

    Attributes:
        inputs: what the model reads: vectors [batch pos d_in], or token numbers [batch pos].
        targets: one vector a query, [batch query d_out] (or one token number, [batch query]);
            chain c belongs to the c-th query.
        roles: the position of every role of every chain, [batch chain role].
    """

    inputs: Shaped[Tensor, "batch pos *d_in"]
    targets: Shaped[Tensor, "batch query *d_out"]
    roles: Int[Tensor, "batch chain role"]

    def __len__(self) -> int:
        return self.inputs.shape[0]

    def __getitem__(self, examples: slice) -> "Batch":
        return Batch(self.inputs[examples], self.targets[examples], self.roles[examples])

    def parts(self, most: int) -> Iterator["Batch"]:
        """The batch in turn, at most so many examples at a time."""
        for start in range(0, len(self), most):
            yield self[start : start + most]

    def take(self, examples: Sequence[int]) -> "Batch":
        """Some of the examples, in the order given."""
        chosen = list(examples)
        return Batch(self.inputs[chosen], self.targets[chosen], self.roles[chosen])

    def to(self, device: str | torch.device) -> "Batch":
        return Batch(self.inputs.to(device), self.targets.to(device), self.roles.to(device))
