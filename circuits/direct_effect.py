"""What heads write to the logits by themselves: direct effects, and copying.

1. A *direct effect* is what a head adds to the logit of the next token, less the mean over all
   tokens: z W_O through the final norm, whose scale is held, and W_U (direct logit attribution).
   The numbers are those of TransformerLens's `ActivationCache.logit_attrs` for weights into which
   norms are folded and whose W_U is centred, as `HookedTransformer.from_pretrained` gives them.
2. A head *copies* a token if its OV circuit raises the token's own logit most, as in the copy score
   of Wang et al. 2023 (appendix, https://arxiv.org/abs/2211.00593). As there, a token is what the
   residual stream is behind the first MLP. Other than there, it stands alone behind the text's
   first token, and its logit is compared with those of the text's tokens, not of the vocabulary.

A norm is linear where its scale is held. Its weight, and whether it takes off the mean, are seen in
what it does, since every kind of model has norms of its own.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from retrieval_interp.circuits.circuit import Head
from retrieval_interp.circuits.hooks import call_options, heads_of, hooked, in_all_layers, measuring
from retrieval_interp.circuits.losses import Measured
from retrieval_interp.circuits.models.contract import HookedModel
from retrieval_interp.tasks import Batch

_AT_ONCE = 30_000_000  # numbers that heads write and that are held at once

Vectors = Float[Tensor, "*any d_model"]


class _LinearNorm:
    """A norm without its bias, for a scale that is held."""

    def __init__(self, norm: nn.Module | None, model: Any):
        self.norm, d_model = norm or nn.Identity(), model.cfg.d_model
        half, like = d_model // 2, next(model.parameters())
        probe = torch.full((d_model,), -float(half), device=like.device)
        probe[:half] += d_model  # no zeros, mean zero
        probe /= probe.square().mean().sqrt()
        inputs = torch.stack([torch.zeros_like(probe), probe, probe + 1]).to(like.dtype)
        self.bias, there, moved = self.norm(inputs[None])[0].float()
        self.weight = (there - self.bias) / probe  # the scale of the probe is one
        self.centres = bool(torch.allclose(there, moved, atol=1e-3))

    def __call__(self, x: Vectors) -> Vectors:
        """What the norm makes of x with a scale of one."""
        return (x - x.mean(-1, keepdim=True) if self.centres else x) * self.weight

    def back(self, direction: Vectors, x: Vectors) -> Vectors:
        """The direction whose product with a part of x is that of `direction` with its result."""
        linear = self(x.float())
        result = self.norm(x).float() - self.bias
        scale = linear.square().sum(-1, keepdim=True) / (linear * result).sum(-1, keepdim=True)
        direction = direction * self.weight / scale
        return direction - direction.mean(-1, keepdim=True) if self.centres else direction


def _post(block: Any) -> nn.Module | None:
    """The norm between a layer's attention and the residual stream, as Gemma has it."""
    return getattr(block, "ln1_post", None)


@torch.no_grad()
def direct_effects(model: HookedModel, batch: Batch) -> dict[Head, Measured]:
    """What each head adds to the logit of the next token, in logits, with its standard error.

    Its mean over the tokens of each sequence, and over sequences. `batch.targets` [batch pos] holds
    the next tokens, and is negative where none is asked.
    """
    each = model.cfg.n_layers * model.cfg.n_heads * model.cfg.d_head * batch.inputs.shape[1]
    parts = batch.parts(max(1, _AT_ONCE // each))
    effects = torch.cat([_direct_effects(model, part) for part in parts])
    return {h: Measured.of(effects[:, h.layer, h.head]) for h in heads_of(model)}


def _direct_effects(model: Any, batch: Batch) -> Float[Tensor, "batch layer head"]:
    written, last, summed = list[Tensor](), list[Tensor](), dict[int, Tensor]()
    hooks = in_all_layers(model, "hook_z", lambda z, hook: written.append(z.float()))
    final_name = f"blocks.{model.cfg.n_layers - 1}.hook_resid_post"
    hooks.append((final_name, lambda residual, hook: last.append(residual)))

    def note(layer: int) -> Any:
        return lambda norm, inputs: summed.update({layer: inputs[0]})

    posts = {n: post for n, block in enumerate(model.blocks) if (post := _post(block)) is not None}
    handles = [post.register_forward_pre_hook(note(n)) for n, post in posts.items()]
    try:
        with measuring(model), hooked(model, hooks):
            model(batch.inputs, **call_options(batch), return_type=None)
    finally:
        for handle in handles:
            handle.remove()
    W_U, asked = model.W_U.float(), batch.targets >= 0
    direction = W_U.T[batch.targets.clamp(min=0)] - W_U.mean(1)
    direction = _LinearNorm(getattr(model, "ln_final", None), model).back(direction, last[0])
    effects = []
    for layer, z in enumerate(written):
        post = posts.get(layer)
        here = (
            direction if post is None else _LinearNorm(post, model).back(direction, summed[layer])
        )
        by_head = torch.einsum("bpm,hdm->bphd", here, model.blocks[layer].attn.W_O.float())
        effects.append(((z * by_head).sum(-1) * asked[..., None]).sum(1))
    return torch.stack(effects, 1) / asked.sum(1).clamp(min=1)[:, None, None]


@torch.no_grad()
def copy_scores(model: Any, tokens: Int[Tensor, " token"], first: int) -> dict[Head, float]:
    """The share of tokens whose own logit a head's OV circuit raises most among these tokens.

    Each token stands behind the token `first`. Heads of the first layer read its embedding; those
    of later ones what the first MLP makes of it, or, in a model without MLPs, its embedding too.
    """
    streams: list[Tensor] = []
    names = ("hook_resid_pre", *([] if model.cfg.attn_only else ["hook_resid_post"]))
    hooks = [
        (f"blocks.0.{name}", lambda x, hook: streams.append(x[:, 1].float())) for name in names
    ]
    with measuring(model), hooked(model, hooks):
        model(torch.stack([torch.full_like(tokens, first), tokens], 1), return_type=None)
    outputs = model.W_U.float()[:, tokens]
    final = _LinearNorm(getattr(model, "ln_final", None), model)
    scores = {}
    for head in heads_of(model):
        block = model.blocks[head.layer]
        if head.head == 0:  # norms divide by positive numbers, which change no order
            read = _LinearNorm(getattr(block, "ln1", None), model)(streams[-1 if head.layer else 0])
            post = _LinearNorm(_post(block), model)
        attn = block.attn  # in which several query heads may share a value head
        W_V = attn.W_V[head.head * len(attn.W_V) // model.cfg.n_heads].float()
        logits = final(post(read @ W_V @ attn.W_O[head.head].float())) @ outputs
        own = torch.arange(len(tokens), device=tokens.device)
        scores[head] = float((logits.argmax(1) == own).float().mean())
    return scores
