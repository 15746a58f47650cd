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
from transformer_lens import HookedTransformerConfig

from circuits.models.transformer import Transformer
from tasks import InputError


class VectorTransformer(Transformer):
    """A transformer that reads vectors [batch, pos, d_in] instead of tokens."""

    def __init__(self, cfg: HookedTransformerConfig):
        super().__init__(cfg)
        self.pos_embed.W_pos.requires_grad_(False).zero_()

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
