"""Any text as a task: predict the next token. The one role is the last token before padding."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.split import Split
from retrieval_interp.tasks.task import Batch, Device, Outputs, Task
from retrieval_interp.tasks.words.text_task import given, token_ids, token_texts

_NOT_ASKED = -100  # as target


class NextTokenTask(Task):
    """The next token of given sequences, at every place.

    Args:
        sequences: token ids, at least two per sequence.
        tokenizer: names the tokens in views; by default they are numbers.
    """

    loss_name = "cross entropy"
    loss_meaning = (
        "cross entropy of the next token in nats; +- is the standard error over sequences"
    )
    fixed = True
    role_names = ("s0",)
    role_labels = role_symbols = ("end",)

    def __init__(self, sequences: Sequence[Sequence[int]], tokenizer: Any = None):
        shortest = min(map(len, sequences), default=0)
        if shortest < 2:
            raise InputError(f"text: expected sequences of at least two tokens, found {shortest}")
        self.sequences, self.tokenizer = [list(each) for each in sequences], tokenizer

    @classmethod
    def from_text(
        cls, text: str | Sequence[str], tokenizer: Any, length: int = 128, prepend_bos: bool = True
    ) -> "NextTokenTask":
        """Cut text into windows.

        Args:
            text: one text or several; a window holds tokens of one text only.
            tokenizer: a Hugging Face tokenizer.
            length: most tokens of a window; windows of a text differ by one at most.
            prepend_bos: whether every window starts with the tokenizer's beginning-of-sequence
                token, if it has one.
        """
        texts = [text] if isinstance(text, str) else list(text)
        bos = tokenizer.bos_token_id if prepend_bos else None
        begin = [] if bos is None else [int(bos)]
        windows: list[list[int]] = []
        for each in texts:
            ids = token_ids(tokenizer, each)
            count = -(-len(ids) // (length - len(begin)))
            ends = [len(ids) * number // count for number in range(count + 1)]
            windows += [[*begin, *ids[start:end]] for start, end in itertools.pairwise(ends)]
        return cls(windows, tokenizer)

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def description(self) -> str:
        tokens = sum(map(len, self.sequences))
        return f"the next token of {tokens} tokens in {len(self)} sequences"

    def sample(
        self, n: int, seed: int = 0, device: Device = "cpu", split: Split = "train", start: int = 0
    ) -> Batch:
        """Sequences start .. start+n-1, padded on the right; every second one is in `test`."""
        return self._batch(given(self.sequences, n, split, start), device)

    def whole(self, device: Device = "cpu") -> Batch:
        """All sequences: tokens, the next tokens (-100 where there is none), and roles."""
        return self._batch(self.sequences, device)

    def _batch(self, sequences: Sequence[Sequence[int]], device: Device) -> Batch:
        rows = [torch.tensor(sequence) for sequence in sequences]
        after = [torch.cat([row[1:], torch.tensor([_NOT_ASKED])]) for row in rows]
        tokens = pad_sequence(rows, batch_first=True)
        targets = pad_sequence(after, batch_first=True, padding_value=_NOT_ASKED)
        ends = torch.tensor([len(sequence) - 1 for sequence in sequences])
        return Batch(tokens, targets, ends[:, None, None]).to(device)

    def example_losses(self, outputs: Outputs, batch: Batch) -> Float[Tensor, "batch 1"]:
        """Cross entropy of the next token in nats, the mean over each sequence."""
        targets: Int[Tensor, "batch pos"] = batch.targets
        # Flat, since a sum over an axis that is not the last loses digits in a large vocabulary.
        losses = F.cross_entropy(
            outputs.flatten(0, 1), targets.flatten(), ignore_index=_NOT_ASKED, reduction="none"
        ).view(targets.shape)
        return losses.sum(1, keepdim=True) / (targets != _NOT_ASKED).sum(1, keepdim=True)

    def position_labels(self, batch: Batch, example: int) -> list[str]:
        if self.tokenizer is None:
            return [f"{token}" for token in batch.inputs[example].tolist()]
        return token_texts(self.tokenizer, batch, example)
