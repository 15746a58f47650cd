"""The same for either version of TransformerLens; loads it when it is used.

Version 3.9 has HookedTransformer; version 4 has only TransformerBridge.
"""

from importlib import import_module
from importlib.metadata import version
from typing import Any

from retrieval_interp.circuits.models.contract import HookedModel
from retrieval_interp.circuits.models.plain import PlainTransformer

_HOME = "retrieval_interp.circuits.models"


def has_hooked_transformer() -> bool:
    """Whether the installed TransformerLens is older than 4."""
    return int(version("transformer-lens").partition(".")[0]) < 4


def plain_transformer(reads_vectors: bool, **sizes: Any) -> PlainTransformer:
    """GPT-2 blocks whose weights are zeros, of sizes by the names of TransformerLens's configs."""
    common = {"normalization_type": "LN", "positional_embedding_type": "standard"}
    cfg = _library().make_config(**sizes, **common, default_prepend_bos=not reads_vectors)
    return PlainTransformer(cfg, reads_vectors)


def hooked_model(plain: PlainTransformer, tokenizer: Any = None) -> HookedModel:
    """A model with hook points and a copy of these weights, on their device."""
    made = _library().hooked_model(plain, tokenizer)
    hooked: HookedModel = made.to(plain.embed.W_E.device, print_details=False)
    return hooked


def _library() -> Any:
    return import_module(f"{_HOME}.{'transformer' if has_hooked_transformer() else 'bridge'}")
