"""A HookedTransformer that reads and writes continuous vectors.

1. `embed.W_E` [2K, d_model] is a linear read-in and `unembed` a linear read-out, so every parameter
   is one of HookedTransformer's own and stock TransformerLens can load the weights.
2. No positional embedding is added, since the input carries its position. HookedTransformer's
   `pos_embed.W_pos` stays zero and is not trained.
3. Every hook point of TransformerLens is there.
"""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.models.transformer import HookedTransformerConfig, Transformer
from retrieval_interp.circuits.models.vectors import embed_vectors


class VectorTransformer(Transformer):
    """A transformer that reads vectors [batch, pos, d_in] instead of tokens."""

    reads_vectors = True

    def __init__(self, cfg: HookedTransformerConfig):
        super().__init__(cfg)
        self.pos_embed.W_pos.requires_grad_(False).zero_()

    def input_to_embed(  # type: ignore[override]
        self,
        input: Float[Tensor, "batch pos d_in"],
        attention_mask: Tensor | None = None,
        **_: Any,
    ) -> tuple[Float[Tensor, "batch pos d_model"], None, None, Tensor | None]:
        """Project the vectors into the residual stream.

        Raises:
            InputError: the input is not [batch, pos, d_in].
        """
        return self.hook_embed(embed_vectors(input, self.W_E)), None, None, attention_mask
