"""Running a model under many circuits without computing anything twice.

Two ways with one interface: `HookRuns` on any hooked model, and `RoleRuns`, exact and much faster,
on plain causal or bidirectional transformers in which every position has a role.

`RoleRuns` keeps the residual stream by role, [batch role chain d_model], after every layer of one
run, the base. For another circuit

1. *affected* roles are followed upwards: a role whose attention row differs from the base's, or
   that attends to an affected role, is affected from there on;
2. *needed* roles are followed downwards from the scored role s0: what a needed role attends to is
   needed one layer below;
3. only roles that are both are computed, layer by layer; all others are the base's, exactly.

A row that a circuit fixes costs no queries, keys or softmax: attention is then a mean over sources,
taken before the value projection, since both are linear.
"""

from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float, Shaped
from torch import Tensor

from circuits.ablation import ablated, is_causal
from circuits.circuit import Circuit
from circuits.mechanisms import Mechanism, Rest
from tasks import Batch, InputError

SCORED_ROLE = 0


def make_runs(model: Any, batch: Batch, n_queries: int) -> "HookRuns | RoleRuns":
    """The fastest way that is exact for this model and batch."""
    empty = Circuit({}, batch.roles.shape[-1])
    if RoleRuns.supports(model, batch):
        return RoleRuns(model, batch, empty)
    return HookRuns(model, batch, n_queries, empty)


class HookRuns:
    """Whole layers of a hooked model, from the first in which a circuit differs from the base."""

    def __init__(self, model: Any, batch: Batch, n_queries: int, circuit: Circuit):
        self.model, self.batch, self.n_queries = model, batch, n_queries
        self.rebase(circuit)

    @torch.no_grad()
    def rebase(self, circuit: Circuit) -> Float[Tensor, "batch query d_out"]:
        residuals: list[Tensor] = []

        def keep(residual: Tensor, hook: Any) -> None:
            residuals.append(residual.detach())

        names = [f"blocks.{layer}.hook_resid_pre" for layer in range(self.model.cfg.n_layers)]
        with (
            self.model.hooks(fwd_hooks=[(name, keep) for name in names]),
            ablated(self.model, circuit, self.batch),
        ):
            outputs: Tensor = self.model(self.batch.inputs)
        if len(residuals) != len(names):
            raise InputError(
                f"scoring: expected hook_resid_pre to fire once in each of {len(names)} layers, "
                f"found {len(residuals)} times"
            )
        self.base, self.residuals = circuit, residuals
        self.base_outputs = outputs[:, -self.n_queries :]
        return self.base_outputs

    @torch.no_grad()
    def outputs(self, circuit: Circuit) -> Float[Tensor, "batch query d_out"]:
        layer = self._first_difference(circuit)
        if layer is None:
            return self.base_outputs
        with ablated(self.model, circuit, self.batch, first_layer=layer):
            outputs: Tensor = self.model(self.residuals[layer], start_at_layer=layer)
        return outputs[:, -self.n_queries :]

    def _first_difference(self, circuit: Circuit) -> int | None:
        if circuit.rest != self.base.rest:
            return 0
        heads = circuit.mechanisms.keys() | self.base.mechanisms.keys()
        return min((head.layer for head in heads if circuit[head] != self.base[head]), default=None)


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
            and not model.cfg.parallel_attn_mlp
            and not model.cfg.use_local_attn
            and not model.cfg.use_qk_norm
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
        for layer in range(self.cfg.n_layers):
            self.residuals.append(self._layer(layer, self.residuals[-1], self.rows, self.all_roles))
        self.base = circuit
        self.base_outputs = self._read_out(self.residuals[-1][:, SCORED_ROLE])

    @torch.no_grad()
    def rebase(self, circuit: Circuit) -> Float[Tensor, "batch query d_out"]:
        self.rows, self.residuals = self._run(circuit, keep=True)
        self.base = circuit
        self.base_outputs = self._read_out(self.residuals[-1][:, SCORED_ROLE])
        return self.base_outputs

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
                after[:, dests] = self._layer(layer, residuals[-1], rows, dests)
            residuals.append(after)
        return rows, residuals

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
        blocks = rearrange(
            self.mask,
            "b (dest c1) (src c2) -> dest src (b c1 c2)",
            c1=self.n_chains,
            c2=self.n_chains,
        )
        return [
            {src for src, seen in enumerate(row) if seen} for row in blocks.any(dim=-1).tolist()
        ]

    def _by_role(self, x: Shaped[Tensor, "batch pos d"]) -> Shaped[Tensor, "batch role chain d"]:
        return rearrange(x, "batch (role chain) d -> batch role chain d", chain=self.n_chains)

    def _rows_of(self, matrix: Tensor, dests: list[int]) -> Tensor:
        """The rows of some roles out of [batch dest src]."""
        return self._by_role(matrix)[:, dests].flatten(1, 2)

    def _layer(
        self, layer: int, residual: Tensor, rows: list[list[list[Row]]], dests: list[int]
    ) -> Float[Tensor, "batch dest chain d_model"]:
        """The residual stream after a layer, at some roles."""
        block = self.model.blocks[layer]
        heads = rows[layer]
        sources = {src for row in heads for dest in dests for src in self._sources(row[dest], dest)}
        original = any(row[dest][0] == "original" for row in heads for dest in dests)
        used = sorted(sources | set(dests)) if original else sorted(sources)
        normalized = dict(zip(used, block.ln1(residual[:, used]).unbind(1))) if used else {}
        everything: Tensor | None = None
        if original or any(row[dest][0] == "uniform" for row in heads for dest in dests):
            # Roles that nobody sees are hidden by the mask; their numbers do not matter.
            blank = torch.zeros_like(residual[:, 0])
            everything = torch.stack([normalized.get(r, blank) for r in self.all_roles], 1)
            everything = everything.flatten(1, 2)
        out = block.attn.b_O.expand(len(residual), len(dests), self.n_chains, -1)
        for head, row in enumerate(heads):
            out = out + self._head(layer, head, row, dests, normalized, everything)
        result: Tensor = residual[:, dests] + out
        if not self.cfg.attn_only:
            result = result + block.mlp(block.ln2(result).flatten(1, 2)).view_as(result)
        return result

    def _head(
        self,
        layer: int,
        head: int,
        row: list[Row],
        dests: list[int],
        normalized: dict[int, Tensor],
        everything: Tensor | None,
    ) -> Float[Tensor, "batch dest chain d_model"]:
        """What a head writes at some roles, without the output bias."""
        attn = self.model.blocks[layer].attn
        shape = (len(self.mask), len(dests), self.n_chains, self.cfg.d_head)
        z = attn.W_V.new_zeros(shape)
        fixed = [place for place, d in enumerate(dests) if row[d][0] == "fixed" and row[d][1]]
        if fixed:
            shares = [row[dests[place]][1] for place in fixed]
            means = torch.stack(
                [
                    torch.stack([normalized[src] * weight for src, weight in group]).sum(dim=0)
                    for group in shares
                ],
                1,
            )
            totals = z.new_tensor([sum(weight for _, weight in group) for group in shares])
            z[:, fixed] = means @ attn.W_V[head] + totals[:, None, None] * attn.b_V[head]
        spread = [place for place, dest in enumerate(dests) if row[dest][0] == "uniform"]
        if spread:
            assert everything is not None
            mask = self._rows_of(self.mask, [dests[place] for place in spread]).to(everything)
            means = (mask / mask.sum(-1, keepdim=True)) @ everything
            z[:, spread] = self._by_role(means @ attn.W_V[head] + attn.b_V[head])
        live = [place for place, dest in enumerate(dests) if row[dest][0] == "original"]
        if live:
            assert everything is not None
            chosen = [dests[place] for place in live]
            z[:, live] = self._attend(attn, head, row, chosen, everything)
        written: Tensor = z @ attn.W_O[head]
        return written

    def _attend(
        self, attn: Any, head: int, row: list[Row], dests: list[int], everything: Tensor
    ) -> Float[Tensor, "batch dest chain d_head"]:
        """The model's own attention at some roles, less the paths that are cut."""
        q = self._rows_of(everything, dests) @ attn.W_Q[head] + attn.b_Q[head]
        k = everything @ attn.W_K[head] + attn.b_K[head]
        v = everything @ attn.W_V[head] + attn.b_V[head]
        scores = q @ k.transpose(1, 2) / attn.attn_scale
        pattern = scores.masked_fill(~self._rows_of(self.mask, dests), -torch.inf).softmax(-1)
        chain = torch.arange(self.n_chains, device=pattern.device)
        for place, dest in enumerate(dests):
            for src, _ in row[dest][1]:
                pattern[:, place * self.n_chains + chain, src * self.n_chains + chain] = 0.0
        return self._by_role(pattern @ v)

    def _read_out(
        self, residual: Float[Tensor, "batch chain d_model"]
    ) -> Float[Tensor, "batch chain d_out"]:
        if self.cfg.normalization_type is not None:
            residual = self.model.ln_final(residual)
        outputs: Tensor = residual @ self.model.W_U + self.model.b_U
        return outputs
