"""Mechanisms: what a head's attention is replaced by (paper, appendix E).

- `original`: left as it is.
- `cut`: left as it is, but for its paths, whose attention is set to zero.
- `uniform`: equal weight on every position that the mask allows.
- `identity`: every position attends to itself.
- `one-hot`: a path dest <- src puts all of role dest's attention on role src of the same chain.
- `shared`: as one-hot, but a role may have several sources, which share its attention equally.
- `role-mean`: every path has its own weight, as measured; content-free, but not simple.

Positions without a path have an all-zero row, as in the paper, or on request (`rest`) a uniform or
an identity row.
"""

import itertools
import re
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tasks import InputError, parse_role, role_name

Kind = Literal["original", "cut", "uniform", "identity", "one-hot", "shared", "role-mean"]
Rest = Literal["zero", "uniform", "identity"]
KINDS: tuple[Kind, ...] = get_args(Kind)
RESTS: tuple[Rest, ...] = get_args(Rest)
WITH_PATHS = ("one-hot", "shared", "role-mean", "cut")


class RolePath(NamedTuple):
    """Role `dest` attends to role `src` of its own chain."""

    dest: int
    src: int

    def __str__(self) -> str:
        return f"{role_name(self.dest)}<-{role_name(self.src)}"


def parse_role_path(text: str, n_roles: int) -> RolePath:
    """Read `s0<-s2`.

    Raises:
        InputError: not two roles with an arrow between them.
    """
    match = re.fullmatch(r"\s*(\S+?)\s*<-\s*(\S+)\s*", text)
    if match is None:
        raise InputError(f"expected a path such as s0<-s2, found {text!r:.60}")
    return RolePath(parse_role(match[1], n_roles), parse_role(match[2], n_roles))


@dataclass(frozen=True)
class Mechanism:
    """What one head is supposed to do.

    Attributes:
        kind: one of the kinds above.
        paths: the paths of a one-hot, shared, role-mean or cut mechanism, kept sorted; empty for
            the others.
        weights: the attention of each path of a role-mean mechanism; empty for the others.

    Raises:
        InputError: paths where none belong, a path listed twice, or two sources for one role in a
            one-hot mechanism.
    """

    kind: Kind
    paths: tuple[RolePath, ...] = ()
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"expected a mechanism of {', '.join(KINDS)}, found {self.kind!r}")
        if len(self.weights) != (len(self.paths) if self.kind == "role-mean" else 0):
            raise InputError(
                f"expected a weight for each path of a role-mean head and none for others, found "
                f"{len(self.weights)} for the {len(self.paths)} paths of a {self.kind} head"
            )
        if not all(0 <= weight <= 1 for weight in self.weights):
            raise InputError("expected weights from 0 to 1")
        order = sorted(range(len(self.paths)), key=lambda place: self.paths[place])
        paths = tuple(RolePath(*self.paths[place]) for place in order)
        object.__setattr__(self, "paths", paths)
        if self.weights:
            object.__setattr__(self, "weights", tuple(self.weights[place] for place in order))
        if paths and self.kind not in WITH_PATHS:
            raise InputError(f"expected no paths for a {self.kind} head, found {paths[0]}")
        for first, second in itertools.pairwise(paths):
            if first == second:
                raise InputError(f"expected every path once, found {first} twice")
            if first.dest == second.dest and self.kind == "one-hot":
                raise InputError(
                    f"expected one source a role in a one-hot head, found {first} and {second}; "
                    "use shared"
                )

    def without(self, path: RolePath) -> "Mechanism":
        """The same mechanism less one path; a shared role's other sources share its attention."""
        kept = [place for place, other in enumerate(self.paths) if other != path]
        return Mechanism(
            self.kind,
            tuple(self.paths[place] for place in kept),
            tuple(self.weights[place] for place in kept) if self.weights else (),
        )

    def sources(self, dest: int) -> tuple[tuple[int, float], ...]:
        """The sources that the paths give a role, each with its share of the attention."""
        places = [place for place, path in enumerate(self.paths) if path.dest == dest]
        share = 1 / max(1, len(places))
        return tuple(
            (self.paths[place].src, self.weights[place] if self.weights else share)
            for place in places
        )

    def __str__(self) -> str:
        if self.kind == "role-mean":
            return f"role-mean of {len(self.paths)} paths"
        return " ".join([self.kind, *map(str, self.paths)])


def tidy(mechanism: Mechanism) -> Mechanism:
    """Call a shared mechanism one-hot where every role has one source."""
    if mechanism.kind != "shared":
        return mechanism
    dests = [path.dest for path in mechanism.paths]
    return Mechanism("one-hot" if len(set(dests)) == len(dests) else "shared", mechanism.paths)


ORIGINAL = Mechanism("original")
UNIFORM = Mechanism("uniform")
IDENTITY = Mechanism("identity")


def allowed_positions(n_positions: int, causal: bool, device: torch.device) -> Bool[Tensor, "d s"]:
    """Which source each destination may attend to, [dest src]."""
    allowed = torch.ones(n_positions, n_positions, dtype=torch.bool, device=device)
    return allowed.tril() if causal else allowed


def attention_pattern(
    mechanism: Mechanism,
    roles: Int[Tensor, "batch chain role"],
    n_positions: int,
    causal: bool = True,
    rest: Rest = "zero",
) -> Float[Tensor, "#batch dest src"]:
    """The attention that a mechanism stands for, in float32 on the device of `roles`.

    Args:
        mechanism: any but `original` and `cut`, which have no pattern of their own.
        roles: position of every role.
        n_positions: sequence length.
        causal: whether a position may attend to earlier positions and itself only.
        rest: the row of a position without a path.

    Positions may have several roles (in tasks of one's own); the lowest-numbered with a path
    decides.

    Returns:
        [batch dest src], or [1 dest src] where the pattern is the same for every example.

    Raises:
        InputError: a path names a role that the batch lacks, or goes against the causal mask.
    """
    allowed = allowed_positions(n_positions, causal, roles.device).float()
    rows: dict[str, Tensor] = {
        "zero": torch.zeros_like(allowed),
        "uniform": allowed / allowed.sum(-1, keepdim=True),
        "identity": torch.eye(n_positions, device=roles.device),
    }
    if mechanism.kind in ("uniform", "identity"):
        return rows[mechanism.kind][None]
    if mechanism.kind in ("original", "cut"):
        raise InputError(f"{mechanism.kind}: the head keeps its own attention, no pattern to build")
    check_paths(mechanism.paths, roles, causal)
    pattern = rows[rest].expand(len(roles), -1, -1).clone()
    example = torch.arange(len(roles), device=roles.device)[:, None]
    # Where a position has several roles, the one with the lowest number decides: it comes last.
    for dest in sorted({path.dest for path in mechanism.paths}, reverse=True):
        pattern[example, roles[:, :, dest]] = 0.0
        for src, weight in mechanism.sources(dest):
            pattern[example, roles[:, :, dest], roles[:, :, src]] += weight
    return pattern


def cut_paths(
    pattern: Float[Tensor, "batch dest src"],
    paths: tuple[RolePath, ...],
    roles: Int[Tensor, "batch chain role"],
) -> Float[Tensor, "batch dest src"]:
    """A copy of a pattern in which no attention runs along the given paths."""
    pattern = pattern.clone()
    example = torch.arange(len(roles), device=roles.device)[:, None]
    for dest, src in paths:
        pattern[example, roles[:, :, dest], roles[:, :, src]] = 0.0
    return pattern


def check_paths(
    paths: tuple[RolePath, ...],
    roles: Int[Tensor, "batch chain role"],
    causal: bool,
    where: str = "",
) -> None:
    """Refuse paths that these positions cannot have; `where` goes before the error's text.

    Raises:
        InputError: a role that the batch lacks, or, in a causal model, a source that comes after
            its destination.
    """
    n_roles = roles.shape[-1]
    for path in paths:
        if not (0 <= path.dest < n_roles and 0 <= path.src < n_roles):
            raise InputError(
                f"{where}expected roles from s0 to s{n_roles - 1}, found the path {path}"
            )
        if causal and bool((roles[:, :, path.src] > roles[:, :, path.dest]).any()):
            raise InputError(
                f"{where}expected a source before its destination (the model is causal), found "
                f"{path}: {role_name(path.src)} comes later in the sequence"
            )
