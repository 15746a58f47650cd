"""A HookedTransformer that trains faster and keeps every hook point; needs TransformerLens 3."""

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from transformer_lens import HookedTransformer
from transformer_lens import HookedTransformerConfig as HookedTransformerConfig
from transformer_lens.components.attention import Attention as StockAttention
from transformer_lens.components.transformer_block import TransformerBlock

from retrieval_interp.circuits.models.plain import PlainTransformer, embed_vectors


class Attention(StockAttention):
    """TransformerLens's attention; compiled, one matrix product gives queries, keys and values.

    Uncompiled, the stock code runs, because hooks may write into the tensors they get, which must
    then not be views of one tensor.
    """

    def calculate_qkv_matrices(
        self, query_input: Tensor, key_input: Tensor, value_input: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        same = query_input is key_input and key_input is value_input and query_input.ndim == 3
        special = self.cfg.load_in_4bit or self.cfg.use_qk_norm
        if not torch.compiler.is_compiling() or not same or special:
            return super().calculate_qkv_matrices(query_input, key_input, value_input)
        weights = torch.stack([self.W_Q, self.W_K, self.W_V])
        weights = rearrange(weights, "qkv head d_model d_head -> (qkv head d_head) d_model")
        biases = torch.stack([self.b_Q, self.b_K, self.b_V])
        together = F.linear(query_input, weights, biases.flatten())
        q, k, v = together.unflatten(-1, biases.shape).unbind(-3)
        return self.hook_q(q), self.hook_k(k), self.hook_v(v)


class Block(TransformerBlock):
    """TransformerLens's block, with the layer norm before attention computed once.

    The stock block normalizes its input three times, for queries, keys and values, and the backward
    pass of three layer norms dominates the training time of a model with narrow heads and no MLP.
    All hooks fire as before; with split inputs the stock code runs.
    """

    def __init__(self, cfg: HookedTransformerConfig, block_index: int):
        super().__init__(cfg, block_index)
        if type(self.attn) is StockAttention:
            self.attn = Attention(self.cfg, self.attn.attn_type, block_index)

    def forward(
        self,
        resid_pre: Float[Tensor, "batch pos d_model"],
        shortformer_pos_embed: Tensor | None = None,
        past_kv_cache_entry: Any = None,
        attention_mask: Tensor | None = None,
    ) -> Float[Tensor, "batch pos d_model"]:
        if self.cfg.use_attn_in or self.cfg.use_split_qkv_input or past_kv_cache_entry is not None:
            return super().forward(
                resid_pre, shortformer_pos_embed, past_kv_cache_entry, attention_mask
            )
        resid_pre = self.hook_resid_pre(resid_pre)
        normalized = self.ln1(resid_pre)
        attn_out = self.hook_attn_out(
            self.attn(normalized, normalized, normalized, attention_mask=attention_mask)
        )
        resid_post: Tensor
        if self.cfg.attn_only:
            resid_post = self.hook_resid_post(resid_pre + attn_out)
            return resid_post
        resid_mid = self.hook_resid_mid(resid_pre + attn_out)
        mlp_in = self.hook_mlp_in(resid_mid.clone()) if self.cfg.use_hook_mlp_in else resid_mid
        mlp_out = self.hook_mlp_out(self.mlp(self.ln2(mlp_in)))
        resid_post = self.hook_resid_post(resid_mid + mlp_out)
        return resid_post


class Transformer(HookedTransformer):
    """HookedTransformer with faster blocks, which take over the weights of its own."""

    def __init__(self, cfg: HookedTransformerConfig, tokenizer: Any = None):
        with warnings.catch_warnings():
            # TransformerLens 3 announces the class's removal in 4, where nothing is trained.
            warnings.filterwarnings("ignore", "HookedTransformer is deprecated", DeprecationWarning)
            super().__init__(cfg, tokenizer=tokenizer)
        stock = self.blocks
        self.blocks = type(stock)(Block(self.cfg, layer) for layer in range(self.cfg.n_layers))
        self.blocks.load_state_dict(stock.state_dict())
        self.blocks.to(self.cfg.device)
        self.setup()


class VectorTransformer(Transformer):
    """A transformer that reads vectors [batch, pos, d_in] instead of tokens, and writes vectors.

    `embed.W_E` [d_in, d_model] is a linear read-in and `unembed` a linear read-out, so stock
    TransformerLens can load the weights. The input carries its position: `pos_embed.W_pos` stays
    zero and is not trained.
    """

    reads_vectors = True

    def __init__(self, cfg: HookedTransformerConfig):
        super().__init__(cfg)
        self.pos_embed.W_pos.requires_grad_(False).zero_()

    def input_to_embed(  # type: ignore[override]
        self, input: Float[Tensor, "batch pos d_in"], attention_mask: Tensor | None = None, **_: Any
    ) -> tuple[Float[Tensor, "batch pos d_model"], None, None, Tensor | None]:
        """Project the vectors into the residual stream."""
        return self.hook_embed(embed_vectors(input, self.W_E)), None, None, attention_mask


def make_config(**sizes: Any) -> HookedTransformerConfig:
    """The config of GPT-2 blocks of these sizes."""
    # GPT-2's gelu_new, fused. The weights are loaded.
    return HookedTransformerConfig(
        act_fn="gelu_pytorch_tanh", device="cpu", init_weights=False, **sizes
    )


def hooked_model(plain: PlainTransformer, tokenizer: Any = None) -> Transformer:
    """A HookedTransformer with a copy of these weights."""
    cfg = plain.cfg
    model = VectorTransformer(cfg) if plain.reads_vectors else Transformer(cfg, tokenizer)
    weights = dict(model.named_parameters())
    with torch.no_grad():
        for name, weight in plain.named_parameters():
            weights[name].copy_(weight)
    return model
