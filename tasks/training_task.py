"""What a training loop needs of a task: sizes, indexed examples, and partial losses."""

import itertools
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from retrieval_interp.tasks.batch import Batch
from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.split import Split
from retrieval_interp.tasks.task import Task

_STREAMS: dict[str, int] = {"train": 0, "validation": 1, "discovery": 2, "test": 3}


class TrainingTask(Task):
    """A task that models are built and trained for. Subclasses are frozen dataclasses.

    Attributes:
        name: the task's name in files.
        n_positions: sequence length, T.
        d_in: components of an input vector, or the size of the vocabulary.
        d_out: components of an output vector.
        asked: names of what is asked, one per column of `example_losses`.
        steps_between: pairs of these names; the second is retrieved by way of the first.
        loss_scale: the loss of an uninformative answer.
    """

    name: ClassVar[str]

    @property
    def n_positions(self) -> int:
        raise NotImplementedError

    @property
    def d_in(self) -> int:
        raise NotImplementedError

    @property
    def d_out(self) -> int:
        raise NotImplementedError

    @property
    def asked(self) -> tuple[str, ...]:
        raise NotImplementedError

    @property
    def steps_between(self) -> tuple[tuple[str, str], ...]:
        return tuple(itertools.pairwise(self.asked))

    @property
    def loss_scale(self) -> float:
        raise NotImplementedError

    @property
    def n_targets(self) -> int:
        """How many things are asked."""
        return len(self.asked)

    @property
    def tolerance(self) -> float:
        """0.05 as in the paper (appendix E), times `loss_scale`."""
        return 0.05 * self.loss_scale

    # Examples

    def sample(
        self,
        n: int,
        seed: int = 0,
        device: str | torch.device = "cpu",
        split: Split = "train",
        start: int = 0,
    ) -> Batch:
        """Draw the examples start .. start+n-1 of a seed.

        Args:
            n: how many, at least 1.
            seed: in [0, 2^64); the same seed gives the same examples for any n and device.
            device: where to create the tensors.
            split: `train`, `validation`, `discovery` and `test` never share an example.
            start: index of the first example.
        """
        if n < 1:
            raise InputError(f"sample: expected n of at least 1, found {n}")
        return self.examples(torch.arange(start, start + n, device=device), seed, split)

    def examples(
        self, indices: Int[Tensor, " batch"], seed: int = 0, split: Split = "train"
    ) -> Batch:
        """The indexed examples of a seed, on the device of `indices`.

        A training set of n examples is the indices 0 .. n-1; nothing is stored.
        """
        if not 0 <= seed < 2**64:
            raise InputError(f"sample: expected a seed from 0 to 2^64 - 1, found {seed}")
        if split not in _STREAMS:
            raise InputError(f"sample: expected a split of {sorted(_STREAMS)}, found {split!r}")
        return self._generate(indices, seed, _STREAMS[split])

    def _generate(self, indices: Int[Tensor, " batch"], seed: int, stream: int) -> Batch:
        """Generate examples from the random words of a stream (`tasks.sampling`)."""
        raise NotImplementedError

    # Losses

    def partial_losses(
        self, outputs: Float[Tensor, "batch pos d_out"], batch: Batch
    ) -> Float[Tensor, " target"]:
        """The mean loss of each thing asked, in the order of `asked` (section 7.2)."""
        return self.example_losses(outputs, batch).mean(dim=0)

    def loss(self, outputs: Float[Tensor, "batch pos d_out"], batch: Batch) -> Float[Tensor, ""]:
        """The mean over examples and everything asked."""
        return self.partial_losses(outputs, batch).mean()

    # Parameters

    def _check_counts(self, *counts: tuple[str, int]) -> None:
        """Check that fields are integers in range.

        Raises:
            InputError: naming the field.
        """
        for name, least in counts:
            value: Any = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(
                    f"task: expected {name} to be an integer of at least {least}, found {value!r}"
                )
            if value >= 2**31:
                raise InputError(f"task: expected {name} to be below 2^31, found {value}")

    def _check_curriculum(self) -> None:
        value: Any = getattr(self, "curriculum")  # noqa: B009
        if not isinstance(value, bool):
            raise InputError(f"task: expected curriculum to be true or false, found {value!r}")


def counted(number: int, noun: str) -> str:
    """`1 chain`, `2 chains`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
