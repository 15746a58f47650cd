"""A hooked model's hook names, mask and class, known without running it."""

from typing import Any

from torch import Tensor

from retrieval_interp.tasks import Batch


def pattern_hook_name(layer: int) -> str:
    """TransformerLens's hook name of a layer's attention pattern, [batch head dest src]."""
    return f"blocks.{layer}.attn.hook_pattern"


def is_causal(model: Any) -> bool:
    """Whether positions attend only to themselves and earlier ones."""
    return bool(getattr(model.cfg, "attention_dir", "causal") == "causal")


def is_hooked_transformer(model: Any) -> bool:
    """Whether a model is a `HookedTransformer`, by class name, since TransformerLens 4 has none."""
    names = {(kind.__module__.split(".")[0], kind.__name__) for kind in type(model).__mro__}
    return ("transformer_lens", "HookedTransformer") in names


def call_options(batch: Batch) -> dict[str, Tensor]:
    """What a model is called with beside the inputs: where they are padding, if anywhere."""
    mask = batch.attention_mask
    return {} if mask is None else {"attention_mask": mask.long()}
