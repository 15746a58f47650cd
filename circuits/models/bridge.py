"""Checkpoints in a `TransformerBridge`, the one model class of TransformerLens 4.

Weights are stored under HookedTransformer's names; TransformerLens 4 converts them to those of its
native bridge, in which all hook points have the names that they have in a HookedTransformer.
"""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Float
from torch import Tensor
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge

from retrieval_interp.circuits.models.either import embed_vectors


class VectorBridge(TransformerBridge):
    """A bridge that reads vectors [batch, pos, d_in] instead of tokens."""

    reads_vectors = True

    def forward(  # type: ignore[override]
        self, input: Float[Tensor, "batch pos d_in"], *arguments: Any, **options: Any
    ) -> Any:
        """As TransformerBridge's, which takes floats for embeddings."""
        return super().forward(embed_vectors(input, self.W_E), *arguments, **options)


def make_bridge(weights: Mapping[str, Tensor], tokenizer: Any = None) -> TransformerBridge:
    """A bridge with the weights of a HookedTransformer, by its names; it needs TransformerLens 4.

    Weights give the sizes: GPT-2 blocks with or without an MLP. Without a tokenizer it reads
    vectors, and `W_pos` is zeros.
    """
    from transformer_lens.utilities.tl_checkpoint_conversion import (  # type: ignore[import-not-found]
        convert_tl_checkpoint,
    )

    n_heads, d_model, d_head = weights["blocks.0.attn.W_Q"].shape
    mlp = weights.get("blocks.0.mlp.W_in")
    config = TransformerBridgeConfig(
        n_layers=sum(name.endswith(".attn.W_Q") for name in weights),
        n_heads=n_heads,
        d_model=d_model,
        d_head=d_head,
        d_mlp=None if mlp is None else mlp.shape[1],
        attn_only=mlp is None,
        n_ctx=len(weights["pos_embed.W_pos"]),
        d_vocab=len(weights["embed.W_E"]),
        d_vocab_out=weights["unembed.W_U"].shape[1],
        act_fn="gelu_new",
        normalization_type="LN",
        positional_embedding_type="standard",
        default_prepend_bos=tokenizer is not None,
        seed=0,  # else building it changes the random state of whoever calls this
    )
    bridge = TransformerBridge.boot_native(config, tokenizer=tokenizer)
    bridge.load_state_dict(convert_tl_checkpoint(dict(weights), config), strict=True)
    if tokenizer is None:
        bridge.__class__ = VectorBridge
    return bridge
