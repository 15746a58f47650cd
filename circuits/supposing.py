"""Circuits from lines, as people write them and tables print them.

L0.H0 one-hot s2<-s1 s4<-s3     the head's mechanism, with all its paths
L1.H0 uniform                   the same without paths
L2.H0 s0<-s2                    one more path; a role with two sources shares its attention
"""

from collections.abc import Iterable

from circuits.circuit import Circuit, Head, parse_head
from circuits.mechanisms import KINDS, Mechanism, Rest, parse_role_path, tidy
from tasks import InputError, Task

_WRITTEN = tuple(kind for kind in KINDS if kind != "role-mean")  # its weights need measuring


def suppose(circuit: Circuit, line: str) -> Circuit:
    """A circuit with one more line supposed.

    Args:
        circuit: what is supposed already.
        line: of the forms above.

    Raises:
        InputError: not of that form; the line is quoted.
    """
    words = line.split()
    paths = words[1:] if len(words) > 1 and "<-" in words[1] else words[2:]
    if len(words) < 2 or not (words[1] in _WRITTEN or len(paths) == len(words) - 1):
        raise InputError(
            "expected a line such as L1.H0 s0<-s2, L0.H0 one-hot s2<-s1 s4<-s3 or L1.H0 uniform "
            f"(mechanisms: {', '.join(_WRITTEN)}), found {line!r:.80}"
        )
    head = parse_head(words[0])
    parsed = tuple(parse_role_path(word, circuit.n_roles) for word in paths)
    if words[1] in _WRITTEN:
        return circuit.replace(head, Mechanism(words[1], parsed))
    old = circuit[head]
    kept = old.paths if old.kind in ("one-hot", "shared") else ()
    return circuit.replace(head, tidy(Mechanism("shared", tuple(dict.fromkeys((*kept, *parsed))))))


def parse_circuit(lines: Iterable[str], task: Task, rest: Rest = "zero") -> Circuit:
    """A circuit from lines, one a head.

    Args:
        lines: of the forms above; heads not named are left as they are.
        task: the task that the circuit speaks of.
        rest: the attention row of a position without a path, in one-hot and shared heads.

    Raises:
        InputError: not of that form, or a head named twice; the line is quoted.
    """
    circuit = Circuit({}, len(task.role_names), rest, task.to_dict())
    named: set[Head] = set()
    for line in lines:
        circuit = suppose(circuit, line)
        head = parse_head(line.split()[0])
        if head in named:
            raise InputError(f"expected every head once, found {head} twice")
        named.add(head)
    return circuit
