"""What can be told of a hooked model before it is run: its hook points, its mask, its class."""

from typing import Any


def pattern_hook_name(layer: int) -> str:
    """TransformerLens's name of a layer's attention pattern, [batch head dest src]."""
    return f"blocks.{layer}.attn.hook_pattern"


def is_causal(model: Any) -> bool:
    """Whether a hooked model's positions attend to earlier positions and themselves only."""
    return bool(getattr(model.cfg, "attention_dir", "causal") == "causal")


def is_hooked_transformer(model: Any) -> bool:
    """Whether a model is a `HookedTransformer`, told by name: TransformerLens 4 has none."""
    names = {(kind.__module__.split(".")[0], kind.__name__) for kind in type(model).__mro__}
    return ("transformer_lens", "HookedTransformer") in names
