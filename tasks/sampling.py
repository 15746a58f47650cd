"""What examples are made of: splits, random numbers and position codes.

Random numbers are a function of (key, counter), Philox4x32-10 (J. Salmon et al., "Parallel random
numbers: as easy as 1, 2, 3", SC 2011). So example i of a seed is the same in any batch and device.
"""

import math
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from retrieval_interp.tasks.messages import InputError

Split = Literal["train", "validation", "discovery", "test"]  # no two share an example
SPLITS: tuple[Split, ...] = get_args(Split)
Position = Literal["pair", "token"]
_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def check_draw(seed: int, split: str) -> None:
    """Check the seed and split of a sample."""
    if not 0 <= seed < 2**64:
        raise InputError(f"sample: expected a seed from 0 to 2^64 - 1, found {seed}")
    if split not in SPLITS:
        raise InputError(f"sample: expected a split of {sorted(SPLITS)}, found {split!r}")


def philox(
    counter: tuple[Int[Tensor, "*shape"], ...], key: tuple[int, int]
) -> tuple[Int[Tensor, "*shape"], ...]:
    """Return four random 32-bit words per counter and key; all are int64 in [0, 2^32)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # int64 products wrap modulo 2^64, so both 32-bit halves are correct.
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((product1 >> 32) & _MASK) ^ c1 ^ k0,
            product1 & _MASK,
            ((product0 >> 32) & _MASK) ^ c3 ^ k1,
            product0 & _MASK,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def random_words(
    indices: Int[Tensor, " batch"], count: int, seed: int, stream: int
) -> Int[Tensor, "batch {count}"]:
    """Return the first `count` 32-bit words of each indexed example; splits differ by stream."""
    index = indices.to(torch.int64)[:, None]
    block = torch.arange(-(-count // 4), device=index.device)[None, :]
    streams = torch.full_like(index, stream)
    counter = torch.broadcast_tensors(block, index & _MASK, index >> 32, streams)
    words = philox(counter, (seed & _MASK, seed >> 32))
    return torch.stack(words, dim=-1).flatten(1)[:, :count]


def normals(words: Int[Tensor, "batch even"]) -> Float[Tensor, "batch even"]:
    """Turn each word into a standard normal number, by Box-Muller, alike on all devices."""
    u1, u2 = ((words.double() + 0.5) / 2**32).unflatten(-1, (2, -1)).unbind(-2)
    radius, angle = torch.sqrt(-2 * torch.log(u1)), 2 * math.pi * u2
    return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=-1).float()


def rotary_encoding(count: int, dim: int, base: float) -> Float[Tensor, "{count} {dim}"]:
    """Encode the positions 0..count-1 by (cos, sin) of position * base^(-2i/dim) (section 6)."""
    frequencies = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = torch.arange(count, dtype=torch.float64)[:, None] * frequencies
    return torch.stack([torch.cos(angles), torch.sin(angles)], dim=-1).flatten(1).float()
