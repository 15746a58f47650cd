"""Models in a `TransformerBridge`, the one model class of TransformerLens 4.

TransformerLens 4 converts a HookedTransformer's weights to those of its native bridge, where all
hook points have the same names as in a HookedTransformer.
"""

from typing import Any

from jaxtyping import Float
from torch import Tensor
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge import TransformerBridge

from retrieval_interp.circuits.models.plain import PlainTransformer, embed_vectors


class VectorBridge(TransformerBridge):
    """A bridge that reads vectors [batch, pos, d_in] instead of tokens."""

    reads_vectors = True

    def forward(  # type: ignore[override]
        self, input: Float[Tensor, "batch pos d_in"], *arguments: Any, **options: Any
    ) -> Any:
        """As TransformerBridge's, which takes floats for embeddings."""
        if options.get("start_at_layer") is None:
            input = embed_vectors(input, self.W_E)
        return super().forward(input, *arguments, **options)


def make_config(**sizes: Any) -> TransformerBridgeConfig:
    """The config of GPT-2 blocks of these sizes."""
    # Without a seed, building a bridge changes the random state of whoever does.
    return TransformerBridgeConfig(act_fn="gelu_new", seed=0, **sizes)


def hooked_model(plain: PlainTransformer, tokenizer: Any = None) -> TransformerBridge:
    """A bridge with a copy of these weights; it needs TransformerLens 4."""
    from transformer_lens.utilities.tl_checkpoint_conversion import (  # type: ignore[import-not-found]
        convert_tl_checkpoint,
    )

    bridge = TransformerBridge.boot_native(plain.cfg, tokenizer=tokenizer)
    bridge.load_state_dict(convert_tl_checkpoint(plain.state_dict(), plain.cfg), strict=True)
    if plain.reads_vectors:
        bridge.__class__ = VectorBridge
    return bridge
