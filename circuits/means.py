"""Mean attention of heads, by role and by position, and its overlap with that of mechanisms."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from retrieval_interp.circuits import hooks
from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.hooks import HookedModel
from retrieval_interp.circuits.mechanisms import (
    Mean,
    Mechanism,
    RoleMean,
    Shared,
    one_hot_or_shared,
)
from retrieval_interp.circuits.paths import (
    Head,
    Positions,
    RolePath,
    attention_by_role,
    first_real,
    shifted,
)
from retrieval_interp.circuits.replacement import KeptPatterns, ablated
from retrieval_interp.tasks import Batch
from retrieval_interp.tasks.messages import check_type

_NEGLIGIBLE = 0.005  # paths with less mean attention are left out of role-mean heads
_AT_ONCE = 50_000_000  # attention weights that are in memory at once


def mean_attention(
    model: HookedModel, batch: Batch, circuit: Circuit | None = None
) -> Float[Tensor, "layer head role role2"]:
    """Mean attention from each role to each role of the same chain, per head.

    It is that of the intact model or, as in `read_patterns`, with a circuit in place.

    With A[l, h, b] the attention pattern of head h in layer l on example b, and roles[b, c, r] the
    position of role r of chain c, over the examples and chains that have both roles,

        mean[l, h, dest, src] = mean over b and c of A[l, h, b, roles[b, c, dest], roles[b, c, src]]

    If several chains have role dest at the same position, as where one position answers for all of
    them, the attention from there to role src of all these chains is added up.

    Returns:
        [layer head dest src], each in [0, 1]. If a row sums to less than 1, the rest goes to other
        chains and to positions without a role.

    Examples:
        >>> import retrieval_interp as ri
        >>> small = ri.load_checkpoint("small")
        >>> attention = ri.mean_attention(small.model, small.task.sample(64, split="test"))
        >>> attention.shape  # layer, head, dest, src
        torch.Size([5, 1, 7, 7])
        >>> round(attention[2, 0, 0, 2].item(), 2)  # L2.H0 s0<-s2
        0.89
    """
    check_type(batch, Batch, "batch")

    def of_part(part: Batch) -> tuple[Tensor, Tensor]:
        layers = read_patterns(model, part, lambda p: attention_by_role(p, part.roles), circuit)
        return torch.stack([mean for mean, _ in layers]), layers[0][1]

    means, counts = zip(*map(of_part, hooks.parts_of(model, batch)))
    total = torch.stack(counts).sum(0).clamp(min=1)
    return torch.stack([m * (count / total) for m, count in zip(means, counts)]).sum(0)


def allowed_attention(
    attention: Float[Tensor, "layer head dest src"], batch: Batch, model: HookedModel
) -> Float[Tensor, "layer head dest src"]:
    """Set mean attention by role to 0 for paths that a layer's mask forbids."""
    allowed = torch.zeros_like(attention)
    for layer, positions in enumerate(hooks.positions_by_layer(model, batch)):
        for dest, src in positions.paths:
            allowed[layer, :, dest, src] = 1
    return attention * allowed


def propose(attention: Float[Tensor, "dest src"], kind: str, threshold: float) -> Shared:
    """Return the mechanism along paths whose mean attention reaches a threshold.

    Of a role's sources, `one-hot` keeps the strongest and `shared` all.
    """
    paths = []
    for dest, row in enumerate(attention.tolist()):
        sources = [src for src, weight in enumerate(row) if weight >= threshold]
        if kind == "one-hot" and sources:
            sources = [max(sources, key=lambda src: row[src])]
        paths += [RolePath(dest, src) for src in sources]
    return one_hot_or_shared(paths)


def role_mean(attention: Float[Tensor, "dest src"]) -> RoleMean:
    """Return a head's mean attention by role as a mechanism.

    Rows that sum to more than 1, which sources at the same position can cause, are scaled to 1.
    """
    attention = attention / attention.sum(-1, keepdim=True).clamp(min=1)
    weights = {
        RolePath(dest, src): min(1.0, weight)
        for dest, row in enumerate(attention.tolist())
        for src, weight in enumerate(row)
        if weight >= _NEGLIGIBLE
    }
    return RoleMean(tuple(weights), tuple(weights.values()))


@torch.no_grad()
def mean_patterns(model: HookedModel, batch: Batch) -> Float[Tensor, "layer head dest src"]:
    """Return mean attention by position, over examples where it counts (`_counted_positions`).

    Positions count from the first that is no padding.
    """
    causal, total = hooks.is_causal(model, batch), list[Tensor]()
    for part in _small_batches(model, batch):
        weights = _counted_positions(part, causal)[:, None, :, None]
        patterns = read_patterns(model, part, Tensor.float)
        sums = [_from_start(pattern * weights, part, (2, 3)).sum(0) for pattern in patterns]
        total = [a + b for a, b in zip(total, sums)] if total else sums
    count = _from_start(_counted_positions(batch, causal), batch, (1,)).sum(0)
    return torch.stack(total) / count.clamp(min=1)[None, None, :, None]


def position_means(model: HookedModel, batch: Batch) -> dict[Head, Mechanism]:
    """Return the mean pattern of every head by position, as a mechanism."""
    layers = enumerate(mean_patterns(model, batch).cpu())
    return {
        Head(layer, head): Mean(mean) for layer, means in layers for head, mean in enumerate(means)
    }


class Overlap(NamedTuple):
    """The share of a head's attention that a mechanism gives to the same sources.

    At a position it is Σ min(pattern, mechanism) over sources: 1 minus their total variation
    distance.
    """

    mean: float  # over the positions that count (`_counted_positions`)
    by_role: Float[Tensor, " role"]  # mean over the positions of each role; 0 if it is absent


def overlaps(
    model: HookedModel, batch: Batch, mechanisms: Mapping[Head, Sequence[Mechanism]]
) -> dict[Head, list[Overlap]]:
    """Return the overlap of every head's patterns with each of its mechanisms."""
    causal, roles = hooks.is_causal(model, batch), batch.roles
    means = {head: [0.0] * len(of_head) for head, of_head in mechanisms.items()}
    by_role = {head: [torch.zeros(roles.shape[-1])] * len(of) for head, of in mechanisms.items()}
    for part in _small_batches(model, batch):
        patterns = read_patterns(model, part, Tensor.float)
        kept = KeptPatterns(model, part)
        positions = part.roles.flatten(1)
        for head, of_head in mechanisms.items():
            for index, mechanism in enumerate(of_head):
                pattern = patterns[head.layer][:, head.head]
                rule = kept.of(mechanism, head.layer)
                overlap = torch.minimum(pattern, rule).sum(-1)
                means[head][index] += float((overlap * _counted_positions(part, causal)).sum())
                there = overlap.gather(1, positions.clamp(min=0)).masked_fill(positions < 0, 0.0)
                of_roles = there.view_as(part.roles).sum((0, 1)).cpu()
                by_role[head][index] = by_role[head][index] + of_roles
    count = float(_counted_positions(batch, causal).sum()) or 1.0
    present = (roles >= 0).sum((0, 1)).clamp(min=1).cpu()
    return {
        head: [Overlap(mean / count, of / present) for mean, of in zip(means[head], by_role[head])]
        for head in mechanisms
    }


Targets = Callable[[Positions], Bool[Tensor, "#batch dest src"]]


def attention_to(
    model: HookedModel, batch: Batch, targets: Sequence[Targets]
) -> Float[Tensor, "targets layer head"]:
    """Every head's mean attention to some earlier positions, beyond that of uniform attention.

    With a the attention of a position to its targets and u their share of all that it may see, the
    mean of (a - u) / (1 - u) over positions that have targets and others: 1 if all goes there, 0 as
    of uniform. NaN where there are none. Only `_counted_positions` count.
    """
    size, causal = (len(targets), model.cfg.n_layers), hooks.is_causal(model, batch)
    total, count = torch.zeros(*size, model.cfg.n_heads), torch.zeros(*size, 1)
    for part in _small_batches(model, batch):
        patterns, asked = read_patterns(model, part, Tensor.float), _counted_positions(part, causal)
        for layer, positions in enumerate(hooks.positions_by_layer(model, part)):
            for number, targets_of in enumerate(targets):
                there = (targets_of(positions) & positions.allowed).tril(-1)
                uniform = there.sum(-1) / positions.allowed.sum(-1).clamp(min=1)
                rows = asked * ((uniform > 0) & (uniform < 1))
                on_them = (patterns[layer] * there[:, None]).sum(-1)
                beyond = (on_them - uniform[:, None]) / (1 - uniform).clamp(min=1e-6)[:, None]
                total[number, layer] += (beyond * rows[:, None]).sum((0, 2)).cpu()
                count[number, layer] += rows.sum().cpu()
    return total / count


@torch.no_grad()
def read_patterns(
    model: HookedModel,
    batch: Batch,
    keep: Callable[[Tensor], Any],
    circuit: Circuit | None = None,
) -> list[Any]:
    """Return what `keep` makes of each layer's pattern, [batch head dest src].

    With a circuit in place, the pattern is what weighs values: in what a head writes as on a
    counterfactual prompt, the attention there.
    """
    layers, count = list[Any](), model.cfg.n_layers
    in_place = nullcontext() if circuit is None else ablated(model, circuit, batch)

    def note(pattern: Tensor, hook: Any) -> None:
        value_weights = (
            _value_weights(circuit, hook.layer(), pattern, batch) if circuit else pattern
        )
        layers.append(keep(value_weights.detach()))

    if all(hooks.pattern_hook_name(layer) in hooks.hook_points(model) for layer in (0, count - 1)):
        noting = hooks.in_all_layers(model, "hook_pattern", note)
        with in_place, hooks.measuring(model), hooks.hooked(model, noting):
            model(batch.inputs, **hooks.call_options(batch), return_type=None)
    hooks.check_fired(model, "pattern", len(layers))
    return layers


def _value_weights(circuit: Circuit, layer: int, pattern: Tensor, batch: Batch) -> Tensor:
    """Return a layer's pattern; of patched heads the attention that weighs their values."""
    pattern = pattern.clone()
    for head, mechanism in circuit.mechanisms.items():
        if head.layer == layer and mechanism.is_patched:
            there = batch.counterfactual_of(*head)
            pattern[:, head.head] = mechanism.value_weights(
                pattern[:, head.head], there, batch.roles
            )
    return pattern


def _counted_positions(batch: Batch, causal: bool) -> Float[Tensor, "batch pos"]:
    """Return 1 at positions that count, 0 at padding and, if causal, after all roles."""
    last = batch.roles.flatten(1).amax(1, keepdim=True)
    counts = torch.arange(batch.inputs.shape[1], device=last.device) <= last
    counts = counts if causal else torch.ones_like(counts)
    return (counts if batch.attention_mask is None else counts & batch.attention_mask).float()


def _from_start(x: Tensor, batch: Batch, dims: tuple[int, ...]) -> Tensor:
    real = batch.attention_mask
    return x if real is None else shifted(x, -first_real(real), dims)


def _small_batches(model: HookedModel, batch: Batch) -> list[Batch]:
    weights = model.cfg.n_layers * model.cfg.n_heads * batch.inputs.shape[1] ** 2
    return list(batch.parts(max(1, _AT_ONCE // weights)))
