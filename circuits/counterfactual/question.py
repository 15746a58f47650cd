"""Counterfactuals of one prompt: changes of a word that change the model's answer.

1. The *kind* of an answer is the set of tokens it competes with: those of its form (after a space,
   with a capital, of letters) whose embeddings are nearest to its own.
2. Every word is replaced a few times, each of its tokens by its nearest embeddings and by what the
   model itself predicts there, of the same form. Its *fall* says how much the answer depends on it:
   how far the answer's logit, less the log-sum-exp of the nearest of its kind, falls in the half of
   the changes where it falls most. The last token, whose own embedding goes straight to the answer,
   is only tried by name.
3. Many changes are tried of the words with the largest falls. One *fits* if it turns the answer (a
   token of the kind, less likely before but among the first 300, is now more likely) and makes the
   prompt hardly less likely. The word whose changes fit, with the most different answers, is taken.
   If few fit, as in a rare name, tokens of the same form are drawn at random.

`prompt_runs` has the steps, from the kind of an answer to the changes that fit.
"""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, NamedTuple

import torch

from retrieval_interp.circuits.counterfactual.prompt_runs import MOST_CHANGES, PromptRuns, Turned
from retrieval_interp.circuits.hooks import HookedModel
from retrieval_interp.circuits.losses import Progress, no_progress
from retrieval_interp.tasks import InputError
from retrieval_interp.tasks.words.given_texts import Pair, PairsTask, SpelledTask
from retrieval_interp.tasks.words.text_task import shared_length

_COMPARED_TOKENS = 6  # tokens of the kind to which the answer is compared in a fall
_ENOUGH_CHANGES = 4  # random tokens are tried if fewer changes fit; also of different answers
_MOST_WORDS = 3  # words at most of which many changes are tried, if their fall is at least ...
_LEAST_FALL = 0.5  # ... this share of the largest


class Change(NamedTuple):
    """Other tokens at a place, and what the model then answers."""

    text: str  # these tokens
    wrong: str  # the first token of that answer
    word: str  # all of that answer
    prompt: str  # the whole changed prompt


class Wrong(NamedTuple):
    """A given wrong answer, and how likely it is after the unchanged prompt."""

    word: str
    probability: float  # of all of it
    rank: int  # of its first token among all, from 1


@dataclass(frozen=True)
class Place:
    """A word of a prompt, tokens start .. stop-1, and how the answer depends on it.

    `falls` is how far the answer's logit, less the log-sum-exp of the nearest of its kind, falls
    when the word is changed, in nats.
    """

    start: int
    stop: int
    text: str
    falls: float

    @property
    def span(self) -> range:
        """The places of its tokens in the prompt."""
        return range(self.start, self.stop)


@dataclass(frozen=True)
class PromptQuestion:
    """A prompt, its answer, and changes of one place after which the model answers otherwise."""

    prompt: str
    answer: str  # the first token of it
    word: str  # all of it
    tokens: tuple[int, ...]  # of all of it, without a beginning that wrong answers share
    probability: float  # of all of it
    rank: int  # of its first token among all, from 1
    says: str  # the likeliest token
    says_word: str  # the whole word that the model goes on to write
    says_probability: float  # of its first token
    places: tuple[Place, ...]  # words that were tried, in the order of the prompt
    place: Place  # the word that is changed
    changes: tuple[Change, ...]
    at_random: bool  # whether the changes are tokens drawn at random
    wrong: Wrong | None = None

    @property
    def pairs(self) -> list[Pair]:
        """The prompt paired with each changed prompt, and the answers to both."""
        return [
            Pair(self.prompt, change.prompt, (self.answer,), (change.wrong,))
            for change in self.changes
        ]

    def task(self, tokenizer: Any) -> PairsTask:
        """Return the pairs as a task that scores all tokens of the answer."""
        if len(self.tokens) > 1:
            return SpelledTask(self.pairs, tokenizer, self.tokens)
        return PairsTask(self.pairs, tokenizer)


@torch.no_grad()
def ask(
    model: HookedModel,
    prompt: str,
    answer: str = "",
    wrong: str = "",
    place: str = "",
    seed: int = 0,
    time: float = math.inf,
    progress: Progress = no_progress,
) -> PromptQuestion:
    """Find the word that an answer depends on, and changes of it that turn the answer.

    Args:
        model: a hooked model with a tokenizer; left unchanged.
        prompt: a text, up to where the answer comes, without a blank at the end.
        answer: what follows; by default what the model says.
        wrong: what the model is to prefer after a change; by default any answer of the same kind.
        place: the word or words to change, as they are written; by default the word with the
            largest fall.
        seed: of random tokens.
        time: seconds, for this and the search after it. When 0.3 of them are over nothing more is
            tried than has to be, and no more changes are returned than the search has time for.
        progress: wraps an iterable to show a bar.
    """
    runs = PromptRuns(model, prompt, time)
    answers = _compared_answers(runs, answer, wrong)
    right = answers.right
    spans = progress(runs.places(right[0], answers.kind, place), "what the answer depends on")
    places = _places_with_falls(runs, spans, answers)
    best = _place_that_turns(runs, places, answers, seed)
    if not best.turned:
        raise InputError(
            f"counterfactual: expected another token in place of {best.place.text!r} after which "
            "the model answers otherwise, found none; give a counterfactual of the same length, "
            "or another place"
        )
    says = int(runs.logits.argmax())
    rows = [[*runs.ids, says], *([*row, token] for row, token in best.turned)]
    says_tokens, *words = runs.spelled(rows)
    tokens = right if answer else says_tokens
    return PromptQuestion(
        prompt=prompt,
        answer=runs.written(right[:1]),
        word=runs.written(tokens),
        tokens=tuple(tokens),
        probability=runs.probability(tokens),
        rank=runs.rank(right[0]),
        says=runs.written([says]),
        says_word=runs.written(says_tokens),
        says_probability=float(runs.logits.softmax(0)[says]),
        places=tuple(sorted(places, key=lambda place: place.start)),
        place=best.place,
        changes=tuple(
            _change(runs, turned, best.place, word) for turned, word in zip(best.turned, words)
        ),
        at_random=best.at_random,
        wrong=answers.wrong,
    )


class _Answers(NamedTuple):
    """The tokens of the right answer, and what its first token is compared with."""

    right: list[int]
    kind: list[int]  # the first tokens of the right answer and of wrong ones
    wrong: Wrong | None  # the wrong answer, if one was given


class _Tried(NamedTuple):
    """A place, and its changes that fit."""

    place: Place
    turned: list[Turned]
    at_random: bool = False  # whether the tokens were drawn at random


def _compared_answers(runs: PromptRuns, answer: str, wrong: str) -> _Answers:
    """Tokenize the answers; a beginning that both given ones share becomes part of the prompt."""
    right = runs.answer_tokens(answer) if answer else [int(runs.logits.argmax())]
    if not wrong:
        return _Answers(right, runs.kind(right[0]), None)
    wrong_tokens = runs.answer_tokens(wrong)
    same = shared_length(right, wrong_tokens)
    if same == min(len(right), len(wrong_tokens)):
        raise InputError(f"expected another wrong answer than the answer, found {wrong!r:.40}")
    runs.go_on(right[:same])
    right, wrong_tokens = right[same:], wrong_tokens[same:]
    given = Wrong(
        word=runs.written(wrong_tokens),
        probability=runs.probability(wrong_tokens),
        rank=runs.rank(wrong_tokens[0]),
    )
    return _Answers(right, [right[0], wrong_tokens[0]], given)


def _places_with_falls(runs: PromptRuns, spans: Iterable[range], answers: _Answers) -> list[Place]:
    """Measure the fall of each span: of the first one, and of others while there is time."""
    places = list[Place]()
    for span in spans:
        if not places or monotonic() < runs.until:
            falls = runs.falls(span, answers.right[0], answers.kind[:_COMPARED_TOKENS])
            places.append(Place(span.start, span.stop, runs.text(runs.ids, span), falls))
    return places


def _place_that_turns(
    runs: PromptRuns, places: Sequence[Place], answers: _Answers, seed: int
) -> _Tried:
    """Try many changes of the places with the largest falls; return the place where most fit.

    Where few fit, tokens drawn at random are tried in the place with the largest fall.
    """
    right, kind = answers.right[0], answers.kind
    first, *others = sorted(places, key=lambda place: -place.falls)
    enough = min(first.falls, _LEAST_FALL * first.falls)  # it may be negative
    near_first = [first, *(place for place in others if place.falls >= enough)]
    tried = list[_Tried]()
    for place in near_first[:_MOST_WORDS]:
        if not tried or monotonic() < runs.until:
            tried.append(_Tried(place, runs.changes(place.span, right, kind)))

    def enough_fit(trial: _Tried) -> tuple[int, int]:
        different = {change.wrong for change in trial.turned}
        return min(len(different), _ENOUGH_CHANGES), min(len(trial.turned), MOST_CHANGES // 2)

    best = max(tried, key=enough_fit)
    if len(best.turned) < _ENOUGH_CHANGES:
        draw = random.Random(seed)
        drawn = runs.changes(first.span, right, kind, draw)
        if len(drawn) > len(best.turned):
            return _Tried(first, drawn, at_random=True)
    return best


def _change(runs: PromptRuns, turned: Turned, place: Place, word: Sequence[int]) -> Change:
    """Return a change as text; `word` has the tokens of the answer after it."""
    return Change(
        text=runs.text(turned.row, place.span),
        wrong=runs.written([turned.wrong]),
        word=runs.written(word),
        prompt=runs.text(turned.row, range(len(runs.ids) - len(runs.shared))),
    )
