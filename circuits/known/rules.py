"""Matching rules: what a head compiled into weights can do (paper, appendix B).

Weights cannot see roles, so a rule speaks of what positions hold and applies to all of them.

1. A position holds vectors in named slots: its own token in `x` and the encoding of its own pair in
   `p`. Slot `x+j` is for the token j steps further along the chain, `x-1` for the one before, and
   `p+j` for the encoding of the pair that leads there.
2. A rule lets every position attend to the one whose slot `key` holds what its own slot `query`
   holds. If there are several, it avoids those whose own token (or pair) equals its slot `avoid`.
   Copied slots of the attended position are added to slots of the attending one.
3. One rule finds the next pair. With `join`, the second element of a pair takes over the first
   (`x-1`), so that a position holding that token finds it, as in an induction head. With `point`, a
   position takes over the encoding of the pair that begins with its token (`p+1`) and looks there.
4. A jump lets positions that hold x .. x+(h-1) attend `reach` <= h steps further along the chain
   and append some of what is held there. Always reaching and appending as far as possible doubles
   what is held and meets the causal bound of floor(log2 D) + 2 layers; one token per layer takes
   D + 1 layers.
"""

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from retrieval_interp.circuits.flow.bounds import causal_depth
from retrieval_interp.tasks import InputError, RetrievalTask

Kind = Literal["x", "p"]
Pairing = Literal["join", "point"]
PAIRINGS: tuple[Pairing, ...] = ("join", "point")
DISTRACTION = 0.04


class Slot(NamedTuple):
    """A place for one vector: a token (`x`) or an encoding (`p`), `offset` steps further."""

    kind: Kind
    offset: int = 0

    def __str__(self) -> str:
        return f"{self.kind}{self.offset:+d}" if self.offset else self.kind


TOKEN = Slot("x")
PAIR = Slot("p")
PREVIOUS = Slot("x", -1)


@dataclass(frozen=True)
class Rule:
    """What one head does.

    Attributes:
        layer: from 0.
        head: from 0.
        query: the slot that the attending position compares.
        key: the slot that it is compared with, at the attended positions.
        avoid: among equal matches, avoid those whose own token or pair equals this slot.
        copy: pairs of slots, (of the attended position, of the attending one).
        scale: factor of the copied vectors.

    Raises:
        InputError: tokens are compared with or copied to encodings, a position's own token or pair
            would be overwritten, or a number is out of range.
    """

    layer: int
    head: int
    query: Slot
    key: Slot
    avoid: Slot | None = None
    copy: tuple[tuple[Slot, Slot], ...] = ()
    scale: float = 1.0

    def __post_init__(self) -> None:
        for name in ("layer", "head"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise InputError(f"rule: expected {name} to be a number from 0, found {value!r}")
        avoided = () if self.avoid is None else ((self.avoid, self.avoid),)
        for source, own in ((self.key, self.query), *avoided, *self.copy):
            for slot in (source, own):
                if slot.kind not in ("x", "p"):
                    raise InputError(f"{self.name}: expected slots of x or p, found {slot}")
            if source.kind != own.kind:
                raise InputError(
                    f"{self.name}: expected tokens with tokens and encodings with encodings, "
                    f"found {source} and {own}"
                )
        for _, own in self.copy:
            if own in (TOKEN, PAIR):
                raise InputError(f"{self.name}: expected copies into other slots, found {own}")
        if not 0 < abs(self.scale) < math.inf:
            raise InputError(f"{self.name}: expected a scale that is not zero, found {self.scale}")

    @property
    def name(self) -> str:
        """What errors call it."""
        return f"rule of L{self.layer}.H{self.head}"


class Jump(NamedTuple):
    """Attend `reach` steps further and append the tokens at these offsets."""

    reach: int
    offsets: tuple[int, ...]


Plan = tuple[tuple[Jump, ...], ...]


def pair_rule(layer: int, head: int = 0, pairing: Pairing = "join") -> Rule:
    """The rule that links the two elements of a pair."""
    if pairing == "join":
        return Rule(layer, head, PAIR, PAIR, avoid=TOKEN, copy=((TOKEN, PREVIOUS),))
    return Rule(layer, head, TOKEN, TOKEN, avoid=PAIR, copy=((PAIR, Slot("p", 1)),))


def jump_rule(layer: int, jump: Jump, head: int = 0, pairing: Pairing = "join") -> Rule:
    """The rule of one jump."""
    reach, offsets = jump
    frontier = Slot("x", reach - 1)
    tokens = tuple((Slot("x", offset - reach), Slot("x", offset)) for offset in offsets)
    if pairing == "join":
        return Rule(layer, head, frontier, PREVIOUS, avoid=frontier, copy=tokens)
    pointers = tuple((Slot("p", o + 1 - reach), Slot("p", o + 1)) for o in offsets)
    return Rule(layer, head, Slot("p", reach), PAIR, avoid=frontier, copy=tokens + pointers)


def plan_rules(
    plan: Sequence[Sequence[Jump]], layers: Sequence[int] | None = None, pairing: Pairing = "join"
) -> tuple[Rule, ...]:
    """The rules of a plan: a pair rule, then layer by layer the jumps, one per head.

    Args:
        plan: the jumps of each layer after the pair rule's.
        layers: the layers to use, the pair rule's first; by default 0, 1, 2, ...
        pairing: how pairs are linked.

    Raises:
        InputError: the number of layers does not fit the plan.
    """
    places = list(range(len(plan) + 1)) if layers is None else list(layers)
    if len(places) != len(plan) + 1 or places != sorted(set(places)):
        raise InputError(f"plan: expected {len(plan) + 1} layers in order, found {places}")
    rules = [pair_rule(places[0], pairing=pairing)]
    for layer, jumps in zip(places[1:], plan):
        rules += [jump_rule(layer, jump, head, pairing) for head, jump in enumerate(jumps)]
    return tuple(rules)


def doubling_rules(task: RetrievalTask, pairing: Pairing = "join") -> tuple[Rule, ...]:
    """Double what is held in every layer: floor(log2 D) + 2 layers, the least possible."""
    plan, held = [], 1
    while held <= task.steps:
        plan.append([Jump(held, tuple(range(held, min(2 * held, task.steps + 1))))])
        held *= 2
    return plan_rules(plan, pairing=pairing)


def stepping_rules(task: RetrievalTask, pairing: Pairing = "join") -> tuple[Rule, ...]:
    """Advance one token in every layer: D + 1 layers."""
    return plan_rules([[Jump(o, (o,))] for o in range(1, task.steps + 1)], pairing=pairing)


def split(rule: Rule, heads: Sequence[int]) -> tuple[Rule, ...]:
    """Divide a rule among its own head and others of its layer; each writes an equal part."""
    part = replace(rule, scale=rule.scale / (1 + len(heads)))
    return part, *(replace(part, head=head) for head in heads)


def distractor_rule(layer: int, head: int, offset: int = 1, scale: float = DISTRACTION) -> Rule:
    """A head that attends sharply but is almost useless.

    It attends like the pair rule of a `join` and adds a little of that token, which does not belong
    there, to `x+offset`.
    """
    copy = ((TOKEN, Slot("x", offset)),)
    return Rule(layer, head, PAIR, PAIR, avoid=TOKEN, copy=copy, scale=scale)


def all_plans(steps: int, n_jumps: int) -> Iterator[Plan]:
    """Every gapless plan of `n_jumps` jumps, one per layer, that holds x .. x+steps in the end."""

    def extend(held: int, left: int) -> Iterator[Plan]:
        if left == 0:
            yield ()
            return
        for width in _widths(held, left, steps):
            offsets = tuple(range(held, held + width))
            for reach in range(width, held + 1):
                for rest in extend(held + width, left - 1):
                    yield ((Jump(reach, offsets),), *rest)

    if 1 <= n_jumps <= steps < 2**n_jumps:
        yield from extend(1, n_jumps)


def all_rules(task: RetrievalTask, n_layers: int) -> Iterator[tuple[Rule, ...]]:
    """Every rule sequence for a task with one head per layer, idle layers included.

    Both pairings and every plan of `all_plans`, on every choice of layers. Their number grows fast
    (20 for D = 3 in 4 layers).
    """
    for pairing in PAIRINGS:
        for n_jumps in range(1, n_layers):
            for plan in all_plans(task.steps, n_jumps):
                for layers in itertools.combinations(range(n_layers), n_jumps + 1):
                    yield plan_rules(plan, layers, pairing)


def random_rules(
    task: RetrievalTask, n_layers: int, seed: int, n_heads: int = 1, extras: bool = True
) -> tuple[Rule, ...]:
    """A random rule sequence for a task; the same seed gives the same one.

    Random are the pairing, the number of working layers and where they are, and how much each
    appends, with which reach and how many heads. Every other head is idle. With `extras` it is
    instead, in one case of four, a distractor, and in another, if a head of its layer works, it
    takes over half of that head's rule.

    Args:
        task: the task that the rules are for.
        n_layers: number of layers available; those without a rule are idle.
        seed: any integer.
        n_heads: heads per layer.
        extras: whether to include distractors and halved heads.

    Raises:
        InputError: too few layers for the task, or no head.
    """
    least = causal_depth(task.steps)
    if n_layers < least:
        raise InputError(
            f"random rules: expected at least {least} layers for {task.steps} steps "
            f"(floor(log2 D) + 2), found {n_layers}"
        )
    if n_heads < 1:
        raise InputError(f"random rules: expected at least 1 head, found {n_heads}")
    rng = random.Random(seed)
    pairing = rng.choice(PAIRINGS)
    n_jumps = rng.randint(least - 1, min(task.steps, n_layers - 1))
    layers = sorted(rng.sample(range(n_layers), n_jumps + 1))
    rules, held = [pair_rule(layers[0], pairing=pairing)], 1
    for left, layer in zip(range(n_jumps, 0, -1), layers[1:]):
        width = rng.choice(_widths(held, left, task.steps))
        offsets = range(held, held + width)
        heads = [rng.randrange(n_heads) for _ in offsets]
        for head in sorted(set(heads)):
            appended = tuple(offset for offset, other in zip(offsets, heads) if other == head)
            reach = rng.randint(appended[-1] - held + 1, held)
            rules.append(jump_rule(layer, Jump(reach, appended), head, pairing))
        held += width
    if extras:
        rules = _with_extras(rules, task, n_layers, n_heads, rng)
    return tuple(sorted(rules, key=_place))


def _with_extras(
    rules: list[Rule], task: RetrievalTask, n_layers: int, n_heads: int, rng: random.Random
) -> list[Rule]:
    placed = {_place(rule): rule for rule in rules}
    distractors: list[tuple[int, int]] = []
    for layer, head in itertools.product(range(n_layers), range(n_heads)):
        if (layer, head) in placed:
            continue
        whole = [rule for rule in rules if rule.layer == layer and placed[_place(rule)] == rule]
        draw = rng.randrange(4)
        if draw == 0:
            distractors.append((layer, head))
        elif draw == 1 and whole:
            rule = rng.choice(whole)
            placed[_place(rule)], placed[layer, head] = split(rule, [head])
    for layer, head in distractors:
        offset = rng.randint(1, task.steps)
        placed[layer, head] = distractor_rule(layer, head, offset, DISTRACTION / len(distractors))
    return list(placed.values())


def _place(rule: Rule) -> tuple[int, int]:
    return rule.layer, rule.head


def _widths(held: int, left: int, steps: int) -> list[int]:
    """How many tokens a jump may append, so that it and the jumps left end at steps + 1."""
    return [
        width
        for width in range(1, held + 1)
        if held + width + left - 1 <= steps + 1 <= (held + width) * 2 ** (left - 1)
    ]
