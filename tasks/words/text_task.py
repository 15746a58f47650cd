"""Questions in words for a language model with its own tokenizer, and the losses of its answers.

A role is at the last token of its symbol. Answers are tokenized together with the prompt. Tokens
that all answers begin with belong to the prompt; the first token that differs is scored. Examples
cannot be used if a token has characters of two symbols, or two answers begin with the same token.
The next examples replace them, with a warning.
"""

import math
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import count, product, takewhile
from random import Random
from string import Formatter
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from retrieval_interp.tasks.messages import InputError, InputWarning
from retrieval_interp.tasks.sampling import Split
from retrieval_interp.tasks.task import Batch, Device, Outputs, Task

T = TypeVar("T")
S = TypeVar("S")
END = "END"
_TRIED = 20  # unusable examples after which a tokenizer is refused
_SPECIFIC = re.compile(r"""(?<!\w)'.*?'(?!\w)|".*?"|\d+""")  # quoted words and numbers of an error


class Occurrence(NamedTuple):
    """One occurrence of a symbol: the word `prompt[start:end]`, with its grammatical ending."""

    role: str  # its role in the chain that is asked about; empty if it belongs to another chain
    start: int
    end: int


class Question(NamedTuple):
    """A prompt and its possible answers (paper, section 4 and appendix A)."""

    prompt: str  # what the model reads, without a final line break
    correct: str  # the answer, a word
    acceptable: tuple[str, ...]  # all words that count as an answer, right or wrong, sorted
    occurrences: tuple[Occurrence, ...]  # every symbol of the prompt, from beginning to end


class Line(NamedTuple):
    """A line of a prompt: text with roles as marks, and the words to put there."""

    text: str
    words: Sequence[str]
    is_asked: bool = True  # whether it belongs to the chain that is asked about


class Draw(Random):
    """Random choices made by `random()` alone, which is the same in every Python version."""

    def pick(self, count: int) -> int:
        """Return a random integer from 0 .. count-1."""
        return int(self.random() * count)

    def shuffled(self, items: Iterable[T]) -> list[T]:
        """Return the items in uniformly random order."""
        remaining = list(items)
        return [remaining.pop(self.pick(len(remaining))) for _ in range(len(remaining))]


def write(lines: Iterable[Line], correct: str, candidates: Iterable[str]) -> Question:
    """Write the lines of a question, and sort its answers, numbers by value, words by alphabet."""
    prompt = ""
    occurrences: list[Occurrence] = []
    for line in lines:
        words = iter(line.words)
        for text, role, _, _ in Formatter().parse(line.text + "\n"):
            prompt += text
            if role is not None:
                start, prompt = len(prompt), prompt + next(words)
                role = role if line.is_asked else ""
                occurrences.append(Occurrence(role, start, len(prompt)))
    acceptable = sorted(candidates, key=lambda word: (int(word) if word.isdecimal() else 0, word))
    return Question(prompt[:-1], correct, tuple(acceptable), tuple(occurrences))


class Tokens(NamedTuple):
    """A question as tokens."""

    prompt: list[int]  # with a beginning-of-sequence token, if there is one
    roles: list[int]  # the position of every role of the chain that is asked about, or -1
    answers: list[int]  # the token by which each acceptable answer differs; the right ones first
    n_right: int = 1


class AnswerTask(Task):
    """Which answer follows a text: a cross entropy between right and wrong ones, in nats.

    Targets are the tokens by which the answers differ, [batch 1 side word]: those of the right
    answers, and those of the wrong ones, padded with -1.
    """

    loss_name = "cross entropy"
    role_names: tuple[str, ...] = ()  # these three are set by subclasses
    role_labels: tuple[str, ...] = ()
    role_symbols: tuple[str, ...] = ()

    def __init__(self, tokenizer: Any):
        expect_offsets(tokenizer)
        bos = tokenizer.bos_token_id
        self.tokenizer = tokenizer
        self.begin: list[int] = [] if bos is None else [bos]

    def batch(self, tokens: Sequence[Tokens], device: Device = "cpu") -> Batch:
        """Pad questions to the same length, as a batch."""
        prompts = [torch.tensor(row.prompt) for row in tokens]
        padding = self.tokenizer.pad_token_id or 0  # any token: causal models do not attend to it
        sides = [(row.answers[: row.n_right], row.answers[row.n_right :]) for row in tokens]
        width = max(len(answers) for pair in sides for answers in pair)
        targets = [[[*ids, *[-1] * (width - len(ids))] for ids in pair] for pair in sides]
        return Batch(
            inputs=pad_sequence(prompts, batch_first=True, padding_value=padding),
            targets=torch.tensor(targets)[:, None],
            roles=torch.tensor([[row.roles] for row in tokens]),
        ).to(device)

    def position_labels(self, batch: Batch, example: int) -> list[str]:
        return token_texts(self.tokenizer, batch, example)

    def _sides(self, outputs: Outputs, batch: Batch) -> Float[Tensor, "batch side word"]:
        """Return the logits of the right and of the wrong answers, padded with NaN."""
        logits, targets = self.answers(outputs, batch)[:, 0, 0], batch.targets[:, 0]
        chosen = logits[:, None].expand(-1, 2, -1).gather(-1, targets.clamp(min=0))
        return chosen.masked_fill(targets < 0, torch.nan)

    def example_losses(self, outputs: Outputs, batch: Batch) -> Float[Tensor, "batch 1"]:
        """Return the cross entropy between the right and the wrong answers, in nats."""
        sides = self._sides(outputs, batch).nan_to_num(-torch.inf).logsumexp(-1)
        return -sides.log_softmax(-1)[:, :1]

    def logit_differences(self, outputs: Outputs, batch: Batch) -> Float[Tensor, " batch"]:
        """Return the mean logit of the right answers minus that of the wrong ones."""
        right, wrong = self._sides(outputs, batch).nanmean(-1).unbind(1)
        return right - wrong

    def accuracy(self, outputs: Outputs, batch: Batch) -> float:
        """Return how often a right answer has the highest logit of all answers."""
        best = self._sides(outputs, batch).nan_to_num(-torch.inf).amax(-1)
        return float((best[:, 0] > best[:, 1]).float().mean())


class TextTask(AnswerTask):
    """Questions in text, which subclasses make (`question`), each with `n_answers` answers."""

    n_answers: int
    before_answer = " "  # between a question and its answer

    def __init__(self, roles: Sequence[str], tokenizer: Any):
        super().__init__(tokenizer)
        self.roles = self.role_names = self.role_labels = self.role_symbols = tuple(roles)
        self.scored_roles = (self.roles.index(END),)

    def question(self, index: int, seed: int = 0, split: Split = "train") -> Question:
        """Make one question of a seed and split."""
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
        """Return the usable examples start .. start+n-1 of a seed."""
        return self.batch(self.usable(n, seed, split, start)[1], device)

    def usable(
        self, n: int, seed: int = 0, split: Split = "train", start: int = 0
    ) -> tuple[list[Question], list[Tokens]]:
        """Return the questions that `sample` tokenizes, and their tokens."""
        if n < 1:
            raise InputError(f"sample: expected n of at least 1, found {n}")
        questions = (self.question(index, seed, split) for index in count())
        pairs = read_usable(questions, self.tokens, "examples", start + n)[start:]
        return [question for question, _ in pairs], [tokens for _, tokens in pairs]

    def tokens(self, question: Question) -> Tokens:
        """Tokenize a question; an error if roles or answers have no token of their own."""
        words = sorted(question.acceptable, key=lambda word: word != question.correct)
        texts = [self.before_answer + word for word in words]
        read, answers, offsets = answer_tokens(self.tokenizer, question.prompt, texts)
        for word, token in zip(words, answers):
            if (first := words[answers.index(token)]) != word:
                raise InputError(f"the answers {first!r} and {word!r} begin with one token")
        prompt = [*self.begin, *read]
        places = {**self._places(question, offsets), END: len(prompt) - 1}
        positions = {
            role: places[name] + role.endswith("+1")
            for role in self.roles
            if (name := role.removesuffix("+1")) in places
        }
        if len({*positions.values(), len(prompt)}) <= len(positions):
            raise InputError(f"roles share a token ({positions})")
        return Tokens(prompt, [positions.get(role, -1) for role in self.roles], answers)

    def _places(self, question: Question, offsets: Sequence[tuple[int, int]]) -> dict[str, int]:
        """Return the last token of every symbol of the chain that is asked about, by role."""
        places: dict[str, int] = {}
        last, begin = -1, 0
        for role, first, until in question.occurrences:
            tokens = enumerate(offsets)
            covering = [place for place, (start, end) in tokens if start < until and end > first]
            if not covering or covering[0] <= last:
                raise InputError(
                    f"expected tokens of their own for all symbols of "
                    f"{question.prompt[begin:until]!r}; use other names or put text between"
                )
            last, begin = covering[-1], first
            if role:
                places[role] = last + len(self.begin)
        return places


def read_usable(
    items: Iterable[T], read: Callable[[T], S], name: str, wanted: int | None = None
) -> list[tuple[T, S]]:
    """Read items until `wanted` could be read; a warning says which could not."""
    usable: list[tuple[T, S]] = []
    unfit: list[InputError] = []
    for item in items:
        try:
            usable.append((item, read(item)))
        except InputError as error:
            unfit.append(error)
        if len(usable) == wanted:
            break
        if wanted is not None and len(unfit) >= max(_TRIED, 9 * len(usable) + 1):
            raise InputError(
                "task: expected a tokenizer with separate tokens for symbols, found "
                f"{len(unfit)} of {len(usable) + len(unfit)} {name} unusable ({unfit[0]})"
            )
    if not usable:
        raise unfit[0]
    warn_of_unfit(unfit, len(usable) + len(unfit), name)
    return usable


def warn_of_unfit(errors: Sequence[InputError], total: int, items: str) -> None:
    """Warn that some items are left out, with each reason and its first example.

    Two reasons are the same if they differ only in numbers and quoted words.
    """
    alike: dict[str, list[str]] = {}
    for error in map(str, errors):
        alike.setdefault(_SPECIFIC.sub("", error), []).append(error)
    reasons = [
        f"{same[0]} ({len(same)} like this)" for same in sorted(alike.values(), key=len)[::-1]
    ]
    if reasons:
        text = f"{len(errors)} of {total} {items} are left out: {'; '.join(reasons)}"
        warnings.warn(text, InputWarning, stacklevel=4)


def expect_offsets(tokenizer: Any) -> None:
    """Check that a tokenizer is one of Hugging Face's fast ones, which give offsets."""
    if not (callable(tokenizer) and getattr(tokenizer, "is_fast", False)):
        raise InputError(
            "task: expected a Hugging Face tokenizer that gives offsets (a fast one, such as "
            f"AutoTokenizer loads), found {type(tokenizer).__name__ if tokenizer else 'none'}"
        )


def answer_tokens(
    tokenizer: Any, prompt: str, answers: Sequence[str]
) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """Tokenize a prompt with each answer.

    Returns its tokens, with those that all answers begin with, such as a bare blank; the token by
    which each answer differs; and the start and end of the prompt's tokens in the text.
    """
    read = [_encoded(tokenizer, prompt + word, return_offsets_mapping=True) for word in answers]
    rows, offsets = [encoded["input_ids"] for encoded in read], read[0]["offset_mapping"]
    # A single answer, or one with which another begins, has no token that differs: take its last.
    shared = min([shared_length(*rows), *(len(row) - 1 for row in rows)])
    if any(start < len(prompt) for start, _ in offsets[shared:]):
        raise InputError("the prompt's tokens change with an answer")
    return rows[0][:shared], [row[shared] for row in rows], offsets[:shared]


def shared_length(*rows: Sequence[int]) -> int:
    """Count the tokens with which all rows begin alike."""
    return len(list(takewhile(lambda column: len(set(column)) == 1, zip(*rows))))


def continuations(
    tokenizer: Any, prompt: str, texts: Sequence[str]
) -> tuple[list[int], list[list[int]]]:
    """The tokens of a prompt, and all of those of each text that may follow it."""
    read = token_ids(tokenizer, prompt)
    rows = [token_ids(tokenizer, prompt + text) for text in texts]
    if any(row[: len(read)] != read for row in rows):
        raise InputError("the prompt's tokens change with an answer")
    if any(a is not b and a == b[: len(a)] for a, b in product(rows, rows)):
        raise InputError("expected answers of which none begins another one")
    return read, [row[len(read) :] for row in rows]


def token_ids(tokenizer: Any, text: str) -> list[int]:
    """Tokenize a text; an error if it has no tokens."""
    return list(_encoded(tokenizer, text)["input_ids"])


def _encoded(tokenizer: Any, text: str, **how: bool) -> Any:
    try:
        read = tokenizer(text, add_special_tokens=False, **how)
    except Exception as error:  # tokenizers raises nothing more specific
        raise InputError(
            f"text: expected words that the model's tokenizer knows, found {text!r:.40}"
        ) from error
    if not read["input_ids"]:
        raise InputError(f"text: expected words, found {text!r:.40}")
    return read


def token_texts(tokenizer: Any, batch: Batch, example: int) -> list[str]:
    """Return the tokens of an example as text."""
    texts = [tokenizer.decode([token]) for token in batch.inputs[example].tolist()]
    return [text.strip() or repr(text) for text in texts]
