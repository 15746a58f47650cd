"""Where the values along a path come from: the embedding, and attention and MLPs by layer.

The input of a layer is the embedding plus what attention and MLPs before it wrote. With the scale
of the layer norm held fixed, values are linear in these parts. With P, V and P', V' on the prompt
and its counterfactual, and g the gradient of the metric by what the head writes, each part
contributes

    (P + P') / 2 (V_part - V'_part) g

and together they add up to what the path contributes by its values (`units.contributions`).
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.direct_effect import LinearNorm
from retrieval_interp.circuits.hooks import (
    HookedModel,
    call_options,
    hook_points,
    hooked,
    measuring,
)
from retrieval_interp.circuits.paths import HeadPath, rows_of
from retrieval_interp.tasks import Batch

_EXACT = 0.01  # share of a path's contribution by which the sum of its parts may differ from it


class Origin(NamedTuple):
    """What each part contributes through a path, in units of the metric."""

    embedding: float
    attention: tuple[float, ...]  # by layer
    mlp: tuple[float, ...]  # by layer

    @property
    def total(self) -> float:
        """What the path contributes by its values."""
        return self.embedding + sum(self.attention) + sum(self.mlp)


@torch.no_grad()
def origins(
    model: HookedModel,
    batch: Batch,
    counterfactuals: Batch,
    paths: Iterable[HeadPath],
    slopes: Float[Tensor, "layer batch pos head d_head"],
) -> dict[HeadPath, Origin]:
    """Attribute what each path contributes by its values to the parts before it.

    Args:
        model: a hooked model; left unchanged.
        batch: the examples, with the attention of their counterfactuals.
        counterfactuals: the counterfactual prompts.
        paths: the paths to explain.
        slopes: gradients of the metric by what the heads of each layer write, as in
            `Contributions`.

    Returns:
        An origin for each path whose parts add up, as they do if values are linear in them.
    """
    paths = list(paths)
    runs = [_Run(model, prompts, paths) for prompts in (batch, counterfactuals)] if paths else []
    origin_of = {path: _origin(model, path, runs, batch.roles, slopes) for path in paths}
    return {path: origin for path, origin in origin_of.items() if origin is not None}


class _Run:
    """The residual stream of the intact model at the sources of paths, and their attention."""

    def __init__(self, model: HookedModel, batch: Batch, paths: Sequence[HeadPath]):
        self.roles = sorted({path.path.src for path in paths})
        self.streams: dict[tuple[str, int], Float[Tensor, "batch chain role d_model"]] = {}
        self.layers: dict[tuple[str, int], Tensor] = {}
        example = torch.arange(len(batch), device=batch.roles.device)[:, None, None]
        position = batch.roles[:, :, self.roles].clamp(min=0)
        # A parallel block, which adds attention and MLP to the same stream, has no middle.
        middle = "hook_resid_mid" if _has(model, "hook_resid_mid") else "hook_mlp_out"
        parts = ["hook_resid_pre", "hook_resid_post", *([middle] if _has(model, middle) else [])]

        def note(part: str, x: Tensor, hook: Any, layer: int) -> None:
            self.streams[part, layer] = x[example, position].float()

        def note_attention(part: str, x: Tensor, hook: Any, layer: int) -> None:
            self.layers[part, layer] = x.float()

        hooks: list[Any] = []
        for layer in range(model.cfg.n_layers):
            for part in parts:
                hooks.append((f"blocks.{layer}.{part}", partial(note, part, layer=layer)))
        for layer in {path.head.layer for path in paths}:
            for part in ("pattern", "v"):
                name = f"blocks.{layer}.attn.hook_{part}"
                hooks.append((name, partial(note_attention, part, layer=layer)))
        with measuring(model), hooked(model, hooks):
            model(batch.inputs, **call_options(batch), return_type=None)

    def parts(self, layer: int, src: int) -> Float[Tensor, "part batch chain d_model"]:
        """Split what enters a layer at a role: embedding, then attention and MLP by layer."""
        here = self.roles.index(src)
        stream = {key: x[:, :, here] for key, x in self.streams.items()}
        parts = [stream["hook_resid_pre", 0]]
        for before in range(layer):
            start, end = stream["hook_resid_pre", before], stream["hook_resid_post", before]
            if ("hook_resid_mid", before) in stream:
                mlp = end - stream["hook_resid_mid", before]
            else:
                mlp = stream.get(("hook_mlp_out", before), torch.zeros_like(end))
            parts += [end - start - mlp, mlp]
        return torch.stack(parts)


def _has(model: HookedModel, part: str) -> bool:
    return f"blocks.0.{part}" in hook_points(model)


def _origin(
    model: HookedModel,
    path: HeadPath,
    runs: Sequence[_Run],
    roles: Tensor,
    slopes: Tensor,
) -> Origin | None:
    """Attribute one path; None if the parts do not add up."""
    (layer, head), (dest, src) = path
    attn, norm = model.blocks[layer].attn, getattr(model.blocks[layer], "ln1", None)
    if norm is None:
        return None
    linear = LinearNorm(norm, model)
    weights = attn.W_V[head * len(attn.W_V) // model.cfg.n_heads].float()
    present = (roles[:, :, dest] >= 0) & (roles[:, :, src] >= 0)
    position, sources = rows_of(dest, roles), roles[:, :, src].clamp(min=0)[..., None]
    slope = slopes[layer][:, :, head][position] / len(roles)  # [batch chain d_head]
    patterns = [run.layers["pattern", layer][:, head][position].gather(-1, sources) for run in runs]
    attention = torch.stack(patterns).mean(0)[..., 0].masked_fill(~present, 0.0)  # (P + P') / 2
    sums, totals = [], []
    for run in runs:
        parts = run.parts(layer, src)
        values = linear(parts) * linear.scale_at(parts.sum(0)) @ weights
        sums.append(torch.einsum("pbce,bce,bc->p", values, slope, attention))
        v = run.layers["v", layer]
        v = v[:, :, head * v.shape[2] // model.cfg.n_heads][rows_of(src, roles)]
        totals.append(float(torch.einsum("bce,bce,bc->", v, slope, attention)))
    added, total = (sums[0] - sums[1]).tolist(), totals[0] - totals[1]
    if abs(sum(added) - total) > _EXACT * sum(map(abs, added)):
        return None
    return Origin(embedding=added[0], attention=tuple(added[1::2]), mlp=tuple(added[2::2]))
