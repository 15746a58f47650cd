"""Pairs of prompts: one, and a counterfactual of the same length with another answer.

The file format is that of auto-circuit: `{"prompts": [{"clean": ..., "corrupt": ..., "answers":
[...], "wrong_answers": [...]}], "word_idxs": {"S2": 10}}`, the last one, positions with a name,
being optional.
"""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.split import Split
from retrieval_interp.tasks.structured import from_data
from retrieval_interp.tasks.task import Batch, Device, Outputs, Task
from retrieval_interp.tasks.words.text_task import token_ids

_END = "END"


@dataclass(frozen=True)
class Pair:
    """A prompt and its counterfactual, as text."""

    clean: str
    corrupt: str
    answers: tuple[str, ...]
    wrong_answers: tuple[str, ...]


@dataclass(frozen=True)
class _File:
    prompts: tuple[Pair, ...]
    word_idxs: dict[str, int] | None = None
    seq_labels: tuple[str, ...] | None = None


class PairsTask(Task):
    """Which of two answers follows, for given prompts with a counterfactual each.

    Tokens that all answers of a pair begin with, such as a bare blank, are added to its prompts.
    Roles are positions: those of `names`, or all tokens, counted from the end if prompts differ in
    length. Every second pair is in the `test` split; a single one is in every split.

    Args:
        pairs: the prompts, and the answers with the blank before them. Those that cannot be used
            with the tokenizer are left out, with a warning.
        tokenizer: a Hugging Face tokenizer.
        names: positions with a name, counted without a beginning-of-sequence token; the last one
            is always END.
        prepend_bos: whether to start with that token; by default yes, if there is one.
    """

    loss_name = "cross entropy"
    loss_meaning = "cross entropy between the answers and the wrong ones, in nats"
    fixed = True

    def __init__(
        self,
        pairs: Sequence[Pair],
        tokenizer: Any,
        names: Mapping[str, int] | None = None,
        prepend_bos: bool | None = None,
    ):
        if not pairs:
            raise InputError("pairs: expected at least one pair of prompts, found none")
        bos = tokenizer.bos_token_id if prepend_bos in (None, True) else None
        self.pairs, self.tokenizer = tuple(pairs), tokenizer
        self._begin: list[int] = [] if bos is None else [int(bos)]
        self._read = self._usable()
        lengths = {len(prompt) for prompt, _, _ in self._read}
        self._longest, self._same = max(lengths), len(lengths) == 1
        first = {at + len(self._begin): name for name, at in reversed([*(names or {}).items()])}
        self._names = {name: at for at, name in sorted(first.items()) if at < min(lengths) - 1}
        self.role_names = tuple(self._role_names())
        self.role_labels = tuple(self._role_labels())
        self.role_symbols = self.role_labels
        self.answer_roles = (self.role_names.index(_END),)

    @classmethod
    def from_dict(cls, data: Any, tokenizer: Any, prepend_bos: bool | None = None) -> "PairsTask":
        """Read the format of auto-circuit."""
        file: _File = from_data(_File, data, "pairs")
        return cls(file.prompts, tokenizer, file.word_idxs, prepend_bos)

    def _usable(self) -> list[tuple[list[int], list[int], list[list[int]]]]:
        """The tokens of all pairs that can be used, of which there is at least one."""
        made, errors = [], list[InputError]()
        for pair in self.pairs:
            try:
                made.append(self._tokens(pair))
            except InputError as error:
                errors.append(error)
        if not made:
            raise errors[0]
        if errors:
            left_out = f"{len(errors)} of {len(self.pairs)} pairs are left out"
            warnings.warn(f"{left_out}, the first because of {errors[0]}", stacklevel=3)
        return made

    def _tokens(self, pair: Pair) -> tuple[list[int], list[int], list[list[int]]]:
        """The prompt, the counterfactual, and the first tokens of answers and wrong answers."""
        clean, corrupt = (token_ids(self.tokenizer, text) for text in (pair.clean, pair.corrupt))
        if len(clean) != len(corrupt):
            words = self.tokenizer.convert_ids_to_tokens
            apart = next((n for n, two in enumerate(zip(clean, corrupt)) if len(set(two)) > 1), 0)
            raise InputError(
                f"counterfactual: expected as many tokens as the prompt's {len(clean)}, found "
                f"{len(corrupt)}; they part at token {apart}, {words(clean[apart])!r} and "
                f"{words(corrupt[apart])!r}"
            )
        if clean == corrupt:
            raise InputError("counterfactual: expected another prompt, found the same tokens")
        begins = [
            [continuation(self.tokenizer, pair.clean, word) for word in words]
            for words in (pair.answers, pair.wrong_answers)
        ]
        shared = shared_tokens([*begins[0], *begins[1]])
        sides = [[ids[len(shared)] for ids in each] for each in begins]
        if not all(sides) or set(sides[0]) & set(sides[1]):
            both = f"{', '.join(pair.answers)} and {', '.join(pair.wrong_answers)}"
            raise InputError(
                "answers: expected right and wrong ones that begin with different tokens, found "
                f"{both!r:.80}"
            )
        return [*self._begin, *clean, *shared], [*self._begin, *corrupt, *shared], sides

    def _words(self, place: int) -> set[str]:
        """What stands at a position in all prompts, counted from the end if it is negative."""
        found = {prompt[place] for prompt, _, _ in self._read}
        return {self.tokenizer.decode([token]) for token in found}

    def _places(self) -> list[int]:
        """The position of every role, from the beginning, or else from the end."""
        if self._names:
            return [*self._names.values(), -1]
        if not self._same:
            shortest = min(len(prompt) for prompt, _, _ in self._read)
            return list(range(-shortest, 0))
        return [*range(self._longest - 1), -1]

    def _role_names(self) -> list[str]:
        if self._names:
            return [*self._names, _END]
        places = self._places()
        texts = [self._words(place) for place in places]
        words = ["".join(c if c.isalnum() else "_" for c in min(t).strip()) for t in texts]
        words = [word if len(t) == 1 and word.strip("_") else "" for word, t in zip(words, texts)]
        counts = Counter(words)
        plain = [f"{w or 'token'}@{at}" for w, at in zip(words, places)]
        numbered = {f"s{n}" for n in range(len(places))}
        own = [
            word if word and counts[word] == 1 and word not in numbered else long
            for word, long in zip(words, plain)
        ]
        return [*own[:-1], _END]

    def _role_labels(self) -> list[str]:
        texts = [self._words(place) for place in self._places()]
        words = [repr(min(each)) if len(each) == 1 else "" for each in texts]
        counts = Counter(words)
        named = zip(words, self.role_names)
        return [
            word if word and counts[word] == 1 else f"{word} {name}".strip() for word, name in named
        ]

    @property
    def description(self) -> str:
        first = f"{self.pairs[0].clean!r:.100}"
        return first if len(self.pairs) == 1 else f"{len(self.pairs)} pairs of prompts: {first}"

    def __len__(self) -> int:
        return len(self._read)

    def sample(
        self, n: int, seed: int = 0, device: Device = "cpu", split: Split = "train", start: int = 0
    ) -> Batch:
        """The prompts start .. start+n-1 of a split; the same for every seed."""
        chosen = self._read if len(self._read) == 1 else self._read[(split == "test") :: 2]
        if not 1 <= n <= len(chosen) - start:
            raise InputError(
                f"pairs: expected 1 to {len(chosen) - start} prompts of this half, found {n}; give "
                "more pairs"
            )
        rows = chosen[start : start + n]
        prompts = [torch.tensor(prompt) for prompt, _, _ in rows]
        places = torch.tensor(self._places())
        lengths = torch.tensor([len(prompt) for prompt in prompts])[:, None]
        roles = torch.where(places < 0, lengths + places, places)
        most = max(len(words) for _, _, sides in self._read for words in sides)
        answers = [[[*words, *[-1] * (most - len(words))] for words in sides] for *_, sides in rows]
        tokens = pad_sequence(prompts, batch_first=True)
        return Batch(tokens, torch.tensor(answers)[:, None], roles[:, None]).to(device)

    def counterfactual(self, batch: Batch, seed: int = 0) -> Batch:
        """The second prompt of each pair."""
        others = {tuple(prompt): other for prompt, other, _ in self._read}
        rows = [
            others[tuple(prompt[: end + 1])] + prompt[end + 1 :]
            for prompt, end in zip(batch.inputs.tolist(), batch.roles[:, 0, -1].tolist())
        ]
        return replace(batch, inputs=torch.tensor(rows, device=batch.inputs.device))

    def _sides(self, outputs: Outputs, batch: Batch) -> Float[Tensor, "batch side word"]:
        logits = self.answers(outputs, batch)[:, 0, 0]
        targets = batch.targets[:, 0]
        found = logits[:, None].expand(-1, 2, -1).gather(-1, targets.clamp(min=0))
        return found.masked_fill(targets < 0, torch.nan)

    def logit_differences(self, outputs: Outputs, batch: Batch) -> Float[Tensor, " batch"]:
        """The mean logit of the answers minus that of the wrong ones."""
        right, wrong = self._sides(outputs, batch).nanmean(-1).unbind(1)
        return right - wrong

    def example_losses(self, outputs: Outputs, batch: Batch) -> Float[Tensor, "batch 1"]:
        """Cross entropy between the answers and the wrong ones, in nats."""
        sides = self._sides(outputs, batch).nan_to_num(-torch.inf).logsumexp(-1)
        return -sides.log_softmax(-1)[:, :1]

    def position_labels(self, batch: Batch, example: int) -> list[str]:
        """The tokens."""
        texts = [self.tokenizer.decode([token]) for token in batch.inputs[example].tolist()]
        return [text.strip() or repr(text) for text in texts]


def continuation(tokenizer: Any, prompt: str, answer: str) -> list[int]:
    """The tokens of an answer right after a prompt."""
    ids, whole = token_ids(tokenizer, prompt), token_ids(tokenizer, prompt + answer)
    if whole[: len(ids)] != ids or len(whole) <= len(ids):
        raise InputError(
            f"answers: expected one that leaves the prompt's tokens as they are, found "
            f"{answer!r:.40}; give the prompt without a final blank"
        )
    return whole[len(ids) :]


def shared_tokens(answers: Sequence[Sequence[int]]) -> list[int]:
    """The tokens with which all answers begin, such as a bare blank; each has one more."""
    together = takewhile(lambda column: len(set(column)) == 1, zip(*answers))
    shortest = min(map(len, answers), default=1)
    return [column[0] for column in together][: shortest - 1]
