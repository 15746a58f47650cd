"""How far a circuit is from simple, as a number."""

from circuits.circuit import Circuit, Head, Mechanism


def cost(mechanism: Mechanism, n_roles: int) -> int:
    """How far a mechanism is from simple; see the module's docstring."""
    if mechanism.kind in ("one-hot", "shared") and not mechanism.paths:
        return 1  # attending nowhere is no attention of a softmax
    return {
        "uniform": 0,
        "identity": 0,
        "one-hot": len(mechanism.paths),
        "shared": 2 * len(mechanism.paths) - len({path.dest for path in mechanism.paths}),
        "role-mean": 3 * n_roles,
    }.get(mechanism.kind, 10 * n_roles)


def circuit_cost(circuit: Circuit, heads: list[Head]) -> int:
    """The cost of a circuit on a model with these heads."""
    return sum(cost(circuit[head], circuit.n_roles) for head in heads)
