"""Rotary positional encodings as vectors (paper, section 6).

The input carries its position: the `dim` numbers of a token are followed by `dim` numbers that
encode its place. In the paper's equation (1), both elements of a pair get the encoding of their
pair.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

Position = Literal["pair", "token"]


def rotary_encoding(count: int, dim: int, base: float) -> Float[Tensor, "{count} {dim}"]:
    """Encodings of the positions 0..count-1: (cos, sin) of position * base^(-2i/dim)."""
    frequencies = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = torch.arange(count, dtype=torch.float64)[:, None] * frequencies
    return torch.stack([torch.cos(angles), torch.sin(angles)], dim=-1).flatten(1).float()
