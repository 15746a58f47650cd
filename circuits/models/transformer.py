"""Models as HookedTransformers, which need TransformerLens 3."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens import HookedTransformer
from transformer_lens import HookedTransformerConfig as HookedTransformerConfig

from retrieval_interp.circuits.models.plain import PlainTransformer, embed_vectors


@contextmanager
def not_deprecated() -> Iterator[None]:
    """TransformerLens 3 announces the class's removal in 4, where another model is made."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "HookedTransformer is deprecated", DeprecationWarning)
        yield


class VectorTransformer(HookedTransformer):
    """A transformer that reads vectors [batch, pos, d_in] instead of tokens, and writes vectors.

    `embed.W_E` [d_in, d_model] is a linear read-in and `unembed` a linear read-out, so stock
    TransformerLens can load the weights. The input carries its position: `pos_embed.W_pos` stays
    zero and is not trained.
    """

    reads_vectors = True

    def __init__(self, cfg: HookedTransformerConfig):
        with not_deprecated():
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


def hooked_model(plain: PlainTransformer, tokenizer: Any = None) -> HookedTransformer:
    """A HookedTransformer with a copy of these weights."""
    vectors, cfg = plain.reads_vectors, plain.cfg
    with not_deprecated():
        model = VectorTransformer(cfg) if vectors else HookedTransformer(cfg, tokenizer)
    weights = dict(model.named_parameters())
    with torch.no_grad():
        for name, weight in plain.named_parameters():
            weights[name].copy_(weight)
    return model
