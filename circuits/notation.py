"""Circuits as text: parsing lines, printing, and comparing two circuits.

L0.H0 one-hot s2<-s1 s4<-s3     the head's mechanism, with all its paths
L1.H0 uniform                   a mechanism without paths
L1.H1 offset 2                  two positions back; `previous` is `offset 1`
L2.H0 s0<-s2                    adds a path; a role with two sources shares its attention
"""

import re
from collections.abc import Iterable

from circuits.circuit import (
    KINDS,
    Circuit,
    Head,
    HeadPath,
    Mechanism,
    Rest,
    RolePath,
    one_suffices,
    tidy,
)
from tasks import InputError, Task

_WRITTEN = tuple(kind for kind in KINDS if kind not in ("role-mean", "mean"))  # are measured
_LONG = {"previous": ["offset", "1"]}


def suppose(circuit: Circuit, line: str) -> Circuit:
    """Add one line to a circuit.

    Args:
        circuit: the circuit so far.
        line: in one of the forms above.

    Raises:
        InputError: not of those forms; the message quotes the line.
    """
    words = [word for each in line.split() for word in _LONG.get(each, [each])]
    paths = words[1:] if len(words) > 1 and "<-" in words[1] else words[2:]
    if len(words) < 2 or not (words[1] in _WRITTEN or len(paths) == len(words) - 1):
        raise InputError(
            "expected a line such as L1.H0 s0<-s2, L0.H0 one-hot s2<-s1 s4<-s3 or L1.H0 uniform "
            f"(mechanisms: {', '.join((*_WRITTEN, *_LONG))}), found {line!r:.80}"
        )
    head = Head.parse(words[0])
    if words[1] == "offset":
        return circuit.replace(head, Mechanism("offset", offset=_offset(paths)))
    parsed = tuple(RolePath.parse(word, circuit.n_roles) for word in paths)
    if words[1] in _WRITTEN:
        return circuit.replace(head, Mechanism(words[1], parsed))
    old = circuit[head]
    kept = old.paths if old.kind in ("one-hot", "shared") else ()
    return circuit.replace(head, tidy(Mechanism("shared", tuple(dict.fromkeys((*kept, *parsed))))))


def _offset(words: list[str]) -> int:
    if len(words) != 1 or not re.fullmatch("[1-9][0-9]{0,5}", words[0]):
        found = " ".join(words[1:] if words[:1] == ["1"] else words)
        raise InputError(
            f"expected `previous` alone, or an offset such as `offset 2`, found {found!r:.60}"
        )
    return int(words[0])


def parse_circuit(lines: Iterable[str], task: Task, rest: Rest = "zero") -> Circuit:
    """Read a circuit from lines, one per head.

    Args:
        lines: in the forms above; heads not named are left as they are.
        task: the task that the circuit belongs to.
        rest: the attention row of a position without a path, in one-hot and shared heads.

    Raises:
        InputError: not of those forms, or a head is named twice; the message quotes the line.

    Examples:
        >>> import retrieval_interp as ri
        >>> task = ri.RetrievalTask(steps=3)
        >>> ri.parse_circuit(["L0.H0 one-hot s4<-s3", "L1.H0 uniform", "L2.H0 s0<-s1 s0<-s2"], task)
        L0.H0 one-hot s4<-s3
        L1.H0 uniform
        L2.H0 shared s0<-s1 s0<-s2
    """
    circuit = Circuit({}, len(task.role_names), rest, task.to_dict())
    named: set[Head] = set()
    for line in lines:
        circuit = suppose(circuit, line)
        head = Head.parse(line.split()[0])
        if head in named:
            raise InputError(f"expected every head once, found {head} twice")
        named.add(head)
    return circuit


def parse_head_path(text: str, n_roles: int) -> HeadPath:
    """Read `L1.H0 s0<-s2`.

    Raises:
        InputError: not of that form, or a role is out of range.
    """
    return HeadPath.parse(text, n_roles)


def circuit_text(circuit: Circuit, n_layers: int) -> str:
    """The circuit with one line per layer, the last layer on top; `~` marks enabling paths."""
    lines = []
    for layer in reversed(range(n_layers)):
        heads = [
            f"H{head.head} {mechanism}"
            for head, mechanism in circuit.mechanisms.items()
            if head.layer == layer
        ]
        heads += [
            f"H{path.head.head} ~{path.path}"
            for path in circuit.enabling
            if path.head.layer == layer
        ]
        lines.append(f"L{layer:<3} {'; '.join(heads) or 'original'}")
    return "\n".join(lines)


def circuit_diff(old: Circuit, new: Circuit) -> list[str]:
    """What changed between two circuits, one line per head: `L1.H0: uniform -> one-hot s0<-s2`."""
    heads = sorted(old.mechanisms.keys() | new.mechanisms.keys())
    lines = [
        f"{head}: {old[head]} -> {'another ' * (str(old[head]) == str(new[head]))}{new[head]}"
        for head in heads
        if old[head] != new[head]
    ]
    gone = [f"enabling: - {path}" for path in old.enabling if path not in new.enabling]
    come = [f"enabling: + {path}" for path in new.enabling if path not in old.enabling]
    gone += [f"redundant: - {one_suffices(p)}" for p in old.redundant if p not in new.redundant]
    come += [f"redundant: + {one_suffices(p)}" for p in new.redundant if p not in old.redundant]
    rest = [f"rest: {old.rest} -> {new.rest}"] if old.rest != new.rest else []
    return [*rest, *lines, *gone, *come]
