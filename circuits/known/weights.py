"""Circuits compiled into weights: models whose circuit is known (paper, appendix B).

1. The residual stream is divided into slots of the task's `dim`; the read-in fills `x` and `p`, and
   the read-out reads x+1 .. x+D.
2. A matching head has the score BETA * (<query, key> - PENALTY * <avoid, own token or pair>), on
   tokens and encodings of unit length, and copies slots. Slots count from a position's own token,
   so the same slots are copied at every role, with the symbols that they hold there.
3. `circuits.known.trace` traces the symbols through the heads, which gives the circuit.

Unlike in the paper, tokens have unit length, so that inner products can match them, and there is
neither MLP nor layer norm. Saturated attention makes copies exact in float32. A head confuses
tokens closer than about sqrt(PENALTY), and neighbours in a chain whose cosine is above
1 - 32 / (BETA * PENALTY).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from retrieval_interp.circuits.circuit import Circuit, Head, HeadPath
from retrieval_interp.circuits.known.heads import PAIR, TOKEN, MatchingHead, Slot
from retrieval_interp.circuits.known.trace import UNKNOWN, Symbol, symbol_of, trace_heads
from retrieval_interp.circuits.mechanisms import UNIFORM, OneHot
from retrieval_interp.tasks import InputError, RetrievalTask

if TYPE_CHECKING:
    from retrieval_interp.circuits.models.transformer import VectorTransformer

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

    model: "VectorTransformer"
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
        task: with `unit` tokens and one encoding per `pair`.
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
            found = "something unknown" if UNKNOWN in content else held or "nothing"
            raise InputError(
                f"compile: expected heads that bring {symbol} to s0, found {found} in its x+{i}"
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
    batch = task.sample(16)
    loss = float(task.loss(model(batch.inputs), batch))
    if loss > 0.02 / task.dim:  # an admixture costs half
        raise InputError(
            "compile: expected a task with unit tokens and one encoding per pair, far enough apart "
            f"to be told by inner products (use a larger dim or another base), found MSE {loss:.3f}"
        )
    useful = frozenset(carrying), frozenset(enabling)
    return Compiled(model, task, circuit, *useful, frozenset(free))


def _build(
    heads: Sequence[MatchingHead],
    task: RetrievalTask,
    slots: tuple[Slot, ...],
    n_layers: int,
    n_heads: int,
) -> "VectorTransformer":
    from retrieval_interp.circuits.models.transformer import (
        HookedTransformerConfig,
        VectorTransformer,
    )

    dim = task.dim
    eye = torch.eye(dim)
    unit = {"x": eye, "p": eye * (2 / dim)}  # encodings have length sqrt(dim / 2), tokens 1
    rows = {slot: slice(i * dim, (i + 1) * dim) for i, slot in enumerate(slots)}
    cfg = HookedTransformerConfig(
        n_layers=n_layers,
        n_heads=n_heads,
        d_model=len(slots) * dim,
        d_head=max(2, *(len(head.copy) for head in heads)) * dim,
        n_ctx=task.n_positions,
        d_vocab=task.d_in,
        d_vocab_out=task.d_out,
        attn_only=True,
        normalization_type=None,
        use_attn_scale=False,
        init_weights=False,
        default_prepend_bos=False,
        device="cpu",
    )
    model = VectorTransformer(cfg)
    for parameter in model.parameters():
        parameter.zero_()
    model.embed.W_E[:dim, rows[TOKEN]] = eye
    model.embed.W_E[dim:, rows[PAIR]] = eye
    for column, i in enumerate(task.asked_nodes):
        model.unembed.W_U[rows[Slot("x", i)], column * dim : (column + 1) * dim] = eye

    for head in heads:
        attention = model.blocks[head.layer].attn
        w_q, w_k, w_v, w_o = (
            getattr(attention, name)[head.head] for name in ("W_Q", "W_K", "W_V", "W_O")
        )
        w_q[rows[head.query], :dim] = BETA * unit[head.query.vector]
        w_k[rows[head.key], :dim] = eye
        if head.avoid is not None:
            w_q[rows[head.avoid], dim : 2 * dim] = -BETA * PENALTY * unit[head.avoid.vector]
            w_k[rows[head.avoided], dim : 2 * dim] = eye
        for i, (source, dest) in enumerate(head.copy):
            w_v[rows[source], i * dim : (i + 1) * dim] = eye
            w_o[i * dim : (i + 1) * dim, rows[dest]] += head.scale * eye
    return model
