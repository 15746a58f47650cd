"""Tasks that models are trained for: sizes, indexed examples, and a loss for each thing asked."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from retrieval_interp.tasks.messages import InputError
from retrieval_interp.tasks.sampling import SPLITS, Split, check_draw, rotary_encoding
from retrieval_interp.tasks.structured import check_fields, fields_data, read_fields
from retrieval_interp.tasks.task import Batch, Device, Outputs, Task, role_name

BEGIN = "<s>"  # before every sequence
MAX_POSITIONS, MAX_WORDS = 8192, 65536  # of a sequence, and of a vocabulary
BASE = 100.0  # of the rotary frequencies of positions
_REGISTERED: dict[str, type["TrainingTask"]] = {}
Kind = TypeVar("Kind", bound=type["TrainingTask"])


def registered(kind: Kind) -> Kind:
    """Make a class of tasks known to recipes, checkpoints and run folders by its `name`."""
    _REGISTERED[kind.name] = kind
    return kind


class TrainingTask(Task):
    """A task that models are trained for: a frozen dataclass whose fields are its sizes.

    Subclasses define `name`, the sizes below, what is `asked`, `draw` and `example_losses`; roles
    may have labels. Its models read vectors; those of a `TokenTask` read token ids.
    """

    counterfactual_words = "the question about another chain"
    name: ClassVar[str]  # in files
    symbol_width: int | None = None  # components of an input vector that encode its symbol
    d_in: int  # components of an input vector, or the size of the vocabulary
    d_out: int  # components of an output vector
    loss_scale: float  # the loss of an uninformative answer

    def __post_init__(self) -> None:
        check_fields(self, "task")
        if self.n_positions > MAX_POSITIONS:
            raise InputError(
                f"task: expected at most {MAX_POSITIONS} positions, found {self.n_positions}; use "
                "a smaller task"
            )

    @cached_property
    def n_positions(self) -> int:
        """Sequence length, T."""
        raise NotImplementedError

    @cached_property
    def asked(self) -> tuple[str, ...]:
        """The names of the things asked, one per column of `example_losses`."""
        raise NotImplementedError

    @cached_property
    def steps_between(self) -> tuple[tuple[str, str], ...]:
        """Pairs of asked things, of which the second is retrieved by the first."""
        return tuple(itertools.pairwise(self.asked))

    @cached_property
    def tolerance(self) -> float:  # type: ignore[override]
        """0.05 as in the paper (appendix E), times `loss_scale`."""
        return 0.05 * self.loss_scale

    @cached_property
    def role_names(self) -> tuple[str, ...]:
        """s0, s1, ..., as many as an example has."""
        return tuple(map(role_name, range(self.sample(1).roles.shape[-1])))

    @property
    def curriculum_text(self) -> str:
        return f"{'with' if getattr(self, 'curriculum', False) else 'without'} implicit curriculum"

    def draw(self, indices: Int[Tensor, " batch"], seed: int, stream: int) -> Batch:
        """Make examples of the random words of a stream (`tasks.sampling`)."""
        raise NotImplementedError

    def sample(
        self, n: int, seed: int = 0, device: Device = "cpu", split: Split = "train", start: int = 0
    ) -> Batch:
        """Draw the examples start .. start+n-1 of a seed, the same for any n and device."""
        if n < 1:
            raise InputError(f"sample: expected n of at least 1, found {n}")
        return self.examples(torch.arange(start, start + n, device=device), seed, split)

    def examples(
        self, indices: Int[Tensor, " batch"], seed: int = 0, split: Split = "train"
    ) -> Batch:
        """Return the indexed examples of a seed; a training set of n has the indices 0 .. n-1."""
        check_draw(seed, split)
        return self.draw(indices, seed, SPLITS.index(split))

    def counterfactual(self, batch: Batch, seed: int = 0) -> Batch:
        """Ask about another chain: give every query the next chain's symbol."""
        return self._chains_swapped(batch, [0])

    def rewired(self, batch: Batch, seed: int = 0) -> Batch:
        """Rewire the chains: give every pair's second element the next chain's symbol."""
        return self._chains_swapped(batch, range(2, batch.roles.shape[-1], 2))

    def _chains_swapped(self, batch: Batch, roles: Iterable[int]) -> Batch:
        if batch.roles.shape[1] < 2:
            raise InputError("counterfactual: expected at least two chains, found one")
        inputs = batch.inputs.clone() if batch.tokens is None else batch.inputs[..., None].clone()
        example, before = torch.arange(len(batch))[:, None], inputs.clone()
        for role in roles:
            here = batch.roles[:, :, role]
            next_chains = before[example, here.roll(-1, dims=1), : self.symbol_width]
            inputs[example, here, : self.symbol_width] = next_chains
        return replace(batch, inputs=inputs.view_as(batch.inputs))

    def partial_losses(self, outputs: Outputs, batch: Batch) -> Float[Tensor, " target"]:
        """Return the mean loss of each thing asked, in the order of `asked` (section 7.2)."""
        return self.example_losses(outputs, batch).mean(dim=0)

    def to_dict(self) -> dict[str, Any]:
        """Return the name and the fields as JSON data; `from_dict` reads them back."""
        return {"name": self.name, **fields_data(self)}

    @classmethod
    def from_dict(cls, data: Any) -> "TrainingTask":
        """Read the task that `to_dict` wrote; its class must be registered."""
        name = data.get("name") if isinstance(data, dict) else None
        kind = _REGISTERED.get(str(name))
        if kind is None:
            from retrieval_interp import tasks

            for exported in dir(tasks):  # importing the package's tasks registers them
                getattr(tasks, exported)
            kind = _REGISTERED.get(str(name))
        if kind is None:
            expected = " or ".join(map(repr, sorted(_REGISTERED)))
            raise InputError(
                f"expected the name {expected}, found {name!r:.60}; a task of your own needs "
                "@registered, and its module imported"
            )
        fields = {key: value for key, value in data.items() if key != "name"}
        task: TrainingTask = read_fields(kind, fields)
        return task


class TokenTask(TrainingTask):
    """A training task whose models read token ids, with a cross entropy as loss.

    Every thing asked has the same number of candidates. The model's outputs at an answer role are
    the logits of the candidates of the first thing asked, then of the second, and so on. Subclasses
    define the `vocabulary`, in which one word is `BEGIN`.
    """

    loss_name: ClassVar[str] = "cross entropy"
    scored_roles: tuple[int, ...] = (0,)

    @cached_property
    def candidates(self) -> int:
        """How many answers there are to choose from: by default all words but `BEGIN`."""
        return len(self.vocabulary) - 1

    @cached_property
    def plateau(self) -> float:  # type: ignore[override]
        """Cross entropy, in nats, of guessing among the candidates."""
        return math.log(self.candidates)

    @cached_property
    def loss_scale(self) -> float:  # type: ignore[override]
        return self.plateau

    @cached_property
    def d_in(self) -> int:  # type: ignore[override]
        return len(self.vocabulary)

    @cached_property
    def d_out(self) -> int:  # type: ignore[override]
        return len(self.asked) * self.candidates

    def position_encoding(self, width: int) -> Float[Tensor, "pos width"]:
        """Return sinusoids of the position, with which a model's positional embedding starts."""
        code = rotary_encoding(self.n_positions, width & ~1, BASE)
        return F.pad(code, (0, width - code.shape[1]))

    def position_labels(self, batch: Batch, example: int) -> list[str]:
        """Return the words."""
        return [self.vocabulary[token] for token in batch.inputs[example].tolist()]

    def logits(self, outputs: Outputs, batch: Batch) -> Float[Tensor, "batch chain target name"]:
        """Return the logits of the candidates for everything asked."""
        after = self.answers(outputs, batch)[:, :, 0]
        return after.unflatten(-1, (len(self.asked), self.candidates))  # type: ignore[no-any-return]

    def right(self, batch: Batch) -> Int[Tensor, "batch chain target"]:
        """Return the number of the right candidate for everything asked."""
        return batch.targets.reshape(*batch.roles.shape[:2], -1)

    def example_losses(self, outputs: Outputs, batch: Batch) -> Float[Tensor, "batch target"]:
        """Return the cross entropy among the candidates, in nats, per example and thing asked."""
        logits, targets = self.logits(outputs, batch), self.right(batch)
        losses = F.cross_entropy(logits.flatten(0, 2), targets.flatten(), reduction="none")
        return losses.view(targets.shape).mean(dim=1)

    def accuracies(self, outputs: Outputs, batch: Batch) -> Float[Tensor, " target"]:
        """Return how often the answer has the highest logit of its candidates, per thing asked."""
        right = self.logits(outputs, batch).argmax(-1) == self.right(batch)
        return right.float().mean(dim=(0, 1))

    def logit_differences(self, outputs: Outputs, batch: Batch) -> Float[Tensor, "batch target"]:
        """Return the answer's logit minus the mean of the others', per example and thing asked."""
        logits = self.logits(outputs, batch)
        right = logits.gather(-1, self.right(batch)[..., None])[..., 0]
        others = (logits.sum(-1) - right) / (self.candidates - 1)
        return torch.mean(right - others, dim=1)
