"""Questions as text for a language model, through its own tokenizer.

A role is at the last token of its symbol. Answers are tokenized together with the prompt; tokens
that all of them share belong to the prompt, and the next one is scored. Examples are unusable where
a token holds characters of two symbols, or two answers begin with one token; the next ones replace
them, with a warning.
"""

import math
import warnings
from collections.abc import Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.split import Split
from retrieval_interp.tasks.task import Batch, Device, Outputs, Task
from retrieval_interp.tasks.words.prompts.prompt import Question

END = "END"
_TRIED = 20  # examples to try before a tokenizer is refused


class Tokens(NamedTuple):
    """A question as tokens."""

    prompt: list[int]  # with a beginning-of-sequence token, if there is one
    roles: list[int]  # the position of every role of the chain that is asked, or -1
    answers: list[int]  # where acceptable answers differ; the correct one's first


class Unusable(Exception):
    """Why a question cannot be used with a tokenizer."""


class TextTask(Task):
    """Questions in text, whose answers are scored by their first differing token.

    Subclasses say where the questions come from (`question`) and how many acceptable answers they
    have (`n_answers`). The arguments are those of `TemplateTask`.
    """

    loss_name = "cross entropy"
    role_names: tuple[str, ...] = ()  # set to the roles, as the labels and symbols are
    role_labels: tuple[str, ...] = ()
    role_symbols: tuple[str, ...] = ()
    n_answers: int

    def __init__(
        self,
        roles: Sequence[str],
        tokenizer: Any,
        answer_prefix: str = " ",
        prepend_bos: bool | None = None,
    ):
        expect_offsets(tokenizer)
        bos = tokenizer.bos_token_id
        if prepend_bos and bos is None:
            raise InputError(
                "task: expected a tokenizer with a beginning-of-sequence token for prepend_bos"
            )
        self.tokenizer, self.answer_prefix = tokenizer, answer_prefix
        self.begin: list[int] = [] if bos is None or prepend_bos is False else [bos]
        self.roles = self.role_names = self.role_labels = self.role_symbols = tuple(roles)
        self.answer_roles = (self.roles.index(END),)

    def question(self, index: int, seed: int = 0, split: Split = "train") -> Question:
        """One question of a seed and split."""
        raise NotImplementedError

    @cached_property
    def plateau(self) -> float | None:  # type: ignore[override]
        """Cross entropy, in nats, of guessing among the acceptable answers."""
        return math.log(self.n_answers) or None

    @property
    def tokenizer_name(self) -> str:
        return str(getattr(self.tokenizer, "name_or_path", "")) or type(self.tokenizer).__name__

    def sample(
        self, n: int, seed: int = 0, device: Device = "cpu", split: Split = "train", start: int = 0
    ) -> Batch:
        """The usable examples start .. start+n-1 of a seed; targets as `Tokens.answers`."""
        return self.batch(self.usable(n, seed, split, start)[1], device)

    def usable(
        self, n: int, seed: int = 0, split: Split = "train", start: int = 0
    ) -> tuple[list[Question], list[Tokens]]:
        """The questions behind `sample`, and their tokens."""
        if n < 1:
            raise InputError(f"sample: expected n of at least 1, found {n}")
        found: list[tuple[Question, Tokens]] = []
        left_out: list[str] = []
        index = 0
        while len(found) < start + n:
            question = self.question(index, seed, split)
            try:
                found.append((question, self.tokens(question)))
            except Unusable as error:
                left_out.append(f"example {index}: {error}")
            index += 1
            if len(left_out) >= _TRIED and len(left_out) > 9 * len(found):
                raise InputError(
                    "task: expected a tokenizer with separate tokens for symbols, found "
                    f"{len(left_out)} of {index} examples unusable ({left_out[0]})"
                )
        if left_out:
            why = "; ".join([*left_out[:3], "..."][: len(left_out)])
            warnings.warn(f"{len(left_out)} of {index} examples are left out: {why}", stacklevel=3)
        return [question for question, _ in found[start:]], [made for _, made in found[start:]]

    def tokens(self, question: Question) -> Tokens:
        """A question as tokens; raises `Unusable` if it has no place for roles or answers."""
        words = sorted(question.acceptable, key=lambda word: word != question.correct)
        texts = [question.prompt + self.answer_prefix + word for word in words]
        made = {"add_special_tokens": False, "return_offsets_mapping": True}
        read = [self.tokenizer(text, **made) for text in texts]
        numbers = [each["input_ids"] for each in read]
        shared = len(list(takewhile(lambda column: len(set(column)) == 1, zip(*numbers))))
        # An answer that begins another one, or a single one, has no token that differs.
        shared = min([shared, *(len(each) - 1 for each in numbers)])
        offsets = read[0]["offset_mapping"]
        if any(start < len(question.prompt) for start, _ in offsets[shared:]):
            raise Unusable("the prompt's tokens change with an answer; use another answer_prefix")
        first: dict[int, str] = {}
        for word, each in zip(words, numbers):
            other = first.setdefault(each[shared], word)
            if other != word:
                raise Unusable(f"the answers {other!r} and {word!r} begin with one token")
        prompt = [*self.begin, *numbers[0][:shared]]
        places = self._places(question, offsets[:shared])
        return Tokens(prompt, self._positions(places, len(prompt)), list(first))

    def _places(self, question: Question, offsets: Sequence[tuple[int, int]]) -> dict[str, int]:
        """The last token of every symbol of the chain that is asked, by role."""
        found: dict[str, int] = {}
        last, begin = -1, 0
        for symbol in question.occurrences:
            tokens = enumerate(offsets)
            own = [at for at, (start, end) in tokens if start < symbol.end and end > symbol.start]
            if not own or own[0] <= last:
                raise Unusable(
                    f"expected tokens of their own for all symbols of "
                    f"{question.prompt[begin : symbol.end]!r}; use other names or put text between"
                )
            last, begin = own[-1], symbol.start
            if symbol.chain == 0:
                found[symbol.role] = last + len(self.begin)
        return found

    def _positions(self, places: dict[str, int], length: int) -> list[int]:
        """The position of every role, all different."""
        places = {**places, END: length - 1}
        found = {
            role: places[name] + role.endswith("+1")
            for role in self.roles
            if (name := role.removesuffix("+1")) in places
        }
        if len({*found.values(), length}) <= len(found):
            raise Unusable(f"roles share a token ({found})")
        return [found.get(role, -1) for role in self.roles]

    def batch(self, tokens: Sequence[Tokens], device: Device = "cpu") -> Batch:
        """Pad some questions to one batch."""
        rows = [torch.tensor(each.prompt) for each in tokens]
        padding = self.tokenizer.pad_token_id or 0  # never seen
        return Batch(
            pad_sequence(rows, batch_first=True, padding_value=padding),
            torch.tensor([[each.answers] for each in tokens]),
            torch.tensor([[each.roles] for each in tokens]),
        ).to(device)

    def position_labels(self, batch: Batch, example: int) -> list[str]:
        """The tokens."""
        texts = [self.tokenizer.decode([token]) for token in batch.inputs[example].tolist()]
        return [text.strip() or repr(text) for text in texts]

    def _logits(self, outputs: Outputs, batch: Batch) -> Float[Tensor, "batch answer"]:
        """Logits of the acceptable answers, the correct one first."""
        return self.answers(outputs, batch)[:, 0, 0].gather(-1, batch.targets[:, 0])

    def example_losses(self, outputs: Outputs, batch: Batch) -> Float[Tensor, "batch 1"]:
        """Cross entropy among the acceptable answers, in nats."""
        return -F.log_softmax(self._logits(outputs, batch), dim=-1)[:, :1]

    def logit_differences(self, outputs: Outputs, batch: Batch) -> Float[Tensor, " batch"]:
        """The correct answer's logit minus the mean of the other acceptable ones'."""
        logits = self._logits(outputs, batch)
        return logits[:, 0] - logits[:, 1:].mean(-1)

    def accuracy(self, outputs: Outputs, batch: Batch) -> float:
        """How often the correct answer has the highest logit of the acceptable ones."""
        return float((self._logits(outputs, batch).argmax(-1) == 0).float().mean())


def expect_offsets(tokenizer: Any) -> None:
    """Raise InputError unless this is a tokenizer that gives offsets."""
    if not (callable(tokenizer) and getattr(tokenizer, "is_fast", False)):
        raise InputError(
            "task: expected a Hugging Face tokenizer that gives offsets (a fast one, such as "
            f"AutoTokenizer loads), found {type(tokenizer).__name__}"
        )


def token_ids(tokenizer: Any, text: str) -> list[int]:
    """The tokens of a text, at least one."""
    try:
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    except Exception as error:  # tokenizers raises nothing more specific
        raise InputError(
            f"text: expected words that the model's tokenizer knows, found {text!r:.40}"
        ) from error
    if not ids:
        raise InputError(f"text: expected words, found {text!r:.40}")
    return ids
