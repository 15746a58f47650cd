"""What a training loop needs of a task: sizes, indexed examples, and partial losses."""

import itertools
import pkgutil
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from retrieval_interp import tasks
from retrieval_interp.tasks.batch import Batch, Device
from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.split import SPLITS, Split, check_draw
from retrieval_interp.tasks.structured import check_fields, to_data
from retrieval_interp.tasks.task import Task

_KINDS: dict[str, type["TrainingTask"]] = {}


class TrainingTask(Task):
    """A task that models are built and trained for: a frozen dataclass whose fields are its sizes.

    Subclasses define `facts`, which gives the attributes below and those of `Task`, and `draw`.
    Files find a subclass by its `name`: in this package, or anywhere that is imported before.

    Attributes:
        name: the task's name in files.
        n_positions: sequence length, T.
        d_in: components of an input vector, or the size of the vocabulary.
        d_out: components of an output vector.
        asked: names of what is asked, one per column of `example_losses`.
        loss_scale: the loss of an uninformative answer.
        tolerance: 0.05 as in the paper (appendix E), times `loss_scale`.
    """

    name: ClassVar[str]
    n_positions: int
    d_in: int
    d_out: int
    asked: tuple[str, ...]
    loss_scale: float
    tolerance: float

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls):
            _KINDS[cls.name] = cls

    @classmethod
    def named(cls, name: str | None) -> type["TrainingTask"]:
        """The task with a name in files; those of retrieval have none in old ones."""
        name = "retrieval" if name is None else name
        if name not in _KINDS:
            for module in pkgutil.walk_packages(tasks.__path__, f"{tasks.__name__}."):
                import_module(module.name)
        if name not in _KINDS:
            known = " or ".join(map(repr, sorted(_KINDS)))
            raise InputError(f"expected the name {known}, found {name!r:.60}")
        return _KINDS[name]

    def __post_init__(self) -> None:
        check_fields(self, "task")
        vars(self).update(self.complete(self.facts()))

    def facts(self) -> dict[str, Any]:
        """The attributes that follow from the fields; refuses fields that do not fit together."""
        raise NotImplementedError

    def complete(self, facts: dict[str, Any]) -> dict[str, Any]:
        """The facts, and what follows from them in every task of this kind."""
        return {"tolerance": 0.05 * facts["loss_scale"], **facts}

    def draw(self, indices: Int[Tensor, " batch"], seed: int, stream: int) -> Batch:
        """Generate examples from the random words of a stream (`tasks.sampling`)."""
        raise NotImplementedError

    @property
    def n_targets(self) -> int:
        """How many things are asked."""
        return len(self.asked)

    @cached_property
    def steps_between(self) -> tuple[tuple[str, str], ...]:
        """Pairs of what is asked; the second is retrieved by way of the first."""
        return tuple(itertools.pairwise(self.asked))

    def sample(
        self, n: int, seed: int = 0, device: Device = "cpu", split: Split = "train", start: int = 0
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
        check_draw(seed, split)
        return self.draw(indices, seed, SPLITS.index(split))

    def partial_losses(
        self, outputs: Float[Tensor, "batch pos d_out"], batch: Batch
    ) -> Float[Tensor, " target"]:
        """The mean loss of each thing asked, in the order of `asked` (section 7.2)."""
        return self.example_losses(outputs, batch).mean(dim=0)

    def loss(self, outputs: Float[Tensor, "batch pos d_out"], batch: Batch) -> Float[Tensor, ""]:
        """The mean over examples and everything asked."""
        return self.partial_losses(outputs, batch).mean()

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, **to_data(self)}


def counted(number: int, noun: str) -> str:
    """`1 chain`, `2 chains`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def curriculum_text(curriculum: bool) -> str:
    return f"{'with' if curriculum else 'without'} implicit curriculum"
