"""Pieces of information, as bits (paper, equation 1).

The pieces of a chain are the tokens of its nodes and the encodings of its statements; number 0 is
the query's encoding. A set of pieces is an integer: bit 2n stands for encoding n, bit 2n+1 for the
token of node n. On a path they are p_0 x_0 p_1 x_1 ... p_D x_D, and the paper's e_j is bit j+1.
"""

from collections.abc import Iterator

from retrieval_interp.tasks import InputError, RetrievalGraph, symbol_letter

Held = tuple[int, ...]
"""What each role holds: a set of pieces, as bits, for s_0, s_1, ..."""


def token_bit(node: int) -> int:
    """The set that holds only one node's token, such as x_node on a path."""
    return 1 << (2 * node + 1)


def tokens_held(pieces: int) -> tuple[int, ...]:
    """The k of every token x_k in a set of pieces."""
    return tuple(bit // 2 for bit in bits_of(pieces) if bit % 2)


def bits_of(pieces: int) -> Iterator[int]:
    """The bits of a set of pieces, in rising order."""
    while pieces:
        lowest = pieces & -pieces
        yield lowest.bit_length() - 1
        pieces ^= lowest


def piece_name(bit: int, graph: RetrievalGraph | None = None) -> str:
    """`p1` for an encoding; a token's node name, or without a graph its letter, `B`."""
    if bit % 2 == 0:
        return f"p{bit // 2}"
    return graph.nodes[bit // 2].name if graph else symbol_letter(bit // 2)


def piece_names(pieces: int, graph: RetrievalGraph | None = None) -> tuple[str, ...]:
    """The names of a set of pieces, in the order of the chain or graph."""
    return tuple(piece_name(bit, graph) for bit in bits_of(pieces))


def check_steps(steps: int) -> None:
    """Check a number of steps.

    Raises:
        InputError: not an integer, or below 1.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise InputError(f"steps: expected an integer of at least 1, found {steps!r}")


def check_layers(layers: int) -> None:
    """Check a number of layers.

    Raises:
        InputError: not an integer, or below 0.
    """
    if isinstance(layers, bool) or not isinstance(layers, int) or layers < 0:
        raise InputError(f"layers: expected an integer of at least 0, found {layers!r}")
