"""Running a model that reads vectors under many circuits: only what can change the answer.

The residual stream of one run, the base, is kept by role, [batch chain d_model], after every layer.
In another circuit a role is *affected* from the layer on in which its attention row differs from
the base's or attends to an affected role; it is *needed* if the scored role s0 attends to it later,
directly or not. Only roles that are both are computed; all others equal the base's, exactly. The
base, and queries, keys and values, are computed when a run first needs them.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Shaped
from torch import Tensor

from retrieval_interp.circuits.attention import softmax_attention
from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.hooks import has_hooks, is_hooked_transformer, where_by_layer
from retrieval_interp.circuits.mechanisms import ORIGINAL, Mechanism
from retrieval_interp.circuits.models.either import plain_weights
from retrieval_interp.circuits.runs.onednn import linear
from retrieval_interp.tasks import Batch

SCORED_ROLE = 0
_ACTIVATIONS = {"gelu_pytorch_tanh": "gelu", "gelu_new": "gelu", "relu": "relu"}
What = Literal["Q", "K", "V"]


class Row(NamedTuple):
    """What one role attends to in one head."""

    mechanism: Mechanism | None  # whose pattern it is, `original` if its own; None: fixed shares
    shares: tuple[tuple[int, float], ...]  # of roles of its chain; of its own attention, those cut

    @classmethod
    def of(cls, mechanism: Mechanism, dest: int) -> "Row":
        shares = mechanism.shares(dest)
        if mechanism.keeps_own:
            return cls(ORIGINAL, shares or ())
        return cls(mechanism, ()) if shares is None else cls(None, shares)


LayerRows = list[list[Row]]  # by head and role
Rows = list[LayerRows]


class LayerInput:
    """The input of a layer (None after the last): the stream by role, and what comes of it.

    `residual` is the stream before it, as far as it is known; `base` has all other roles.
    """

    def __init__(self, block: Any, residual: dict[int, Tensor], base: "LayerInput | None" = None):
        self.block, self.residual, self.base = block, residual, base
        self.known: dict[tuple[What, int, int], Tensor] = {}
        self.normalized: dict[int, Tensor] = {}

    def at(self, role: int) -> Float[Tensor, "batch chain d_model"]:
        if role in self.residual or self.base is None:
            return self.residual[role]
        return self.base.at(role)

    def read(self, what: What, head: int, role: int) -> Float[Tensor, "batch chain d_head"]:
        if role not in self.residual and self.base is not None:
            return self.base.read(what, head, role)
        key = (what, head, role)
        if key not in self.known:
            if role not in self.normalized:
                self.normalized[role] = norm(self.block.ln1, self.residual[role])
            weights, biases = (getattr(self.block.attn, f"{kind}_{what}") for kind in "Wb")
            self.known[key] = self.normalized[role] @ weights[head] + biases[head]
        return self.known[key]

    def joined(self, what: What, head: int, roles: list[int]) -> Float[Tensor, "batch pos d_head"]:
        return torch.cat([self.read(what, head, role) for role in roles], dim=1)

    def replacing(self, base: "LayerInput", affected: set[int]) -> "LayerInput":
        """The same on its own: with what the base knows of the roles that are not affected."""
        if self is base:
            return base
        kept = {r: x for r, x in base.residual.items() if r not in affected}
        whole = LayerInput(self.block, {**kept, **self.residual})
        known = {key: x for key, x in base.known.items() if key[-1] not in affected}
        whole.known = {**known, **self.known}
        return whole


@dataclass(frozen=True)
class RoleBase:
    """A run from which others differ little; `layers` fill as more of it is asked for."""

    circuit: Circuit
    rows: Rows
    layers: list[LayerInput]


Run = tuple[Rows, list[LayerInput], list[set[int]]]  # see `RoleRuns._run`


class RoleRuns:
    """Runs that compute only roles that a circuit changes and the answer needs."""

    @staticmethod
    def supports(model: Any, batch: Batch) -> bool:
        """Whether it reads vectors, all layers mask alike, and every position has a role."""
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
            and cfg.n_key_value_heads is None
            and not (cfg.gated_mlp or cfg.num_experts)
            and (cfg.attn_only or cfg.act_fn in _ACTIVATIONS)
            and cfg.dtype == torch.float32
            and not has_hooks(model)
            and len({where.mask for where in where_by_layer(model, batch)}) == 1
        )

    @torch.no_grad()
    def __init__(self, model: Any, batch: Batch):
        self.model = model if is_hooked_transformer(model) else plain_weights(model)
        self.cfg = model.cfg
        self.where = where_by_layer(model, batch)[0]
        self.positions = rearrange(batch.roles, "batch chain role -> batch (role chain)")
        self.n_chains, self.n_roles = batch.roles.shape[1:]
        self.all_roles = range(self.n_roles)
        self._patterns: dict[Mechanism, Tensor] = {}
        self.last: tuple[RoleBase, Circuit, Run] | None = None  # kept in case it becomes a base
        before = self.positions[:, :, None] - self.positions[:, None, :]
        self.mask = self.where.mask.allows(before)  # [batch dest src]
        shape = (self.n_roles, self.n_chains)
        seen = self.mask.any(0).unflatten(1, shape).unflatten(0, shape).any(1).any(-1)
        # For each role, the roles that any of its positions may attend to.
        self.visible = [{src for src, yes in enumerate(row) if yes} for row in seen.tolist()]
        example = torch.arange(len(batch), device=self.positions.device)[:, None]
        embedded = batch.inputs[example, self.positions] @ model.W_E
        self.embedded = dict(enumerate(self._by_role(embedded)))

    @torch.no_grad()
    def base(self, circuit: Circuit, old: RoleBase | None = None) -> RoleBase:
        """Run a circuit as the base of others, reusing an old one."""
        if old is None:
            blocks = [*self.model.blocks[1:], None]
            first = LayerInput(self.model.blocks[0], self.embedded)
            layers = [first, *(LayerInput(block, {}) for block in blocks)]
            self.last = None
            return RoleBase(circuit, self._rows(circuit), layers)
        if self.last is None or self.last[0] is not old or self.last[1] != circuit:
            self.last = old, circuit, self._run(circuit, old)
        rows, changed, affected = self.last[2]
        self.last = None
        layers = list(map(LayerInput.replacing, changed, old.layers, affected))
        return RoleBase(circuit, rows, layers)

    @torch.no_grad()
    def outputs(self, circuit: Circuit, base: RoleBase) -> Float[Tensor, "batch chain d_out"]:
        """The outputs at the scored role."""
        self.last = None  # frees what it holds
        run = self._run(circuit, base)
        self.last = base, circuit, run
        residual = run[1][-1].at(SCORED_ROLE)
        if self.cfg.normalization_type is not None:
            residual = norm(self.model.ln_final, residual)
        outputs: Tensor = residual @ self.model.W_U + self.model.b_U
        return outputs

    def _run(self, circuit: Circuit, base: RoleBase) -> Run:
        """Run a circuit; computes the parts of the base that are needed and still missing.

        Returns its rows and, before each layer and after the last, the stream as far as the answer
        needs it, and all roles in which it differs from the base.
        """
        rows = self._rows(circuit)
        needed = self._needed(rows)
        layers, affected = [base.layers[0]], [set[int]()]
        for layer in range(self.cfg.n_layers):
            before, after = base.layers[layer : layer + 2]
            affected.append(self._affected(rows[layer], base.rows[layer], affected[-1]))
            missing = sorted(needed[layer + 1] - affected[-1] - after.residual.keys())
            if missing:
                after.residual |= self._layer(layer, before, base.rows[layer], missing)
            if affected[-1]:
                dests = sorted(needed[layer + 1] & affected[-1])
                changed = self._layer(layer, layers[-1], rows[layer], dests) if dests else {}
                after = LayerInput(after.block, changed, after)
            layers.append(after)
        return rows, layers, affected

    def _rows(self, circuit: Circuit) -> Rows:
        circuit.check_fits(self.cfg.n_layers, self.cfg.n_heads)

        def rows(layer: int, head: int) -> list[Row]:
            return [Row.of(circuit[layer, head], dest) for dest in self.all_roles]

        layers, heads = range(self.cfg.n_layers), range(self.cfg.n_heads)
        return [[rows(layer, head) for head in heads] for layer in layers]

    def _affected(self, rows: LayerRows, base: LayerRows, affected: set[int]) -> set[int]:
        """Roles whose stream after a layer differs from the base's, given those before it."""
        return affected | {
            dest
            for dest in self.all_roles
            if any(
                row[dest] != other[dest] or self._sources(row[dest], dest) & affected
                for row, other in zip(rows, base)
            )
        }

    def _needed(self, rows: Rows) -> list[set[int]]:
        """The roles whose residuals before layer l the answer depends on, for l = 0..n_layers."""
        needed = [{SCORED_ROLE}]
        for layer in reversed(rows):
            sources = (self._sources(row[dest], dest) for row in layer for dest in needed[0])
            needed.insert(0, needed[0].union(*sources))
        return needed

    def _sources(self, row: Row, dest: int) -> set[int]:
        return {src for src, _ in row.shares} if row.mechanism is None else self.visible[dest]

    def _layer(
        self, layer: int, inputs: LayerInput, rows: LayerRows, dests: list[int]
    ) -> dict[int, Float[Tensor, "batch chain d_model"]]:
        """The residual stream after a layer at some roles, from its input and its heads' rows."""
        block = self.model.blocks[layer]
        out = torch.stack([inputs.at(dest) for dest in dests]) + block.attn.b_O
        for head, row in enumerate(rows):
            out += self._head(head, row, dests, inputs)
        if not self.cfg.attn_only:
            mlp, act = block.mlp, _ACTIVATIONS[self.cfg.act_fn]
            hidden = linear(norm(block.ln2, out), mlp.W_in.T, mlp.b_in, act)
            out += linear(hidden, mlp.W_out.T, mlp.b_out)
        return dict(zip(dests, out))

    def _head(
        self, head: int, row: list[Row], dests: list[int], inputs: LayerInput
    ) -> Float[Tensor, "dest batch chain d_model"]:
        attn = inputs.block.attn
        z = attn.W_V.new_zeros(len(dests), len(self.mask), self.n_chains, self.cfg.d_head)
        together: dict[Mechanism, list[int]] = {}  # places of those with one pattern
        for place, dest in enumerate(dests):
            mechanism, shares = row[dest]
            if mechanism is not None:
                together.setdefault(mechanism, []).append(place)
                continue
            for src, weight in shares:
                z[place].add_(inputs.read("V", head, src), alpha=weight)
        for mechanism, places in together.items():
            chosen = [dests[place] for place in places]
            sources = sorted(set().union(*(self.visible[dest] for dest in chosen)))
            if mechanism.keeps_own:
                queries = inputs.joined("Q", head, chosen)
                keys = inputs.joined("K", head, sources)
                allowed = self._between(self.mask, chosen, sources)
                pattern = softmax_attention(queries, keys, allowed, attn.attn_scale)
                self._cut(pattern, row, chosen, sources)
            else:
                pattern = self._between(self._pattern(mechanism), chosen, sources)
            z[places] = self._by_role(pattern @ inputs.joined("V", head, sources))
        return linear(z, attn.W_O[head].T)

    def _by_role(self, x: Shaped[Tensor, "batch dest d"]) -> Shaped[Tensor, "role batch chain d"]:
        return rearrange(x, "batch (role chain) d -> role batch chain d", chain=self.n_chains)

    def _between(
        self, table: Shaped[Tensor, "batch pos pos"], dests: list[int], sources: list[int]
    ) -> Shaped[Tensor, "batch dest src"]:
        """The part of a mask or pattern, with positions by role, between those of some roles."""
        shape = (self.n_roles, self.n_chains)
        by_role: Tensor = table.unflatten(2, shape).unflatten(1, shape)
        return by_role[:, dests][:, :, :, sources].flatten(3, 4).flatten(1, 2)

    def _pattern(self, mechanism: Mechanism) -> Float[Tensor, "batch pos pos"]:
        if mechanism not in self._patterns:
            pattern = mechanism.pattern(self.where).expand(len(self.positions), -1, -1)
            example = torch.arange(len(pattern), device=pattern.device)[:, None, None]
            dests, sources = self.positions[:, :, None], self.positions[:, None, :]
            self._patterns[mechanism] = pattern[example, dests, sources]
        return self._patterns[mechanism]

    def _cut(self, pattern: Tensor, row: list[Row], dests: list[int], sources: list[int]) -> None:
        own = torch.eye(self.n_chains, dtype=torch.bool, device=pattern.device)
        shape = (-1, self.n_chains)
        by_role = pattern.unflatten(2, shape).unflatten(1, shape)  # [batch dest chain src chain]
        for place, dest in enumerate(dests):
            for src, _ in row[dest].shares:
                if src in sources:
                    by_role[:, place, :, sources.index(src)].masked_fill_(own, 0.0)


def norm(layer_norm: Any, x: Tensor) -> Tensor:
    """TransformerLens's layer norm in one fused step, without its hooks."""
    if isinstance(layer_norm, torch.nn.Identity):
        return x
    return F.layer_norm(x, x.shape[-1:], layer_norm.w, layer_norm.b, layer_norm.eps)
