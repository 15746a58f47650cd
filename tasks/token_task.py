"""What tasks on token ids share: words, positions and the cross entropy among candidates."""

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from retrieval_interp.tasks.batch import Batch
from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.positions import rotary_encoding
from retrieval_interp.tasks.training_task import TrainingTask

BEGIN = "<s>"  # before every sequence
MAX_POSITIONS = 8192
MAX_WORDS = 65536
BASE = 100.0  # of the rotary frequencies of positions


class TokenTask(TrainingTask):
    """A training task whose models read token ids. Subclasses are frozen dataclasses.

    Every asked thing has the same number of candidates; the model's outputs after an answer role
    are the logits of the candidates of the first thing asked, then of the second, and so on.

    Attributes:
        vocabulary: every word by its token id; one of them is `BEGIN`.
        candidates: how many answers there are to choose from.
    """

    loss_name: ClassVar[str] = "cross entropy"

    @property
    def vocabulary(self) -> tuple[str, ...]:
        raise NotImplementedError

    @property
    def candidates(self) -> int:
        raise NotImplementedError

    @property
    def d_in(self) -> int:
        return len(self.vocabulary)

    @property
    def d_out(self) -> int:
        return self.n_targets * self.candidates

    @property
    def plateau(self) -> float:
        """Cross entropy, in nats, of guessing among the candidates."""
        return math.log(self.candidates)

    @property
    def loss_scale(self) -> float:
        return self.plateau

    @property
    def answer_roles(self) -> tuple[int, ...]:
        return (0,)

    def position_encoding(self, width: int) -> Float[Tensor, "pos width"]:
        """What a model's positional embedding starts from: sinusoids of the position."""
        code = rotary_encoding(self.n_positions, width & ~1, BASE)
        return F.pad(code, (0, width - code.shape[1]))

    def position_labels(self, batch: Batch, example: int) -> list[str]:
        """The words."""
        words = self.vocabulary
        return [words[token] for token in batch.inputs[example].tolist()]

    # Losses

    def _logits(
        self, outputs: Float[Tensor, "batch pos d_out"], batch: Batch
    ) -> Float[Tensor, "batch chain target name"]:
        """Logits of the candidates for everything asked."""
        after = self.answers(outputs, batch)[:, :, 0]
        return after.unflatten(-1, (self.n_targets, self.candidates))  # type: ignore[no-any-return]

    def _targets(self, batch: Batch) -> Int[Tensor, "batch chain target"]:
        return batch.targets.reshape(*batch.roles.shape[:2], -1)

    def example_losses(
        self, outputs: Float[Tensor, "batch pos d_out"], batch: Batch
    ) -> Float[Tensor, "batch target"]:
        """Cross entropy among the candidates, in nats, of each example and thing asked."""
        logits, targets = self._logits(outputs, batch), self._targets(batch)
        losses = F.cross_entropy(logits.flatten(0, 2), targets.flatten(), reduction="none")
        return losses.view(targets.shape).mean(dim=1)

    def accuracies(
        self, outputs: Float[Tensor, "batch pos d_out"], batch: Batch
    ) -> Float[Tensor, " target"]:
        """How often the answer has the highest logit of its candidates, for each thing asked."""
        right = self._logits(outputs, batch).argmax(-1) == self._targets(batch)
        return right.float().mean(dim=(0, 1))

    def logit_differences(
        self, outputs: Float[Tensor, "batch pos d_out"], batch: Batch
    ) -> Float[Tensor, "batch target"]:
        """The answer's logit minus the mean of the others', per example and thing asked."""
        logits = self._logits(outputs, batch)
        right = logits.gather(-1, self._targets(batch)[..., None])[..., 0]
        others = (logits.sum(-1) - right) / (self.candidates - 1)
        return torch.mean(right - others, dim=1)

    # Parameters

    def _check_sizes(self, words: int) -> None:
        """Check the length of sequences and the size of the vocabulary, `words`.

        Raises:
            InputError: one is too large.
        """
        if self.n_positions > MAX_POSITIONS:
            raise InputError(
                f"task: expected sequences of at most {MAX_POSITIONS} tokens, found "
                f"{self.n_positions}; use a smaller task"
            )
        if words > MAX_WORDS:
            raise InputError(
                f"task: expected a vocabulary of at most {MAX_WORDS} words, found {words}; use a "
                "smaller task"
            )
