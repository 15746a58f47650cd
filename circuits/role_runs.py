"""Running a plain transformer under many circuits, computing only what can change the answer.

The residual stream of one run, the base, is kept by role, [batch role chain d_model], after every
layer. For another circuit

1. *affected* roles are followed upwards: a role whose attention row differs from the base's, or
   that attends to an affected role, is affected from there on;
2. *needed* roles are followed downwards from the scored role s0: what a needed role attends to is
   needed one layer below;
3. only roles that are both are computed, layer by layer; all others are the base's, exactly.

A row that a circuit fixes costs no queries, keys or softmax: attention is then a mean over sources,
taken before the value projection, since both are linear. Keys and values of the base are kept, too,
for rows that the model decides itself.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Shaped
from torch import Tensor

from circuits.ablation import is_causal
from circuits.circuit import Circuit
from circuits.mechanisms import Mechanism, Rest
from tasks import Batch

SCORED_ROLE = 0
Row = tuple[str, tuple[tuple[int, float], ...]]


def attention_row(mechanism: Mechanism, dest: int, rest: Rest) -> Row:
    """What a role attends to: `fixed` shares, `uniform`, or `original` less some sources."""
    sources = mechanism.sources(dest)
    if mechanism.kind in ("original", "cut"):
        return "original", sources
    if sources:
        return "fixed", sources
    kind = mechanism.kind if mechanism.kind in ("uniform", "identity") else rest
    if kind == "uniform":
        return "uniform", ()
    return "fixed", ((dest, 1.0),) if kind == "identity" else ()


class RoleRuns:
    """Only the roles that a circuit changes and the answer needs; see the module's docstring."""

    @staticmethod
    def supports(model: Any, batch: Batch) -> bool:
        """Whether the shortcut is exact: a VectorTransformer without hooks, all positions roles."""
        from circuits.vector_transformer import VectorTransformer

        roles = batch.roles.flatten(1).sort(dim=1).values
        n_positions = batch.inputs.shape[1]
        positions = torch.arange(n_positions, device=roles.device)
        return (
            isinstance(model, VectorTransformer)
            and roles.shape[1] == n_positions
            and bool((roles == positions).all())
            and model.cfg.normalization_type in (None, "LN")
            and model.cfg.n_key_value_heads is None
            and model.cfg.positional_embedding_type == "standard"
            and not model.cfg.gated_mlp
            and not model.cfg.num_experts
            and not model.cfg.parallel_attn_mlp
            and not model.cfg.use_local_attn
            and not model.cfg.use_qk_norm
            and (model.cfg.attn_only or model.cfg.act_fn in ("gelu_new", "relu"))
            and model.cfg.dtype == torch.float32
            and model.cfg.attn_scores_soft_cap <= 0
            and model.cfg.output_logits_soft_cap <= 0
            and not any(point.has_hooks() for point in model.hook_dict.values())
        )

    @torch.no_grad()
    def __init__(self, model: Any, batch: Batch, circuit: Circuit):
        self.model, self.cfg = model, model.cfg
        positions = rearrange(batch.roles, "batch chain role -> batch (role chain)")
        self.n_chains, self.n_roles = batch.roles.shape[1:]
        self.all_roles = list(range(self.n_roles))
        seen = positions[:, None, :] <= positions[:, :, None]
        self.mask = seen if is_causal(model) else torch.ones_like(seen)  # [batch dest src]
        self.visible = self._visible_roles()
        example = torch.arange(len(batch), device=positions.device)[:, None]
        embedded = batch.inputs[example, positions] @ model.W_E
        self.residuals = [self._by_role(embedded)]
        self.rows = self._rows(circuit)
        self._forget(0)
        for layer in range(self.cfg.n_layers):
            before = self.residuals[layer]
            self.residuals.append(self._layer(layer, before, self.rows, self.all_roles, []))
        self.base = circuit
        self.base_outputs = self._read_out(self.residuals[-1][:, SCORED_ROLE])

    @torch.no_grad()
    def rebase(self, circuit: Circuit) -> Float[Tensor, "batch query d_out"]:
        rows, residuals = self._run(circuit, keep=True)
        pairs = zip(residuals, self.residuals)
        first = next((layer for layer, (new, old) in enumerate(pairs) if new is not old), None)
        outputs = self.base_outputs
        if first is not None:
            outputs = self._read_out(residuals[-1][:, SCORED_ROLE])
            self._forget(first)
        # All at once, so that an interrupt leaves one base or the other.
        self.rows, self.residuals, self.base, self.base_outputs = rows, residuals, circuit, outputs
        return outputs

    @torch.no_grad()
    def outputs(self, circuit: Circuit) -> Float[Tensor, "batch query d_out"]:
        _, residuals = self._run(circuit, keep=False)
        if residuals[-1] is self.residuals[-1]:
            return self.base_outputs
        return self._read_out(residuals[-1][:, SCORED_ROLE])

    def _run(self, circuit: Circuit, keep: bool) -> tuple[list[list[list[Row]]], list[Tensor]]:
        """Residuals before every layer and at the end; with `keep` right for every role."""
        circuit.check_fits(self.cfg.n_layers, self.cfg.n_heads)
        rows = self._rows(circuit)
        needed = self._needed(rows)
        residuals, affected = [self.residuals[0]], set[int]()
        changed: list[int] = []
        for layer in range(self.cfg.n_layers):
            affected |= {
                dest
                for dest in self.all_roles
                if any(
                    row[dest] != base[dest] or self._sources(row[dest], dest) & affected
                    for row, base in zip(rows[layer], self.rows[layer])
                )
            }
            dests = sorted(affected if keep else affected & needed[layer + 1])
            after = self.residuals[layer + 1]
            if dests:
                after = after.clone()
                after[:, dests] = self._layer(layer, residuals[-1], rows, dests, changed)
            residuals.append(after)
            changed = dests
        return rows, residuals

    # Who depends on whom

    def _rows(self, circuit: Circuit) -> list[list[list[Row]]]:
        """The attention row of every layer, head and role."""
        return [
            [
                [attention_row(circuit[layer, head], dest, circuit.rest) for dest in self.all_roles]
                for head in range(self.cfg.n_heads)
            ]
            for layer in range(self.cfg.n_layers)
        ]

    def _needed(self, rows: list[list[list[Row]]]) -> list[set[int]]:
        """Which roles' residuals before layer l the scored role depends on, for l = 0..n_layers."""
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
        """For each role, those that any of its positions may attend to."""
        shape = (self.n_roles, self.n_chains)
        seen = self.mask.any(0).unflatten(1, shape).unflatten(0, shape).any(1).any(-1)
        return [{src for src, yes in enumerate(row) if yes} for row in seen.tolist()]

    def _by_role(self, x: Shaped[Tensor, "batch pos d"]) -> Shaped[Tensor, "batch role chain d"]:
        return rearrange(x, "batch (role chain) d -> batch role chain d", chain=self.n_chains)

    # What the base's layers read, computed once

    def _forget(self, first: int) -> None:
        """Drop what was computed from residuals that are no longer the base's."""
        if first == 0:
            self._normalized: dict[int, Tensor] = {}
            self._keys_values: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        for layer in [layer for layer in self._normalized if layer >= first]:
            del self._normalized[layer]
        for place in [place for place in self._keys_values if place[0] >= first]:
            del self._keys_values[place]

    def _read_in(self, layer: int, residual: Tensor, changed: list[int]) -> Tensor:
        """The layer norm in front of attention, [batch role chain d_model]."""
        block = self.model.blocks[layer]
        if layer not in self._normalized:
            self._normalized[layer] = _norm(block.ln1, self.residuals[layer])
        return _updated(
            self._normalized[layer], changed, lambda: _norm(block.ln1, residual[:, changed])
        )

    def _read_keys(
        self, layer: int, head: int, normalized: Tensor, changed: list[int]
    ) -> tuple[Tensor, Tensor]:
        """Keys and values, [batch role chain d_head] each."""
        attn = self.model.blocks[layer].attn
        if (layer, head) not in self._keys_values:
            base = self._normalized[layer]
            self._keys_values[layer, head] = (
                base @ attn.W_K[head] + attn.b_K[head],
                base @ attn.W_V[head] + attn.b_V[head],
            )
        keys, values = self._keys_values[layer, head]
        new = normalized[:, changed]

        def project(weight: Tensor, bias: Tensor) -> Tensor:
            projected: Tensor = new @ weight[head] + bias[head]
            return projected

        return (
            _updated(keys, changed, lambda: project(attn.W_K, attn.b_K)),
            _updated(values, changed, lambda: project(attn.W_V, attn.b_V)),
        )

    # Layers

    def _layer(
        self,
        layer: int,
        residual: Tensor,
        rows: list[list[list[Row]]],
        dests: list[int],
        changed: list[int],
    ) -> Float[Tensor, "batch dest chain d_model"]:
        """The residual stream after a layer, at some roles.

        Args:
            layer: which one.
            residual: the stream before it, [batch role chain d_model].
            rows: what every head's roles attend to.
            dests: the roles to compute.
            changed: the roles whose residual differs from the base's.
        """
        block = self.model.blocks[layer]
        normalized = self._read_in(layer, residual, changed)
        out: Tensor = residual[:, dests] + block.attn.b_O
        for head, row in enumerate(rows[layer]):
            out += self._head(layer, head, row, dests, normalized, changed)
        if self.cfg.attn_only:
            return out
        return out + _mlp(block.mlp, _norm(block.ln2, out), self.cfg.act_fn)

    def _head(
        self,
        layer: int,
        head: int,
        row: list[Row],
        dests: list[int],
        normalized: Tensor,
        changed: list[int],
    ) -> Float[Tensor, "batch dest chain d_model"]:
        """What a head writes at some roles, without the output bias."""
        attn = self.model.blocks[layer].attn
        z = attn.W_V.new_zeros(len(self.mask), len(dests), self.n_chains, self.cfg.d_head)
        fixed = [place for place, d in enumerate(dests) if row[d][0] == "fixed" and row[d][1]]
        if fixed:
            shares = [row[dests[place]][1] for place in fixed]
            means = torch.stack(
                [_weighted([(normalized[:, src], weight) for src, weight in g]) for g in shares], 1
            )
            totals = z.new_tensor([sum(weight for _, weight in group) for group in shares])
            z[:, fixed] = means @ attn.W_V[head] + totals[:, None, None] * attn.b_V[head]
        spread = [place for place, dest in enumerate(dests) if row[dest][0] == "uniform"]
        if spread:
            mask = self._mask_of([dests[place] for place in spread]).to(normalized)
            means = (mask / mask.sum(-1, keepdim=True)) @ normalized.flatten(1, 2)
            z[:, spread] = self._by_role(means @ attn.W_V[head] + attn.b_V[head])
        live = [place for place, dest in enumerate(dests) if row[dest][0] == "original"]
        if live:
            chosen = [dests[place] for place in live]
            keys, values = self._read_keys(layer, head, normalized, changed)
            q = (normalized[:, chosen] @ attn.W_Q[head] + attn.b_Q[head]).flatten(1, 2)
            scores = q @ keys.flatten(1, 2).transpose(1, 2) / attn.attn_scale
            pattern = scores.masked_fill(~self._mask_of(chosen), -torch.inf).softmax(-1)
            self._cut(pattern, row, chosen)
            z[:, live] = self._by_role(pattern @ values.flatten(1, 2))
        written: Tensor = z @ attn.W_O[head]
        return written

    def _mask_of(self, dests: list[int]) -> Tensor:
        """The rows of some roles out of the mask, [batch dest src]."""
        return self._by_role(self.mask)[:, dests].flatten(1, 2)

    def _cut(self, pattern: Tensor, row: list[Row], dests: list[int]) -> None:
        """Set the attention of cut paths to zero, in place."""
        chain = torch.arange(self.n_chains, device=pattern.device)
        for place, dest in enumerate(dests):
            for src, _ in row[dest][1]:
                pattern[:, place * self.n_chains + chain, src * self.n_chains + chain] = 0.0

    def _read_out(
        self, residual: Float[Tensor, "batch chain d_model"]
    ) -> Float[Tensor, "batch chain d_out"]:
        if self.cfg.normalization_type is not None:
            residual = _norm(self.model.ln_final, residual)
        outputs: Tensor = residual @ self.model.W_U + self.model.b_U
        return outputs


def _updated(base: Tensor, changed: list[int], new: Callable[[], Tensor]) -> Tensor:
    """The base with some roles replaced."""
    if not changed:
        return base
    updated = base.clone()
    updated[:, changed] = new()
    return updated


def _weighted(terms: list[tuple[Tensor, float]]) -> Tensor:
    total = terms[0][0] * terms[0][1]
    for tensor, weight in terms[1:]:
        total = total.add_(tensor, alpha=weight)
    return total


def _norm(norm: torch.nn.Module, x: Tensor) -> Tensor:
    """TransformerLens's layer norm in one fused step; its hooks are not needed here."""
    if isinstance(norm, torch.nn.Identity):
        return x
    normalized: Tensor = F.layer_norm(x, x.shape[-1:], norm.w, norm.b, norm.eps)  # type: ignore
    return normalized


def _mlp(mlp: Any, x: Tensor, activation: str) -> Tensor:
    """TransformerLens's MLP with a fused activation."""
    hidden: Tensor = F.linear(x, mlp.W_in.T, mlp.b_in)
    hidden = F.relu(hidden) if activation == "relu" else F.gelu(hidden, approximate="tanh")
    written: Tensor = F.linear(hidden, mlp.W_out.T, mlp.b_out)
    return written
