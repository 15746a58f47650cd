"""A HookedTransformer that reads and writes continuous vectors.

1. `embed.W_E` [2K, d_model] is a linear read-in and `unembed` a linear read-out, so every parameter
   is one of HookedTransformer's own and the weights open in stock TransformerLens.
2. No positional embedding is added: the input carries it. HookedTransformer's `pos_embed.W_pos`
   stays zero and is not trained.
3. Every hook point of TransformerLens is there.
"""

import warnings
from typing import Any

from jaxtyping import Float
from torch import Tensor
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.components.transformer_block import TransformerBlock

from tasks import InputError


class Block(TransformerBlock):
    """TransformerLens's block, with the layer norm in front of attention computed once.

    The stock block normalizes its input three times, for queries, keys and values, and the backward
    pass of three layer norms is what a narrow-headed model without MLPs spends its time on. The
    hooks fire the same; with split inputs the stock code runs.
    """

    def forward(
        self,
        resid_pre: Float[Tensor, "batch pos d_model"],
        shortformer_pos_embed: Tensor | None = None,
        past_kv_cache_entry: Any = None,
        attention_mask: Tensor | None = None,
    ) -> Float[Tensor, "batch pos d_model"]:
        if self.cfg.use_attn_in or self.cfg.use_split_qkv_input or past_kv_cache_entry is not None:
            stock: Tensor = super().forward(
                resid_pre, shortformer_pos_embed, past_kv_cache_entry, attention_mask
            )
            return stock
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


class VectorTransformer(HookedTransformer):
    """HookedTransformer whose input is [batch, pos, d_in] vectors instead of tokens."""

    def __init__(self, cfg: HookedTransformerConfig):
        with warnings.catch_warnings():
            # TransformerLens 3 announces the class's removal in 4; pyproject pins below that.
            warnings.filterwarnings("ignore", "HookedTransformer is deprecated", DeprecationWarning)
            super().__init__(cfg)
        self.pos_embed.W_pos.requires_grad_(False).zero_()
        for block in self.blocks:
            block.__class__ = Block

    def input_to_embed(  # type: ignore[override]
        self, input: Float[Tensor, "batch pos d_in"], **_: Any
    ) -> tuple[Float[Tensor, "batch pos d_model"], None, None, None]:
        """Project the vectors into the residual stream.

        Raises:
            InputError: the input is not [batch, pos, d_in].
        """
        if input.ndim != 3 or input.shape[-1] != self.cfg.d_vocab:
            raise InputError(
                f"model: expected inputs of shape [batch, pos, {self.cfg.d_vocab}], "
                f"found {list(input.shape)}"
            )
        return self.hook_embed(input @ self.W_E), None, None, None
