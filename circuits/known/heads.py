"""Matching heads: what a head compiled into weights can do (paper, appendix B).

1. A position holds vectors in slots: its own token in `x` and its pair's encoding in `p`. Slot
   `x+j` is for the token j steps further along the chain, `x-1` for the one before, and `p+j` for
   the encoding of the pair that leads there.
2. Every position attends to the one whose slot `key` holds what its own slot `query` holds. If
   there are several, it avoids those whose own token (or pair) equals its slot `avoid`. Copied
   slots of the attended position are added to slots of the attending one.
3. One head finds the next pair. With `join`, the second element of a pair takes over the first
   (`x-1`), so that a position holding that token finds it, as in an induction head. With `point`, a
   position takes over the encoding of the pair that begins with its token (`p+1`) and looks there.
4. Others jump: a position that holds x .. x+(h-1) attends `reach` <= h steps further along the
   chain and appends some of what is held there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from retrieval_interp.circuits.circuit import Head
from retrieval_interp.tasks import RetrievalTask

Vector = Literal["x", "p"]
Pairing = Literal["join", "point"]


class Slot(NamedTuple):
    """A place for one vector: a token (`x`) or an encoding (`p`), `offset` steps further."""

    vector: Vector
    offset: int = 0


TOKEN = Slot("x")
PAIR = Slot("p")
PREVIOUS = Slot("x", -1)


@dataclass(frozen=True)
class MatchingHead:
    """What one head does.

    Attributes:
        layer, head: its place in the model.
        query: the slot that the attending position compares.
        key: the slot that it is compared with, at the attended positions.
        avoid: among equal matches, avoid those whose own token or pair equals this slot.
        copy: pairs of slots, (of the attended position, of the attending one).
        scale: factor of the copied vectors.
    """

    layer: int
    head: int
    query: Slot
    key: Slot
    avoid: Slot | None = None
    copy: tuple[tuple[Slot, Slot], ...] = ()
    scale: float = 1.0

    @property
    def place(self) -> Head:
        return Head(self.layer, self.head)

    @property
    def avoided(self) -> Slot:
        """A position's own token or pair, which is compared with `avoid`."""
        return PAIR if self.avoid is not None and self.avoid.vector == "p" else TOKEN


def pair_head(layer: int, head: int = 0, pairing: Pairing = "join") -> MatchingHead:
    """The head that links the two elements of a pair."""
    if pairing == "join":
        return MatchingHead(layer, head, PAIR, PAIR, avoid=TOKEN, copy=((TOKEN, PREVIOUS),))
    return MatchingHead(layer, head, TOKEN, TOKEN, avoid=PAIR, copy=((PAIR, Slot("p", 1)),))


def jump_head(
    layer: int, reach: int, offsets: Sequence[int], head: int = 0, pairing: Pairing = "join"
) -> MatchingHead:
    """The head that looks `reach` steps further and appends the tokens at these offsets."""
    frontier = Slot("x", reach - 1)
    tokens = tuple((Slot("x", offset - reach), Slot("x", offset)) for offset in offsets)
    if pairing == "join":
        return MatchingHead(layer, head, frontier, PREVIOUS, avoid=frontier, copy=tokens)
    pointers = tuple((Slot("p", o + 1 - reach), Slot("p", o + 1)) for o in offsets)
    return MatchingHead(layer, head, Slot("p", reach), PAIR, avoid=frontier, copy=tokens + pointers)


def doubling_heads(task: RetrievalTask, pairing: Pairing = "join") -> tuple[MatchingHead, ...]:
    """Double what is held in every layer: floor(log2 D) + 2 layers, the least possible."""
    heads, held = [pair_head(0, pairing=pairing)], 1
    while held <= task.steps:
        offsets = range(held, min(2 * held, task.steps + 1))
        heads.append(jump_head(len(heads), held, offsets, pairing=pairing))
        held *= 2
    return tuple(heads)


def split(head: MatchingHead, others: Sequence[int]) -> tuple[MatchingHead, ...]:
    """Divide a head's work among it and others of its layer; each writes an equal part."""
    part = replace(head, scale=head.scale / (1 + len(others)))
    return part, *(replace(part, head=other) for other in others)
