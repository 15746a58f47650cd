"""GPT-2 blocks without hook points: the weights of a HookedTransformer, by its names.

A model starts as these blocks, from a seed or a file; `hooked_model` gives it hook points, with
whichever version of TransformerLens is installed. Version 4 has no HookedTransformer, and its
bridge does not train the unembedding's bias, so there these blocks are what is trained.
"""

from functools import reduce
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from retrieval_interp.circuits.hooks import HookedModel
from retrieval_interp.tasks.messages import InputError


class Weights(nn.Module):
    """Parameters of these names and shapes, zeros at first."""

    def __init__(self, **shapes: tuple[int, ...]):
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class LayerNorm(Weights):
    def __init__(self, cfg: Any):
        super().__init__(w=(cfg.d_model,), b=(cfg.d_model,))
        nn.init.ones_(self.w)
        self.eps = cfg.eps


def layer_norm(cfg: Any) -> nn.Module:
    """The layer norm of a config, which may have none."""
    return LayerNorm(cfg) if cfg.normalization_type else nn.Identity()


class Block(nn.Module):
    """Attention, and an MLP if the model has one, both behind layer norms if it has these."""

    def __init__(self, cfg: Any):
        super().__init__()
        wide, biases = (cfg.n_heads, cfg.d_model, cfg.d_head), (cfg.n_heads, cfg.d_head)
        self.ln1 = layer_norm(cfg)
        self.ln2 = None if cfg.attn_only else layer_norm(cfg)
        # In the order of a HookedTransformer, by which its weights are drawn.
        self.attn = Weights(
            W_Q=wide,
            W_O=(cfg.n_heads, cfg.d_head, cfg.d_model),
            b_Q=biases,
            b_O=(cfg.d_model,),
            W_K=wide,
            W_V=wide,
            b_K=biases,
            b_V=biases,
        )
        self.attn.attn_scale = cfg.d_head**0.5
        self.mlp = None
        if not cfg.attn_only:
            into, out = (cfg.d_model, cfg.d_mlp), (cfg.d_mlp, cfg.d_model)
            self.mlp = Weights(W_in=into, b_in=into[1:], W_out=out, b_out=out[1:])

    def forward(self, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        attn = self.attn
        weights = torch.stack([attn.W_Q, attn.W_K, attn.W_V])
        weights = rearrange(weights, "qkv head d_model d_head -> (qkv head d_head) d_model")
        biases = torch.stack([attn.b_Q, attn.b_K, attn.b_V])
        together = F.linear(norm(self.ln1, x), weights, biases.flatten())
        qkv = together.unflatten(-1, biases.shape).transpose(1, -2)  # [batch head qkv pos d_head]
        q, k, v = qkv.unbind(2)
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        z = rearrange(z, "batch head pos d_head -> batch pos (head d_head)")
        x = x + F.linear(z, attn.W_O.flatten(0, 1).T, attn.b_O)
        if self.mlp is None:
            return x
        hidden = F.linear(norm(self.ln2, x), self.mlp.W_in.T, self.mlp.b_in)
        hidden = F.gelu(hidden, approximate="tanh")
        return x + F.linear(hidden, self.mlp.W_out.T, self.mlp.b_out)


class PlainTransformer(nn.Module):
    """The model of a config of TransformerLens, for tokens or for vectors; weights are zeros."""

    def __init__(self, cfg: Any, reads_vectors: bool = False):
        super().__init__()
        self.cfg, self.reads_vectors = cfg, reads_vectors
        self.embed = Weights(W_E=(cfg.d_vocab, cfg.d_model))
        self.pos_embed = Weights(W_pos=(cfg.n_ctx, cfg.d_model))
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.n_layers))
        self.ln_final = layer_norm(cfg)
        self.unembed = Weights(W_U=(cfg.d_model, cfg.d_vocab_out), b_U=(cfg.d_vocab_out,))
        if reads_vectors:  # which carry their position
            self.pos_embed.W_pos.requires_grad_(False)

    @classmethod
    @torch.no_grad()
    def of(cls, model: Any) -> "PlainTransformer":
        """A copy of a GPT-2-like model's weights, on its device."""
        plain = cls(model.cfg, getattr(model, "reads_vectors", False)).to(model.W_E.device)
        for name, weight in plain.named_parameters():
            weight.copy_(reduce(getattr, name.split("."), model))
        return plain

    def forward(self, inputs: Shaped[Tensor, "batch pos *d_in"]) -> Float[Tensor, "batch pos out"]:
        if self.reads_vectors:
            x = embed_vectors(inputs, self.embed.W_E)
        else:
            x = F.embedding(inputs, self.embed.W_E) + self.pos_embed.W_pos[: inputs.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(norm(self.ln_final, x), self.unembed.W_U.T, self.unembed.b_U)


def norm(layer_norm: Any, x: Tensor) -> Tensor:
    """TransformerLens's layer norm in one fused step, without its hooks."""
    if isinstance(layer_norm, nn.Identity):
        return x
    return F.layer_norm(x, x.shape[-1:], layer_norm.w, layer_norm.b, layer_norm.eps)


def embed_vectors(
    vectors: Float[Tensor, "..."], read_in: Float[Tensor, "d_in d_model"]
) -> Float[Tensor, "batch pos d_model"]:
    """Project vectors into the residual stream, in place of embedded tokens."""
    d_in = len(read_in)
    if vectors.ndim != 3 or vectors.shape[-1] != d_in:
        raise InputError(
            f"model: expected inputs of shape [batch, pos, {d_in}], found {list(vectors.shape)}"
        )
    return vectors @ read_in


# Hook points, by either version of TransformerLens: 3.9 has HookedTransformer, 4 its bridge alone


def has_hooked_transformer() -> bool:
    """Whether the installed TransformerLens is older than 4."""
    return int(version("transformer-lens").partition(".")[0]) < 4


def plain_transformer(
    reads_vectors: bool, normalization_type: str | None = "LN", **sizes: Any
) -> PlainTransformer:
    """GPT-2 blocks whose weights are zeros, of sizes by the names of TransformerLens's configs."""
    common = {"default_prepend_bos": not reads_vectors, "positional_embedding_type": "standard"}
    cfg = _library().make_config(**sizes, **common, normalization_type=normalization_type)
    return PlainTransformer(cfg, reads_vectors)


def hooked_model(plain: PlainTransformer, tokenizer: Any = None) -> HookedModel:
    """A model with hook points and a copy of these weights, on their device."""
    made = _library().hooked_model(plain, tokenizer)
    hooked: HookedModel = made.to(plain.embed.W_E.device, print_details=False)
    return hooked


def _library() -> Any:
    name = "transformer" if has_hooked_transformer() else "bridge"
    return import_module(f"retrieval_interp.circuits.models.{name}")
