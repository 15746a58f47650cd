"""Counterfactuals of one prompt: changes of a word that change the model's answer.

1. The *kind* of an answer is the set of tokens it competes with: those of its form (after a space,
   with a capital, of letters) whose embeddings are nearest to its own.
2. Every word, or the 12 with the largest gradients, is replaced a few times, each of its tokens by
   its nearest embeddings and by what the model itself predicts there, of the same form. Its *fall*
   says how much the answer depends on it: how far the answer's logit, less the log-sum-exp of the
   nearest of its kind, falls in the half of the changes where it falls most. The last token, whose
   own embedding goes straight to the answer, is only tried by name.
3. Many changes are tried of the words with the largest falls. One *fits* if it flips the answer (a
   token of the kind, less likely before but among the first 300, is now more likely) and makes the
   prompt hardly less likely. The word whose changes fit, with the most different answers, is taken.
   If few fit, as in a rare name, tokens of the same form are drawn at random.

`prompt_runs` has the steps, from the kind of an answer to the changes that fit.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, NamedTuple

import torch

from retrieval_interp.circuits.counterfactual.prompt_runs import (
    MOST_CHANGES,
    Flip,
    PromptRuns,
    WrongAnswer,
)
from retrieval_interp.circuits.hooks import HookedModel
from retrieval_interp.circuits.losses import Progress, no_progress
from retrieval_interp.tasks import InputError
from retrieval_interp.tasks.words.given_texts import Pair, PairsTask, SpelledTask

_ENOUGH_CHANGES = 4  # random tokens are tried if fewer changes fit; also of different answers
_MOST_WORDS = 3  # words at most of which many changes are tried
_LEAST_FALL = 0.5  # share of the largest fall that such a word has to reach


class Change(NamedTuple):
    """Other tokens at a place, and what the model then answers."""

    text: str  # these tokens
    answer: str  # all of that answer
    first_token: str  # of that answer
    prompt: str  # the whole changed prompt


@dataclass(frozen=True)
class Place:
    """A word of a prompt, tokens start .. stop-1, and how the answer depends on it.

    `fall` is how far the answer's logit, less the log-sum-exp of the nearest of its kind, falls
    when the word is changed, in nats.
    """

    start: int
    stop: int
    text: str
    fall: float

    @property
    def span(self) -> range:
        """The places of its tokens in the prompt."""
        return range(self.start, self.stop)


@dataclass(frozen=True)
class PromptQuestion:
    """A prompt, its answer, and changes of one place after which the model answers otherwise."""

    prompt: str
    answer: str  # all of it
    first_token: str  # of the answer
    tokens: tuple[int, ...]  # of the answer, without a beginning that wrong answers share
    probability: float  # of the answer
    rank: int  # of its first token among all tokens, from 1
    says: str  # the whole word that the model itself writes
    says_token: str  # its first token, the likeliest
    says_probability: float  # of that token
    places: tuple[Place, ...]  # words that were tried, in the order of the prompt
    place: Place  # the word that is changed
    changes: tuple[Change, ...]
    at_random: bool  # whether the changes are tokens drawn at random
    wrong: WrongAnswer | None = None

    @property
    def pairs(self) -> list[Pair]:
        """The prompt paired with each changed prompt, and the answers to both."""
        return [
            Pair(self.prompt, change.prompt, (self.first_token,), (change.first_token,))
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
    """Find the word that an answer depends on, and changes of it that flip the answer.

    Args:
        model: a hooked model with a tokenizer; left unchanged.
        prompt: a text, up to where the answer comes, without a blank at the end.
        answer: what follows; by default what the model says.
        wrong: what the model should prefer after a change; by default any answer of the same kind.
        place: the word or words to change, as they are written; by default the word with the
            largest fall.
        seed: for the random tokens.
        time: seconds, for this and the search after it. After 0.3 of them it tries no more than it
            has to, and it returns no more changes than the search has time for.
        progress: wraps an iterable to show a progress bar.
    """
    runs = PromptRuns(model, prompt, answer, wrong, time)
    places = list[Place]()
    for span in progress(runs.places(place), "what the answer depends on"):
        if not places or monotonic() < runs.until:
            text = runs.text(runs.ids, span)
            places.append(Place(span.start, span.stop, text, runs.fall(span)))
    changed, flips, at_random = _place_that_flips(runs, places, seed)
    if not flips and monotonic() >= runs.until:
        raise InputError(
            f"time: expected enough to find changes after which the model answers otherwise, found "
            f"none in {time:g} s; three tenths of the time are for this"
        )
    if not flips:
        raise InputError(
            f"counterfactual: expected another token in place of {changed.text!r} after which "
            "the model answers otherwise, found none; give a counterfactual of the same length, "
            "or another place"
        )
    says = int(runs.logits.argmax())
    rows = [[*runs.ids, says], *([*row, token] for row, token in flips)]
    says_tokens, *words = runs.spelled(rows)
    tokens = runs.right if answer else says_tokens
    return PromptQuestion(
        prompt=prompt,
        answer=runs.written(tokens),
        first_token=runs.written(runs.right[:1]),
        tokens=tuple(tokens),
        probability=runs.probability(tokens),
        rank=runs.rank(runs.right[0]),
        says=runs.written(says_tokens),
        says_token=runs.written([says]),
        says_probability=float(runs.logits.softmax(0)[says]),
        places=tuple(sorted(places, key=lambda place: place.start)),
        place=changed,
        changes=tuple(
            Change(
                text=runs.text(row, changed.span),
                answer=runs.written(word),
                first_token=runs.written([token]),
                prompt=runs.text(row, range(len(runs.ids) - len(runs.shared))),
            )
            for (row, token), word in zip(flips, words)
        ),
        at_random=at_random,
        wrong=runs.wrong,
    )


def _place_that_flips(
    runs: PromptRuns, places: Sequence[Place], seed: int
) -> tuple[Place, list[Flip], bool]:
    """Try many changes of the places with the largest falls; return the place where most fit.

    Also these changes, and whether they were drawn at random: where few fit, such tokens are tried
    in the place with the largest fall.
    """
    first, *others = sorted(places, key=lambda place: -place.fall)
    enough = min(first.fall, _LEAST_FALL * first.fall)  # it may be negative
    near_first = [first, *(place for place in others if place.fall >= enough)]
    tried = dict[Place, list[Flip]]()
    for place in near_first[:_MOST_WORDS]:
        if not tried or monotonic() < runs.until:
            tried[place] = runs.changes(place.span)

    def enough_fit(place: Place) -> tuple[int, int]:
        different = {wrong for _, wrong in tried[place]}
        return min(len(different), _ENOUGH_CHANGES), min(len(tried[place]), MOST_CHANGES // 2)

    best = max(tried, key=enough_fit)
    if len(tried[best]) < _ENOUGH_CHANGES:
        drawn = runs.changes(first.span, random.Random(seed))
        if len(drawn) > len(tried[best]):
            return first, drawn, True
    return best, tried[best], False
