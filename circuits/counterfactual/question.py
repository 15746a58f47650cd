"""What an answer hangs on: changes of one token after which the model answers otherwise.

1. The answer's kind are the tokens of its form (behind a blank, with a capital, of letters) whose
   embeddings are nearest to its own.
2. Every token is changed a few times: to its own nearest embeddings, and to what the model itself
   predicts there, of its form. How far the answer's logit, less the log-sum-exp of its kind, falls
   in the half of these changes where it falls most, says how much the answer hangs on this place.
   The last token, whose own embedding goes straight to the answer, is asked about only by name.
3. At the places on which most hangs many changes are tried. One fits if it turns the answer (a
   token of the kind, less likely before but in play, is now more likely) and the prompt is hardly
   less likely. The place is asked about where most fit. Where few fit, as in the middle of a rare
   name, tokens of the same form are drawn at random.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from retrieval_interp.circuits.hooks import hooked, run_model
from retrieval_interp.circuits.losses import Progress, answer_hooks, no_progress
from retrieval_interp.tasks import Batch, InputError
from retrieval_interp.tasks.shown import listed
from retrieval_interp.tasks.words.given_texts import Pair
from retrieval_interp.tasks.words.text_task import token_ids

KIND = 60  # tokens of the answer's kind
IN_PLAY = 300  # first tokens among which another answer is before the change
FIRST = 4  # neighbours, and predictions, that are tried at every place
MANY = 32  # the same, at the place that is asked about
CHANGES = 16  # that are used: half decide, half confirm
ENOUGH = 4  # changes that fit, or else random ones are tried
LESS_LIKELY = 8.0  # nats by which the prompt may be less likely after a change
PLACES = 12  # that are tried; in a longer prompt those with the largest gradients
NEXT = 3  # places at most at which many changes are tried, if as much as ...
NEARLY = 0.5  # ... this part of what hangs on the first one hangs on them
TOKENS = 4096  # that are run at once
SHOWN = 6  # changes that are named


class Change(NamedTuple):
    """Another token at a place, and what the model then answers."""

    text: str
    wrong: str
    prompt: str


@dataclass(frozen=True)
class Place:
    """A token of a prompt, and how much the answer hangs on it.

    `falls` is how far the answer's logit, less the log-sum-exp of its kind, falls, in nats.
    """

    index: int
    text: str
    falls: float


@dataclass(frozen=True)
class PromptQuestion:
    """A prompt, its answer, and changes of one place after which the model answers otherwise."""

    prompt: str
    answer: str
    probability: float  # of the answer
    rank: int  # of the answer among all tokens, from 1
    says: str  # the likeliest token
    says_probability: float
    places: tuple[Place, ...]  # that were tried, in the order of the prompt
    place: Place  # that is asked about
    changes: tuple[Change, ...]
    at_random: bool  # whether the tokens put there mean nothing

    @property
    def pairs(self) -> list[Pair]:
        """The prompt with each change, and the answers before and after it."""
        return [
            Pair(self.prompt, change.prompt, (self.answer,), (change.wrong,))
            for change in self.changes
        ]

    @property
    def text(self) -> str:
        """What the model says, and what that hangs on."""
        sentences = [f"The model says {self.says.strip()!r} ({self.says_probability:.0%})"]
        if self.says != self.answer:
            sentences[0] += (
                f"; {self.answer.strip()!r} has {self.probability:.1%}, rank {self.rank}"
            )
        first = [place for place in self.places if place.falls > 0]
        if len(self.places) > 1 and first:
            first = sorted(first, key=lambda place: -place.falls)[:3]
            falls = [f"{place.text.strip()!r} ({place.falls:.1f})" for place in first]
            sentences.append(
                f"That hangs on {listed(falls, 'and')}, by nats lost when a token is changed"
            )
        changes = [f"{change.text.strip()} ({change.wrong.strip()})" for change in self.changes]
        if len(changes) > SHOWN:
            changes = [*changes[:SHOWN], f"{len(changes) - SHOWN} more"]
        drawn = ", drawn at random" if self.at_random else ""
        sentences.append(
            f"In place of {self.place.text.strip()!r} come{drawn} (with what it says then) "
            + listed(changes, "and")
        )
        return ". ".join(sentences) + "."


@torch.no_grad()
def ask(
    model: Any,
    prompt: str,
    answer: str = "",
    wrong: str = "",
    place: str = "",
    seed: int = 0,
    progress: Progress = no_progress,
) -> PromptQuestion:
    """Find what an answer hangs on, and changes after which the model answers otherwise.

    Args:
        model: a hooked model with a tokenizer; left unchanged.
        prompt: a text, up to where the answer comes, without a blank at the end.
        answer: what follows; by default what the model says. Its first token counts.
        wrong: what is to lead afterwards; by default any other answer of its kind.
        place: the token to change, as it is written; by default that on which most hangs.
        seed: of random tokens.
        progress: wraps an iterable to show a bar.
    """
    asking = _Asking(model, prompt)
    right = asking.answer_token(answer) if answer else int(asking.logits.argmax())
    kind = asking.kind(right)
    if wrong:
        kind = [right, asking.answer_token(wrong)]
        if kind[0] == kind[1]:
            raise InputError(f"expected another wrong answer than the answer, found {wrong!r:.40}")
    places = [
        Place(index, asking.text(asking.ids[index]), asking.falls(index, right, kind))
        for index in progress(asking.places(right, kind, place), "what the answer hangs on")
    ]
    first = sorted(places, key=lambda place: -place.falls)
    enough = min(first[0].falls, NEARLY * first[0].falls)  # it may be negative
    first = [place for place in first if place.falls >= enough][:NEXT]
    tried = [(asking.changes(place.index, right, kind), place) for place in first]
    changes, best = max(tried, key=lambda pair: min(len(pair[0]), CHANGES // 2))
    at_random = False
    if len(changes) < ENOUGH:
        drawn = asking.changes(first[0].index, right, kind, random.Random(seed))
        if len(drawn) > len(changes):
            at_random, changes, best = True, drawn, first[0]
    if not changes:
        raise InputError(
            f"counterfactual: expected another token in place of {best.text!r} after which the "
            "model answers otherwise, found none; give a counterfactual of the same length, or "
            "another place"
        )
    probabilities = asking.logits.softmax(0)
    says = int(asking.logits.argmax())
    return PromptQuestion(
        prompt=prompt,
        answer=asking.shared + asking.text(right),
        probability=float(probabilities[right]),
        rank=1 + int((asking.logits > asking.logits[right]).sum()),
        says=asking.text(says),
        says_probability=float(probabilities[says]),
        places=tuple(places),
        place=best,
        changes=tuple(changes),
        at_random=at_random,
    )


class _Asking:
    """A prompt's tokens, the model's predictions, and runs of changed prompts."""

    def __init__(self, model: Any, prompt: str):
        tokenizer = getattr(model, "tokenizer", None)
        if tokenizer is None:
            raise InputError("expected a model with a tokenizer, found none; use a task")
        if prompt[-1:].isspace():
            raise InputError(f"prompt: expected no blank at the end, found {prompt[-20:]!r}")
        self.model, self.tokenizer = model, tokenizer
        self.ids = token_ids(tokenizer, prompt)
        bos = tokenizer.bos_token_id
        self.begin = [] if bos is None else [int(bos)]
        if len(self.begin) + len(self.ids) > model.cfg.n_ctx:
            raise InputError(
                f"prompt: expected at most the model's {model.cfg.n_ctx} tokens, found "
                f"{len(self.begin) + len(self.ids)}"
            )
        self.device = next(model.parameters()).device
        self.shared = ""  # a blank that is a token of its own, before the answer
        self._predict()
        self.embeddings = torch.nn.functional.normalize(model.W_E.detach().float(), dim=-1)
        self.forms = _forms(tokenizer, len(self.embeddings)).to(self.device)

    def _predict(self) -> None:
        batch = self._batch([self.ids])
        self.predicted: Float[Tensor, "pos vocab"] = run_model(self.model, batch)[0].float()
        self.logits: Float[Tensor, " vocab"] = self.predicted[-1]

    def text(self, token: int) -> str:
        return str(self.tokenizer.decode([token]))

    def answer_token(self, answer: str) -> int:
        """The first token of an answer in the form that the model would rather write here."""
        before, prompt = len(self.ids), self.tokenizer.decode(self.ids)
        written = dict.fromkeys([answer, f" {answer.lstrip()}", answer.lstrip()])
        read = [token_ids(self.tokenizer, prompt + text) for text in written if text]
        rest = [ids[before:] for ids in read if ids[:before] == self.ids and ids[before:]]
        if not rest:
            raise InputError(f"answer: expected text that can follow the prompt, found {answer!r}")
        tokens = max(rest, key=lambda tokens: float(self.logits[tokens[0]]))
        if len(tokens) > 1 and self.text(tokens[0]).isspace():
            self.shared += self.text(tokens[0])
            self.ids.append(tokens[0])
            self._predict()
            return tokens[1]
        return tokens[0]

    def near(self, token: int, count: int, tokens: Tensor) -> list[int]:
        """Of some tokens those with the nearest embeddings."""
        likeness = self.embeddings[tokens] @ self.embeddings[token]
        return list(tokens[likeness.topk(min(count, len(tokens))).indices].tolist())

    def alike(self, token: int) -> Int[Tensor, " tokens"]:
        """The tokens of the same form, without other spellings of the same word."""
        same = (self.forms == self.forms[token]).nonzero()[:, 0]
        word = self.text(token).strip().lower()
        spelled = [other for other in self.near(token, 8, same) if other != token]
        twins = [other for other in spelled if self.text(other).strip().lower() == word]
        return same[~torch.isin(same, same.new_tensor([token, *twins]))]

    def kind(self, answer: int) -> list[int]:
        """The answer and the tokens of its form with the nearest embeddings."""
        return [answer, *self.near(answer, KIND - 1, self.alike(answer))]

    def places(self, right: int, kind: Sequence[int], place: str) -> list[int]:
        """The tokens to try: the one that is named, or all but the last."""
        texts = [self.text(token).strip() for token in self.ids]
        named = [index for index, text in enumerate(texts) if text == place.strip()]
        if place:
            if not named:
                shown = " ".join(texts)
                raise InputError(f"place: expected a token of {shown!r:.300}, found {place!r:.40}")
            return named
        indices = list(range(max(1, len(self.ids) - 1 - len(self.shared))))
        if len(indices) <= PLACES:
            return indices
        sizes = self._gradients(right, kind)[: len(indices)]
        return sorted(sizes.topk(PLACES).indices.tolist())

    def _gradients(self, right: int, kind: Sequence[int]) -> Float[Tensor, " pos"]:
        """The size of the gradient by each token's embedding."""
        embedded: list[Tensor] = []

        def note(x: Tensor, hook: Any) -> Tensor:
            embedded.append(x.detach().requires_grad_())
            return embedded[0]

        batch = self._batch([self.ids])
        hooks = [("hook_embed", note), *answer_hooks(self.model, batch, (0,))]
        with torch.enable_grad(), hooked(self.model, hooks):
            logits = run_model(self.model, batch)[0, -1].float()
            (logits[right] - logits[list(kind)].logsumexp(0)).backward()
        assert embedded[0].grad is not None
        sizes: Tensor = embedded[0].grad[0, len(self.begin) :].norm(dim=-1)
        return sizes

    def candidates(self, index: int, count: int) -> list[int]:
        """What may stand at a place: near embeddings of its form, and what the model predicts."""
        token, before = self.ids[index], index + len(self.begin) - 1
        alike = self.alike(token)
        chosen = self.near(token, count, alike)
        if before >= 0:
            likely = alike[~torch.isin(alike, alike.new_tensor(chosen))]
            order = self.predicted[before][likely].topk(min(count, len(likely))).indices
            chosen += likely[order].tolist()
        return self._whole([self._with(index, token) for token in chosen], index)

    def _reads_back(self, token: int) -> bool:
        """Whether a token behind the prompt is read from its text as it is."""
        text = self.tokenizer.decode([*self.ids, token])
        return token_ids(self.tokenizer, text) == [*self.ids, token]

    def _with(self, index: int, token: int) -> list[int]:
        return [*self.ids[:index], token, *self.ids[index + 1 :]]

    def _whole(self, rows: Sequence[list[int]], index: int) -> list[int]:
        """The tokens of rows that are read from their text as they are."""
        texts = [self.tokenizer.decode(row) for row in rows]
        read = self.tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
        return [row[index] for row, ids in zip(rows, read) if ids == row]

    def falls(self, index: int, right: int, kind: Sequence[int]) -> float:
        """How far the answer falls, in the half of a few changes where it falls most."""
        tokens = self.candidates(index, FIRST)
        if not tokens:
            return 0.0
        rows = torch.cat(list(self._run([self._with(index, token) for token in tokens])))
        leads = [x[:, right] - x[:, list(kind)].logsumexp(-1) for x in (self.logits[None], rows)]
        fallen = (leads[0] - leads[1]).sort(descending=True).values
        return float(fallen[: max(1, len(fallen) // 2)].mean())

    def changes(
        self, index: int, right: int, kind: Sequence[int], draw: random.Random | None = None
    ) -> list[Change]:
        """The changes that fit: each wrong answer once, then once more; the nearest tokens first.

        With `draw` the tokens are drawn, and the prompt need not be likely.
        """
        if draw is None:
            tokens = self.candidates(index, MANY)
        else:
            alike = self.alike(self.ids[index]).tolist()
            drawn = draw.sample(alike, min(4 * MANY, len(alike)))
            tokens = self._whole([self._with(index, token) for token in drawn], index)
        in_play = set(self.logits.topk(min(IN_PLAY, len(self.logits))).indices.tolist())
        less = [token for token in kind if self.logits[token] < self.logits[right]]
        possible = [
            token
            for token in less
            if (token in in_play or len(kind) == 2) and self._reads_back(token)
        ]
        if not tokens or not possible:
            return []
        rows = [self._with(index, token) for token in tokens]
        runs = torch.cat(list(self._run(rows, index)))
        best, likely = runs[:, :-1][:, possible].max(-1), runs[:, -1]
        fits = best.values > runs[:, right]
        if draw is None:
            fits &= likely >= self._likely(self.predicted, self.ids, index) - LESS_LIKELY
        wrongs = [self.shared + self.text(possible[n]) for n in best.indices.tolist()]
        times: Counter[str] = Counter()
        ranked = []
        for n in fits.nonzero()[:, 0].tolist():
            times[wrongs[n]] += 1
            ranked.append((times[wrongs[n]], n))
        prompt = len(rows[0]) - len(self.shared)
        return [
            Change(self.text(tokens[n]), wrongs[n], self.tokenizer.decode(rows[n][:prompt]))
            for _, n in sorted(ranked, key=lambda pair: pair[0])[:CHANGES]
        ]

    def _likely(self, logits: Float[Tensor, "pos vocab"], ids: Sequence[int], index: int) -> Tensor:
        """The log probability of the tokens from a place on, in nats."""
        start = max(0, index + len(self.begin) - 1)
        after = torch.tensor([*self.begin, *ids][start + 1 :], device=logits.device)
        return logits[start:-1].log_softmax(-1).gather(-1, after[:, None]).sum()

    def _batch(self, rows: Sequence[Sequence[int]]) -> Batch:
        tokens = torch.tensor([[*self.begin, *row] for row in rows], device=self.device)
        end = torch.full_like(tokens[:, :1, None], tokens.shape[1] - 1)
        return Batch(tokens, tokens[:, -1:], end)

    def _run(self, rows: Sequence[list[int]], index: int | None = None) -> Iterator[Tensor]:
        """The last logits of changed prompts; with an index, and how likely the rest is."""
        size = max(1, TOKENS // (len(rows[0]) + 1))
        for start in range(0, len(rows), size):
            batch = self._batch(rows[start : start + size])
            hooks = answer_hooks(self.model, batch, (0,)) if index is None else []
            with hooked(self.model, hooks):
                logits = run_model(self.model, batch).float()
            if index is None:
                yield logits[:, -1]
                continue
            pairs = zip(logits, rows[start : start + size])
            likely = torch.stack([self._likely(x, row, index) for x, row in pairs])
            yield torch.cat([logits[:, -1], likely[:, None]], dim=1)


@lru_cache(maxsize=4)
def _forms(tokenizer: Any, count: int) -> Tensor:
    """How every token is written, as a number: behind a blank, with a capital, in letters."""
    texts = tokenizer.batch_decode([[token] for token in range(count)])
    special = set(tokenizer.all_special_ids)
    return torch.tensor([-1 if n in special else _form(text) for n, text in enumerate(texts)])


def _form(text: str) -> int:
    word = text.strip()
    letters = 2 if word.isalpha() else 1 if word.isdigit() else 0
    return 12 * text[:1].isspace() + 6 * word[:1].isupper() + 3 * word.isascii() + letters
