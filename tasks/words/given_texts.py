"""Tasks of given texts: the next token of a text, and the answers to given pairs of prompts.

A pair is a prompt and a counterfactual, with as many tokens and another answer.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from retrieval_interp.tasks.messages import InputError, counted
from retrieval_interp.tasks.sampling import Split
from retrieval_interp.tasks.task import Batch, Device, Outputs, Task
from retrieval_interp.tasks.words import text_task

T = TypeVar("T")
_NOT_ASKED = -100  # the target at positions that do not count
_ROLES = 256  # roles at most of a prompt: the tokens nearest to those that differ, or to the end
_RESERVED = re.compile("token|END|s[0-9]+")  # names that a word may not give to its role


def of_split(items: Sequence[T], n: int, split: Split, start: int) -> Sequence[T]:
    """Return items start .. start+n-1 of a split: every second is in `test`, a lone one in all."""
    chosen = items if len(items) == 1 else items[(split == "test") :: 2]
    if not 1 <= n <= len(chosen) - start:
        raise InputError(
            f"sample: expected 1 to {len(chosen) - start} examples of this half, found {n}; give "
            "more of them"
        )
    return chosen[start : start + n]


class NextTokenTask(Task):
    """Predict the next token at every position of given sequences of token ids.

    The only role is the last token before padding. The tokenizer names the tokens in views.
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
        self.sequences, self.tokenizer = [list(ids) for ids in sequences], tokenizer

    @classmethod
    def from_text(
        cls, text: str | Sequence[str], tokenizer: Any, length: int = 128, prepend_bos: bool = True
    ) -> "NextTokenTask":
        """Cut each text into windows of about equal lengths, of at most `length` tokens."""
        texts = [text] if isinstance(text, str) else list(text)
        bos = tokenizer.bos_token_id if prepend_bos else None
        begin = [] if bos is None else [int(bos)]
        if length < 2:
            raise InputError(f"length: expected at least 2 tokens, found {length}")
        windows: list[list[int]] = []
        for whole in texts:
            ids = text_task.token_ids(tokenizer, whole)
            count = -(-len(ids) // (length - len(begin)))
            ends = [len(ids) * number // count for number in range(count + 1)]
            windows += [[*begin, *ids[start:end]] for start, end in pairwise(ends)]
        return cls(windows, tokenizer)

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def description(self) -> str:
        sequences = counted(len(self), "sequence")
        return f"the next token of {sum(map(len, self.sequences))} tokens in {sequences}"

    def sample(
        self, n: int, seed: int = 0, device: Device = "cpu", split: Split = "train", start: int = 0
    ) -> Batch:
        """Return sequences start .. start+n-1, padded on the right; every second is in `test`."""
        return self._batch(of_split(self.sequences, n, split, start), device)

    def whole(self, device: Device = "cpu") -> Batch:
        """Return all sequences: tokens, the next tokens (-100 where there is none), and roles."""
        return self._batch(self.sequences, device)

    def _batch(self, sequences: Sequence[Sequence[int]], device: Device) -> Batch:
        rows = [torch.tensor(sequence) for sequence in sequences]
        after = [torch.cat([row[1:], torch.tensor([_NOT_ASKED])]) for row in rows]
        tokens = pad_sequence(rows, batch_first=True)
        targets = pad_sequence(after, batch_first=True, padding_value=_NOT_ASKED)
        ends = torch.tensor([len(sequence) - 1 for sequence in sequences])
        return Batch(tokens, targets, ends[:, None, None]).to(device)

    def example_losses(self, outputs: Outputs, batch: Batch) -> Float[Tensor, "batch 1"]:
        """Return the cross entropy of the next token in nats, the mean over each sequence."""
        targets: Int[Tensor, "batch pos"] = batch.targets
        # Flat, since a sum over an axis that is not the last loses digits in a large vocabulary.
        losses = F.cross_entropy(
            outputs.flatten(0, 1), targets.flatten(), ignore_index=_NOT_ASKED, reduction="none"
        ).view(targets.shape)
        return losses.sum(1, keepdim=True) / (targets != _NOT_ASKED).sum(1, keepdim=True)

    def position_labels(self, batch: Batch, example: int) -> list[str]:
        if self.tokenizer is None:
            return [f"{token}" for token in batch.inputs[example].tolist()]
        return text_task.token_texts(self.tokenizer, batch, example)


@dataclass(frozen=True)
class Pair:
    """A prompt and its counterfactual, as text.

    `spans` names parts of both prompts, each with the number of its first token, not counting the
    token that begins the sequence; the last is END.
    """

    clean: str
    corrupt: str
    answers: tuple[str, ...]
    wrong_answers: tuple[str, ...]
    spans: tuple[tuple[str, int], ...] = ()


class PairsTask(text_task.AnswerTask):
    """Which of two answers follows a prompt, for given prompts and their counterfactuals.

    Tokens that all answers of a pair begin with, such as a bare blank, are added to its prompts.
    Every token is a role. If prompts differ in length, they are counted from the start as far as
    all prompts begin alike, and then from the end. If pairs have spans, roles are their tokens,
    NAME, NAME.2, ... In a long prompt, only the 256 tokens nearest to those that differ, or to the
    end, are roles. Every second pair is in the `test` split; a single one is in every split.

    Args:
        pairs: the prompts, and the answers with the blank before them. Pairs that cannot be used
            with the tokenizer are left out, with a warning.
        tokenizer: a Hugging Face tokenizer that gives offsets (a fast one).
    """

    counterfactual_words = "the second prompt of each pair"
    loss_meaning = "cross entropy between the answers and the wrong ones, in nats"
    fixed = True
    n_behind = 0  # tokens of the answer after END

    def __init__(self, pairs: Sequence[Pair], tokenizer: Any):
        super().__init__(tokenizer)
        if not pairs:
            raise InputError("pairs: expected at least one pair of prompts, found none")
        self.pairs = tuple(pairs)
        usable = text_task.read_usable(self.pairs, self._tokens, "pairs")
        prompts = [clean.prompt for _, (clean, _) in usable]
        spans = [pair.spans for pair, _ in usable]
        if any(spans):
            names, places = _in_spans(spans, 1 - len(self.begin))
            labels = names
        else:
            shared = _shared_places(prompts)
            names, labels = self._named(prompts, shared)
            places = [[range(len(prompt))[place] for place in shared] for prompt in prompts]
        read = [(row._replace(roles=at), other) for (_, (row, other)), at in zip(usable, places)]
        kept = _nearest(read)
        self._read = [
            (row._replace(roles=[row.roles[role] for role in kept]), other) for row, other in read
        ]
        self.role_names = tuple(names[role] for role in kept)
        self.role_labels = self.role_symbols = tuple(labels[role] for role in kept)
        self.scored_roles = (len(kept) - 1,)

    def _tokens(self, pair: Pair) -> tuple[text_task.Tokens, list[int]]:
        """Tokenize a prompt, without roles, and its counterfactual."""
        words, n_right = [*pair.answers, *pair.wrong_answers], len(pair.answers)
        clean, answers, _ = text_task.answer_tokens(self.tokenizer, pair.clean, words or [""])
        corrupt, _, _ = text_task.answer_tokens(self.tokenizer, pair.corrupt, words or [""])
        right, wrong = answers[:n_right], answers[n_right:]
        if not (right and wrong):
            raise InputError(f"answers: expected right and wrong ones, found {words!r:.80}")
        if shared := set(right) & set(wrong):
            begin = self.tokenizer.decode([min(shared)])
            raise InputError(
                "answers: expected right and wrong ones that begin with different tokens, found "
                f"{begin!r} at the beginning of both"
            )
        if len(clean) != len(corrupt):
            text = self.tokenizer.convert_ids_to_tokens
            first = text_task.shared_length(clean, corrupt)
            ours, theirs = (" ".join(text(ids[first : first + 1])) for ids in (clean, corrupt))
            raise InputError(
                f"counterfactual: expected as many tokens as the prompt's {len(clean)}, found "
                f"{len(corrupt)}; they part at token {first}, {ours!r} and {theirs!r}"
            )
        if clean == corrupt:
            raise InputError("counterfactual: expected another prompt, found the same tokens")
        if pair.spans and pair.spans[-1][1] != len(clean):
            raise InputError(
                f"spans: expected a prompt of {pair.spans[-1][1]} tokens, found {len(clean)} with "
                "this tokenizer"
            )
        clean, corrupt = [*self.begin, *clean], [*self.begin, *corrupt]
        return text_task.Tokens(clean, [], answers, n_right), corrupt

    def _named(self, prompts: Sequence[list[int]], places: list[int]) -> list[list[str]]:
        """Names and labels of places: the word that stands there in all prompts."""
        texts = [{prompt[place] for prompt in prompts} for place in places]
        words = [self.tokenizer.decode([*text]) if len(text) == 1 else "" for text in texts]
        words = [word.strip() or word for word in words]
        plain = [re.sub(r"\W", "_", word).strip("_") or "token" for word in words]
        names = [
            word if plain.count(word) == 1 and not _RESERVED.fullmatch(word) else f"{word}@{place}"
            for word, place in zip(plain, places)
        ]
        names[-1 - self.n_behind] = text_task.END
        labels = [
            name if not word else repr(word) if words.count(word) == 1 else f"{word!r} {name}"
            for word, name in zip(words, names)
        ]
        return [names, labels]

    @property
    def description(self) -> str:
        first, many = f"{self.pairs[0].clean!r:.100}", len(self.pairs)
        count = f"{many}" if len(self) == many else f"{len(self)} of {many}"
        return first if many == 1 else f"{count} pairs of prompts, such as {first}"

    def __len__(self) -> int:
        return len(self._read)

    def sample(
        self, n: int, seed: int = 0, device: Device = "cpu", split: Split = "train", start: int = 0
    ) -> Batch:
        """Return the prompts start .. start+n-1 of a split; the same for every seed."""
        return self.batch([clean for clean, _ in of_split(self._read, n, split, start)], device)

    def with_others(
        self, n: int, device: Device = "cpu", split: Split = "train"
    ) -> tuple[Batch, Batch]:
        """Return the first n prompts of a split, and the counterfactual of each."""
        batch = self.sample(n, 0, device, split)
        inputs = batch.inputs.clone()
        for row, (_, corrupt) in zip(inputs, of_split(self._read, n, split, 0)):
            row[: len(corrupt)] = row.new_tensor(corrupt)
        return batch, replace(batch, inputs=inputs)

    def counterfactual(self, batch: Batch, seed: int = 0) -> Batch:
        """Return the counterfactual of each prompt; the last one if several pairs have a prompt."""
        corrupt_of = {tuple(clean.prompt): corrupt for clean, corrupt in self._read}
        prompts = zip(batch.inputs.tolist(), batch.roles[:, 0, -1].tolist())
        rows = [corrupt_of[tuple(ids[: end + 1])] + ids[end + 1 :] for ids, end in prompts]
        return replace(batch, inputs=torch.tensor(rows, device=batch.inputs.device))


def _shared_places(prompts: Sequence[list[int]]) -> list[int]:
    """The places that all prompts have: as far as they begin alike, and then from the end."""
    shortest = min(map(len, prompts))
    start = shortest - 1
    if shortest < max(map(len, prompts)):
        start = min(start, text_task.shared_length(*prompts))
    return [*range(start), *range(start - shortest, 0)]


def _in_spans(
    spans: Sequence[tuple[tuple[str, int], ...]], early: int
) -> tuple[list[str], list[list[int]]]:
    """A role for each token of a span, and their places in each prompt; counts start at `early`."""
    names = [name for name, _ in spans[0]]
    if any([name for name, _ in of_prompt] != names for of_prompt in spans):
        raise InputError("pairs: expected the same spans in all of them, found others")
    bounds = [[start - early for _, start in [*row, ("", row[-1][1] + 1)]] for row in spans]
    widths = [max(row[span + 1] - row[span] for row in bounds) for span in range(len(names))]
    roles = [(span, nth) for span, width in enumerate(widths) for nth in range(width)]
    places = [
        [row[span] + nth if row[span] + nth < row[span + 1] else -1 for span, nth in roles]
        for row in bounds
    ]
    return [f"{names[span]}.{nth + 1}" if nth else names[span] for span, nth in roles], places


def _nearest(read: Sequence[tuple[text_task.Tokens, list[int]]]) -> list[int]:
    """The roles nearest to those where prompts differ from their counterfactual, or to END."""
    end = len(read[0][0].roles) - 1
    differ = {end}
    for row, other in read:
        differ |= {role for role, at in enumerate(row.roles) if row.prompt[at] != other[at]}
    near = sorted(range(end), key=lambda role: min(abs(role - place) for place in differ))
    return [*sorted(near[: _ROLES - 1]), end]


class SpelledTask(PairsTask):
    """Score an answer of several tokens: each token after those before it (teacher forcing).

    All tokens of the answer but the last are appended to both prompts of each pair.

    Args:
        pairs: the prompts; a beginning that their answers share is added to them.
        tokenizer: as of `PairsTask`.
        answer: the answer's tokens, from the first that differs from wrong answers on.
    """

    loss_meaning = "cross entropy of all tokens of the answer together, in nats"

    def __init__(self, pairs: Sequence[Pair], tokenizer: Any, answer: Sequence[int]):
        self.answer, self.n_behind = list(answer), len(answer) - 1
        super().__init__(pairs, tokenizer)
        n_roles = len(self.role_names)
        self.scored_roles = tuple(range(n_roles - len(answer), n_roles))

    def _tokens(self, pair: Pair) -> tuple[text_task.Tokens, list[int]]:
        clean, corrupt = super()._tokens(pair)
        behind = self.answer[:-1]
        return clean._replace(prompt=[*clean.prompt, *behind]), [*corrupt, *behind]

    def batch(self, tokens: Sequence[text_task.Tokens], device: Device = "cpu") -> Batch:
        batch = super().batch(tokens, device)
        targets = batch.inputs.new_tensor(self.answer).expand(len(batch), -1)
        return replace(batch, targets=targets)

    def example_losses(self, outputs: Outputs, batch: Batch) -> Float[Tensor, "batch 1"]:
        """Return minus the log probability of the whole answer, in nats."""
        return -self.log_probabilities(outputs, batch)[:, None]

    def log_probabilities(self, outputs: Outputs, batch: Batch) -> Float[Tensor, " batch"]:
        """Return the log probability of the whole answer, in nats."""
        logits = self.answers(outputs, batch)[:, 0].float().log_softmax(-1)
        return logits.gather(-1, batch.targets[..., None]).sum((1, 2))

    def accuracy(self, outputs: Outputs, batch: Batch) -> float:
        """Return how often every token of the answer is the likeliest."""
        likeliest = self.answers(outputs, batch)[:, 0].argmax(-1)
        return float((likeliest == batch.targets).all(1).float().mean())
