"""The interface of a task: what is needed to score and find circuits on it.

A task of your own needs three things: names for its roles, examples, and a loss per example.
"""

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from tasks.batch import Batch
from tasks.split import Split

if TYPE_CHECKING:
    from tasks.vectors.graph import RetrievalGraph


class Task:
    """What a model is asked, with a role for every position that matters.

    Subclasses define `role_names`, `sample` and `example_losses`; everything else has a default.

    Attributes:
        role_names: s0 .. sR, as paths are written; the last axis of a batch's roles has size R+1.
        role_labels: readable names of the roles; by default `role_names`.
        role_symbols: short readable names, for axes; by default `role_names`.
        loss_name: what the loss is called in tables.
        loss_meaning: what its numbers mean, in a sentence.
        plateau: the loss of a model that has learned nothing, or None if unknown.
        tolerance: the loss that a working circuit stays below, unless another is given; None for
            the loss at which 95% of what the model has learned is kept.
        answer_roles: the roles at which the loss reads the outputs, if it reads no others; scores
            are then computed at these positions only (see `answers`).
        position_note: how to read `position_labels`, in a sentence; empty where that is plain.
        graph: what each symbol of a chain depends on; None where the task does not say.
    """

    loss_name: ClassVar[str] = "loss"

    @property
    def role_names(self) -> tuple[str, ...]:
        raise NotImplementedError

    def sample(
        self,
        n: int,
        seed: int = 0,
        device: str | torch.device = "cpu",
        split: Split = "train",
        start: int = 0,
    ) -> Batch:
        """Draw n examples of a seed; `train`, `validation`, `discovery` and `test` share none."""
        raise NotImplementedError

    def example_losses(
        self, outputs: Float[Tensor, "batch pos d_out"], batch: Batch
    ) -> Float[Tensor, "batch target"]:
        """The loss of each example and asked symbol; one column if only one thing is asked."""
        raise NotImplementedError

    @property
    def answer_roles(self) -> tuple[int, ...]:
        return ()

    def answers(
        self, outputs: Float[Tensor, "batch pos d_out"], batch: Batch
    ) -> Float[Tensor, "batch chain role d_out"]:
        """The outputs at the answer roles.

        Args:
            outputs: at all positions, or at the answer roles only, in the order [chain role].
            batch: gives the positions of the roles.
        """
        roles = batch.roles[:, :, list(self.answer_roles)]
        if outputs.shape[1] == batch.inputs.shape[1]:
            example = torch.arange(len(batch), device=roles.device)[:, None]
            outputs = outputs[example, roles.flatten(1)]
        return rearrange(
            outputs, "batch (chain role) d_out -> batch chain role d_out", role=roles.shape[-1]
        )

    @property
    def plateau(self) -> float | None:
        return None

    @property
    def tolerance(self) -> float | None:
        return None

    @property
    def loss_meaning(self) -> str:
        plateau = (
            "lower is better"
            if self.plateau is None
            else f"{self.plateau:.3g} is the plateau before anything is learned"
        )
        return (
            f"{self.loss_name} as the task defines it, where {plateau}; +- is the standard error "
            "over examples"
        )

    @property
    def role_labels(self) -> tuple[str, ...]:
        return self.role_names

    @property
    def role_symbols(self) -> tuple[str, ...]:
        return self.role_names

    @property
    def description(self) -> str:
        """The task in a few words."""
        return f"{type(self).__name__} with roles {', '.join(self.role_names)}"

    def path_label(self, dest: int, src: int) -> str:
        """A readable name of a path."""
        return f"{self.role_labels[dest]} <- {self.role_labels[src]}"

    def position_labels(self, batch: Batch, example: int) -> list[str]:
        """A short name per position of an example: its role and chain, or else its number."""
        labels = [f"{place}" for place in range(batch.inputs.shape[1])]
        chains = batch.roles[example].tolist()
        for chain, roles in enumerate(chains, start=1):
            for symbol, position in zip(self.role_symbols, roles):
                labels[position] = f"{symbol}.{chain}" if len(chains) > 1 else symbol
        return labels

    @property
    def position_note(self) -> str:
        return ""

    @property
    def graph(self) -> "RetrievalGraph | None":
        return None

    def to_dict(self) -> dict[str, Any]:
        """How a circuit file identifies its task."""
        return {"name": type(self).__name__}
