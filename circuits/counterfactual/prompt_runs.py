"""A prompt's tokens, what a model predicts after it, and runs of the prompt with other tokens.

A bridge to a Hugging Face model runs only the positions from the change on, with the keys and
values of the prompt before it (a KV cache).
"""

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from time import monotonic
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from retrieval_interp.circuits.continued_runs import ContinuedRuns
from retrieval_interp.circuits.hooks import HookedModel, answer_hooks, hooked, run_model
from retrieval_interp.tasks import Batch, InputError
from retrieval_interp.tasks.words.text_task import shared_length, token_ids

_KIND_SIZE = 60  # tokens of the answer's kind, with the answer
_COMPARED_TOKENS = 6  # tokens of the kind to which the answer is compared in a fall
_LIKELIEST = 300  # a wrong answer must be among this many likeliest tokens before the change
_TRIED_AT_FIRST = 4  # near tokens, and as many predicted ones, that are tried for every word
_TRIED_THEN = 32  # the same, for the words with the largest falls
_LESS_LIKELY = 8.0  # nats by which a change that fits may lower the prompt's log probability
_MOST_WORDS = 12  # words that are tried; in a longer prompt those with the largest gradients
_TIME_SHARE = 0.3  # share of the time for trying changes
_RUNS_PER_CHANGE = 12  # runs of the prompt, for each change used, that have to fit in the rest
_TOKENS_PER_RUN = 4096  # tokens that are run at once
_TOKENS_PER_WORD = 8192  # tokens at most of all changes that are tried of one word
_MOST_WEIGHTS = 1_000_000_000  # attention weights at most of all changes that are used
_LONGEST_WORD = 8  # tokens of a word at most
MOST_CHANGES = 16  # changes that are used at most: half decide, half are measured


# A changed prompt, and the token of the answer's kind that is then the likeliest.
Flip = tuple[list[int], int]


class WrongAnswer(NamedTuple):
    """A given wrong answer, and how likely it is after the unchanged prompt."""

    answer: str
    probability: float  # of all of it
    rank: int  # of its first token among all, from 1


class PromptRuns:
    """A prompt's tokens, the model's predictions, and runs of changed prompts.

    `right` has the tokens of the right answer, by default what the model says; `kind` the tokens
    that its first one is compared with, itself first; and `wrong` the wrong answer if one is given.
    """

    def __init__(
        self,
        model: HookedModel,
        prompt: str,
        answer: str = "",
        wrong: str = "",
        time: float = math.inf,
    ):
        tokenizer = getattr(model, "tokenizer", None)
        if tokenizer is None:
            raise InputError("expected a model with a tokenizer, found none; use a task")
        if prompt[-1:].isspace():
            raise InputError(f"prompt: expected no trailing space, found {prompt[-20:]!r}")
        self.model, self.tokenizer, start = model, tokenizer, monotonic()
        self.until, self.end = start + _TIME_SHARE * time, start + time
        self.ids = token_ids(tokenizer, prompt)
        bos = tokenizer.bos_token_id
        self.begin = [] if bos is None else [int(bos)]
        if len(self.begin) + len(self.ids) > model.cfg.n_ctx:
            raise InputError(
                f"prompt: expected at most the model's {model.cfg.n_ctx} tokens, found "
                f"{len(self.begin) + len(self.ids)}"
            )
        self.continued = ContinuedRuns(model)
        self.device = self.continued.device
        self.shared = list[int]()  # tokens that all answers begin with, such as a separate blank
        before = monotonic()
        self._predict()
        self.seconds = monotonic() - before  # that a run of the prompt takes
        self.embeddings = torch.nn.functional.normalize(model.W_E.detach().float(), dim=-1)
        self.forms = _forms(tokenizer, len(self.embeddings)).to(self.device)
        self.wrong = self._compare(answer, wrong)

    def _predict(self) -> None:
        prompt = self._rows([self.ids])
        self.predicted: Float[Tensor, "pos vocab"]
        self.predicted = self.continued.logits(prompt, prompt.shape[1], keep=True)[0]
        self.logits: Float[Tensor, " vocab"] = self.predicted[-1]

    # Tokens

    def text(self, row: Sequence[int], span: Sequence[int]) -> str:
        return str(self.tokenizer.decode([row[index] for index in span]))

    def written(self, answer: Sequence[int]) -> str:
        """Return an answer as text, as it follows the prompt."""
        return str(self.tokenizer.decode([*self.shared, *answer]))

    def answer_tokens(self, answer: str) -> list[int]:
        """Tokenize an answer with or without a blank, whichever is likelier here."""
        before, prompt = len(self.ids), self.tokenizer.decode(self.ids)
        written = dict.fromkeys([answer, f" {answer.lstrip()}", answer.lstrip()])
        read = [token_ids(self.tokenizer, prompt + text) for text in written if text]
        fitting = [ids[before:] for ids in read if ids[:before] == self.ids and ids[before:]]
        if not fitting:
            raise InputError(f"answer: expected text that can follow the prompt, found {answer!r}")
        tokens = max(fitting, key=lambda tokens: float(self.logits[tokens[0]]))
        if len(tokens) > 1 and self.tokenizer.decode(tokens[:1]).isspace():
            self.go_on(tokens[:1])
            return tokens[1:]
        return tokens

    def go_on(self, tokens: Sequence[int]) -> None:
        """Append tokens that all answers begin with to the prompt."""
        if tokens:
            self.shared += tokens
            self.ids += tokens
            self._predict()

    def near(self, token: int, count: int, tokens: Tensor) -> list[int]:
        """Return those of some tokens whose embeddings are nearest to one token's."""
        likeness = self.embeddings[tokens] @ self.embeddings[token]
        return list(tokens[likeness.topk(min(count, len(tokens))).indices].tolist())

    def alike(self, token: int) -> Int[Tensor, " tokens"]:
        """Return the tokens of the same form, but for spellings of the same word."""
        same = (self.forms == self.forms[token]).nonzero()[:, 0]
        word = self._word(token)
        spellings = [near for near in self.near(token, 8, same) if self._word(near) == word]
        return same[~torch.isin(same, same.new_tensor([token, *spellings]))]

    def _word(self, token: int) -> str:
        return str(self.tokenizer.decode([token])).strip().lower()

    def _compare(self, answer: str, wrong: str) -> WrongAnswer | None:
        """Tokenize the answers; a beginning that both given ones share becomes part of the prompt.

        Without a wrong one, the answer's kind are the nearest tokens of its form.
        """
        self.right = self.answer_tokens(answer) if answer else [int(self.logits.argmax())]
        if not wrong:
            first = self.right[0]
            self.kind = [first, *self.near(first, _KIND_SIZE - 1, self.alike(first))]
            return None
        tokens = self.answer_tokens(wrong)
        same = shared_length(self.right, tokens)
        if same == min(len(self.right), len(tokens)):
            raise InputError(f"expected another wrong answer than the answer, found {wrong!r:.40}")
        self.go_on(self.right[:same])
        self.right, tokens = self.right[same:], tokens[same:]
        self.kind = [self.right[0], tokens[0]]
        return WrongAnswer(self.written(tokens), self.probability(tokens), self.rank(tokens[0]))

    # Places

    def places(self, place: str) -> list[range]:
        """Return the spans to change: those of `place`, or words but the last (at most 12)."""
        size = len(self.ids) - len(self.shared)
        if place:
            spans = [
                range(start, stop)
                for start in range(size)
                for stop in range(start + 1, min(size, start + _LONGEST_WORD) + 1)
                if self.text(self.ids, range(start, stop)).strip() == place.strip()
            ]
            if not spans:
                shown = self.text(self.ids, range(size))
                raise InputError(f"place: expected words of {shown!r:.300}, found {place!r:.40}")
            return spans
        words = self._words()
        words = [word for word in words if word.stop < size] or words[:1]
        if len(words) <= _MOST_WORDS:
            return words
        slopes = self._gradients().tolist()
        steepest = sorted(words, key=lambda word: -max(slopes[n] for n in word))[:_MOST_WORDS]
        return sorted(steepest, key=lambda word: -word.start)  # those that take least time first

    def _words(self) -> list[range]:
        """Split the prompt into words: letters without a blank continue a word."""
        words = list[range]()
        texts = self.tokenizer.batch_decode([[token] for token in self.ids])
        for index, text in enumerate(texts):
            goes_on = index > 0 and text.isalpha() and texts[index - 1].strip().isalpha()
            if goes_on and len(words[-1]) < _LONGEST_WORD:
                words[-1] = range(words[-1].start, index + 1)
            else:
                words.append(range(index, index + 1))
        return words

    def _gradients(self) -> Float[Tensor, " pos"]:
        """Return the norm of the gradient by each token's embedding."""
        embedded: list[Tensor] = []

        def note(x: Tensor, hook: Any) -> Tensor:
            embedded.append(x.detach().requires_grad_())
            return embedded[0]

        tokens = self._rows([self.ids])
        end = torch.full((1, 1, 1), tokens.shape[1] - 1, device=self.device)
        batch = Batch(tokens, tokens[:, -1:], end)
        hooks = [("hook_embed", note), *answer_hooks(self.model, batch, (0,))]
        with torch.enable_grad(), hooked(self.model, hooks):
            logits = run_model(self.model, batch)[0, -1].float()
            (slopes,) = torch.autograd.grad(self._lead(logits, _KIND_SIZE), embedded)
        sizes: Tensor = slopes[0, len(self.begin) :].norm(dim=-1)
        return sizes

    def _lead(self, logits: Float[Tensor, "*row vocab"], compared: int) -> Float[Tensor, "*row"]:
        """Return the answer's logit, less the log-sum-exp of the first tokens of its kind."""
        return logits[..., self.right[0]] - logits[..., self.kind[:compared]].logsumexp(-1)

    # Changes

    def candidates(self, span: range, count: int) -> list[list[int]]:
        """Replace a span by near tokens of its form, and by predicted ones."""
        columns = []
        for index in span:
            token, before = self.ids[index], index + len(self.begin) - 1
            alike = self.alike(token)
            column = self.near(token, count, alike)
            if before >= 0:
                likely = alike[~torch.isin(alike, alike.new_tensor(column))]
                order = self.predicted[before][likely].topk(min(count, len(likely))).indices
                column += likely[order].tolist()
            columns.append(column)
        return self._read_back(span, zip(*columns))

    def drawn(self, span: range, count: int, draw: random.Random) -> list[list[int]]:
        """Replace a span by tokens of the same form, drawn at random."""
        alike = [self.alike(self.ids[index]).tolist() for index in span]
        chosen = ([draw.choice(tokens) for tokens in alike] for _ in range(2 * count))
        return self._read_back(span, dict.fromkeys(map(tuple, chosen)))[:count]

    def _read_back(self, span: range, tokens: Any) -> list[list[int]]:
        """Put tokens in a span; return the prompts that their text tokenizes to."""
        rows = [[*self.ids[: span.start], *new, *self.ids[span.stop :]] for new in tokens]
        texts = [self.tokenizer.decode(row) for row in rows]
        read = self.tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
        return [row for row, ids in zip(rows, read) if ids == row]

    def fall(self, span: range) -> float:
        """Return a span's fall in nats, the mean over the larger half of changes."""
        rows = self.candidates(span, _TRIED_AT_FIRST)
        if len(rows) < _TRIED_AT_FIRST:
            rows += self.drawn(span, 2 * _TRIED_AT_FIRST, random.Random(0))
        if not rows:
            return 0.0
        last = torch.cat([logits[:, -1] for logits in self._run(rows)])
        before, after = (self._lead(x, _COMPARED_TOKENS) for x in (self.logits, last))
        fallen = (before - after).sort(descending=True).values
        return float(fallen[: max(1, len(fallen) // 2)].mean())

    def changes(self, span: range, draw: random.Random | None = None) -> list[Flip]:
        """Return the changes that fit: one for each wrong answer, then a second, ...

        With `draw` the tokens are drawn at random, and the prompt need not be likely.
        """
        many = max(_TRIED_AT_FIRST, min(_TRIED_THEN, _TOKENS_PER_WORD // (2 * len(self.ids))))
        rows = self.candidates(span, many) if draw is None else self.drawn(span, 2 * many, draw)
        in_play = set(self.logits.topk(min(_LIKELIEST, len(self.logits))).indices.tolist())
        in_play |= set(self.kind if len(self.kind) == 2 else ())  # a wrong answer that is given
        right, end = self.right[0], range(len(self.ids), len(self.ids))
        lower = [t for t in self.kind if self.logits[t] < self.logits[right] and t in in_play]
        possible = [row[-1] for row in self._read_back(end, [[token] for token in lower])]
        if not rows or not possible:
            return []
        fitting, start = list[tuple[int, int, list[int]]](), max(0, span.start - 1)
        times: Counter[int] = Counter()
        least = self._likely(self.predicted[start + len(self.begin) :], self.ids) - _LESS_LIKELY
        for logits in self._run(list(rows), start):
            best = logits[:, -1][:, possible].max(-1)
            turns = (best.values > logits[:, -1][:, right]).tolist()
            for turned, which, of_row in zip(turns, best.indices.tolist(), logits):
                row = rows.pop(0)
                if turned and (draw is not None or self._likely(of_row, row) >= least):
                    wrong = possible[which]
                    times[wrong] += 1
                    fitting.append((times[wrong], wrong, row))
            if monotonic() > self.until:
                break
        fitting.sort(key=lambda change: change[0])
        cfg, size = self.model.cfg, len(self.begin) + len(self.ids)
        room = _MOST_WEIGHTS // (cfg.n_layers * cfg.n_heads * size**2)
        in_time = (self.end - monotonic()) / (_RUNS_PER_CHANGE * self.seconds)
        most = max(2, int(min(MOST_CHANGES, room, in_time)))
        return [(row, wrong) for _, wrong, row in fitting[:most]]

    def _likely(self, logits: Float[Tensor, "pos vocab"], row: Sequence[int]) -> float:
        """Return the log probability of a row's last tokens, by these logits."""
        tokens = torch.tensor([*self.begin, *row], device=logits.device)
        after = tokens[len(tokens) - len(logits) + 1 :]
        return float(logits[:-1].log_softmax(-1).gather(-1, after[:, None]).sum())

    # Answers

    def spelled(self, rows: Sequence[list[int]]) -> list[list[int]]:
        """Continue answers at the end of prompts to whole words, if time allows."""
        words = [row[len(self.ids) :] for row in rows]
        going = list(range(len(rows)))
        for _ in range(_LONGEST_WORD):
            if not going or monotonic() > self.until:
                break
            prompts = [[*rows[n][: len(self.ids)], *words[n]] for n in going]
            runs = torch.cat([logits[:, -1] for logits in self._run(prompts)])
            added = dict(zip(going, runs.argmax(-1).tolist()))
            texts = {n: self.tokenizer.decode([token]) for n, token in added.items()}
            going = [
                n
                for n in going
                if texts[n].isalpha() and self.tokenizer.decode(words[n])[-1:].isalpha()
            ]
            for n in going:
                words[n] = [*words[n], added[n]]
        return words

    def probability(self, answer: Sequence[int]) -> float:
        """Return the probability of an answer, all tokens together."""
        if len(answer) == 1:
            return float(self.logits.softmax(0)[answer[0]])
        row = [*self.ids, *answer]
        (logits,) = self._run([row], len(self.ids) - 1)
        return math.exp(self._likely(logits[0], row))

    def rank(self, token: int) -> int:
        """Return a token's rank after the prompt, from 1."""
        return 1 + int((self.logits > self.logits[token]).sum())

    # Runs

    def _rows(self, rows: Sequence[Sequence[int]]) -> Int[Tensor, "row pos"]:
        return torch.tensor([[*self.begin, *row] for row in rows], device=self.device)

    def _run(self, rows: Sequence[list[int]], first: int = -1) -> Iterator[Tensor]:
        """Yield the logits of prompts from a token on, or of the last, some rows at a time."""
        size = len(rows[0]) - first if first >= 0 else 1
        at_once = max(1, _TOKENS_PER_RUN // (len(rows[0]) + 1))
        for start in range(0, len(rows), at_once):
            yield self.continued.logits(self._rows(rows[start : start + at_once]), size)


@lru_cache(maxsize=4)
def _forms(tokenizer: Any, count: int) -> Tensor:
    """Number every token's form: blank before it, capital, ASCII, letters."""
    texts = tokenizer.batch_decode([[token] for token in range(count)])
    special = set(tokenizer.all_special_ids)
    return torch.tensor([-1 if n in special else _form(text) for n, text in enumerate(texts)])


def _form(text: str) -> int:
    word = text.strip()
    letters = 2 if word.isalpha() else 1 if word.isdigit() else 0
    return 12 * text[:1].isspace() + 6 * word[:1].isupper() + 3 * word.isascii() + letters
