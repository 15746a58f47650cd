"""Changes of a circuit: a path more, a path less, or another mechanism for a head."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from retrieval_interp.circuits.circuit import Circuit, Head, HeadPath
from retrieval_interp.circuits.mechanisms import Mechanism, along


@dataclass(frozen=True)
class Add:
    """One more path of a head; a head without paths gets its first."""

    path: HeadPath

    @property
    def head(self) -> Head:
        return self.path.head


@dataclass(frozen=True)
class Drop:
    """One path of a head less."""

    path: HeadPath

    @property
    def head(self) -> Head:
        return self.path.head


@dataclass(frozen=True)
class Replace:
    """Another mechanism for a head."""

    head: Head
    mechanism: Mechanism


Change = Add | Drop | Replace


def changed(circuit: Circuit, changes: Iterable[Change], shared: bool = True) -> Circuit:
    """The circuit after some changes, one after the other.

    Args:
        circuit: the circuit, which is kept.
        changes: what to change.
        shared: whether a role may have several sources; otherwise an added path takes the place of
            the role's other one.
    """
    for change in changes:
        old = circuit[change.head]
        if isinstance(change, Replace):
            new = change.mechanism
        elif isinstance(change, Drop):
            new = old.without(change.path.path)
        else:
            added = change.path.path
            kept = [
                path
                for path in (old.paths if old.follows_paths else ())
                if shared or path.dest != added.dest
            ]
            new = along((*kept, added))
        circuit = circuit.replace(change.head, new)
    return circuit


def compatible(changes: Sequence[Change]) -> bool:
    """Whether no change undoes another one: a replaced head is changed by nothing else."""
    replaced = [change.head for change in changes if isinstance(change, Replace)]
    heads = [change.head for change in changes]
    return all(heads.count(head) == 1 for head in replaced)
