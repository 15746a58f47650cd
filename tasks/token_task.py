"""What tasks on token ids share: words, positions and the cross entropy among candidates."""

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from retrieval_interp.tasks.batch import Batch
from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.positions import rotary_encoding
from retrieval_interp.tasks.training_task import TrainingTask

BEGIN = "<s>"  # before every sequence
MAX_POSITIONS, MAX_WORDS = 8192, 65536
BASE = 100.0  # of the rotary frequencies of positions


class TokenTask(TrainingTask):
    """A training task whose models read token ids, with a cross entropy as loss.

    Every asked thing has the same number of candidates; the model's outputs after an answer role
    are the logits of the candidates of the first thing asked, then of the second, and so on. The
    plateau is the cross entropy, in nats, of guessing among the candidates.

    Attributes:
        vocabulary: every word by its token id; one of them is `BEGIN`.
        candidates: how many answers there are to choose from.
    """

    loss_name: ClassVar[str] = "cross entropy"
    vocabulary: tuple[str, ...]
    candidates: int
    plateau: float
    answer_roles = (0,)

    def complete(self, facts: dict[str, Any]) -> dict[str, Any]:
        guessing = math.log(facts["candidates"])
        own = {
            "d_in": len(facts["vocabulary"]),
            "d_out": len(facts["asked"]) * facts["candidates"],
            "plateau": guessing,
            "loss_scale": guessing,
        }
        return super().complete({**own, **facts})

    def position_encoding(self, width: int) -> Float[Tensor, "pos width"]:
        """What a model's positional embedding starts from: sinusoids of the position."""
        code = rotary_encoding(self.n_positions, width & ~1, BASE)
        return F.pad(code, (0, width - code.shape[1]))

    def position_labels(self, batch: Batch, example: int) -> list[str]:
        """The words."""
        return [self.vocabulary[token] for token in batch.inputs[example].tolist()]

    def logits(
        self, outputs: Float[Tensor, "batch pos d_out"], batch: Batch
    ) -> Float[Tensor, "batch chain target name"]:
        """Logits of the candidates for everything asked."""
        after = self.answers(outputs, batch)[:, :, 0]
        return after.unflatten(-1, (self.n_targets, self.candidates))  # type: ignore[no-any-return]

    def right(self, batch: Batch) -> Int[Tensor, "batch chain target"]:
        """Which candidate is the answer to everything asked."""
        return batch.targets.reshape(*batch.roles.shape[:2], -1)

    def example_losses(
        self, outputs: Float[Tensor, "batch pos d_out"], batch: Batch
    ) -> Float[Tensor, "batch target"]:
        """Cross entropy among the candidates, in nats, of each example and thing asked."""
        logits, targets = self.logits(outputs, batch), self.right(batch)
        losses = F.cross_entropy(logits.flatten(0, 2), targets.flatten(), reduction="none")
        return losses.view(targets.shape).mean(dim=1)

    def accuracies(
        self, outputs: Float[Tensor, "batch pos d_out"], batch: Batch
    ) -> Float[Tensor, " target"]:
        """How often the answer has the highest logit of its candidates, for each thing asked."""
        right = self.logits(outputs, batch).argmax(-1) == self.right(batch)
        return right.float().mean(dim=(0, 1))

    def logit_differences(
        self, outputs: Float[Tensor, "batch pos d_out"], batch: Batch
    ) -> Float[Tensor, "batch target"]:
        """The answer's logit minus the mean of the others', per example and thing asked."""
        logits = self.logits(outputs, batch)
        right = logits.gather(-1, self.right(batch)[..., None])[..., 0]
        others = (logits.sum(-1) - right) / (self.candidates - 1)
        return torch.mean(right - others, dim=1)


def check_size(positions: int, words: int) -> None:
    """Check the length of sequences and the size of the vocabulary."""
    for found, most, what in ((positions, MAX_POSITIONS, "tokens"), (words, MAX_WORDS, "words")):
        if found > most:
            raise InputError(
                f"task: expected at most {most} {what}, found {found}; use a smaller task"
            )
