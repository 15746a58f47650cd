"""Sizes of a transformer; does not load TransformerLens."""

from dataclasses import dataclass
from typing import Literal

from retrieval_interp.tasks import InputError

Init = Literal["gpt2", "linear"]


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a transformer.

    Attributes:
        layers: number of blocks.
        heads: attention heads per block.
        d_model: width of the residual stream.
        d_head: width of a head; default d_model / heads.
        mlp: whether blocks have an MLP (transformer D has none, section 9.1).
    """

    layers: int = 6
    heads: int = 1
    d_model: int = 64
    d_head: int | None = None
    mlp: bool = True

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "d_model", "d_head"):
            size = getattr(self, name)
            if size is not None and not 1 <= size <= 65536:
                raise InputError(
                    f"model: expected {name} to be an integer from 1 to 65536, found {size}"
                )
        if self.d_head is None and self.d_model % self.heads:
            raise InputError(
                f"model: expected heads to divide d_model = {self.d_model}, found {self.heads} "
                "heads; give d_head"
            )

    @property
    def head_width(self) -> int:
        return self.d_head if self.d_head is not None else self.d_model // self.heads
