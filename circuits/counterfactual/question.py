"""What an answer hangs on: changes of one place after which the model answers otherwise.

1. The answer's kind are the tokens of its form (behind a blank, with a capital, of letters) whose
   embeddings are nearest to its own.
2. Every word is changed a few times: each of its tokens to its own nearest embeddings, and to what
   the model itself predicts there, of its form. How far the answer's logit, less the log-sum-exp of
   the nearest of its kind, falls in the half of these changes where it falls most, says how much
   the answer hangs on this word. The last token, whose own embedding goes straight to the answer,
   is asked about only by name.
3. At the places on which most hangs many changes are tried. One fits if it turns the answer (a
   token of the kind, less likely before but in play, is now more likely) and the prompt is hardly
   less likely. The first place is asked about where enough fit and lead to different answers.
   Where few fit, as in a rare name, tokens of the same form are drawn at random.

Of a changed prompt only the positions from the change on are run, after the keys and values of the
prompt itself, where the model is a bridge to one of Hugging Face.
"""

import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from time import monotonic
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from retrieval_interp.circuits.hooks import (
    has_hooks,
    hooked,
    is_transformers,
    measuring,
    run_model,
)
from retrieval_interp.circuits.losses import Progress, answer_hooks, no_progress
from retrieval_interp.tasks import Batch, InputError
from retrieval_interp.tasks.shown import listed
from retrieval_interp.tasks.words.given_texts import Pair, PairsTask, SpelledTask
from retrieval_interp.tasks.words.text_task import token_ids

KIND = 60  # tokens of the answer's kind, which may lead after a change
NEAREST = 6  # the nearest of them, of which the answer is told apart to see what it hangs on
IN_PLAY = 300  # first tokens among which another answer is before the change
FIRST = 4  # neighbours, and predictions, that are tried at every place
MANY = 32  # the same, at the place that is asked about
CHANGES = 16  # that are used: half decide, half confirm
ENOUGH = 4  # changes that fit, or else random ones are tried; and answers that they lead to
LESS_LIKELY = 8.0  # nats by which the prompt may be less likely after a change
PLACES = 12  # that are tried; in a longer prompt those with the largest gradients
NEXT = 3  # places at most at which many changes are tried, if as much as ...
NEARLY = 0.5  # ... this part of what hangs on the first one hangs on them
ASKING = 0.3  # part of the time in which changes are tried, and ...
RUNS = 12  # ... how many runs of the prompt the rest of it has to have room for, for each change
TOKENS = 4096  # that are run at once
ROOM = 8192  # tokens that all changes which are tried at a place may have together
PATTERNS = 1_000_000_000  # weights of attention on all changes that are used
LONGEST = 8  # tokens of a word
SHOWN = 6  # changes that are named


class Change(NamedTuple):
    """Other tokens at a place, and what the model then answers."""

    text: str
    wrong: str  # the first token of it
    word: str  # all of it
    prompt: str


class Wrong(NamedTuple):
    """A wrong answer that is given: how likely all of it is after the prompt as it is."""

    word: str
    probability: float
    rank: int  # of its first token among all, from 1


@dataclass(frozen=True)
class Place:
    """A word of a prompt, its tokens start .. stop-1, and how much the answer hangs on it.

    `falls` is how far the answer's logit, less the log-sum-exp of the nearest of its kind, falls,
    in nats.
    """

    start: int
    stop: int
    text: str
    falls: float


@dataclass(frozen=True)
class PromptQuestion:
    """A prompt, its answer, and changes of one place after which the model answers otherwise."""

    prompt: str
    answer: str  # the first token of it
    word: str  # all of it
    tokens: tuple[int, ...]  # of all of it, but for what wrong answers begin with as well
    probability: float  # of all of it
    rank: int  # of its first token among all, from 1
    says: str  # the likeliest token
    says_word: str  # and what goes on with its word
    says_probability: float  # of the token
    places: tuple[Place, ...]  # that were tried, in the order of the prompt
    place: Place  # that is asked about
    changes: tuple[Change, ...]
    at_random: bool  # whether the tokens put there mean nothing
    wrong: Wrong | None = None

    @property
    def pairs(self) -> list[Pair]:
        """The prompt with each change, and the answers before and after it."""
        return [
            Pair(self.prompt, change.prompt, (self.answer,), (change.wrong,))
            for change in self.changes
        ]

    def task(self, tokenizer: Any) -> PairsTask:
        """The changes as a task, in which all tokens of the answer count."""
        if len(self.tokens) > 1:
            return SpelledTask(self.pairs, tokenizer, self.tokens)
        return PairsTask(self.pairs, tokenizer)

    @property
    def sentences(self) -> list[str]:
        """What the model says, what that hangs on, and what is changed."""
        says = f"The model says {self.says!r} ({self.says_probability:.0%})"
        if self.says_word != self.says:
            says += f", as in {self.says_word!r}"
        if self.word != self.says_word:
            says += f"; {self.word!r} has {self.probability:.1%}, rank {self.rank}"
        if self.wrong is not None:
            says += "; {!r} has {:.1%}, rank {}".format(*self.wrong)
        changes = [
            change.text.strip() + ("" if self.wrong else f" ({change.word.strip()})")
            for change in self.changes
        ]
        if len(changes) > SHOWN:
            changes = [*changes[:SHOWN], f"{len(changes) - SHOWN} more"]
        drawn = "tokens drawn at random, " if self.at_random else ""
        put = f"in place of {self.place.text.strip()!r} come {drawn}{listed(changes, 'and')}"
        if self.wrong is not None:
            put += f", after which {self.wrong.word!r} is likelier than {self.word!r}"
        first = sorted(self.places, key=lambda place: -place.falls)[:3]
        falls = [f"{(x.text.strip() or x.text)!r} ({x.falls:.1f})" for x in first if x.falls > 0]
        if len(self.places) == 1 or not falls:
            return [f"{says}.", f"{put[0].upper()}{put[1:]}."]
        return [f"{says}.", f"That hangs on {listed(falls, 'and')}, in nats; {put}."]


@torch.no_grad()
def ask(
    model: Any,
    prompt: str,
    answer: str = "",
    wrong: str = "",
    place: str = "",
    seed: int = 0,
    time: float = math.inf,
    progress: Progress = no_progress,
) -> PromptQuestion:
    """Find what an answer hangs on, and changes after which the model answers otherwise.

    Args:
        model: a hooked model with a tokenizer; left unchanged.
        prompt: a text, up to where the answer comes, without a blank at the end.
        answer: what follows; by default what the model says.
        wrong: what is to lead afterwards; by default any other answer of its kind.
        place: the word or words to change, as they are written; by default that word on which most
            hangs.
        seed: of random tokens.
        time: seconds for the search as well; after a part of them no more is tried than has to be,
            and there are as many changes as can be searched in the rest.
        progress: wraps an iterable to show a bar.
    """
    asking = _Asking(model, prompt, time)
    tokens = asking.answer_tokens(answer) if answer else [int(asking.logits.argmax())]
    kind, said_wrong = [] if wrong else asking.kind(tokens[0]), None
    if wrong:
        other = asking.answer_tokens(wrong)
        shorter = min(len(tokens), len(other))
        same = next((n for n in range(shorter) if tokens[n] != other[n]), shorter)
        if same == shorter:
            raise InputError(f"expected another wrong answer than the answer, found {wrong!r:.40}")
        asking.go_on(tokens[:same])
        tokens = tokens[same:]
        kind, likely = [tokens[0], other[same]], asking.probability(other[same:])
        said_wrong = Wrong(asking.written(other[same:]), likely, asking.rank(other[same]))
    right = tokens[0]
    places = list[Place]()
    for span in progress(asking.places(right, kind, place), "what the answer hangs on"):
        if not places or monotonic() < asking.until:
            falls = asking.falls(span, right, kind[:NEAREST])
            places.append(Place(span.start, span.stop, asking.text(asking.ids, span), falls))
    first = sorted(places, key=lambda place: -place.falls)
    enough = min(first[0].falls, NEARLY * first[0].falls)  # it may be negative
    tried = list[tuple[list[_Turned], Place]]()
    for near_first in [place for place in first if place.falls >= enough][:NEXT]:
        if not tried or monotonic() < asking.until:
            tried.append((asking.changes(near_first, right, kind), near_first))

    def enough_fit(pair: tuple[list[_Turned], Place]) -> tuple[int, int]:
        different = {change.wrong for change in pair[0]}
        return min(len(different), ENOUGH), min(len(pair[0]), CHANGES // 2)

    turned, best = max(tried, key=enough_fit)
    at_random = False
    if len(turned) < ENOUGH:
        drawn = asking.changes(first[0], right, kind, random.Random(seed))
        if len(drawn) > len(turned):
            at_random, turned, best = True, drawn, first[0]
    if not turned:
        raise InputError(
            f"counterfactual: expected another token in place of {best.text!r} after which the "
            "model answers otherwise, found none; give a counterfactual of the same length, or "
            "another place"
        )
    says = int(asking.logits.argmax())
    rows = [[*asking.ids, says], *([*row, token] for row, token in turned)]
    (said, *words), prompt_size = asking.spelled(rows), len(asking.ids) - len(asking.shared)
    if not answer:
        tokens = said
    span = range(best.start, best.stop)
    return PromptQuestion(
        prompt=prompt,
        answer=asking.written([right]),
        word=asking.written(tokens),
        tokens=tuple(tokens),
        probability=asking.probability(tokens),
        rank=asking.rank(right),
        says=asking.written([says]),
        says_word=asking.written(said),
        says_probability=float(asking.logits.softmax(0)[says]),
        places=tuple(sorted(places, key=lambda place: place.start)),
        place=best,
        changes=tuple(
            Change(
                text=asking.text(row, span),
                wrong=asking.written([token]),
                word=asking.written(word),
                prompt=asking.text(row, range(prompt_size)),
            )
            for (row, token), word in zip(turned, words)
        ),
        at_random=at_random,
        wrong=said_wrong,
    )


class _Turned(NamedTuple):
    """The tokens of a changed prompt, and the token that then leads."""

    row: list[int]
    wrong: int


class _Asking:
    """A prompt's tokens, the model's predictions, and runs of changed prompts."""

    def __init__(self, model: Any, prompt: str, time: float = math.inf):
        tokenizer = getattr(model, "tokenizer", None)
        if tokenizer is None:
            raise InputError("expected a model with a tokenizer, found none; use a task")
        if prompt[-1:].isspace():
            raise InputError(f"prompt: expected no blank at the end, found {prompt[-20:]!r}")
        self.model, self.tokenizer, start = model, tokenizer, monotonic()
        self.until, self.end = start + ASKING * time, start + time
        self.ids = token_ids(tokenizer, prompt)
        bos = tokenizer.bos_token_id
        self.begin = [] if bos is None else [int(bos)]
        if len(self.begin) + len(self.ids) > model.cfg.n_ctx:
            raise InputError(
                f"prompt: expected at most the model's {model.cfg.n_ctx} tokens, found "
                f"{len(self.begin) + len(self.ids)}"
            )
        self.device = next(model.parameters()).device
        self.shared = list[int]()  # what all answers begin with, such as a blank of its own
        before = monotonic()
        self._predict()
        self.seconds = monotonic() - before  # that a run of the prompt takes
        self.embeddings = torch.nn.functional.normalize(model.W_E.detach().float(), dim=-1)
        self.forms = _forms(tokenizer, len(self.embeddings)).to(self.device)

    def _predict(self) -> None:
        tokens, options = self._batch([self.ids]).inputs, dict[str, Any]()
        if is_transformers(self.model) and not has_hooks(self.model):
            options = self._going_on(())
        with measuring(self.model):
            self.predicted: Float[Tensor, "pos vocab"] = self.model(tokens, **options)[0].float()
        self.logits: Float[Tensor, " vocab"] = self.predicted[-1]
        layers = options["past_key_values"].layers if options else ()
        self.kept = [(layer.keys, layer.values) for layer in layers]

    # Tokens

    def text(self, row: Sequence[int], span: Sequence[int]) -> str:
        return str(self.tokenizer.decode([row[index] for index in span]))

    def written(self, answer: Sequence[int]) -> str:
        """An answer as it follows the prompt."""
        return str(self.tokenizer.decode([*self.shared, *answer]))

    def answer_tokens(self, answer: str) -> list[int]:
        """An answer in the form that the model would rather write here."""
        before, prompt = len(self.ids), self.tokenizer.decode(self.ids)
        written = dict.fromkeys([answer, f" {answer.lstrip()}", answer.lstrip()])
        read = [token_ids(self.tokenizer, prompt + text) for text in written if text]
        rest = [ids[before:] for ids in read if ids[:before] == self.ids and ids[before:]]
        if not rest:
            raise InputError(f"answer: expected text that can follow the prompt, found {answer!r}")
        tokens = max(rest, key=lambda tokens: float(self.logits[tokens[0]]))
        if len(tokens) > 1 and self.tokenizer.decode(tokens[:1]).isspace():
            self.go_on(tokens[:1])
            return tokens[1:]
        return tokens

    def go_on(self, tokens: Sequence[int]) -> None:
        """Put what all answers begin with behind the prompt."""
        if tokens:
            self.shared += tokens
            self.ids += tokens
            self._predict()

    def near(self, token: int, count: int, tokens: Tensor) -> list[int]:
        """Of some tokens those with the nearest embeddings."""
        likeness = self.embeddings[tokens] @ self.embeddings[token]
        return list(tokens[likeness.topk(min(count, len(tokens))).indices].tolist())

    def alike(self, token: int) -> Int[Tensor, " tokens"]:
        """The tokens of the same form, without other spellings of the same word."""
        same = (self.forms == self.forms[token]).nonzero()[:, 0]
        word = self._word(token)
        spelled = [other for other in self.near(token, 8, same) if other != token]
        twins = [other for other in spelled if self._word(other) == word]
        return same[~torch.isin(same, same.new_tensor([token, *twins]))]

    def _word(self, token: int) -> str:
        return str(self.tokenizer.decode([token])).strip().lower()

    def kind(self, answer: int) -> list[int]:
        """The answer and the tokens of its form with the nearest embeddings."""
        return [answer, *self.near(answer, KIND - 1, self.alike(answer))]

    # Places

    def places(self, right: int, kind: Sequence[int], place: str) -> list[range]:
        """The tokens to change: those that are named, or every word but the last token's."""
        size = len(self.ids) - len(self.shared)
        if place:
            spans = [
                range(start, stop)
                for start in range(size)
                for stop in range(start + 1, min(size, start + LONGEST) + 1)
                if self.text(self.ids, range(start, stop)).strip() == place.strip()
            ]
            if not spans:
                shown = self.text(self.ids, range(size))
                raise InputError(f"place: expected words of {shown!r:.300}, found {place!r:.40}")
            return spans
        words = self._words()
        words = [word for word in words if word.stop < size] or words[:1]
        if len(words) <= PLACES:
            return words
        slopes = self._gradients(right, kind).tolist()
        steepest = sorted(words, key=lambda word: -max(slopes[n] for n in word))[:PLACES]
        return sorted(steepest, key=lambda word: -word.start)  # those that take least time first

    def _words(self) -> list[range]:
        """The prompt's words: letters without a blank before them go on with the word before."""
        words = list[range]()
        texts = self.tokenizer.batch_decode([[token] for token in self.ids])
        for index, text in enumerate(texts):
            goes_on = index > 0 and text.isalpha() and texts[index - 1].strip().isalpha()
            if goes_on and len(words[-1]) < LONGEST:
                words[-1] = range(words[-1].start, index + 1)
            else:
                words.append(range(index, index + 1))
        return words

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
            leads = logits[right] - logits[list(kind)].logsumexp(0)
            (slopes,) = torch.autograd.grad(leads, embedded)
        sizes: Tensor = slopes[0, len(self.begin) :].norm(dim=-1)
        return sizes

    # Changes

    def candidates(self, span: range, count: int) -> list[list[int]]:
        """Prompts with other tokens: near embeddings of its form, and what the model predicts."""
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
        """Prompts with tokens of the same form drawn at random."""
        alike = [self.alike(self.ids[index]).tolist() for index in span]
        chosen = ([draw.choice(tokens) for tokens in alike] for _ in range(4 * count))
        return self._read_back(span, dict.fromkeys(map(tuple, chosen)))[: 2 * count]

    def _read_back(self, span: range, tokens: Any) -> list[list[int]]:
        """Prompts with these tokens, of those that are read from their text as they are."""
        rows = [[*self.ids[: span.start], *new, *self.ids[span.stop :]] for new in tokens]
        texts = [self.tokenizer.decode(row) for row in rows]
        read = self.tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
        return [row for row, ids in zip(rows, read) if ids == row]

    def _is_read_back(self, token: int) -> bool:
        """Whether a token behind the prompt is read from its text as it is."""
        text = self.tokenizer.decode([*self.ids, token])
        return token_ids(self.tokenizer, text) == [*self.ids, token]

    def falls(self, span: range, right: int, kind: Sequence[int]) -> float:
        """How far the answer falls, in the half of a few changes where it falls most."""
        rows = self.candidates(span, FIRST)
        if len(rows) < FIRST:
            rows += self.drawn(span, FIRST, random.Random(0))
        if not rows:
            return 0.0
        last = torch.cat([logits[:, -1] for logits in self._run(rows)])
        leads = [x[:, right] - x[:, list(kind)].logsumexp(-1) for x in (self.logits[None], last)]
        fallen = (leads[0] - leads[1]).sort(descending=True).values
        return float(fallen[: max(1, len(fallen) // 2)].mean())

    def changes(
        self, place: Place, right: int, kind: Sequence[int], draw: random.Random | None = None
    ) -> list[_Turned]:
        """The changes that fit: each wrong answer once, then once more; the nearest tokens first.

        With `draw` the tokens are drawn, and the prompt need not be likely.
        """
        span = range(place.start, place.stop)
        many = max(FIRST, min(MANY, ROOM // (2 * len(self.ids))))
        rows = self.candidates(span, many) if draw is None else self.drawn(span, many, draw)
        in_play = set(self.logits.topk(min(IN_PLAY, len(self.logits))).indices.tolist())
        less = [token for token in kind if self.logits[token] < self.logits[right]]
        possible = [
            token
            for token in less
            if (token in in_play or len(kind) == 2) and self._is_read_back(token)
        ]
        if not rows or not possible:
            return []
        fitting, start = list[tuple[int, int, list[int]]](), max(0, span.start - 1)
        times: Counter[int] = Counter()
        least = self._likely(self.predicted[start + len(self.begin) :], self.ids) - LESS_LIKELY
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
        room = PATTERNS // (cfg.n_layers * cfg.n_heads * size**2)
        in_time = (self.end - monotonic()) / (RUNS * self.seconds)
        most = max(2, int(min(CHANGES, room, in_time)))
        return [_Turned(row, wrong) for _, wrong, row in fitting[:most]]

    def _likely(self, logits: Float[Tensor, "pos vocab"], row: Sequence[int]) -> float:
        """The log probability, in nats, of the tokens that the last logits are for."""
        tokens = torch.tensor([*self.begin, *row], device=logits.device)
        after = tokens[len(tokens) - len(logits) + 1 :]
        return float(logits[:-1].log_softmax(-1).gather(-1, after[:, None]).sum())

    # Answers

    def spelled(self, rows: Sequence[list[int]]) -> list[list[int]]:
        """The answers at the end of prompts, with what the model adds to their words in time."""
        words = [row[len(self.ids) :] for row in rows]
        going = list(range(len(rows)))
        for _ in range(LONGEST):
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
        """Of all tokens of an answer."""
        if len(answer) == 1:
            return float(self.logits.softmax(0)[answer[0]])
        row = [*self.ids, *answer]
        (logits,) = self._run([row], len(self.ids) - 1)
        return math.exp(self._likely(logits[0], row))

    def rank(self, token: int) -> int:
        """Of a token after the prompt, from 1."""
        return 1 + int((self.logits > self.logits[token]).sum())

    # Runs

    def _batch(self, rows: Sequence[Sequence[int]], first: int = -1) -> Batch:
        """Prompts, with the positions from a token on as roles; by default the last one."""
        tokens = torch.tensor([[*self.begin, *row] for row in rows], device=self.device)
        size = tokens.shape[1]
        start = size - 1 if first < 0 else first + len(self.begin)
        positions = torch.arange(start, size, device=self.device)
        return Batch(tokens, tokens[:, -1:], positions.expand(len(tokens), 1, -1))

    def _going_on(self, kept: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Any]:
        """Call options of a bridge that goes on after keys and values, and adds to them."""
        from transformers import DynamicCache

        return {"past_key_values": DynamicCache([*kept]), "use_cache": True}

    def _run(self, rows: Sequence[list[int]], first: int = -1) -> Iterator[Tensor]:
        """The logits of changed prompts from a token on, some rows at a time."""
        size = max(1, TOKENS // (len(rows[0]) + 1))
        for start in range(0, len(rows), size):
            batch = self._batch(rows[start : start + size], first)
            known = batch.inputs.new_tensor([*self.begin, *self.ids])[: batch.inputs.shape[1]]
            same = (batch.inputs[:, : len(known)] == known).all(0).long().cumprod(0).sum()
            begun = min(int(same), int(batch.roles[0, 0, 0])) if self.kept else 0
            options = dict[str, Any]()
            if begun:
                shape = len(batch), -1, -1, -1
                options = self._going_on(
                    (keys[:, :, :begun].expand(shape), values[:, :, :begun].expand(shape))
                    for keys, values in self.kept
                )
            batch = replace(batch, inputs=batch.inputs[:, begun:], roles=batch.roles - begun)
            n_roles = batch.roles.shape[-1]
            hooks = answer_hooks(self.model, batch, tuple(range(n_roles)))
            with measuring(self.model), hooked(self.model, hooks):
                logits = self.model(batch.inputs, **options).float()
            yield logits[:, -n_roles:]


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
