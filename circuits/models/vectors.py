"""Reading vectors instead of tokens, in models of either class."""

from jaxtyping import Float
from torch import Tensor

from retrieval_interp.tasks import InputError


def embed_vectors(
    vectors: Float[Tensor, "..."], read_in: Float[Tensor, "d_in d_model"]
) -> Float[Tensor, "batch pos d_model"]:
    """Project vectors into the residual stream.

    Raises:
        InputError: they are not [batch, pos, d_in].
    """
    d_in = len(read_in)
    if vectors.ndim != 3 or vectors.shape[-1] != d_in:
        raise InputError(
            f"model: expected inputs of shape [batch, pos, {d_in}], found {list(vectors.shape)}"
        )
    return vectors @ read_in
