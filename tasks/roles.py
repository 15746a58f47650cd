"""Roles: what a position does in its retrieval chain (paper, appendix B).

s0 is the query x_0; s_{2d-1} and s_{2d} are the first and second element of pair d, that is,
x_{d-1} and x_d. In letters, s2 is "B of A->B".
"""

import re
import string

from tasks.errors import InputError


def role_name(role: int) -> str:
    """`s<number>`, as in appendix B."""
    return f"s{role}"


def parse_role(name: object, n_roles: int) -> int:
    """The number of a role, from its name.

    Raises:
        InputError: the name is not one of s0 .. s<n_roles-1>.
    """
    match = re.fullmatch(r"s(0|[1-9][0-9]{0,5})", name.strip()) if isinstance(name, str) else None
    if match is None or int(match[1]) >= n_roles:
        raise InputError(f"expected a role from s0 to s{n_roles - 1}, found {name!r:.60}")
    return int(match[1])


def symbol_letter(step: int) -> str:
    """A for x_0, B for x_1, ... Z for x_25, then x26, x27, ... (section 3.1)."""
    return string.ascii_uppercase[step] if step < 26 else f"x{step}"


def pair_letters(pair: int) -> str:
    """`A->B` for pair 1."""
    return f"{symbol_letter(pair - 1)}->{symbol_letter(pair)}"


def role_letters(role: int) -> str:
    """`query A` for s0, `A of A->B` for s1, `B of A->B` for s2, and so on."""
    if role == 0:
        return "query A"
    return f"{symbol_letter(role // 2)} of {pair_letters((role + 1) // 2)}"


def path_letters(dest: int, src: int) -> str:
    """A path in letters, shortened if both ends are in the same pair: `B <- A of A->B`."""
    same_pair = dest != 0 and src != 0 and (dest + 1) // 2 == (src + 1) // 2
    left = symbol_letter(dest // 2) if same_pair else role_letters(dest)
    return f"{left} <- {role_letters(src)}"
