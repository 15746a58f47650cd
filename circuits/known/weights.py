"""Circuits compiled into weights: models whose circuit is known (paper, appendix B).

1. The residual stream is divided into slots of the task's `dim`; the read-in fills `x` and `p`, and
   the read-out reads x+1 .. x+D.
2. A rule becomes a head with the score beta * (<query, key> - penalty * <avoid, own token or
   pair>), on tokens and encodings of unit length, that copies slots. Slots count from a position's
   own token, so the same slots are copied at every role, whatever symbols they hold.
3. `circuits.known.trace` traces the symbols through the rules, which gives the circuit.

Unlike in the paper, tokens have unit length, without which matching by inner product fails, and
there is neither MLP nor layer norm. Saturated attention makes copies exact in float32. The head
confuses tokens that are closer than about sqrt(penalty), hence a small penalty, and neighbours in a
chain whose cosine is above 1 - 32 / (beta * penalty), hence a large beta. In 4 dimensions 10 of
196,608 answers were wrong at D = 3 and 10 of 65,536 at D = 16; from 6 dimensions on, none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from retrieval_interp.circuits.circuit import Circuit, Head, HeadPath, RolePath
from retrieval_interp.circuits.known.rules import PAIR, TOKEN, Rule, Slot
from retrieval_interp.circuits.known.trace import (
    Symbol,
    Trace,
    asked_steps,
    symbol_of,
    trace_rules,
    useful_paths,
)
from retrieval_interp.circuits.mechanisms import UNIFORM, OneHot
from retrieval_interp.tasks import InputError, RetrievalTask, role_name
from retrieval_interp.tasks.positions import rotary_encoding

if TYPE_CHECKING:
    from retrieval_interp.circuits.models.vector_transformer import VectorTransformer

BETA = 2.0**26
PENALTY = 2.0**-12
_SATURATED = 32.0  # a score difference that leaves exp(-32) of the attention elsewhere


@dataclass(frozen=True, eq=False)
class Compiled:
    """A model and its true circuit.

    Attributes:
        model: solves the task.
        task: the task it was built for.
        rules: the rules it was built from.
        slots: slot i is the components i * dim to (i + 1) * dim of the residual stream.
        circuit: every path that a head attends along, useful or not; idle heads are uniform.
        carrying: the paths that bring an asked symbol, or part of it, to the read-out.
        enabling: the paths that bring what the match of a carrying or enabling path compares, or
            part of it; of two halves of a query, one may be dispensable.
        idle: the heads without a rule.
    """

    model: "VectorTransformer"
    task: RetrievalTask
    rules: tuple[Rule, ...]
    slots: tuple[Slot, ...]
    circuit: Circuit
    carrying: frozenset[HeadPath]
    enabling: frozenset[HeadPath]
    idle: frozenset[Head]


def compile_circuit(
    rules: Sequence[Rule],
    task: RetrievalTask,
    n_layers: int | None = None,
    n_heads: int | None = None,
    beta: float = BETA,
    penalty: float = PENALTY,
) -> Compiled:
    """Build a model that follows the rules.

    Args:
        rules: one per working head, such as `doubling_rules(task)`.
        task: with `unit` tokens and one encoding per `pair`.
        n_layers: by default as many as the rules need.
        n_heads: heads per layer, by default as many as the rules need.
        beta: inverse temperature of every head.
        penalty: weight of avoiding a position relative to a match, from 2^-16 (the resolution of
            float32) to 0.1.

    Returns:
        The model in float32, without MLPs and layer norms, and its circuit.

    Raises:
        InputError: the rules do not fit, or do not bring every asked symbol to s0, or the task's
            tokens or encodings cannot be matched; or TransformerLens is 4 or newer.
    """
    rules = tuple(sorted(rules, key=lambda rule: (rule.layer, rule.head)))
    if not rules:
        raise InputError("compile: expected at least one rule, found none")
    layers = max(rule.layer for rule in rules) + 1 if n_layers is None else n_layers
    heads = max(rule.head for rule in rules) + 1 if n_heads is None else n_heads
    _check_rules(rules, layers, heads)
    _check_task(rules, task, beta, penalty)
    trace = trace_rules(rules, task, layers)
    _check_delivery(trace, task)
    carrying, enabling = useful_paths(trace, rules, task)
    mechanisms = {
        Head(rule.layer, rule.head): OneHot(
            tuple(RolePath(dest, target.src) for dest, target in targets.items())
        )
        for rule, targets in trace.targets.items()
    }
    every = (Head(layer, head) for layer in range(layers) for head in range(heads))
    idle = frozenset(head for head in every if head not in mechanisms)
    circuit = Circuit(
        {**dict.fromkeys(idle, UNIFORM), **mechanisms},
        len(task.role_names),
        task=task.to_dict(),
    )
    slots = _layout(rules, task)
    model = _build(rules, task, slots, layers, heads, beta, penalty)
    return Compiled(model, task, rules, slots, circuit, carrying, enabling, idle)


def _check_rules(rules: Sequence[Rule], n_layers: int, n_heads: int) -> None:
    for name, value in (("n_layers", n_layers), ("n_heads", n_heads)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"compile: expected {name} of at least 1, found {value!r}")
    taken: set[tuple[int, int]] = set()
    for rule in rules:
        if rule.layer >= n_layers or rule.head >= n_heads:
            raise InputError(
                f"compile: expected rules up to L{n_layers - 1}.H{n_heads - 1}, found the "
                f"{rule.name}"
            )
        if (rule.layer, rule.head) in taken:
            raise InputError(f"compile: expected one rule per head, found another {rule.name}")
        taken.add((rule.layer, rule.head))


def _check_task(rules: Sequence[Rule], task: RetrievalTask, beta: float, penalty: float) -> None:
    if task.tokens != "unit":
        raise InputError(
            f"compile: expected a task with unit tokens, which inner products can match, found "
            f"{task.tokens} ones"
        )
    if task.position != "pair":
        raise InputError(
            f"compile: expected one encoding per pair, found one per {task.position}; weights that "
            "join neighbours would also join pairs of different chains"
        )
    if task.dim < 4:
        raise InputError(
            f"compile: expected a dim of at least 4, found {task.dim}; in two dimensions "
            "random tokens are too close together"
        )
    if not (2**-16 <= penalty <= 0.1 and _SATURATED / penalty <= beta < 2**40):
        raise InputError(
            f"compile: expected a penalty from 2^-16 to 0.1 and beta from {_SATURATED:g} / penalty "
            f"to 2^40, found penalty {penalty:g} and beta {beta:g}"
        )
    encodings = rotary_encoding(task.chains * (task.steps + 1), task.dim, task.base)
    alike = (encodings @ encodings.T * (2 / task.dim)).fill_diagonal_(-1.0).max()
    margin, needed = 1 - float(alike), max(4 * penalty, _SATURATED / (beta * penalty))
    if margin < needed:
        raise InputError(
            f"compile: expected a cosine of at most {1 - needed:.4f} between encodings of any two "
            f"pairs, found {float(alike):.4f}; use a larger dim or another base"
        )


def _check_delivery(trace: Trace, task: RetrievalTask) -> None:
    for i in asked_steps(task):
        slot, wanted = Slot("x", i), Symbol("x", i)
        content = trace.states[-1][0].get(slot, {})
        if symbol_of(content) != wanted:
            found = "something undetermined"
            if content is not None:
                found = " + ".join(f"{weight:g} {s}" for s, weight in content.items()) or "nothing"
            raise InputError(
                f"compile: expected rules that bring {wanted} to {role_name(0)}, found {found} in "
                f"its slot {slot} after {len(trace.states) - 1} layers"
            )


# Weights


def _layout(rules: Sequence[Rule], task: RetrievalTask) -> tuple[Slot, ...]:
    slots = {TOKEN, PAIR, *(Slot("x", i) for i in asked_steps(task))}
    for rule in rules:
        slots |= {rule.query, rule.key, rule.avoid or rule.query}
        slots |= {slot for copy in rule.copy for slot in copy}
    return tuple(sorted(slots, key=lambda slot: (slot.kind != "x", slot.offset)))


@torch.no_grad()
def _build(
    rules: Sequence[Rule],
    task: RetrievalTask,
    slots: tuple[Slot, ...],
    n_layers: int,
    n_heads: int,
    beta: float,
    penalty: float,
) -> "VectorTransformer":
    from retrieval_interp.circuits.models.transformer import HookedTransformerConfig
    from retrieval_interp.circuits.models.vector_transformer import VectorTransformer

    dim = task.dim
    eye = torch.eye(dim)
    rows = {slot: slice(i * dim, (i + 1) * dim) for i, slot in enumerate(slots)}
    cfg = HookedTransformerConfig(
        n_layers=n_layers,
        n_heads=n_heads,
        d_model=len(slots) * dim,
        d_head=max(2, *(len(rule.copy) for rule in rules)) * dim,
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
    for column, i in enumerate(asked_steps(task)):
        model.unembed.W_U[rows[Slot("x", i)], column * dim : (column + 1) * dim] = eye

    def unit(slot: Slot) -> Tensor:
        """Encodings have length sqrt(dim / 2), tokens 1."""
        return eye * (1.0 if slot.kind == "x" else 2 / dim)

    for rule in rules:
        attention = model.blocks[rule.layer].attn
        w_q, w_k, w_v, w_o = (
            getattr(attention, name)[rule.head] for name in ("W_Q", "W_K", "W_V", "W_O")
        )
        w_q[rows[rule.query], :dim] = beta * unit(rule.query)
        w_k[rows[rule.key], :dim] = eye
        if rule.avoid is not None:
            own = TOKEN if rule.avoid.kind == "x" else PAIR
            w_q[rows[rule.avoid], dim : 2 * dim] = -beta * penalty * unit(rule.avoid)
            w_k[rows[own], dim : 2 * dim] = eye
        for i, (source, dest) in enumerate(rule.copy):
            w_v[rows[source], i * dim : (i + 1) * dim] = eye
            w_o[i * dim : (i + 1) * dim, rows[dest]] += rule.scale * eye
    return model
