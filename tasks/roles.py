"""Roles: names of the positions of a retrieval chain (paper, appendix B).

s0 is the query x_0; s_{2d-1} and s_{2d} are the first and second element of pair d, that is,
x_{d-1} and x_d. In letters, s2 is "B of A->B". A task may give its roles other names.
"""

import re
import string
from collections.abc import Sequence

from retrieval_interp.tasks.errors import InputError, nearest

Roles = int | Sequence[str]  # how many roles there are, or what each is called
_NUMBERED = re.compile("s(0|[1-9][0-9]{0,5})")


def role_name(role: int, names: Sequence[str] = ()) -> str:
    """Return a task's name of a role, or else `s<number>`, as in appendix B."""
    return names[role] if 0 <= role < len(names) else f"s{role}"


def parse_role(name: object, roles: Roles) -> int:
    """Read the number of a role from its name or from `s<number>`."""
    names, count = ((), roles) if isinstance(roles, int) else (tuple(roles), len(roles))
    text = name.strip() if isinstance(name, str) else ""
    if text in names:
        return names.index(text)
    match = _NUMBERED.fullmatch(text)
    if match is None or int(match[1]) >= count:
        given = "" if all(map(_NUMBERED.fullmatch, names)) else f" ({', '.join(names)})"
        expected = f"a role from s0 to s{count - 1}{given:.200}"
        if given and (meant := nearest(text, names)):
            expected = f"the role {meant}"
        raise InputError(f"expected {expected}, found {name!r:.60}")
    return int(match[1])


def check_role_names(names: Sequence[str], where: str = "task") -> None:
    """Check that roles can be told apart in written paths; errors start with `where`."""
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise InputError(
            f"{where}: expected role_names that are words in a tuple, found {names!r:.40}"
        )
    for number, name in enumerate(names):
        if (
            not isinstance(name, str)
            or not re.fullmatch(r"[^\s~,;<>]+", name)
            or (_NUMBERED.fullmatch(name) and name != role_name(number))
            or name in names[:number]
        ):
            raise InputError(
                f"{where}: expected role_names that are different words without ~ , ; < >, and s0, "
                f"s1, ... only for the roles of these numbers, found {name!r:.40} for s{number}"
            )


def symbol_letter(step: int) -> str:
    """Return A for x_0, B for x_1, ... Z for x_25, then x26, x27, ... (section 3.1)."""
    return string.ascii_uppercase[step] if step < 26 else f"x{step}"


def join_labels(dest: str, src: str) -> str:
    """Return the label of a path, shortened if both ends are of one pair: `B <- A of A->B`."""
    symbol, _, pair = dest.partition(" of ")
    return f"{symbol if pair and pair == src.partition(' of ')[2] else dest} <- {src}"
