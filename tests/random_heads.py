"""Random matching heads: models whose circuit is known."""

import itertools
import random

from examples.reach_the_bound import (
    PAIR,
    TOKEN,
    MatchingHead,
    Pairing,
    Slot,
    jump_head,
    pair_head,
    split,
)
from retrieval_interp.circuits.flow import causal_depth
from retrieval_interp.tasks import RetrievalTask

PAIRINGS: tuple[Pairing, ...] = ("join", "point")
DISTRACTION = 0.04


def distractor(layer: int, head: int, offset: int = 1, scale: float = DISTRACTION) -> MatchingHead:
    """A head that attends sharply, like one that joins pairs, but is almost useless.

    It adds a little of the token it finds, which does not belong there, to `x+offset`.
    """
    copy = ((TOKEN, Slot("x", offset)),)
    return MatchingHead(layer, head, PAIR, PAIR, avoid=TOKEN, copy=copy, scale=scale)


def random_heads(
    task: RetrievalTask, n_layers: int, seed: int, n_heads: int = 1, extras: bool = True
) -> tuple[MatchingHead, ...]:
    """Random heads that solve a task; the same seed gives the same ones.

    Random are the pairing, the number of working layers and where they are, and how much each
    appends, with which reach and how many heads. Every other head is idle. With `extras` it is
    instead, in one case of four, a distractor, and in another, if a head of its layer works, it
    takes over half of that head's work.
    """
    rng = random.Random(seed)
    pairing = rng.choice(PAIRINGS)
    n_jumps = rng.randint(causal_depth(task.steps) - 1, min(task.steps, n_layers - 1))
    layers = sorted(rng.sample(range(n_layers), n_jumps + 1))
    heads, held = [pair_head(layers[0], pairing=pairing)], 1
    for left, layer in zip(range(n_jumps, 0, -1), layers[1:]):
        width = rng.choice(_widths(held, left, task.steps))
        offsets = range(held, held + width)
        numbers = [rng.randrange(n_heads) for _ in offsets]
        for number in sorted(set(numbers)):
            appended = tuple(offset for offset, other in zip(offsets, numbers) if other == number)
            reach = rng.randint(appended[-1] - held + 1, held)
            heads.append(jump_head(layer, reach, appended, number, pairing))
        held += width
    if extras:
        heads = _with_extras(heads, task, n_layers, n_heads, rng)
    return tuple(sorted(heads, key=lambda head: head.place))


def _with_extras(
    heads: list[MatchingHead], task: RetrievalTask, n_layers: int, n_heads: int, rng: random.Random
) -> list[MatchingHead]:
    placed = {tuple(head.place): head for head in heads}
    distractors: list[tuple[int, int]] = []
    for layer, number in itertools.product(range(n_layers), range(n_heads)):
        if (layer, number) in placed:
            continue
        whole = [head for head in heads if head.layer == layer and placed[head.place] == head]
        draw = rng.randrange(4)
        if draw == 0:
            distractors.append((layer, number))
        elif draw == 1 and whole:
            head = rng.choice(whole)
            placed[head.place], placed[layer, number] = split(head, [number])
    for layer, number in distractors:
        offset = rng.randint(1, task.steps)
        placed[layer, number] = distractor(layer, number, offset, DISTRACTION / len(distractors))
    return list(placed.values())


def _widths(held: int, left: int, steps: int) -> list[int]:
    """How many tokens a jump may append, so that it and the jumps left end at steps + 1."""
    return [
        width
        for width in range(1, held + 1)
        if held + width + left - 1 <= steps + 1 <= (held + width) * 2 ** (left - 1)
    ]
