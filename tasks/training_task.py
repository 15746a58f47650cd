"""What a training loop needs of a task: sizes, indexed examples, and partial losses."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

import retrieval_interp.tasks as tasks
from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.roles import role_name
from retrieval_interp.tasks.sampling import SPLITS, Split, check_draw, rotary_encoding
from retrieval_interp.tasks.structured import check_fields, to_data
from retrieval_interp.tasks.task import Batch, Device, Outputs, Task

BEGIN = "<s>"  # before every sequence
MAX_POSITIONS, MAX_WORDS = 8192, 65536
BASE = 100.0  # of the rotary frequencies of positions
_KINDS: dict[str, type["TrainingTask"]] = {}


class TrainingTask(Task):
    """A task that models are built and trained for: a frozen dataclass whose fields are its sizes.

    Subclasses define `facts`, which gives the attributes below and those of `Task`, and `draw`.
    """

    name: ClassVar[str]  # in files
    symbol_width: int | None = None  # components of an input vector that hold its symbol
    n_positions: int  # sequence length, T
    d_in: int  # components of an input vector, or the size of the vocabulary
    d_out: int  # components of an output vector
    asked: tuple[str, ...]  # names of what is asked, one per column of `example_losses`
    steps_between: tuple[tuple[str, str], ...]  # of these; the second is retrieved by the first
    loss_scale: float  # the loss of an uninformative answer
    tolerance: float  # 0.05 as in the paper (appendix E), times `loss_scale`

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls):
            _KINDS[cls.name] = cls

    @classmethod
    def named(cls, name: str | None) -> type["TrainingTask"]:
        """The class of a name in files, of this package or imported before; old files have none."""
        for exported in dir(tasks):  # loaded by this, and then known
            getattr(tasks, exported)
        kind = _KINDS.get("retrieval" if name is None else name)
        if kind is None:
            known = " or ".join(map(repr, sorted(_KINDS)))
            raise InputError(f"expected the name {known}, found {name!r:.60}")
        return kind

    def __post_init__(self) -> None:
        check_fields(self, "task")
        for name, fact in self.complete(self.facts()).items():
            # Unless a subclass says otherwise in its body.
            if getattr(type(self), name, None) is getattr(TrainingTask, name, None):
                vars(self)[name] = fact

    def facts(self) -> dict[str, Any]:
        """The attributes that follow from the fields; refuses fields that do not fit together."""
        raise NotImplementedError

    def complete(self, facts: dict[str, Any]) -> dict[str, Any]:
        """The facts, and what follows from them."""
        between = tuple(itertools.pairwise(facts["asked"]))
        own = {"tolerance": 0.05 * facts["loss_scale"], "steps_between": between}
        if "role_labels" in facts:
            own["role_names"] = tuple(map(role_name, range(len(facts["role_labels"]))))
        return {**own, **facts}

    @property
    def curriculum_text(self) -> str:
        return f"{'with' if getattr(self, 'curriculum', False) else 'without'} implicit curriculum"

    def draw(self, indices: Int[Tensor, " batch"], seed: int, stream: int) -> Batch:
        """Generate examples from the random words of a stream (`tasks.sampling`)."""
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
        """The indexed examples of a seed; a training set of n is the indices 0 .. n-1."""
        check_draw(seed, split)
        return self.draw(indices, seed, SPLITS.index(split))

    def counterfactual(self, batch: Batch, seed: int = 0) -> Batch:
        """The questions about another chain: the symbols of the queries change places by one."""
        return self._chains_swapped(batch, [0])

    def rewired(self, batch: Batch, seed: int = 0) -> Batch:
        """Another counterfactual: what follows in every pair is another chain's."""
        return self._chains_swapped(batch, range(2, batch.roles.shape[-1], 2))

    def _chains_swapped(self, batch: Batch, roles: Iterable[int]) -> Batch:
        if batch.roles.shape[1] < 2:
            raise InputError("counterfactual: expected at least two chains, found one")
        inputs = batch.inputs.clone() if batch.tokens is None else batch.inputs[..., None].clone()
        example, own = torch.arange(len(batch))[:, None], inputs.clone()
        for role in roles:
            here = batch.roles[:, :, role]
            others = own[example, here.roll(-1, dims=1), : self.symbol_width]
            inputs[example, here, : self.symbol_width] = others
        return replace(batch, inputs=inputs.view_as(batch.inputs))

    def partial_losses(self, outputs: Outputs, batch: Batch) -> Float[Tensor, " target"]:
        """The mean loss of each thing asked, in the order of `asked` (section 7.2)."""
        return self.example_losses(outputs, batch).mean(dim=0)

    def to_dict(self) -> dict[str, Any]:
        return dict(to_data(self))


class TokenTask(TrainingTask):
    """A training task whose models read token ids, with a cross entropy as loss.

    Every asked thing has the same number of candidates; the model's outputs after an answer role
    are the logits of the candidates of the first thing asked, then of the second, and so on.
    """

    loss_name: ClassVar[str] = "cross entropy"
    vocabulary: tuple[str, ...]  # every word by its token id; one of them is `BEGIN`
    candidates: int  # how many answers there are to choose from
    plateau: float  # cross entropy, in nats, of guessing among them

    def complete(self, facts: dict[str, Any]) -> dict[str, Any]:
        guessing = math.log(facts["candidates"])
        own = {"plateau": guessing, "loss_scale": guessing, "answer_roles": (0,)}
        d_in, d_out = len(facts["vocabulary"]), len(facts["asked"]) * facts["candidates"]
        return super().complete({**own, "d_in": d_in, "d_out": d_out, **facts})

    def position_encoding(self, width: int) -> Float[Tensor, "pos width"]:
        """What a model's positional embedding starts from: sinusoids of the position."""
        code = rotary_encoding(self.n_positions, width & ~1, BASE)
        return F.pad(code, (0, width - code.shape[1]))

    def position_labels(self, batch: Batch, example: int) -> list[str]:
        """The words."""
        return [self.vocabulary[token] for token in batch.inputs[example].tolist()]

    def logits(self, outputs: Outputs, batch: Batch) -> Float[Tensor, "batch chain target name"]:
        """Logits of the candidates for everything asked."""
        after = self.answers(outputs, batch)[:, :, 0]
        return after.unflatten(-1, (len(self.asked), self.candidates))  # type: ignore[no-any-return]

    def right(self, batch: Batch) -> Int[Tensor, "batch chain target"]:
        """Which candidate is the answer to everything asked."""
        return batch.targets.reshape(*batch.roles.shape[:2], -1)

    def example_losses(self, outputs: Outputs, batch: Batch) -> Float[Tensor, "batch target"]:
        """Cross entropy among the candidates, in nats, of each example and thing asked."""
        logits, targets = self.logits(outputs, batch), self.right(batch)
        losses = F.cross_entropy(logits.flatten(0, 2), targets.flatten(), reduction="none")
        return losses.view(targets.shape).mean(dim=1)

    def accuracies(self, outputs: Outputs, batch: Batch) -> Float[Tensor, " target"]:
        """How often the answer has the highest logit of its candidates, for each thing asked."""
        right = self.logits(outputs, batch).argmax(-1) == self.right(batch)
        return right.float().mean(dim=(0, 1))

    def logit_differences(self, outputs: Outputs, batch: Batch) -> Float[Tensor, "batch target"]:
        """The answer's logit minus the mean of the others', per example and thing asked."""
        logits = self.logits(outputs, batch)
        right = logits.gather(-1, self.right(batch)[..., None])[..., 0]
        others = (logits.sum(-1) - right) / (self.candidates - 1)
        return torch.mean(right - others, dim=1)


def check_size(positions: int, words: int) -> None:
    """Check the length of sequences and the size of the vocabulary."""
    if positions > MAX_POSITIONS or words > MAX_WORDS:
        raise InputError(
            f"task: expected at most {MAX_POSITIONS} positions and {MAX_WORDS} words, found "
            f"{positions} and {words}; use a smaller task"
        )


def counted(number: int, noun: str) -> str:
    """`1 chain`, `2 chains`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
