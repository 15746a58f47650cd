"""What models of either version of TransformerLens share; does not load it.

Version 4 has no HookedTransformer: models are opened there (`circuits.models.bridge`), not trained.
"""

from importlib.metadata import version

from jaxtyping import Float
from torch import Tensor

from retrieval_interp.tasks.errors import InputError


def has_hooked_transformer() -> bool:
    """Whether the installed TransformerLens is older than 4."""
    return int(version("transformer-lens").partition(".")[0]) < 4


def check_trainable() -> None:
    """Refuse what needs a HookedTransformer."""
    if not has_hooked_transformer():
        raise InputError(
            "expected transformer-lens 3.9 for training and compiled circuits, found "
            f'{version("transformer-lens")}; do `pip install "transformer-lens<4"`'
        )


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
