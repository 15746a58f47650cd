"""Questions in words for a language model, through its own tokenizer (paper, section 4).

1. A symbol may be several tokens; its role is at the last of them, where the model has read the
   whole symbol. If a token holds characters of two symbols, the example is unusable.
2. An answer may be several tokens; the first one is scored. If two acceptable answers begin with
   the same token, the example is unusable.
3. Unusable examples are skipped and replaced by the next ones, with a warning that says how many
   and why.
4. There is one chain, the one that is asked. Its roles are those of the formulation, followed by
   the end of the prompt, where the answer is predicted. Where the steps form a line, s0..s2D are
   those of appendix B; otherwise roles count backwards from the question.

Documents are padded on the right; in a causal model the roles never see the padding.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from tasks.batch import Batch
from tasks.errors import InputError
from tasks.roles import path_letters, role_letters, role_name, symbol_letter
from tasks.split import Split
from tasks.task import Task
from tasks.words.prompts.linear import LinearPrompt
from tasks.words.prompts.prompt import Prompt
from tasks.words.prompts.question import Occurrence, Question

_TRIED = 20  # examples to try before a tokenizer is refused


class Tokens(NamedTuple):
    """A question as tokens.

    Attributes:
        prompt: token ids, including a beginning-of-sequence token if there is one.
        roles: the position of every role of the chain that is asked.
        answers: the first token of each acceptable answer, the correct one first.
    """

    prompt: list[int]
    roles: list[int]
    answers: list[int]


class PromptTask(Task):
    """A formulation as a task for a language model.

    Args:
        prompt: the formulation, such as `EquationsPrompt(steps=3)`.
        tokenizer: a Hugging Face tokenizer that gives offsets (a fast one).
        answer_prefix: text between prompt and answer; for most tokenizers a space, which they
            make part of the word.
        prepend_bos: whether to start with a beginning-of-sequence token; by default yes, if the
            tokenizer has one.

    Raises:
        InputError: not a formulation, or not such a tokenizer.
    """

    loss_name = "cross entropy"

    def __init__(
        self,
        prompt: Prompt,
        tokenizer: Any,
        answer_prefix: str = " ",
        prepend_bos: bool | None = None,
    ):
        if not (callable(tokenizer) and getattr(tokenizer, "is_fast", False)):
            raise InputError(
                "task: expected a Hugging Face tokenizer that gives offsets (a fast one, such as "
                f"AutoTokenizer loads), found {type(tokenizer).__name__}"
            )
        bos = tokenizer.bos_token_id
        if prepend_bos and bos is None:
            raise InputError(
                "task: expected a tokenizer with a beginning-of-sequence token, found none; leave "
                "prepend_bos out"
            )
        self.prompt, self.tokenizer, self.answer_prefix = prompt, tokenizer, answer_prefix
        self.begin: list[int] = [] if bos is None or prepend_bos is False else [bos]
        roles = _asked(prompt.sample(0))
        if isinstance(prompt, LinearPrompt):
            self._roles = [role_name(number) for number in range(len(roles))]
        else:
            self._roles = [symbol.role for symbol in reversed(roles)]

    # Names

    @property
    def role_names(self) -> tuple[str, ...]:
        return tuple(map(role_name, range(len(self._roles) + 1)))

    @property
    def answer_roles(self) -> tuple[int, ...]:
        """The end of the prompt."""
        return (len(self._roles),)

    @property
    def role_labels(self) -> tuple[str, ...]:
        """In letters, or as the formulation names them, such as `alias@question`; and `end`."""
        if isinstance(self.prompt, LinearPrompt):
            return (*map(role_letters, range(len(self._roles))), "end")
        return (*self._roles, "end")

    @property
    def role_symbols(self) -> tuple[str, ...]:
        if isinstance(self.prompt, LinearPrompt):
            letters = (symbol_letter(role // 2) for role in range(1, len(self._roles)))
            return (f"{symbol_letter(0)}?", *letters, "end")
        return (*(role.partition("@")[0] for role in self._roles), "end")

    def path_label(self, dest: int, src: int) -> str:
        if isinstance(self.prompt, LinearPrompt) and max(dest, src) < len(self._roles):
            return path_letters(dest, src)
        return super().path_label(dest, src)

    @property
    def description(self) -> str:
        return f"{self.prompt} in the tokens of {_tokenizer_name(self.tokenizer)}"

    @property
    def n_answers(self) -> int:
        """How many answers are acceptable."""
        return round(1 / self.prompt.chance)

    @property
    def plateau(self) -> float | None:
        """Cross entropy, in nats, of guessing among the acceptable answers."""
        return math.log(self.n_answers) or None

    @property
    def tolerance(self) -> float:
        """0.05 of the plateau, as the paper's 0.05 is of a symbol's variance."""
        return 0.05 * (self.plateau or 1.0)

    # Examples

    def sample(
        self,
        n: int,
        seed: int = 0,
        device: str | torch.device = "cpu",
        split: Split = "train",
        start: int = 0,
    ) -> Batch:
        """The usable examples start .. start+n-1 of a seed.

        Returns:
            Tokens [batch pos]; targets [batch 1 answer], the first tokens of the acceptable
            answers, the correct one first; roles [batch 1 role].

        Raises:
            InputError: n is below 1, or hardly any example is usable with this tokenizer.
        """
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
            question = self.prompt.sample(index, seed, split)
            tokens = self.tokens(question)
            if isinstance(tokens, Tokens):
                found.append((question, tokens))
            else:
                left_out.append(f"example {index}: {tokens}")
            index += 1
            if len(left_out) >= _TRIED and len(left_out) > 9 * len(found):
                raise InputError(
                    "task: expected a tokenizer with separate tokens for symbols, found "
                    f"{len(left_out)} of {index} examples unusable ({left_out[0]}); use "
                    "other names or another answer_prefix"
                )
        if left_out:
            warnings.warn(
                f"{len(left_out)} of {index} examples are left out: {'; '.join(left_out[:3])}"
                f"{'; ...' if len(left_out) > 3 else ''}",
                stacklevel=3,
            )
        questions, tokens_of = zip(*found[start:])
        return list(questions), list(tokens_of)

    def tokens(self, question: Question) -> Tokens | str:
        """A question as tokens, or the reason why it cannot be used."""
        encoded = self.tokenizer(
            question.prompt, add_special_tokens=False, return_offsets_mapping=True
        )
        places: dict[int, Occurrence] = {}
        position_of: dict[str, int] = {}
        for symbol in question.occurrences:
            word = question.prompt[symbol.start : symbol.end]
            own = [
                place
                for place, (start, end) in enumerate(encoded["offset_mapping"])
                if start < symbol.end and end > symbol.start
            ]
            if not own:
                return f"no token holds {word!r}"
            for place in own:
                if place in places:
                    other = places[place]
                    both = question.prompt[other.start : symbol.end]
                    return f"one token holds symbols of {both!r}, {other.role} and {symbol.role}"
                places[place] = symbol
            if symbol.chain == 0:
                position_of[symbol.role] = own[-1] + len(self.begin)
        words = sorted(question.acceptable, key=lambda word: word != question.correct)
        first: dict[int, str] = {}
        for word in words:
            numbers = self.tokenizer(self.answer_prefix + word, add_special_tokens=False)
            if not (numbers := numbers["input_ids"]):
                return f"no token holds the answer {word!r}"
            if numbers[0] in first:
                return f"the answers {first[numbers[0]]!r} and {word!r} begin with one token"
            first[numbers[0]] = word
        prompt = [*self.begin, *encoded["input_ids"]]
        return Tokens(
            prompt, [*(position_of[role] for role in self._roles), len(prompt) - 1], list(first)
        )

    def batch(self, tokens: Sequence[Tokens], device: str | torch.device = "cpu") -> Batch:
        """Pad some questions to one batch."""
        length = max(len(each.prompt) for each in tokens)
        padding = self.tokenizer.pad_token_id
        if padding is None:
            padding = 0  # never seen
        rows = [[*each.prompt, *[padding] * (length - len(each.prompt))] for each in tokens]
        return Batch(
            torch.tensor(rows),
            torch.tensor([[each.answers] for each in tokens]),
            torch.tensor([[each.roles] for each in tokens]),
        ).to(device)

    def position_labels(self, batch: Batch, example: int) -> list[str]:
        """The tokens."""
        return [
            self.tokenizer.decode([token]).strip() or repr(self.tokenizer.decode([token]))
            for token in batch.inputs[example].tolist()
        ]

    # Losses

    def _logits(
        self, outputs: Float[Tensor, "batch pos d_vocab"], batch: Batch
    ) -> Float[Tensor, "batch answer"]:
        """Logits of the acceptable answers, the correct one first."""
        return self.answers(outputs, batch)[:, 0, 0].gather(-1, batch.targets[:, 0])

    def example_losses(
        self, outputs: Float[Tensor, "batch pos d_vocab"], batch: Batch
    ) -> Float[Tensor, "batch 1"]:
        """Cross entropy among the acceptable answers, in nats."""
        return -F.log_softmax(self._logits(outputs, batch), dim=-1)[:, :1]

    def logit_differences(
        self, outputs: Float[Tensor, "batch pos d_vocab"], batch: Batch
    ) -> Float[Tensor, " batch"]:
        """The correct answer's logit minus the mean of the other acceptable ones'."""
        logits = self._logits(outputs, batch)
        return logits[:, 0] - logits[:, 1:].mean(-1)

    def accuracy(self, outputs: Float[Tensor, "batch pos d_vocab"], batch: Batch) -> float:
        """How often the correct answer has the highest logit of the acceptable ones."""
        return float((self._logits(outputs, batch).argmax(-1) == 0).float().mean())

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": "prompt",
            "prompt": {"name": self.prompt.name, **vars(self.prompt)},
            "tokenizer": _tokenizer_name(self.tokenizer),
            "answer_prefix": self.answer_prefix,
        }


def _asked(question: Question) -> list[Occurrence]:
    """The symbols of the chain that is asked, in order of appearance."""
    return [symbol for symbol in question.occurrences if symbol.chain == 0]


def _tokenizer_name(tokenizer: Any) -> str:
    return str(getattr(tokenizer, "name_or_path", "")) or type(tokenizer).__name__
