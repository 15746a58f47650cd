"""Run a model that reads vectors under many circuits, computing only what can change the answer.

The residual stream of one run, the base, is stored by role, [batch chain d_model], after every
layer. With another circuit a role is *affected* from the layer on in which its attention row
differs from the base's, or attends to an affected role. It is *needed* if the scored role s0
attends to it in a later layer, directly or not. Only roles that are both are computed; all others
equal the base's exactly, or do not matter. The base itself is computed only as far as some run
needs it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Shaped
from torch import Tensor

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.hooks import (
    HookedModel,
    has_hooks,
    is_hooked_transformer,
    positions_by_layer,
)
from retrieval_interp.circuits.mechanisms import (
    ORIGINAL,
    Cut,
    Identity,
    Mechanism,
    OneHot,
    RoleMean,
    Shared,
    pattern_of,
)
from retrieval_interp.circuits.models.plain import PlainTransformer, norm
from retrieval_interp.circuits.paths import softmax_attention
from retrieval_interp.tasks import Batch

SCORED_ROLE = 0
_GELU = partial(F.gelu, approximate="tanh")
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_pytorch_tanh": _GELU,
    "gelu_new": _GELU,
    "relu": F.relu,
}
Stream = dict[int, Float[Tensor, "batch chain d_model"]]  # by role, as far as it is known


class AttentionRow(NamedTuple):
    """The attention row of one role in one head.

    Attributes:
        mechanism: the mechanism whose pattern has the row (`original`: the head's own attention),
            or None if `sources` has its weights.
        sources: roles of the same chain, with their weights.
        cut: roles of the same chain whose share of the head's own attention is set to zero.
    """

    mechanism: Mechanism | None
    sources: tuple[tuple[int, float], ...]
    cut: frozenset[int] = frozenset()

    @classmethod
    def of(cls, mechanism: Mechanism, dest: int) -> "AttentionRow":
        """Return a role's row; `sources` are known of built-in kinds alone."""
        kind, sources = type(mechanism), [path.src for path in mechanism.paths if path.dest == dest]
        if mechanism.keeps_own:  # original or cut, see `RoleRuns.can_run`
            return cls(ORIGINAL, (), frozenset(sources))
        if kind is Identity:
            return cls(None, ((dest, 1.0),))
        if kind in (OneHot, Shared):
            return cls(None, tuple((src, 1 / len(sources)) for src in sources))
        if isinstance(mechanism, RoleMean) and kind is RoleMean:
            weights = zip(mechanism.paths, mechanism.weights)
            return cls(None, tuple((path.src, w) for path, w in weights if path.dest == dest))
        return cls(mechanism, ())


LayerRows = list[list[AttentionRow]]  # by head and role


@dataclass(frozen=True)
class RoleBase:
    """A run from which others differ little; `streams` are filled as far as some run needs them."""

    circuit: Circuit
    rows: list[LayerRows]
    streams: list[Stream]  # before each layer, and after the last


class RoleRuns:
    """Runs that compute only the roles that a circuit affects and the answer needs."""

    @staticmethod
    def supports(model: HookedModel, batch: Batch) -> bool:
        """Whether a model reads vectors, its layers mask alike, and every position has a role."""
        if not getattr(model, "reads_vectors", False):  # VectorTransformer, VectorBridge
            return False
        roles = batch.roles.flatten(1).sort(dim=1).values
        n_positions = batch.inputs.shape[1]
        cfg = model.cfg
        return (
            batch.attention_mask is None
            and roles.shape[1] == n_positions > batch.roles.shape[1]  # see `answer_hooks`
            and bool((roles == torch.arange(n_positions, device=roles.device)).all())
            and cfg.normalization_type in (None, "LN")
            and (cfg.attn_only or cfg.act_fn in _ACTIVATIONS)
            and cfg.dtype == torch.float32
            and not has_hooks(model)
            and len({layer.mask for layer in positions_by_layer(model, batch)}) == 1
        )

    @staticmethod
    def can_run(circuit: Circuit) -> bool:
        """Whether heads' own attention and outputs are changed by `cut` alone, if at all."""
        return all(
            type(mechanism) is Cut or not (mechanism.keeps_own or mechanism.replaces_output)
            for mechanism in circuit.mechanisms.values()
        )

    @torch.no_grad()
    def __init__(self, model: Any, batch: Batch):
        self.model: Any = model if is_hooked_transformer(model) else PlainTransformer.of(model)
        self.cfg = model.cfg
        self.positions = positions_by_layer(model, batch)[0]
        self.role_positions = rearrange(batch.roles, "batch chain role -> batch (role chain)")
        self.n_chains, self.n_roles = batch.roles.shape[1:]
        before = self.role_positions[:, :, None] - self.role_positions[:, None, :]
        self.mask = self.positions.mask.allows(before)  # [batch dest src]
        shape = (self.n_roles, self.n_chains)
        seen = self.mask.any(0).unflatten(1, shape).unflatten(0, shape).any(1).any(-1)
        # For each role, the roles that any of its positions may attend to.
        self.visible = [{src for src, yes in enumerate(row) if yes} for row in seen.tolist()]
        example = torch.arange(len(batch), device=self.role_positions.device)[:, None]
        embedded = batch.inputs[example, self.role_positions] @ model.W_E
        self.embedded: Stream = dict(enumerate(self._by_role(embedded)))

    def base(self, circuit: Circuit, old: RoleBase | None = None) -> RoleBase:
        """Return a circuit's run as the base of others, which fill it, with what an old one has."""
        if old is None:
            streams: list[Stream] = [self.embedded, *({} for _ in range(self.cfg.n_layers))]
            return RoleBase(circuit, self._rows(circuit), streams)
        changed, affected = self._run(circuit, old)
        streams = [
            {role: x for role, x in stream.items() if role not in roles} | new
            for stream, new, roles in zip(old.streams, changed, affected)
        ]
        return RoleBase(circuit, self._rows(circuit), streams)

    @torch.no_grad()
    def outputs(self, circuit: Circuit, base: RoleBase) -> Float[Tensor, "batch answer d_out"]:
        """Return the outputs at the scored role of every chain."""
        changed, _ = self._run(circuit, base)
        residual = (base.streams[-1] | changed[-1])[SCORED_ROLE]
        if self.cfg.normalization_type is not None:
            residual = norm(self.model.ln_final, residual)
        outputs: Tensor = residual @ self.model.unembed.W_U + self.model.unembed.b_U
        return outputs

    @torch.no_grad()
    def _run(self, circuit: Circuit, base: RoleBase) -> tuple[list[Stream], list[set[int]]]:
        """Run a circuit, and compute the parts of the base that it needs and that are missing.

        Returns, before each layer and after the last, the stream of affected and needed roles, and
        the set of all affected roles.
        """
        rows = self._rows(circuit)
        needed = self._needed(rows)
        changed, affected = [Stream()], [set[int]()]
        for layer in range(self.cfg.n_layers):
            before, after = base.streams[layer : layer + 2]
            affected.append(self._affected(rows[layer], base.rows[layer], affected[-1]))
            missing = sorted(needed[layer + 1] - affected[-1] - after.keys())
            if missing:
                after |= self._layer(layer, before, base.rows[layer], missing)
            dests = sorted(needed[layer + 1] & affected[-1])
            stream = before | changed[-1]
            changed.append(self._layer(layer, stream, rows[layer], dests) if dests else {})
        return changed, affected

    def _rows(self, circuit: Circuit) -> list[LayerRows]:
        circuit.check_fits(self.cfg.n_layers, self.cfg.n_heads)

        def rows(layer: int, head: int) -> list[AttentionRow]:
            return [AttentionRow.of(circuit[layer, head], dest) for dest in range(self.n_roles)]

        layers, heads = range(self.cfg.n_layers), range(self.cfg.n_heads)
        return [[rows(layer, head) for head in heads] for layer in layers]

    def _affected(self, rows: LayerRows, base: LayerRows, affected: set[int]) -> set[int]:
        """Return the roles affected after a layer, given those affected before it."""
        return affected | {
            dest
            for dest in range(self.n_roles)
            if any(
                row[dest] != of_base[dest] or self._sources(row[dest], dest) & affected
                for row, of_base in zip(rows, base)
            )
        }

    def _needed(self, rows: list[LayerRows]) -> list[set[int]]:
        """Return the roles on which the answer depends before layer l, for l = 0..n_layers."""
        needed = [{SCORED_ROLE}]
        for layer in reversed(rows):
            sources = (self._sources(row[dest], dest) for row in layer for dest in needed[0])
            needed.insert(0, needed[0].union(*sources))
        return needed

    def _sources(self, row: AttentionRow, dest: int) -> set[int]:
        return {src for src, _ in row.sources} if row.mechanism is None else self.visible[dest]

    def _layer(self, layer: int, stream: Stream, rows: LayerRows, dests: list[int]) -> Stream:
        """Compute the residual stream after a layer at some roles, from the one before it."""
        block = self.model.blocks[layer]

        @cache
        def normalized(role: int) -> Tensor:
            return norm(block.ln1, stream[role])

        out = torch.stack([stream[dest] for dest in dests]) + block.attn.b_O
        for head, row in enumerate(rows):
            out += self._head(block.attn, head, row, dests, normalized)
        if not self.cfg.attn_only:
            mlp, act = block.mlp, _ACTIVATIONS[self.cfg.act_fn]
            hidden = act(F.linear(norm(block.ln2, out), mlp.W_in.T, mlp.b_in))
            out += F.linear(hidden, mlp.W_out.T, mlp.b_out)
        return dict(zip(dests, out))

    def _head(
        self,
        attn: Any,
        head: int,
        row: list[AttentionRow],
        dests: list[int],
        normalized: Callable[[int], Tensor],
    ) -> Float[Tensor, "dest batch chain d_model"]:
        """Compute what a head writes at some roles."""

        def read(letter: str, roles: list[int]) -> Float[Tensor, "batch pos d_head"]:
            weights, biases = getattr(attn, f"W_{letter}"), getattr(attn, f"b_{letter}")
            inputs = torch.cat([normalized(role) for role in roles], dim=1)
            projected: Tensor = inputs @ weights[head] + biases[head]
            return projected

        z = attn.W_V.new_zeros(len(dests), len(self.mask), self.n_chains, self.cfg.d_head)
        alike: dict[Mechanism, list[int]] = {}  # indices of the roles with one pattern
        for index, dest in enumerate(dests):
            mechanism = row[dest].mechanism
            if mechanism is not None:
                alike.setdefault(mechanism, []).append(index)
                continue
            for src, weight in row[dest].sources:
                z[index].add_(read("V", [src]), alpha=weight)
        for mechanism, indices in alike.items():
            chosen = [dests[index] for index in indices]
            sources = sorted(set().union(*(self.visible[dest] for dest in chosen)))
            if mechanism.keeps_own:
                allowed = self._between(self.mask, chosen, sources)
                queries, keys = read("Q", chosen), read("K", sources)
                pattern = softmax_attention(queries, keys, allowed, attn.attn_scale)
                self._cut(pattern, row, chosen, sources)
            else:
                pattern = self._between(self._pattern(mechanism), chosen, sources)
            z[indices] = self._by_role(pattern @ read("V", sources))
        return F.linear(z, attn.W_O[head].T)

    def _by_role(self, x: Shaped[Tensor, "batch dest d"]) -> Shaped[Tensor, "role batch chain d"]:
        return rearrange(x, "batch (role chain) d -> role batch chain d", chain=self.n_chains)

    def _between(
        self, table: Shaped[Tensor, "batch pos pos"], dests: list[int], sources: list[int]
    ) -> Shaped[Tensor, "batch dest src"]:
        """Select the part of a mask or pattern between the positions of some roles."""
        shape = (self.n_roles, self.n_chains)
        by_role: Tensor = table.unflatten(2, shape).unflatten(1, shape)
        return by_role[:, dests][:, :, :, sources].flatten(3, 4).flatten(1, 2)

    def _pattern(self, mechanism: Mechanism) -> Float[Tensor, "batch pos pos"]:
        """Return a mechanism's pattern, with positions in the order of roles."""
        pattern = pattern_of(mechanism, self.positions).expand(len(self.role_positions), -1, -1)
        example = torch.arange(len(pattern), device=pattern.device)[:, None, None]
        return pattern[example, self.role_positions[:, :, None], self.role_positions[:, None, :]]

    def _cut(
        self, pattern: Tensor, row: list[AttentionRow], dests: list[int], sources: list[int]
    ) -> None:
        same = torch.eye(self.n_chains, dtype=torch.bool, device=pattern.device)
        shape = (-1, self.n_chains)
        by_role = pattern.unflatten(2, shape).unflatten(1, shape)  # [batch dest chain src chain]
        for index, dest in enumerate(dests):
            for src in row[dest].cut.intersection(sources):
                by_role[:, index, :, sources.index(src)].masked_fill_(same, 0.0)
