"""What the roles of a circuit are called in pictures."""

from typing import NamedTuple

from circuits.circuit import Circuit
from tasks import RetrievalTask, Task, role_letters, role_name, symbol_letter


class RoleNames(NamedTuple):
    """Names of every role for people: in words, and shorter."""

    labels: tuple[str, ...]
    symbols: tuple[str, ...]


def names_for(circuit: Circuit, task: Task | None) -> RoleNames:
    """As the task says; without one in a chain's letters, or s0, s1, ... for other tasks."""
    if task is not None:
        return RoleNames(task.role_labels, task.role_symbols)
    roles = range(circuit.n_roles)
    if circuit.task.get("name", RetrievalTask.name) == RetrievalTask.name:
        symbols = (symbol_letter(role // 2) + ("" if role else "?") for role in roles)
        return RoleNames(tuple(map(role_letters, roles)), tuple(symbols))
    names = tuple(map(role_name, roles))
    return RoleNames(names, names)
