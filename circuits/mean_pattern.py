"""A head's mean attention pattern by position, as data that can be compared, hashed and written."""

from collections.abc import Sequence
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.tasks import InputError

_DIGITS = 5  # of weights that are kept


class MeanPattern:
    """Mean attention by position; what of a head's attention does not depend on content.

    Shorter sequences than those that were measured use its first rows, which attend to the same
    positions if the model is causal. In longer ones, later positions use the mean by offset of the
    second half of its rows, and of their attention to the first position, the sink; this needs a
    pattern that looks back only.

    Args:
        weights: mean attention, [dest src], on the CPU.

    Raises:
        InputError: not a square, or a row that is no attention.
    """

    def __init__(self, weights: Float[Tensor, "dest src"]):
        if weights.ndim != 2 or weights.shape[0] != weights.shape[1] or not len(weights):
            raise InputError(f"mean: expected a square pattern, found {list(weights.shape)}")
        weights = weights.detach().float().cpu()
        if not bool((weights >= 0).all()) or not bool((weights.sum(-1) <= 1 + 1e-2).all()):
            raise InputError("mean: expected weights from 0 to 1 that sum to at most 1 in a row")
        # As in files, so that what is read back is the same.
        self.weights: Tensor = weights.mul(10**_DIGITS).round() / 10**_DIGITS

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[float]]) -> "MeanPattern":
        """Read `rows`."""
        weights = torch.zeros(len(rows), len(rows))
        for dest, row in enumerate(rows):
            if len(row) > len(rows):
                raise InputError(
                    f"mean: expected at most {len(rows)} sources per row, found {len(row)}"
                )
            weights[dest, : len(row)] = torch.tensor(row)
        return cls(weights)

    @property
    def rows(self) -> list[list[float]]:
        """Weights by row, without the zeros at its end, rounded."""
        rows = [[round(weight, _DIGITS) for weight in row] for row in self.weights.tolist()]
        lengths = [max((at + 1 for at, w in enumerate(row) if w), default=0) for row in rows]
        return [row[:length] for row, length in zip(rows, lengths)]

    def pattern(self, n_positions: int) -> Float[Tensor, "{n_positions} {n_positions}"]:
        """The pattern of sequences of this length.

        Raises:
            InputError: they are longer than what was measured, and the pattern looks ahead.
        """
        measured = len(self.weights)
        if n_positions <= measured:
            return self.weights[:n_positions, :n_positions]
        if bool(self.weights.triu(1).any()):
            raise InputError(
                f"mean: expected sequences of at most {measured} positions, on which this pattern, "
                f"which looks ahead, was measured, found {n_positions}"
            )
        pattern = torch.zeros(n_positions, n_positions)
        pattern[:measured, :measured] = self.weights
        later = self.weights[measured // 2 :]
        pattern[measured:, 0] = later[:, 0].mean()
        for offset in range(measured - 1):
            share = self.weights.diagonal(-offset)[max(1, measured // 2 - offset) :].sum()
            at = torch.arange(measured, n_positions)
            pattern[at, at - offset] = share / len(later)
        return pattern

    @cached_property
    def _bytes(self) -> bytes:
        return bytes(self.weights.contiguous().numpy().tobytes())

    @cached_property
    def _hash(self) -> int:
        return hash(self._bytes)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, MeanPattern) and self._bytes == other._bytes

    def __hash__(self) -> int:
        return self._hash
