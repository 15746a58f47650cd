"""Information flow: what each role can hold after each layer (paper, section 5, appendix B).

1. The pieces of a chain, in the order p_0 x_0 p_1 x_1 ... p_D x_D: its tokens and the encodings of
   its pairs, p_0 being the query's own. Role i starts with two neighbours in that order (equation
   1). A set of pieces is an integer: bit 2k stands for p_k, bit 2k+1 for x_k (the paper's e_j is
   bit j+1).
2. `simulate` grants every position all that assumptions 1 and 2 allow: in a layer it attends to all
   positions with which it shares a piece, and takes all they hold. Fewer or narrower heads can only
   hold less, so the depths that follow from it are lower bounds.
3. The closed forms say the same without a simulation; docs/depth.md proves them.

Retrieval graphs other than a chain have `circuits.flow.graph`; `circuits.flow.delivery` follows a
given circuit instead.

Where this departs from the paper: its bound ignores the causal mask and lets every position grow to
both sides, also s_0, which is an end of the chain; the depths here do neither.
"""

from collections.abc import Iterator
from itertools import islice

from tasks.errors import InputError
from tasks.roles import symbol_letter

Held = tuple[int, ...]
"""What each role holds: a set of pieces, as bits, for s_0 .. s_2D."""


# Pieces


def token_bit(step: int) -> int:
    """The set of x_step alone."""
    return 1 << (2 * step + 1)


def tokens_held(pieces: int) -> tuple[int, ...]:
    """The k of every token x_k in a set of pieces."""
    return tuple(bit // 2 for bit in bits_of(pieces) if bit % 2)


def piece_name(bit: int) -> str:
    """`p1` for an encoding, `B` for a token."""
    return symbol_letter(bit // 2) if bit % 2 else f"p{bit // 2}"


def piece_names(pieces: int) -> tuple[str, ...]:
    """The names of a set of pieces, in the order of the chain."""
    return tuple(map(piece_name, bits_of(pieces)))


def sequence_order(steps: int) -> tuple[int, ...]:
    """Roles in the order in which they stand in the sequence: s_{2D-1}, s_{2D}, ..., s_2, s_0."""
    _check_steps(steps)
    return (*(role for pair in range(steps, 0, -1) for role in (2 * pair - 1, 2 * pair)), 0)


def bits_of(pieces: int) -> Iterator[int]:
    """The bits of a set of pieces, rising."""
    while pieces:
        lowest = pieces & -pieces
        yield lowest.bit_length() - 1
        pieces ^= lowest


def _check_steps(steps: int) -> None:
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise InputError(f"steps: expected an integer of at least 1, found {steps!r}")


def check_layers(layers: int) -> None:
    """Refuse a number of layers that is none.

    Raises:
        InputError: not an integer, or below 0.
    """
    if isinstance(layers, bool) or not isinstance(layers, int) or layers < 0:
        raise InputError(f"layers: expected an integer of at least 0, found {layers!r}")


# What the assumptions allow


def simulate(steps: int, layers: int, causal: bool) -> list[Held]:
    """What every role can hold under assumptions 1 and 2.

    Args:
        steps: induction steps of the chain, D, at least 1.
        layers: how many layers, at least 0.
        causal: whether a position sees itself and earlier ones only.

    Returns:
        layers+1 entries: before any layer, after the first, and so on.

    Raises:
        InputError: steps or layers out of range.
    """
    _check_steps(steps)
    check_layers(layers)
    return list(islice(_after_each_layer(steps, causal), layers + 1))


def least_depth(steps: int, causal: bool) -> int:
    """The number of layers after which s_0 first holds x_D, by simulation.

    Raises:
        InputError: steps below 1.
    """
    _check_steps(steps)
    target = token_bit(steps)
    states = enumerate(_after_each_layer(steps, causal))
    return next(depth for depth, held in states if held[0] & target)


def _start(steps: int) -> Held:
    # Role i starts with token x_{i // 2} and encoding p_{(i + 1) // 2}: bits i and i+1.
    return tuple(0b11 << role for role in range(2 * steps + 1))


def _after_each_layer(steps: int, causal: bool) -> Iterator[Held]:
    order, held = sequence_order(steps), _start(steps)
    while True:
        yield held
        held = _layer(held, order, causal)


def _layer(held: Held, order: tuple[int, ...], causal: bool) -> Held:
    bits = [list(bits_of(pieces)) for pieces in held]
    offers = [0] * (len(held) + 1)  # of each piece: all that its visible holders hold
    grown = list(held)

    def take(role: int) -> None:
        for bit in bits[role]:
            grown[role] |= offers[bit]

    for role in order:
        for bit in bits[role]:
            offers[bit] |= held[role]
        if causal:  # what stands later has not offered anything yet
            take(role)
    if not causal:
        for role in order:
            take(role)
    return tuple(grown)


# Closed forms


def paper_bound(steps: int) -> int:
    """ceil(log3(2D)), the least depth that theorem 1 leaves open.

    Raises:
        InputError: steps below 1.
    """
    _check_steps(steps)
    return _ceil_log3(2 * steps)


def unmasked_depth(steps: int) -> int:
    """ceil(log3(4D + 1)), the least depth under assumptions 1 and 2 without a mask.

    Raises:
        InputError: steps below 1.
    """
    _check_steps(steps)
    return _ceil_log3(4 * steps + 1)


def causal_depth(steps: int) -> int:
    """floor(log2 D) + 2, the least depth under assumptions 1 and 2 with the causal mask.

    Raises:
        InputError: steps below 1.
    """
    _check_steps(steps)
    return steps.bit_length() + 1


def _ceil_log3(number: int) -> int:
    power, exponent = 1, 0
    while power < number:
        power, exponent = 3 * power, exponent + 1
    return exponent
