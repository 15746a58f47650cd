"""Circuits as text: parsing lines, printing, and comparing two circuits.

L0.H0 one-hot s2<-s1 s4<-s3     the head's mechanism, with all its paths
L1.H0 uniform                   a mechanism without paths
L1.H1 offset 2                  two positions back; `previous` is `offset 1`, `next` `offset -1`
L2.H0 s0<-s2                    adds a path; a role with two sources shares its attention

A task's own names for its roles stand as well as s0, s1, ...
"""

from collections.abc import Iterable

from retrieval_interp.circuits.circuit import Circuit, Head, HeadPath, RolePath, one_suffices
from retrieval_interp.circuits.mechanisms import MECHANISMS, along
from retrieval_interp.tasks import InputError, Task


def suppose(circuit: Circuit, line: str) -> Circuit:
    """Add one line, in one of the forms above, to a circuit."""
    words = line.split()
    written = {kind: cls for kind, cls in MECHANISMS.items() if not cls.is_measured}
    aliases = {word: long for cls in written.values() for word, long in cls.aliases.items()}
    words[1:2] = [part for word in words[1:2] for part in aliases.get(word, word).split()]
    if len(words) < 2 or not (words[1] in written or "<-" in words[1]):
        raise InputError(
            "expected a line such as L1.H0 s0<-s2, L0.H0 one-hot s2<-s1 s4<-s3 or L1.H0 uniform "
            f"(mechanisms: {', '.join((*written, *aliases))}), found {line!r:.80}"
        )
    head = Head.parse(words[0])
    if words[1] in written:
        return circuit.replace(head, written[words[1]].from_words(words[2:], circuit.roles))
    parsed = [RolePath.parse(word, circuit.roles) for word in words[1:]]
    kept = circuit[head].paths if circuit[head].follows_paths else ()
    return circuit.replace(head, along(dict.fromkeys((*kept, *parsed))))


def parse_circuit(lines: str | Iterable[str], task: Task) -> Circuit:
    """Read a circuit from lines, one per head.

    Args:
        lines: in the forms above, as one text or one by one; heads not named are left as they are.
        task: the task that the circuit belongs to.

    Examples:
        >>> import retrieval_interp as ri
        >>> task = ri.RetrievalTask(steps=3)
        >>> ri.parse_circuit(["L0.H0 one-hot s4<-s3", "L1.H0 uniform", "L2.H0 s0<-s1 s0<-s2"], task)
        L0.H0 one-hot s4<-s3
        L1.H0 uniform
        L2.H0 shared s0<-s1 s0<-s2
    """
    circuit = Circuit.empty(task)
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
    """
    return HeadPath.parse(text, n_roles if isinstance(n_roles, int) else n_roles.role_names)


def circuit_text(circuit: Circuit, n_layers: int) -> str:
    """The circuit with one line per layer, the last layer on top; `~` marks enabling paths."""
    lines, names = [], circuit.role_names
    for layer in reversed(range(n_layers)):
        parts = [(head, mechanism.text(names)) for head, mechanism in circuit.mechanisms.items()]
        parts += [(path.head, f"~{path.path.text(names)}") for path in circuit.enabling]
        heads = [f"H{head.head} {text}" for head, text in parts if head.layer == layer]
        lines.append(f"L{layer:<3} {'; '.join(heads) or 'original'}")
    return "\n".join(lines)


def circuit_diff(old: Circuit, new: Circuit) -> list[str]:
    """What changed between two circuits, one line per head: `L1.H0: uniform -> one-hot s0<-s2`."""
    heads = sorted(old.mechanisms.keys() | new.mechanisms.keys())
    names = new.role_names or old.role_names
    lines = []
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
