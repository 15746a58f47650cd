"""Running a plain transformer under many circuits, computing only what can change the answer.

The residual stream of one run, the base, is kept by role, [batch chain d_model], after every layer.
For another circuit

1. *affected* roles are followed upwards: a role whose attention row differs from the base's, or
   that attends to an affected role, is affected from there on;
2. *needed* roles are followed downwards from the scored role s0: whatever a needed role attends to
   is needed one layer below;
3. only roles that are both are computed, layer by layer; all others equal the base's, exactly.

The base itself is computed only where a run needs it.

What a layer computes from a role (queries, keys and values, see `circuits.runs.layer_input`) is
computed when first asked for and shared by all circuits that leave the role unchanged. A row that a
circuit fixes needs only values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Shaped
from torch import Tensor

from retrieval_interp.circuits.attention import softmax_attention
from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.hooks.points import is_causal, is_hooked_transformer
from retrieval_interp.circuits.mechanisms import Mechanism, Where
from retrieval_interp.circuits.runs.layer_input import BaseInput, ChangedInput, LayerInput, norm
from retrieval_interp.circuits.runs.plain_weights import plain_weights
from retrieval_interp.tasks import Batch

SCORED_ROLE = 0
_ROWS = 512  # of an MLP's input at a time
_GELU = partial(F.gelu, approximate="tanh")
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_pytorch_tanh": _GELU,
    "gelu_new": _GELU,
    "relu": F.relu,
}
Row = tuple[str | Mechanism, tuple[tuple[int, float], ...]]
Rows = list[list[list[Row]]]  # by layer, head and role


def attention_row(mechanism: Mechanism, dest: int) -> Row:
    """What a role attends to: `fixed` shares, a pattern, or `original` minus the roles cut."""
    shares = mechanism.shares(dest)
    if mechanism.keeps_own:
        return "original", shares or ()
    return (mechanism, ()) if shares is None else ("fixed", shares)


class RoleRuns:
    """Runs that compute only roles that a circuit changes and the answer needs; see the module."""

    @staticmethod
    def supports(model: Any, batch: Batch) -> bool:
        """Whether this is exact: it reads vectors, has no hooks, every position has a role."""
        if not getattr(model, "reads_vectors", False):  # VectorTransformer, VectorBridge
            return False
        roles = batch.roles.flatten(1).sort(dim=1).values
        n_positions = batch.inputs.shape[1]
        positions = torch.arange(n_positions, device=roles.device)
        return (
            batch.attention_mask is None
            and roles.shape[1] == n_positions > batch.roles.shape[1]  # see `answer_hooks`
            and bool((roles == positions).all())
            and model.cfg.normalization_type in (None, "LN")
            and model.cfg.n_key_value_heads is None
            and model.cfg.positional_embedding_type == "standard"
            and not model.cfg.gated_mlp
            and not model.cfg.num_experts
            and not model.cfg.parallel_attn_mlp
            and not model.cfg.use_local_attn
            and not model.cfg.use_qk_norm
            and (model.cfg.attn_only or model.cfg.act_fn in _ACTIVATIONS)
            and model.cfg.dtype == torch.float32
            and model.cfg.attn_scores_soft_cap <= 0
            and model.cfg.output_logits_soft_cap <= 0
            and not any(point.has_hooks() for point in model.hook_dict.values())
        )

    @staticmethod
    def bytes_to_keep(model: Any, batch: Batch) -> int:
        """The memory that queries, keys and values may take."""
        width: int = model.cfg.n_layers * model.cfg.n_heads * model.cfg.d_head
        return 4 * 3 * width * batch.roles.numel()

    @torch.no_grad()
    def __init__(self, model: Any, batch: Batch, circuit: Circuit, keep: bool = True):
        self.model = model if is_hooked_transformer(model) else plain_weights(model)
        self.cfg, self.keep = model.cfg, keep
        positions = rearrange(batch.roles, "batch chain role -> batch (role chain)")
        self.positions, self._patterns = positions, dict[Mechanism, Tensor]()
        self.roles = batch.roles
        self.n_chains, self.n_roles = batch.roles.shape[1:]
        self.all_roles = list(range(self.n_roles))
        seen = positions[:, None, :] <= positions[:, :, None]
        self.mask = seen if is_causal(model) else torch.ones_like(seen)  # [batch dest src]
        self.visible = self._visible_roles()
        example = torch.arange(len(batch), device=positions.device)[:, None]
        embedded = batch.inputs[example, positions] @ model.W_E
        by_role = rearrange(embedded, "b (role chain) d -> role b chain d", chain=self.n_chains)
        self.layers = self._empty_base(embedded, keep)
        self.layers[0].store(dict(enumerate(by_role)))
        self._last: _Run | None = None  # may become the base
        self._next: _Run | None = None  # becomes the base
        self.base, self.rows = circuit, self._rows(circuit)
        self._layers(self.rows)
        self.base_outputs = self._read_out(self.layers[-1])

    def _empty_base(
        self, embedded: Float[Tensor, "batch pos d_model"], keep: bool
    ) -> list[BaseInput]:
        """Storage for the input of every layer, and of the read-out."""
        size = (len(embedded), self.n_chains)
        n_layers, n_heads = self.cfg.n_layers, self.cfg.n_heads
        streams = embedded.new_empty(n_layers + 1, self.n_roles, *size, self.cfg.d_model)
        kept: list[Tensor | None] = [None] * (n_layers + 1)
        if keep:
            shape = (n_layers, 3, n_heads, self.n_roles, *size, self.cfg.d_head)
            kept[:n_layers] = embedded.new_empty(shape)
        return [
            BaseInput(self.model, layer, stream, kept[layer])
            for layer, stream in enumerate(streams)
        ]

    @torch.no_grad()
    def outputs(self, circuit: Circuit) -> Float[Tensor, "batch query d_out"]:
        self.forget()
        self._last = self._run(circuit)
        return self._last.outputs

    @torch.no_grad()
    def rebase(self, circuit: Circuit) -> Float[Tensor, "batch query d_out"]:
        run = self._last
        if run is None or run.circuit != circuit:
            run = self._run(circuit)
        self._next = run
        self._adopt()
        return run.outputs

    def forget(self) -> None:
        """Drop the last run, which is kept in case it becomes the base."""
        self._last = None

    def _adopt(self) -> None:
        """Make the next base the base. If interrupted, the next run finishes the work."""
        if self._next is None:
            return
        run, self._last = self._next, None
        self.base, self.rows, self.base_outputs = run.circuit, run.rows, run.outputs
        for base, inputs, affected in zip(self.layers, run.layers, run.affected):
            base.valid -= affected
            if isinstance(inputs, ChangedInput):
                base.store(inputs.changed, inputs.known)
        self._next = None

    def _run(self, circuit: Circuit) -> "_Run":
        circuit.check_fits(self.cfg.n_layers, self.cfg.n_heads)
        self._adopt()
        rows = self._rows(circuit)
        layers, affected = self._layers(rows)
        unchanged = layers[-1] is self.layers[-1]
        outputs = self.base_outputs if unchanged else self._read_out(layers[-1])
        return _Run(circuit, rows, layers, affected, outputs)

    def _layers(self, rows: Rows) -> tuple[list[LayerInput], list[set[int]]]:
        """The input of every layer, and the roles in which it differs from the base.

        Computes the parts of the base that are needed and still missing.
        """
        needed = self._needed(rows)
        layers: list[LayerInput] = [self.layers[0]]
        affected = [set[int]()]
        for layer in range(self.cfg.n_layers):
            before, after = self.layers[layer : layer + 2]
            affected.append(affected[-1] | self._affected(layer, rows, affected[-1]))
            wanted = needed[layer + 1]
            missing = sorted(wanted - affected[-1] - after.valid)
            if missing:
                after.store(self._layer(layer, before, self.rows, missing))
            dests = sorted(wanted & affected[-1])
            if dests:
                changed = self._layer(layer, layers[-1], rows, dests)
                layers.append(ChangedInput(after, changed))
            else:
                layers.append(after)
        for inputs in (*self.layers, *layers):
            inputs.forget_norms()
        return layers, affected

    # Dependencies between roles

    def _rows(self, circuit: Circuit) -> Rows:
        """The attention row of every layer, head and role."""
        return [
            [
                [attention_row(circuit[layer, head], dest) for dest in self.all_roles]
                for head in range(self.cfg.n_heads)
            ]
            for layer in range(self.cfg.n_layers)
        ]

    def _affected(self, layer: int, rows: Rows, affected: set[int]) -> set[int]:
        """Roles whose stream after a layer differs from the base's, given those before it."""
        return {
            dest
            for dest in self.all_roles
            if any(
                row[dest] != base[dest] or self._sources(row[dest], dest) & affected
                for row, base in zip(rows[layer], self.rows[layer])
            )
        }

    def _needed(self, rows: Rows) -> list[set[int]]:
        """The roles whose residuals before layer l the answer depends on, for l = 0..n_layers."""
        needed = [{SCORED_ROLE}]
        for layer in reversed(rows):
            dests = needed[0]
            sources = {
                src for row in layer for dest in dests for src in self._sources(row[dest], dest)
            }
            needed.insert(0, dests | sources)
        return needed

    def _sources(self, row: Row, dest: int) -> set[int]:
        kind, shares = row
        return {src for src, _ in shares} if kind == "fixed" else self.visible[dest]

    def _visible_roles(self) -> list[set[int]]:
        """For each role, the roles that any of its positions may attend to."""
        shape = (self.n_roles, self.n_chains)
        seen = self.mask.any(0).unflatten(1, shape).unflatten(0, shape).any(1).any(-1)
        return [{src for src, yes in enumerate(row) if yes} for row in seen.tolist()]

    # Layers

    def _layer(
        self, layer: int, inputs: LayerInput, rows: Rows, dests: list[int]
    ) -> dict[int, Float[Tensor, "batch chain d_model"]]:
        """The residual stream after a layer, at some roles.

        Args:
            layer: number of the layer.
            inputs: its input.
            rows: what every head's roles attend to.
            dests: the roles to compute.
        """
        block = self.model.blocks[layer]
        out = torch.stack([inputs.residual[dest] for dest in dests]) + block.attn.b_O
        for head, row in enumerate(rows[layer]):
            out += self._head(layer, head, row, dests, inputs)
        if not self.cfg.attn_only:
            out += _mlp(block.mlp, norm(block.ln2, out), self.cfg.act_fn)
        return dict(zip(dests, out))

    def _head(
        self, layer: int, head: int, row: list[Row], dests: list[int], inputs: LayerInput
    ) -> Float[Tensor, "dest batch chain d_model"]:
        """What a head writes at some roles, without the output bias."""
        attn = self.model.blocks[layer].attn
        z = attn.W_V.new_zeros(len(dests), len(self.mask), self.n_chains, self.cfg.d_head)
        placed: dict[Mechanism, list[int]] = {}
        live: list[int] = []
        for place, dest in enumerate(dests):
            kind, shares = row[dest]
            if kind == "fixed":
                for src, weight in shares:
                    z[place].add_(inputs.values(head, src), alpha=weight)
            elif isinstance(kind, Mechanism):
                placed.setdefault(kind, []).append(place)
            else:
                live.append(place)
        for mechanism, places in placed.items():
            chosen = [dests[place] for place in places]
            sources = self._seen_by(chosen)
            pattern = self._between(self._pattern(mechanism), chosen, sources)
            z[places] = self._by_role(pattern @ _joined(inputs.values, head, sources))
        if live:
            chosen = [dests[place] for place in live]
            sources = self._seen_by(chosen)
            queries = _joined(inputs.queries, head, chosen)
            keys = _joined(inputs.keys, head, sources)
            allowed = self._between(self.mask, chosen, sources)
            pattern = softmax_attention(queries, keys, allowed, attn.attn_scale)
            self._cut(pattern, row, chosen, sources)
            z[live] = self._by_role(pattern @ _joined(inputs.values, head, sources))
        written: Tensor = z @ attn.W_O[head]
        return written

    def _seen_by(self, dests: list[int]) -> list[int]:
        return sorted(set().union(*(self.visible[dest] for dest in dests)))

    def _by_role(self, x: Shaped[Tensor, "batch dest d"]) -> Shaped[Tensor, "role batch chain d"]:
        return rearrange(x, "batch (role chain) d -> role batch chain d", chain=self.n_chains)

    def _between(
        self, table: Shaped[Tensor, "batch pos pos"], dests: list[int], sources: list[int]
    ) -> Shaped[Tensor, "batch dest src"]:
        """The part of a mask or pattern, with positions by role, between those of some roles."""
        shape = (self.n_roles, self.n_chains)
        by_role = table.unflatten(2, shape).unflatten(1, shape)
        between: Tensor = by_role[:, dests][:, :, :, sources].flatten(3, 4).flatten(1, 2)
        return between

    def _pattern(self, mechanism: Mechanism) -> Float[Tensor, "batch pos pos"]:
        """A mechanism's pattern, with positions by role."""
        if mechanism not in self._patterns:
            where = Where(self.roles, self.positions.shape[1], is_causal(self.model))
            pattern = mechanism.pattern(where).expand(len(self.roles), -1, -1)
            example = torch.arange(len(self.roles), device=self.roles.device)[:, None, None]
            dests, sources = self.positions[:, :, None], self.positions[:, None, :]
            self._patterns[mechanism] = pattern[example, dests, sources]
        return self._patterns[mechanism]

    def _cut(self, pattern: Tensor, row: list[Row], dests: list[int], sources: list[int]) -> None:
        """Set the attention of cut paths to zero, in place."""
        own = torch.eye(self.n_chains, dtype=torch.bool, device=pattern.device)
        shape = (-1, self.n_chains)
        by_role = pattern.unflatten(2, shape).unflatten(1, shape)  # [batch dest chain src chain]
        for place, dest in enumerate(dests):
            for src, _ in row[dest][1]:
                if src in sources:
                    by_role[:, place, :, sources.index(src)].masked_fill_(own, 0.0)

    def _read_out(self, inputs: LayerInput) -> Float[Tensor, "batch chain d_out"]:
        residual = inputs.residual[SCORED_ROLE]
        if self.cfg.normalization_type is not None:
            residual = norm(self.model.ln_final, residual)
        outputs: Tensor = residual @ self.model.W_U + self.model.b_U
        return outputs


@dataclass(frozen=True)
class _Run:
    """A circuit's run, as far as its answer needs it; `affected` are all roles that it changes."""

    circuit: Circuit
    rows: Rows
    layers: list[LayerInput]
    affected: list[set[int]]
    outputs: Tensor


def _joined(
    read: Callable[[int, int], Tensor], head: int, roles: list[int]
) -> Float[Tensor, "batch pos d_head"]:
    """Queries, keys or values at all positions of some roles."""
    return torch.cat([read(head, role) for role in roles], dim=1)


def _mlp(
    mlp: Any, x: Float[Tensor, "*batch d_model"], activation: str
) -> Float[Tensor, "*batch d_model"]:
    """TransformerLens's MLP with a fused activation, few rows at a time to stay in the cache."""
    act = _ACTIVATIONS[activation]
    written = [
        F.linear(act(F.linear(rows, mlp.W_in.T, mlp.b_in)), mlp.W_out.T, mlp.b_out)
        for rows in x.flatten(0, -2).split(_ROWS)
    ]
    return torch.cat(written).view_as(x)
