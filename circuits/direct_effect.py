"""What heads write to the logits by themselves: direct effects, and copying.

1. A *direct effect* is what a head adds to the logit of the next token, minus the mean over all
   tokens: z W_O through the final norm, with its scale held fixed, and W_U. TransformerLens's
   `ActivationCache.logit_attrs` gives the same for weights with folded norms and a centred W_U.
2. A head *copies* a token if its OV circuit raises the token's own logit most (the copy score of
   Wang et al. 2023, https://arxiv.org/abs/2211.00593). As there, a token is what the residual
   stream is after the first MLP. Unlike there, it stands alone after the text's first token,
   and its logit is compared with those of the text's tokens, not of the vocabulary.
"""

import math
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from retrieval_interp.circuits.hooks import HookedModel, call_options, heads_of, hooked, measuring
from retrieval_interp.circuits.losses import Measured
from retrieval_interp.circuits.paths import Head
from retrieval_interp.tasks import Batch

_AT_ONCE = 30_000_000  # numbers that heads write and that are held at once

Vectors = Float[Tensor, "*any d_model"]


class LinearNorm:
    """A norm without its bias and scale. Whether it centres, and its weight, is seen on vectors."""

    def __init__(self, norm: nn.Module | None, model: HookedModel):
        half, device = model.cfg.d_model // 2, next(model.parameters()).device
        unit = torch.full((model.cfg.d_model,), -float(half), device=device)
        unit[:half] += model.cfg.d_model  # no zeros; their mean is zero,
        unit /= unit.square().mean().sqrt()  # and that of their squares one
        self.norm = None if isinstance(norm, nn.Identity) else norm
        self.weight, self.bias, self.centres = torch.ones_like(unit), 0 * unit, False
        if self.norm is not None:
            large = 1000 * torch.stack([0 * unit, unit, unit + 1])  # beside its epsilon
            self.bias, there, moved = self._whole(large)
            self.weight = (there - self.bias) / unit
            self.centres = bool((there - moved).abs().sum() < 0.1 * self.weight.abs().sum())

    def _whole(self, x: Vectors) -> Vectors:
        """Call the norm itself, with its model's axes and type."""
        if self.norm is None:
            return x
        dtype = next((p.dtype for p in self.norm.parameters()), x.dtype)
        normed: Tensor = self.norm(x.reshape(1, -1, x.shape[-1]).to(dtype))
        return normed.float().reshape(x.shape)

    def scale_at(self, x: Vectors) -> Float[Tensor, "*any 1"]:
        """Return the number by which the norm multiplies x, besides its weight."""
        linear = self(x)
        product = ((self._whole(x) - self.bias) * linear).sum(-1, keepdim=True)
        return product / linear.square().sum(-1, keepdim=True).clamp(min=1e-30)

    def __call__(self, x: Vectors) -> Vectors:
        return (x - x.mean(-1, keepdim=True) if self.centres else x) * self.weight

    def back(self, direction: Vectors) -> Vectors:
        """The direction whose product with x is that of `direction` with what the norm makes."""
        direction = direction * self.weight
        return direction - direction.mean(-1, keepdim=True) if self.centres else direction


@torch.no_grad()
def direct_effects(model: HookedModel, batch: Batch) -> dict[Head, Measured]:
    """What each head adds to the logit of the next token, in logits, with its standard error.

    Its mean over the tokens of each sequence, and over sequences. `batch.targets` [batch pos] holds
    the next tokens, and is negative where none is asked.
    """
    size = model.cfg.n_layers * model.cfg.n_heads * model.cfg.d_head * batch.inputs.shape[1]
    parts = batch.parts(max(1, _AT_ONCE // size))
    effects = torch.cat([_effects(model, part) for part in parts])
    return {head: Measured.of(effects[:, head.layer, head.head]) for head in heads_of(model)}


def _effects(model: HookedModel, batch: Batch) -> Float[Tensor, "batch layer head"]:
    seen, layers = dict[str, Tensor](), range(model.cfg.n_layers)

    def note(name: str, x: Tensor, hook: Any) -> None:
        seen[name] = x.float()

    # Gemma has a norm between attention and the residual stream, too.
    norms = {"ln_final": getattr(model, "ln_final", None)}
    norms |= {f"blocks.{n}.ln1_post": getattr(model.blocks[n], "ln1_post", None) for n in layers}
    names = [f"{name}.hook_scale" for name in norms]
    names += [f"blocks.{n}.attn.hook_z" for n in layers]
    hooks = [(name, partial(note, name)) for name in names]
    with measuring(model), hooked(model, hooks):
        model(batch.inputs, **call_options(batch), return_type=None)

    def through(name: str, direction: Tensor) -> Tensor:
        norm = norms[name]
        unseen = torch.tensor(1.0 if norm is None or isinstance(norm, nn.Identity) else math.nan)
        scale = seen.get(f"{name}.hook_scale", unseen)
        return LinearNorm(norm, model).back(direction) / scale.to(direction)

    W_U, asked = model.W_U.float(), batch.targets >= 0
    direction = W_U.T[batch.targets.clamp(min=0)] - W_U.mean(1)
    direction, effects = through("ln_final", direction), []
    for n in layers:
        W_O, here = model.blocks[n].attn.W_O.float(), through(f"blocks.{n}.ln1_post", direction)
        by_head = torch.einsum("bpm,hdm->bphd", here, W_O) * seen[f"blocks.{n}.attn.hook_z"]
        effects.append((by_head.sum(-1) * asked[..., None]).sum(1))
    return torch.stack(effects, 1) / asked.sum(1).clamp(min=1)[:, None, None]


@torch.no_grad()
def copy_scores(model: HookedModel, tokens: Int[Tensor, " token"], first: int) -> dict[Head, float]:
    """The share of tokens whose own logit a head's OV circuit raises most among these tokens.

    Each stands after the token `first`. Heads of the first layer, and those of a model without
    MLPs, read its embedding.
    """
    streams: list[Tensor] = []
    parts = ["pre"] if model.cfg.attn_only else ["pre", "post"]
    names = [f"blocks.0.hook_resid_{part}" for part in parts]
    note = [(name, lambda x, hook: streams.append(x[:, 1].float())) for name in names]
    with measuring(model), hooked(model, note):
        model(torch.stack([torch.full_like(tokens, first), tokens], 1), return_type=None)
    outputs, own = model.W_U.float()[:, tokens], torch.arange(len(tokens), device=tokens.device)
    final, scores = LinearNorm(getattr(model, "ln_final", None), model), dict[Head, float]()
    for layer, block in enumerate(model.blocks):
        norms = (getattr(block, name, None) for name in ("ln1", "ln1_post"))
        before, after = (LinearNorm(norm, model) for norm in norms)
        read, attn = before(streams[-1 if layer else 0]), block.attn
        for head in range(model.cfg.n_heads):  # several may share a value head
            W_V = attn.W_V[head * len(attn.W_V) // model.cfg.n_heads].float()
            # Scales are positive, so that they change no order.
            logits = final(after(read @ W_V @ attn.W_O[head].float())) @ outputs
            scores[Head(layer, head)] = float((logits.argmax(1) == own).float().mean())
    return scores
