"""Circuits as text: parsing lines, printing, and comparing two circuits.

L0.H0 one-hot s2<-s1 s4<-s3     the head's mechanism, with all its paths
L1.H0 uniform                   a mechanism without paths
L1.H1 offset 2                  two positions back; `previous` is `offset 1`, `next` `offset -1`
L2.H0 s0<-s2                    adds a path; a role with two sources shares its attention
L2.H1 s0<-all.s2 s4<-other.s3   to a role of all chains, or of all others, in equal parts

A task's own names for its roles stand as well as s0, s1, ...
"""

import re
from collections.abc import Iterable

from retrieval_interp.circuits.circuit import (
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
from retrieval_interp.tasks import InputError, Task

_WRITTEN = tuple(kind for kind in KINDS if kind not in ("role-mean", "mean"))  # are measured
_LONG = {"previous": ["offset", "1"], "next": ["offset", "-1"]}


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
    parsed = tuple(RolePath.parse(word, circuit.roles) for word in paths)
    if words[1] in _WRITTEN:
        return circuit.replace(head, Mechanism(words[1], parsed))
    old = circuit[head]
    kept = old.paths if old.kind in ("one-hot", "shared") else ()
    return circuit.replace(head, tidy(Mechanism("shared", tuple(dict.fromkeys((*kept, *parsed))))))


def _offset(words: list[str]) -> int:
    if len(words) != 1 or not re.fullmatch("-?[1-9][0-9]{0,5}", words[0]):
        found = " ".join(words[1:] if words[:1] in (["1"], ["-1"]) else words)
        raise InputError(
            "expected `previous` or `next` alone, or an offset such as `offset 2`, found "
            f"{found!r:.60}"
        )
    return int(words[0])


def parse_circuit(lines: str | Iterable[str], task: Task, rest: Rest = "zero") -> Circuit:
    """Read a circuit from lines, one per head.

    Args:
        lines: in the forms above, as one text or one by one; heads not named are left as they are.
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
    circuit = Circuit.empty(task, rest)
    named: set[Head] = set()
    if isinstance(lines, str):
        lines = filter(str.strip, lines.splitlines())
    for line in lines:
        circuit = suppose(circuit, line)
        head = Head.parse(line.split()[0])
        if head in named:
            raise InputError(f"expected every head once, found {head} twice")
        named.add(head)
    return circuit


def parse_head_path(text: str, n_roles: int | Task) -> HeadPath:
    """Read `L1.H0 s0<-s2`.

    Args:
        text: a head and a path.
        n_roles: how many roles there are, or the task, whose names for them are then read, too.

    Raises:
        InputError: not of that form, or a role is out of range.
    """
    return HeadPath.parse(text, n_roles if isinstance(n_roles, int) else n_roles.role_names)


def circuit_text(circuit: Circuit, n_layers: int) -> str:
    """The circuit with one line per layer, the last layer on top; `~` marks enabling paths."""
    lines, names = [], circuit.role_names
    for layer in reversed(range(n_layers)):
        heads = [
            f"H{head.head} {mechanism.text(names)}"
            for head, mechanism in circuit.mechanisms.items()
            if head.layer == layer
        ]
        heads += [
            f"H{path.head.head} ~{path.path.text(names)}"
            for path in circuit.enabling
            if path.head.layer == layer
        ]
        lines.append(f"L{layer:<3} {'; '.join(heads) or 'original'}")
    return "\n".join(lines)


def circuit_diff(old: Circuit, new: Circuit) -> list[str]:
    """What changed between two circuits, one line per head: `L1.H0: uniform -> one-hot s0<-s2`."""
    heads = sorted(old.mechanisms.keys() | new.mechanisms.keys())
    names = new.role_names or old.role_names
    lines = [f"rest: {old.rest} -> {new.rest}"] if old.rest != new.rest else []
    if len({old.role_names, new.role_names, ()}) == 3:
        lines.append(f"role_names: {', '.join(old.role_names)} -> {', '.join(new.role_names)}")
    for head in heads:
        before, after = old[head].text(names), new[head].text(names)
        if old[head] != new[head]:
            lines.append(f"{head}: {before} -> {'another ' * (before == after)}{after}")
    for sign, one, other in (("-", old, new), ("+", new, old)):
        paths = [path for path in one.enabling if path not in other.enabling]
        sets = [paths for paths in one.redundant if paths not in other.redundant]
        lines += [f"enabling: {sign} {path.text(names)}" for path in paths]
        lines += [f"redundant: {sign} {one_suffices(paths, names)}" for paths in sets]
    return lines
