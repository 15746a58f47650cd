"""What a model has to offer: the part of TransformerLens's interface that is used here."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch import Tensor, nn


@runtime_checkable
class HookedModel(Protocol):
    """A `HookedTransformer`, a `TransformerBridge`, or what has their named hook points."""

    cfg: Any  # n_layers, n_heads, d_model, d_head, d_vocab, d_vocab_out, ...
    blocks: Any  # the layers, each a module
    context_level: int  # of hooks that are set inside others

    if TYPE_CHECKING:  # what is too slow to look for at run time, or only a language model has
        hook_dict: Mapping[str, Any]  # hook points by name, as blocks.0.attn.hook_pattern
        W_E: Tensor  # [d_vocab d_model]
        W_U: Tensor  # [d_model d_vocab_out]
        tokenizer: Any

    def __call__(self, inputs: Tensor, **options: Any) -> Any: ...
    def hooks(self, *, fwd_hooks: Any) -> AbstractContextManager[Any]: ...
    def run_with_hooks(self, inputs: Tensor, **options: Any) -> Any: ...
    def run_with_cache(self, inputs: Tensor, **options: Any) -> Any: ...
    def parameters(self) -> Iterator[nn.Parameter]: ...
    def buffers(self) -> Iterator[Tensor]: ...
    def modules(self) -> Iterator[nn.Module]: ...
