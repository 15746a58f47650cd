"""What models of either version of TransformerLens share; does not load it.

Version 4 has no HookedTransformer: models are opened there (`circuits.models.bridge`), not trained.
"""

from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

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
            "expected transformer-lens 3.9 for training, found "
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


def plain_weights(model: Any) -> SimpleNamespace:
    """The parts of a GPT-2-like bridge that role runs read, copied where a view would be slow."""
    cfg = model.cfg

    def norm(of: Any) -> SimpleNamespace:
        return SimpleNamespace(w=of.weight, b=of.bias, eps=cfg.eps)

    def block(of: Any) -> SimpleNamespace:
        names = [f"{kind}_{what}" for what in "QKVO" for kind in "Wb"]
        attn = {name: getattr(of.attn, name).contiguous() for name in names}
        scaled = SimpleNamespace(**attn, attn_scale=cfg.d_head**0.5)
        parts = SimpleNamespace(ln1=norm(of.ln1), attn=scaled)
        if not cfg.attn_only:
            names = ["W_in", "b_in", "W_out", "b_out"]
            parts.ln2 = norm(of.ln2)
            parts.mlp = SimpleNamespace(**{name: getattr(of.mlp, name) for name in names})
        return parts

    return SimpleNamespace(
        W_E=model.W_E,
        W_U=model.W_U.contiguous(),
        b_U=model.b_U,
        ln_final=norm(model.ln_final),
        blocks=[block(of) for of in model.blocks],
    )
