"""The cost of a circuit: how far it is from simple.

With R roles and n_d sources of role d, a head costs

    uniform, identity     0
    first, last, offset   1
    same, after-same      2
    one-hot, shared       Σ_d (2 n_d - 1) over roles with sources: 1 for the first source of a
                          role, 2 for every further one; 1 if the head attends nowhere
    role-mean             3 R
    mean                  5 R
    original, cut         10 R

and a circuit the sum over all heads of the model.
"""

from retrieval_interp.circuits.circuit import Circuit, Head
from retrieval_interp.circuits.mechanisms import Mechanism


def cost(mechanism: Mechanism, n_roles: int) -> int:
    """The cost of one head's mechanism; see the module's docstring."""
    return mechanism.cost(n_roles)


def circuit_cost(circuit: Circuit, heads: list[Head]) -> int:
    """The cost of a circuit in a model with these heads."""
    return sum(cost(circuit[head], circuit.n_roles) for head in heads)
