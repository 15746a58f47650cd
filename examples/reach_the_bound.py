"""Build transformers of the least depth, measure them: python examples/reach_the_bound.py [D ...]

One head a layer, floor(log2 D) + 2 layers, no training. One layer fewer is refused. A model is made
of matching heads (paper, appendix B), of which the true circuit is followed along:

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

import sys
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, NamedTuple

import retrieval_interp as ri
import torch
from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.flow import causal_depth
from retrieval_interp.circuits.hooks import HookedModel
from retrieval_interp.circuits.mechanisms import UNIFORM, OneHot
from retrieval_interp.circuits.models.plain import hooked_model, plain_transformer
from retrieval_interp.circuits.paths import Head, HeadPath, RolePath
from retrieval_interp.tasks import InputError, RetrievalTask

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


BETA = 2.0**26
PENALTY = 2.0**-12


@dataclass(frozen=True, eq=False)
class Compiled:
    """A model and its true circuit.

    Attributes:
        model, task: what was built, and for what.
        circuit: every path that a head attends along, useful or not; idle heads are uniform.
        carrying: the paths that bring an asked symbol, or part of it, to the read-out.
        enabling: the paths that bring what the match of a carrying or enabling path compares, or
            part of it; of two halves of a query, one may be dispensable.
        idle: the heads of the model that do nothing.
    """

    model: HookedModel
    task: RetrievalTask
    circuit: Circuit
    carrying: frozenset[HeadPath]
    enabling: frozenset[HeadPath]
    idle: frozenset[Head]


@torch.no_grad()
def compile_circuit(
    heads: Sequence[MatchingHead],
    task: RetrievalTask,
    n_layers: int | None = None,
    n_heads: int | None = None,
) -> Compiled:
    """Build a model of matching heads, in float32, that brings every asked symbol to s0.

    Args:
        heads: such as `doubling_heads(task)`; other heads of the model are idle.
        task: with `unit` tokens and one encoding per `pair`, far enough apart to be told by inner
            products (`dim` of 4 or more).
        n_layers: by default as many as the heads need.
        n_heads: per layer, by default as many as the heads need.
    """
    heads = tuple(sorted(heads, key=lambda head: head.place))
    layers = n_layers or 1 + max((head.layer for head in heads), default=0)
    width = n_heads or 1 + max((head.head for head in heads), default=0)
    free = [Head(layer, head) for layer in range(layers) for head in range(width)]
    for head in heads:
        if head.place not in free:
            raise InputError(
                f"compile: expected one head each to L{layers - 1}.H{width - 1}, found {head.place}"
            )
        free.remove(head.place)
    state, paths = trace_heads(heads, task)
    carrying, enabling = set[HeadPath](), set[HeadPath]()
    for i in task.asked_nodes:
        content, symbol = state[0].get(Slot("x", i), {}), Symbol("x", i)
        if symbol_of(content) != symbol:
            held = " + ".join(f"{held.weight:g} {other}" for other, held in content.items())
            raise InputError(
                f"compile: expected heads that bring {symbol} to s0, found {held or 'nothing'} in "
                f"its x+{i}"
            )
        carrying |= content[symbol].carrying
        enabling |= content[symbol].enabling
    circuit = Circuit(
        dict.fromkeys(free, UNIFORM)
        | {head.place: OneHot(tuple(own)) for head, own in paths.items()},
        len(task.role_names),
        task=task.to_dict(),
    )
    used = {TOKEN, PAIR, *(Slot("x", i) for i in task.asked_nodes)}
    for head in heads:
        used.update((head.query, head.key, head.avoid or head.query), *head.copy)
    slots = tuple(sorted(used, key=lambda slot: (slot.vector != "x", slot.offset)))
    model = _build(heads, task, slots, layers, width)
    useful = frozenset(carrying), frozenset(enabling)
    return Compiled(model, task, circuit, *useful, frozenset(free))


def _build(
    heads: Sequence[MatchingHead],
    task: RetrievalTask,
    slots: tuple[Slot, ...],
    n_layers: int,
    n_heads: int,
) -> HookedModel:
    dim = task.dim
    eye = torch.eye(dim)
    unit = {"x": eye, "p": eye * (2 / dim)}  # encodings have length sqrt(dim / 2), tokens 1
    rows = {slot: slice(i * dim, (i + 1) * dim) for i, slot in enumerate(slots)}
    d_head = max(2, *(len(head.copy) for head in heads)) * dim
    model = plain_transformer(
        reads_vectors=True,
        normalization_type=None,
        n_layers=n_layers,
        n_heads=n_heads,
        d_model=len(slots) * dim,
        d_head=d_head,
        n_ctx=task.n_positions,
        d_vocab=task.d_in,
        d_vocab_out=task.d_out,
        attn_only=True,
    )
    model.embed.W_E[:dim, rows[TOKEN]] = eye
    model.embed.W_E[dim:, rows[PAIR]] = eye
    for column, i in enumerate(task.asked_nodes):
        model.unembed.W_U[rows[Slot("x", i)], column * dim : (column + 1) * dim] = eye

    beta = BETA * d_head**0.5  # scores are divided by this root
    for head in heads:
        attention = model.blocks[head.layer].attn
        w_q, w_k, w_v, w_o = (
            getattr(attention, name)[head.head] for name in ("W_Q", "W_K", "W_V", "W_O")
        )
        w_q[rows[head.query], :dim] = beta * unit[head.query.vector]
        w_k[rows[head.key], :dim] = eye
        if head.avoid is not None:
            w_q[rows[head.avoid], dim : 2 * dim] = -beta * PENALTY * unit[head.avoid.vector]
            w_k[rows[head.avoided], dim : 2 * dim] = eye
        for i, (source, dest) in enumerate(head.copy):
            w_v[rows[source], i * dim : (i + 1) * dim] = eye
            w_o[i * dim : (i + 1) * dim, rows[dest]] += head.scale * eye
    return hooked_model(model).eval()


class Symbol(NamedTuple):
    """Token x_step of a chain, or the encoding of its pair of that step (0 for the query)."""

    vector: str
    step: int

    def __str__(self) -> str:
        return f"{self.vector}_{self.step}"


UNKNOWN = Symbol("unknown", 0)


class Held(NamedTuple):
    """How much of a symbol a slot holds, by which paths, and what let these find their targets."""

    weight: float
    carrying: frozenset[HeadPath] = frozenset()
    enabling: frozenset[HeadPath] = frozenset()


Content = dict[Symbol, Held]
State = list[dict[Slot, Content]]  # by role


def trace_heads(
    heads: Sequence[MatchingHead], task: RetrievalTask
) -> tuple[State, dict[MatchingHead, list[RolePath]]]:
    """What every role holds in the end, and the paths of each head, of roles with a target."""
    before: State = [
        {TOKEN: {Symbol("x", role // 2): Held(1)}, PAIR: {Symbol("p", _pair(role)): Held(1)}}
        for role in range(len(task.role_names))
    ]
    after, paths = before, {}
    for place, head in enumerate(heads):
        if place == 0 or head.layer > heads[place - 1].layer:
            before, after = after, deepcopy(after)
        paths[head] = own = _paths(head, before)
        for role, (source, slot) in product(range(len(after)), head.copy):
            path, enabling = own.get(role, (None, frozenset()))
            carrying = frozenset({HeadPath(head.place, path)} if path else ())
            brought = before[path.src].get(source, {}) if path else {UNKNOWN: Held(1)}
            content = after[role].setdefault(slot, {})
            for symbol, held in brought.items():
                old = content.get(symbol, Held(0))
                content[symbol] = Held(
                    old.weight + head.scale * held.weight,
                    old.carrying | held.carrying | carrying,
                    old.enabling | held.enabling | enabling,
                )
    return after, {head: [path for path, _ in own.values()] for head, own in paths.items()}


def _paths(head: MatchingHead, state: State) -> dict[int, tuple[RolePath, frozenset[HeadPath]]]:
    """The path of every role that finds one target, and the paths that let it be found."""
    paths = {}
    for role, slots in enumerate(state):
        query, avoid = slots.get(head.query, {}), slots.get(head.avoid or head.query, {})
        wanted, avoided = symbol_of(query), symbol_of(avoid)
        # Positions of other chains are visible too: pairs of a step are in random order.
        seen = [key for key in range(len(state)) if _pair(key) >= _pair(role)]
        keys = {
            key: symbol_of(state[key][head.key], 0.0) for key in seen if state[key].get(head.key)
        }
        if wanted is None or None in keys.values():
            continue
        found = [
            key
            for key, symbol in keys.items()
            if symbol == wanted and (_pair(key) > _pair(role) or key <= role)
        ]
        compared = [query[wanted]]
        if len(found) > 1 and head.avoid is not None and avoided is not None:
            found = [key for key in found if avoided not in state[key][head.avoided]]
            compared.append(avoid[avoided])
        if len(found) == 1:
            compared.append(state[found[0]][head.key][wanted])
            enabling = (held.carrying | held.enabling for held in compared)
            paths[role] = RolePath(role, found[0]), frozenset[HeadPath]().union(*enabling)
    return paths


def _pair(role: int) -> int:
    """The pair that a role belongs to; the query, which comes after all pairs, is pair 0."""
    return (role + 1) // 2


def symbol_of(content: Content, admixture: float = 0.1) -> Symbol | None:
    """The symbol that a slot holds, ignoring a small admixture of others."""
    main = max(content, key=lambda symbol: content[symbol].weight, default=UNKNOWN)
    rest = sum(abs(held.weight - (symbol == main)) for symbol, held in content.items())
    return None if UNKNOWN in (main, *content) or rest > admixture + 1e-9 else main


def main() -> None:
    print("  D  layers  d_model  examples      MSE  one layer fewer")
    for steps in map(int, sys.argv[1:] or [1, 2, 3, 4, 7, 8, 15, 16]):
        task = ri.RetrievalTask(steps=steps, dim=8, tokens="unit")
        built = compile_circuit(doubling_heads(task), task)
        batch = task.sample(256 if steps < 32 else 32, split="test")
        with torch.no_grad():
            mse = float(task.loss(built.model(batch.inputs), batch))
        assert built.model.cfg.n_layers == causal_depth(steps)
        try:
            compile_circuit(doubling_heads(task), task, n_layers=causal_depth(steps) - 1)
            fewer = "works"
        except ri.InputError:
            fewer = "refused"
        sizes = f"{steps:>3}  {causal_depth(steps):>6}  {built.model.cfg.d_model:>7}"
        print(f"{sizes}  {len(batch):>8}  {mse:>7.1e}  {fewer}")


if __name__ == "__main__":
    main()
