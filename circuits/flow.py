"""Information flow: what each role can hold after each layer (paper, section 5, appendix B).

1. The pieces of a chain, in the order p_0 x_0 p_1 x_1 ... p_D x_D: its tokens and the encodings of
   its pairs, p_0 being the query's own. Role i starts with two neighbours in that order (equation
   1). A set of pieces is an integer: bit 2k stands for p_k, bit 2k+1 for x_k (the paper's e_j is
   bit j+1).
2. `simulate` grants every position all that assumptions 1 and 2 allow: in a layer it attends to all
   positions with which it shares a piece, and takes all they hold. Fewer or narrower heads can only
   hold less, so the depths that follow from it are lower bounds.
3. The closed forms say the same without a simulation; docs/depth.md proves them.
4. `circuit_flow` follows a given circuit instead: a role takes all that its path sources hold.

Where this departs from the paper: its bound ignores the causal mask and lets every position grow to
both sides, also s_0, which is an end of the chain; the depths here do neither.
"""

from collections.abc import Iterator
from itertools import islice

from circuits.circuit import Circuit, Head, HeadPath
from tasks.errors import InputError
from tasks.roles import role_name, symbol_letter

Held = tuple[int, ...]
"""What each role holds: a set of pieces, as bits, for s_0 .. s_2D."""


# Pieces


def token_bit(step: int) -> int:
    """The set of x_step alone."""
    return 1 << (2 * step + 1)


def tokens_held(pieces: int) -> tuple[int, ...]:
    """The k of every token x_k in a set of pieces."""
    return tuple(bit // 2 for bit in _bits(pieces) if bit % 2)


def piece_name(bit: int) -> str:
    """`p1` for an encoding, `B` for a token."""
    return symbol_letter(bit // 2) if bit % 2 else f"p{bit // 2}"


def piece_names(pieces: int) -> tuple[str, ...]:
    """The names of a set of pieces, in the order of the chain."""
    return tuple(map(piece_name, _bits(pieces)))


def sequence_order(steps: int) -> tuple[int, ...]:
    """Roles in the order in which they stand in the sequence: s_{2D-1}, s_{2D}, ..., s_2, s_0."""
    _check_steps(steps)
    return (*(role for pair in range(steps, 0, -1) for role in (2 * pair - 1, 2 * pair)), 0)


def _bits(pieces: int) -> Iterator[int]:
    while pieces:
        lowest = pieces & -pieces
        yield lowest.bit_length() - 1
        pieces ^= lowest


def _check_steps(steps: int) -> None:
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise InputError(f"steps: expected an integer of at least 1, found {steps!r}")


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
    _check_layers(layers)
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
    bits = [list(_bits(pieces)) for pieces in held]
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


# What a circuit does


def circuit_flow(circuit: Circuit, n_layers: int) -> list[Held]:
    """What every role holds when each takes all that its path sources hold.

    Sources are read as they were before the layer, and several heads of a layer unite. A role
    without a path keeps what it holds. Uniform and identity heads, rows without a path whatever
    `circuit.rest` says, and heads that the circuit leaves as they are bring nothing by this
    account; `original_heads` lists the last, which may bring anything.

    Args:
        circuit: its paths move the pieces; whether attention could find them is not asked.
        n_layers: layers of the model.

    Returns:
        n_layers+1 entries: before any layer, after the first, and so on.

    Raises:
        InputError: the circuit does not speak of a chain, or names a layer that there is not.
    """
    by_layer = _paths_by_layer(circuit, n_layers)
    states = [_start((circuit.n_roles - 1) // 2)]
    for paths in by_layer:
        held = states[-1]
        grown = list(held)
        for _, (dest, src) in paths:
            grown[dest] |= held[src]
        states.append(tuple(grown))
    return states


def delivered(circuit: Circuit, n_layers: int) -> tuple[int, ...]:
    """Which of x_1..x_D reach s_0, as their numbers.

    Raises:
        InputError: as `circuit_flow`.
    """
    return tuple(step for step in tokens_held(circuit_flow(circuit, n_layers)[-1][0]) if step)


def carrying_paths(circuit: Circuit, n_layers: int) -> tuple[HeadPath, ...]:
    """The paths on some route of an asked token to the output; the others can at most enable.

    A path of layer l carries if (a) its source holds some x_k, k >= 1, before layer l, and (b) from
    its destination after layer l, s_0 after the last layer can be reached along the residual stream
    and later paths. Under assumption 2 this is the same as: some x_k, k >= 1, has a route from
    where it stands in the input through this path to the output. The query's own x_0 does not
    count, since it is not asked for.

    This is what could be carried: a path counts although its token arrives by another route, too,
    or the model does not use it.

    Raises:
        InputError: as `circuit_flow`.
    """
    states = circuit_flow(circuit, n_layers)
    by_layer = _paths_by_layer(circuit, n_layers)
    asked = sum(token_bit(step) for step in range(1, (circuit.n_roles + 1) // 2))
    heard = {0}  # roles whose residual stream reaches the output
    carrying = set()
    for layer in reversed(range(n_layers)):
        onwards = [path for path in by_layer[layer] if path.path.dest in heard]
        carrying |= {path for path in onwards if states[layer][path.path.src] & asked}
        heard |= {path.path.src for path in onwards}
    return tuple(path for path in circuit.paths() if path in carrying)


def original_heads(circuit: Circuit, n_layers: int, n_heads: int) -> tuple[Head, ...]:
    """The heads that the circuit leaves as they are, cut or role-mean: they may carry anything.

    Raises:
        InputError: the circuit names a head that there is not.
    """
    circuit.check_fits(n_layers, n_heads)
    heads = (Head(layer, head) for layer in range(n_layers) for head in range(n_heads))
    loose = ("original", "cut", "role-mean")
    return tuple(head for head in heads if circuit[head].kind in loose)


def describe_flow(circuit: Circuit, n_layers: int, n_heads: int) -> str:
    """What reaches the query, as a sentence for people.

    `By information flow along its paths, this circuit can deliver B and C but not D.` Heads left
    as they are get a clause where something is missing, since they may bring it.

    Raises:
        InputError: as `circuit_flow`, or the circuit names a head that there is not.
    """
    kept = original_heads(circuit, n_layers, n_heads)
    brought = delivered(circuit, n_layers)
    steps = (circuit.n_roles - 1) // 2
    got = [symbol_letter(step) for step in brought]
    missing = [symbol_letter(step) for step in range(1, steps + 1) if step not in brought]
    if not missing:
        text = f"can deliver {_listed(got, 'and')}"
    elif got:
        text = f"can deliver {_listed(got, 'and')} but not {_listed(missing, 'or')}"
    else:
        text = f"cannot deliver {_listed(missing, 'or')}"
    if missing and kept:
        heads = [str(head) for head in kept]
        named = _listed(heads, "and") if len(heads) <= 4 else f"{len(heads)} of its heads"
        verb = "is" if len(heads) == 1 else "are"
        text += f"; {named} {verb} not reduced to paths and may bring more"
    return f"By information flow along its paths, this circuit {text}."


def _listed(words: list[str], conjunction: str) -> str:
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words[:-1])} {conjunction} {words[-1]}"


def _paths_by_layer(circuit: Circuit, n_layers: int) -> list[list[HeadPath]]:
    """The paths of every layer.

    Raises:
        InputError: an even number of roles, a role or a layer out of range.
    """
    _check_layers(n_layers)
    n_roles = circuit.n_roles
    if n_roles < 3 or n_roles % 2 == 0:
        raise InputError(f"circuit: expected 2 * steps + 1 roles, at least 3, found {n_roles}")
    by_layer: list[list[HeadPath]] = [[] for _ in range(n_layers)]
    for head in circuit.mechanisms:
        if not 0 <= head.layer < n_layers:
            raise InputError(
                f"circuit: expected heads of the model's {n_layers} layers, L0 on, found {head}"
            )
    for path in circuit.paths():
        if not all(0 <= role < n_roles for role in path.path):
            raise InputError(
                f"circuit: expected roles from s0 to {role_name(n_roles - 1)}, found {path}"
            )
        by_layer[path.head.layer].append(path)
    return by_layer


def _check_layers(layers: int) -> None:
    if isinstance(layers, bool) or not isinstance(layers, int) or layers < 0:
        raise InputError(f"layers: expected an integer of at least 0, found {layers!r}")
