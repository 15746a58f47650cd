"""Pairs of prompts: one, and a counterfactual of the same length with another answer.

The file format is that of auto-circuit: `{"prompts": [{"clean": ..., "corrupt": ..., "answers":
[...], "wrong_answers": [...]}], "word_idxs": {"S2": 10}}`, the last one, positions with a name,
being optional.
"""

import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.split import Split
from retrieval_interp.tasks.structured import from_data
from retrieval_interp.tasks.task import Batch, Device
from retrieval_interp.tasks.words.text_task import END, AnswerTask, Tokens, answer_tokens, given


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


class PairsTask(AnswerTask):
    """Which of two answers follows, for given prompts with a counterfactual each.

    Tokens that all answers of a pair begin with, such as a bare blank, are added to its prompts.
    Roles are positions: those of `names`, or all tokens, counted from the end if prompts differ in
    length. Every second pair is in the `test` split; a single one is in every split.

    Args:
        pairs: the prompts, and the answers with the blank before them. Those that cannot be used
            with the tokenizer are left out, with a warning.
        tokenizer: a Hugging Face tokenizer that gives offsets (a fast one).
        names: positions with a name, counted without a beginning-of-sequence token; the last one
            is always END.
        prepend_bos: whether to start with that token; by default yes, if there is one.
    """

    loss_meaning = "cross entropy between the answers and the wrong ones, in nats"
    fixed = True

    def __init__(
        self,
        pairs: Sequence[Pair],
        tokenizer: Any,
        names: Mapping[str, int] | None = None,
        prepend_bos: bool | None = None,
    ):
        super().__init__(tokenizer, prepend_bos)
        if not pairs:
            raise InputError("pairs: expected at least one pair of prompts, found none")
        self.pairs = tuple(pairs)
        self._read = self._usable()
        lengths = {len(clean.prompt) for clean, _ in self._read}
        shortest = min(lengths)
        first = {at + len(self.begin): name for name, at in reversed([*(names or {}).items()])}
        named = {at: first[at] for at in sorted(first) if at < shortest - 1}
        # From the beginning, or else from the end.
        self._places = [*(named or range(shortest - 1)), -1]
        if len(lengths) > 1 and not named:
            self._places = list(range(-shortest, 0))
        self._name_roles([*named.values(), END] if named else [])
        self.answer_roles = (self.role_names.index(END),)

    @classmethod
    def from_dict(cls, data: Any, tokenizer: Any, prepend_bos: bool | None = None) -> "PairsTask":
        """Read the format of auto-circuit."""
        file: _File = from_data(_File, data, "pairs")
        return cls(file.prompts, tokenizer, file.word_idxs, prepend_bos)

    def _usable(self) -> list[tuple[Tokens, list[int]]]:
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

    def _tokens(self, pair: Pair) -> tuple[Tokens, list[int]]:
        """A prompt, without roles, and the tokens of its counterfactual."""
        words, n_right = [*pair.answers, *pair.wrong_answers], len(pair.answers)
        made = [
            answer_tokens(self.tokenizer, text, words or [""])
            for text in (pair.clean, pair.corrupt)
        ]
        (clean, answers, _), (corrupt, _, _) = made
        right, wrong = answers[:n_right], answers[n_right:]
        if not (right and wrong) or set(right) & set(wrong):
            both = f"{', '.join(pair.answers)} and {', '.join(pair.wrong_answers)}"
            raise InputError(
                "answers: expected right and wrong ones that begin with different tokens, found "
                f"{both!r:.80}"
            )
        if len(clean) != len(corrupt):
            text = self.tokenizer.convert_ids_to_tokens
            apart = next((n for n, two in enumerate(zip(clean, corrupt)) if len(set(two)) > 1), 0)
            raise InputError(
                f"counterfactual: expected as many tokens as the prompt's {len(clean)}, found "
                f"{len(corrupt)}; they part at token {apart}, {text(clean[apart])!r} and "
                f"{text(corrupt[apart])!r}"
            )
        if clean == corrupt:
            raise InputError("counterfactual: expected another prompt, found the same tokens")
        return Tokens([*self.begin, *clean], [], answers, n_right), [*self.begin, *corrupt]

    def _name_roles(self, names: Sequence[str]) -> None:
        """Roles are called as given, or by the word that stands there in all prompts."""
        texts = [{clean.prompt[at] for clean, _ in self._read} for at in self._places]
        words = [self.tokenizer.decode([*text]) if len(text) == 1 else "" for text in texts]
        plain = [re.sub(r"\W", "_", word.strip()) for word in words]
        counts = Counter(plain)
        own = [
            word
            if word.strip("_") and counts[word] == 1 and not re.fullmatch("s[0-9]+", word)
            else f"{word if word.strip('_') else 'token'}@{at}"
            for word, at in zip(plain, self._places)
        ]
        self.role_names = tuple(names or [*own[:-1], END])
        self.role_labels = self.role_symbols = tuple(
            repr(word)
            if word and words.count(word) == 1
            else f"{word and repr(word)} {name}".strip()
            for word, name in zip(words, self.role_names)
        )

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
        rows = [clean for clean, _ in given(self._read, n, split, start)]
        places = [[range(len(row.prompt))[at] for at in self._places] for row in rows]
        return self.batch([row._replace(roles=at) for row, at in zip(rows, places)], device)

    def counterfactual(self, batch: Batch, seed: int = 0) -> Batch:
        """The second prompt of each pair."""
        others = {tuple(clean.prompt): other for clean, other in self._read}
        rows = [
            others[tuple(prompt[: end + 1])] + prompt[end + 1 :]
            for prompt, end in zip(batch.inputs.tolist(), batch.roles[:, 0, -1].tolist())
        ]
        return replace(batch, inputs=torch.tensor(rows, device=batch.inputs.device))
