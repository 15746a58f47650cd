"""The weights of a bridge by HookedTransformer's names, read once, as reading them is slow."""

from types import SimpleNamespace
from typing import Any


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
