"""Means: of losses over examples, and of heads' attention by role and by position."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits import hooks
from retrieval_interp.circuits.attention import attention_by_role, first_real, shifted
from retrieval_interp.circuits.circuit import Head, RolePath
from retrieval_interp.circuits.mechanisms import Mean, Mechanism, RoleMean
from retrieval_interp.circuits.runs.runs import parts_of
from retrieval_interp.tasks import Batch, InputError

_NEGLIGIBLE = 0.005  # weaker paths are left out of role-mean heads
_AT_ONCE = 50_000_000  # weights of the patterns that are held at once


def mean_loss(losses: Float[Tensor, "batch target"]) -> float:
    """The mean over targets, then over examples; the same everywhere, so equal runs score equal."""
    return float(losses.mean(dim=1).mean())


def standard_error(losses: Float[Tensor, " batch"]) -> float:
    """The standard error of the mean over n examples, s / √n; 0 for a single one."""
    return float(losses.std()) / len(losses) ** 0.5 if len(losses) > 1 else 0.0


def mean_attention(model: Any, batch: Batch) -> Float[Tensor, "layer head role role2"]:
    """Mean attention from each role to each role of the same chain, per head.

    With A[l, h, b] the attention pattern of head h in layer l on example b, and roles[b, c, r] the
    position of role r of chain c, over the examples and chains that have both roles,

        mean[l, h, dest, src] = mean over b and c of A[l, h, b, roles[b, c, dest], roles[b, c, src]]

    Where several chains have role dest at the same position, as where one position answers for all
    of them, it is the attention from there to role src of all these chains together.

    Returns:
        [layer head dest src], each in [0, 1]. What a row lacks to 1 goes to other chains (and to
        positions without a role).

    Examples:
        >>> import retrieval_interp as ri
        >>> small = ri.load_checkpoint("small")
        >>> attention = ri.mean_attention(small.model, small.task.sample(64, split="test"))
        >>> attention.shape  # layer, head, dest, src
        torch.Size([5, 1, 7, 7])
        >>> round(attention[2, 0, 0, 2].item(), 2)  # L2.H0 s0<-s2
        0.89
    """

    def of_part(part: Batch) -> tuple[Tensor, Tensor]:
        layers = read_patterns(model, part, lambda p: attention_by_role(p, part.roles))
        return torch.stack([mean for mean, _ in layers]), layers[0][1]

    means, counts = zip(*map(of_part, parts_of(model, batch)))
    total = torch.stack(counts).sum(0).clamp(min=1)
    return torch.stack([m * (count / total) for m, count in zip(means, counts)]).sum(0)


def role_mean(attention: Float[Tensor, "dest src"]) -> RoleMean:
    """A head's mean attention by role as a mechanism.

    Rows that sum to more than 1, as where sources share positions, are scaled to 1.
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
def mean_patterns(model: Any, batch: Batch) -> Float[Tensor, "layer head dest src"]:
    """Mean attention by position, over the examples that have it (`_asked`).

    Positions count from the first that is no padding.
    """
    causal, total = hooks.is_causal(model, batch), list[Tensor]()
    for part in _parts(model, batch):
        weights = _asked(part, causal)[:, None, :, None]
        patterns = read_patterns(model, part, Tensor.float)
        sums = [_from_start(pattern * weights, part, (2, 3)).sum(0) for pattern in patterns]
        total = [a + b for a, b in zip(total, sums)] if total else sums
    count = _from_start(_asked(batch, causal), batch, (1,)).sum(0)
    return torch.stack(total) / count.clamp(min=1)[None, None, :, None]


def position_means(model: Any, batch: Batch) -> dict[Head, Mechanism]:
    """The mean pattern of every head by position, as a mechanism."""
    layers = enumerate(mean_patterns(model, batch).cpu())
    return {Head(at, head): Mean(mean) for at, of in layers for head, mean in enumerate(of)}


def head_means(
    model: Any, batch: Batch, attention: Float[Tensor, "layer head dest src"]
) -> dict[Head, Mechanism]:
    """The mean of every head, by position or by role, whichever shares more with its patterns.

    `attention` is the mean by role.
    """
    by_role = batch.roles.shape[-1] > 1
    means: dict[Head, list[Mechanism]] = {
        head: [*([role_mean(attention[head])] if by_role else []), mean]
        for head, mean in position_means(model, batch).items()
    }
    shares = pattern_shares(model, batch, means)
    best = {head: max(range(len(own)), key=own.__getitem__) for head, own in shares.items()}
    return {head: means[head][at] for head, at in best.items()}


def pattern_shares(
    model: Any, batch: Batch, mechanisms: Mapping[Head, Sequence[Mechanism]]
) -> dict[Head, list[float]]:
    """What the pattern of every head shares with each of its mechanisms.

    Σ min(pattern, mechanism) over sources, as a mean over the positions that count (`_asked`): 1 if
    they are equal, and 1 minus their total variation distance in general.
    """
    sums = {head: [0.0] * len(of_head) for head, of_head in mechanisms.items()}
    causal = hooks.is_causal(model, batch)
    for part, head, place, shared in _shared_rows(model, batch, mechanisms):
        sums[head][place] += float((shared * _asked(part, causal)).sum())
    total = float(_asked(batch, causal).sum()) or 1.0
    return {head: [each / total for each in of_head] for head, of_head in sums.items()}


def role_shares(
    model: Any, batch: Batch, mechanisms: Mapping[Head, Sequence[Mechanism]]
) -> dict[Head, list[Float[Tensor, " role"]]]:
    """As `pattern_shares`, as a mean over the positions of each role; 0 for one that is absent."""
    roles = batch.roles
    sums = {head: [torch.zeros(roles.shape[-1])] * len(own) for head, own in mechanisms.items()}
    for part, head, place, shared in _shared_rows(model, batch, mechanisms):
        at = part.roles.flatten(1)
        of_roles = shared.gather(1, at.clamp(min=0)).masked_fill(at < 0, 0.0)
        sums[head][place] = sums[head][place] + of_roles.view_as(part.roles).sum((0, 1)).cpu()
    total = (roles >= 0).sum((0, 1)).clamp(min=1).cpu()
    return {head: [each / total for each in of_head] for head, of_head in sums.items()}


def _shared_rows(
    model: Any, batch: Batch, mechanisms: Mapping[Head, Sequence[Mechanism]]
) -> Iterator[tuple[Batch, Head, int, Float[Tensor, "batch dest"]]]:
    for part in _parts(model, batch):
        pattern_of = hooks.Patterns(part, model)
        patterns = read_patterns(model, part, Tensor.float)
        for head, of_head in mechanisms.items():
            for place, mechanism in enumerate(of_head):
                own, other = patterns[head.layer][:, head.head], pattern_of(mechanism, head.layer)
                yield part, head, place, torch.minimum(own, other).sum(-1)


@torch.no_grad()
def read_patterns(model: Any, batch: Batch, keep: Callable[[Tensor], Any]) -> list[Any]:
    """What `keep` makes of every layer's pattern, [batch head dest src], in one run."""
    layers, count = list[Any](), model.cfg.n_layers

    def note(pattern: Tensor, hook: Any) -> None:
        layers.append(keep(pattern.detach()))

    if all(hooks.pattern_hook_name(layer) in model.hook_dict for layer in (0, count - 1)):
        noting = hooks.in_all_layers(model, "hook_pattern", note)
        how = {**hooks.call_options(batch), "fwd_hooks": noting, "return_type": None}
        with hooks.measuring(model):
            model.run_with_hooks(batch.inputs, **how)
    if len(layers) != count:
        raise InputError(
            f"attention: expected {hooks.pattern_hook_name(0)} and its counterparts to fire in "
            f"{count} layers, found {len(layers)}; load the model as a HookedTransformer or "
            "TransformerBridge"
        )
    return layers


def _asked(batch: Batch, causal: bool) -> Float[Tensor, "batch pos"]:
    """1 at positions that count, 0 at others: padding and, in a causal model, after all roles."""
    last = batch.roles.flatten(1).amax(1, keepdim=True)
    asked = torch.arange(batch.inputs.shape[1], device=last.device) <= last
    asked = asked if causal else torch.ones_like(asked)
    return (asked if batch.attention_mask is None else asked & batch.attention_mask).float()


def _from_start(x: Tensor, batch: Batch, dims: tuple[int, ...]) -> Tensor:
    real = batch.attention_mask
    return x if real is None else shifted(x, -first_real(real), dims)


def _parts(model: Any, batch: Batch) -> list[Batch]:
    each = model.cfg.n_layers * model.cfg.n_heads * batch.inputs.shape[1] ** 2
    return list(batch.parts(max(1, _AT_ONCE // each)))
