"""Heads and paths between roles: how they are written, which positions they join, their attention.

A path joins roles of the same chain. `path_sources` says which positions these are, for patterns
along paths and for attention that is cut or measured. Only in heads that are patched from a
counterfactual prompt does a path join roles of any two chains (`path_mask`). Nothing here runs a
model.
"""

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from retrieval_interp.tasks import Batch, InputError, parse_role, role_name
from retrieval_interp.tasks.task import Roles

RolePositions = Int[
    Tensor, "batch chain role"
]  # the position of every role of every chain; -1 if absent
_ARROW = re.compile(r"\s*[-=]*[<>=→←][-=]*\s*")


class Head(NamedTuple):
    """An attention head."""

    layer: int
    head: int

    @classmethod
    def parse(cls, text: str) -> "Head":
        """Read `L1.H0`."""
        match = re.fullmatch(r"\s*L([0-9]{1,6})\.H([0-9]{1,6})\s*", str(text))
        if match is None:
            numbers = re.findall("[0-9]+", str(text))
            meant = "L{}.H{}".format(*numbers) if len(numbers) == 2 else "L1.H0"
            raise InputError(f"expected a head such as {meant}, found {text!r:.60}")
        return cls(int(match[1]), int(match[2]))

    def __repr__(self) -> str:
        return f"L{self.layer}.H{self.head}"


class RolePath(NamedTuple("RolePath", [("dest", int), ("src", int)])):
    """Role `dest` attends to role `src` of its own chain."""

    names: Sequence[str] = ()  # what the task calls its roles, to print; no part of what it is

    @staticmethod
    def is_meant(text: str) -> bool:
        """Whether a text has an arrow, of any kind."""
        return _ARROW.search(text) is not None

    @classmethod
    def parse(cls, text: str, roles: Roles) -> "RolePath":
        """Read `s0<-s2`, also with a task's names for its roles."""
        match = re.fullmatch(r"\s*(\S+?)\s*<-\s*(\S+)\s*", text)
        if match is None:
            ends = [end for end in _ARROW.split(text.strip()) if end]
            dest, src = ends if len(ends) == 2 else ("s0", "s2")
            meant = f"{dest}<-{src} ({dest} attends to {src})"
            raise InputError(f"expected a path such as {meant}, found {text!r:.60}")
        return cls.join(match[1], match[2], roles)

    @classmethod
    def join(cls, dest: str, src: str, roles: Roles) -> "RolePath":
        """Make a path from the names of its roles."""
        path = cls(parse_role(dest, roles), parse_role(src, roles))
        return path if isinstance(roles, int) else path.named(roles)

    def named(self, names: Sequence[str]) -> "RolePath":
        """The same path, printed with these names of roles."""
        path = RolePath(*self)
        path.names = names
        return path

    def ends(self, names: Sequence[str] = ()) -> tuple[str, str]:
        """The names of destination and source, as `join` reads them."""
        names = names or self.names
        return role_name(self.dest, names), role_name(self.src, names)

    def text(self, names: Sequence[str] = ()) -> str:
        """The path with these names of roles, or its own."""
        return "<-".join(self.ends(names))

    def __repr__(self) -> str:
        return self.text()


class HeadPath(NamedTuple):
    """A path of one head, written `L1.H0 s0<-s2`."""

    head: Head
    path: RolePath

    @classmethod
    def parse(cls, text: str, roles: Roles) -> "HeadPath":
        """Read `L1.H0 s0<-s2`."""
        head, _, path = str(text).strip().partition(" ")
        return cls(Head.parse(head), RolePath.parse(path, roles))

    def text(self, names: Sequence[str] = ()) -> str:
        return f"{self.head} {self.path.text(names)}"

    def __repr__(self) -> str:
        return self.text()


def named(paths: Iterable[HeadPath], names: Sequence[str]) -> tuple[HeadPath, ...]:
    """The same paths, printed with these names of roles."""
    return tuple(HeadPath(Head(*head), RolePath(*path).named(names)) for head, path in paths)


# The positions that paths join, and attention there


class Mask(NamedTuple):
    """Which positions a layer may attend to, by their distance."""

    causal: bool = True  # only a position itself and earlier ones
    window: int | None = None  # only positions less than this many away

    def allows(self, before: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """Whether sources so many positions before their destinations may be attended to."""
        allowed = before >= 0 if self.causal else torch.ones_like(before, dtype=torch.bool)
        return allowed if self.window is None else allowed & (before.abs() < self.window)


EVERYTHING_BEFORE = Mask()


@dataclass(frozen=True)
class Positions:
    """The positions for which a pattern is built."""

    roles: RolePositions
    n_positions: int  # sequence length
    mask: Mask = EVERYTHING_BEFORE  # of the layer
    tokens: Int[Tensor, "batch pos"] | None = None  # None where inputs are vectors
    real: Bool[Tensor, "batch pos"] | None = None  # False at padding, to which no rule attends
    _checked: set[RolePath] = field(default_factory=set, compare=False, repr=False)

    def check(self, paths: Iterable[RolePath], prefix: str = "", names: Sequence[str] = ()) -> None:
        """Check that paths fit these positions, each once; errors start with `prefix`."""
        last = self.roles.shape[-1] - 1
        for path in paths:
            if path in self._checked:
                continue
            if not (0 <= path.dest <= last and 0 <= path.src <= last):
                raise InputError(
                    f"{prefix}expected roles from s0 to s{last}, found the path {path}"
                )
            before = self._before(path)
            hidden = before[~self.mask.allows(before)]
            if len(hidden):
                expected = f"less than {self.mask.window} positions away (the layer's window)"
                fault = f"is {int(hidden.abs().max())} away"
                if self.mask.causal and int(hidden.min()) < 0:
                    expected = "before its destination (the model is causal)"
                    fault = "comes later in the sequence"
                raise InputError(
                    f"{prefix}expected a source {expected}, found {path.text(names)}: "
                    f"{role_name(path.src, names)} {fault}"
                )
            self._checked.add(path)

    def _before(self, path: RolePath) -> Int[Tensor, " number"]:
        """Return how far before its destinations a path's sources are, if both exist."""
        dest, src = self.roles[:, :, path.dest], self.roles[:, :, path.src]
        return (dest - src)[(dest >= 0) & (src >= 0)]

    @cached_property
    def paths(self) -> list[RolePath]:
        """The role paths that occur here and that the mask always allows."""
        roles, paths = range(self.roles.shape[-1]), []
        for path in itertools.starmap(RolePath, itertools.product(roles, roles)):
            before = self._before(path)
            if len(before) and bool(self.mask.allows(before).all()):
                paths.append(path)
        return paths

    @property
    def allowed(self) -> Bool[Tensor, "#batch dest src"]:
        """Which sources each destination may attend to, by the mask; never padding."""
        position = torch.arange(self.n_positions, device=self.roles.device)
        allowed = self.mask.allows(position[:, None] - position)[None]
        return allowed if self.real is None else allowed & self.real[:, None, :]

    @classmethod
    def of(cls, batch: Batch, mask: Mask) -> "Positions":
        """Return the positions of a batch, in a layer with this mask."""
        return cls(batch.roles, batch.inputs.shape[1], mask, batch.tokens, batch.attention_mask)


def path_sources(
    path: RolePath, roles: RolePositions, size: int
) -> Bool[Tensor, "batch chain src"]:
    """Return a path's sources, for role `dest` of every chain; none if it is absent.

    Where chains have `dest` at the same position, it has the sources of all these chains. `size` is
    the number of positions.
    """
    position = torch.arange(size, device=roles.device)
    sources = roles[:, :, path.src, None] == position
    shared = shared_destinations(roles, path.dest)
    sources = sources if shared is None else (shared.float() @ sources.float()) > 0
    return sources & (roles[:, :, path.dest, None] >= 0)


def shared_destinations(
    roles: RolePositions, dest: int
) -> Bool[Tensor, "batch chain chain2"] | None:
    """Return which chains share the position of role `dest`; None if no two do."""
    here = roles[:, :, dest]
    same = (here[:, :, None] == here[:, None, :]) & (here >= 0)[:, None, :]
    return same if int(same.sum()) > int((here >= 0).sum()) else None


def rows_of(dest: int, roles: RolePositions) -> tuple[Tensor, Tensor]:
    """Return the index of a role's rows, for every chain; any row for absent ones."""
    example = torch.arange(len(roles), device=roles.device)[:, None].expand(roles.shape[:2])
    return example, roles[:, :, dest].clamp(min=0)


def softmax_attention(
    queries: Float[Tensor, "*batch dest d_head"],
    keys: Float[Tensor, "*batch src d_head"],
    allowed: Bool[Tensor, "*#batch dest src"],
    scale: float,
) -> Float[Tensor, "*batch dest src"]:
    """Return dot-product attention: softmax(q·k / scale) over allowed sources."""
    scores = queries @ keys.transpose(-1, -2) / scale
    return scores.masked_fill(~allowed, -torch.inf).softmax(-1)


def path_mask(
    paths: Iterable[RolePath],
    roles: RolePositions,
    size: int,
    rows: Iterable[int] = (),
    any_chains: bool = False,
) -> Bool[Tensor, "batch dest src"]:
    """Return which positions the paths join, and the whole rows of some roles.

    With `any_chains` a path joins role `dest` of any chain with role `src` of any chain. So where
    every position has a role, all paths of a row together make the whole row, and keeping a row can
    be narrowed to keeping some of its paths.
    """
    standing = role_masks(roles, size)
    count = torch.zeros(len(roles), size, size, dtype=torch.int32, device=roles.device)
    for path in paths:
        if any_chains:
            count += standing[:, path.dest, :, None] & standing[:, path.src, None, :]
        else:
            sources = path_sources(path, roles, size)
            count.index_put_(rows_of(path.dest, roles), sources.int(), accumulate=True)
    for row in rows:
        count += standing[:, row, :, None]
    return count > 0


def attention_by_role(
    pattern: Float[Tensor, "batch head dest src"], roles: RolePositions
) -> tuple[Float[Tensor, "head role role2"], Float[Tensor, "role role2"]]:
    """Average a pattern from role to role of the same chain; return means and counts.

    Over the examples and chains that have both roles, whose count is the second result; 0 if none
    has. Where chains share the destination's position, attention to all of them is added up.
    """
    example = torch.arange(len(pattern), device=pattern.device)[:, None]
    of_rows, n_roles, size = [], roles.shape[-1], pattern.shape[-1]
    for dest in range(n_roles):
        here = roles[:, :, dest]
        rows = pattern[example, :, here.clamp(min=0)].float()  # [batch chain head src]
        shared = shared_destinations(roles, dest)
        if shared is None:
            present = (here >= 0)[..., None] & (roles >= 0)
            sources = roles.clamp(min=0)[:, :, None].expand(-1, -1, rows.shape[2], -1)
            # Rows of padding, which stand in for absent roles, may be NaN.
            weights = rows.gather(-1, sources).masked_fill(~present[:, :, None], 0.0)
        else:
            all_of = [path_sources(RolePath(dest, src), roles, size) for src in range(n_roles)]
            among = torch.stack(all_of, dim=-1)  # [batch chain src role]
            rows = rows.masked_fill(~among.any(-1)[:, :, None], 0.0)
            present, weights = among.any(2), rows @ among.float()
        of_rows.append((weights.sum(dim=(0, 1)), present.float().sum(dim=(0, 1))))
    totals, counts = (torch.stack(all_rows, dim=-2) for all_rows in zip(*of_rows))
    return totals / counts.clamp(min=1), counts


def role_masks(roles: RolePositions, size: int) -> Bool[Tensor, "batch role pos"]:
    """Return where every role is, in any chain; nowhere if it is absent."""
    position = torch.arange(size, device=roles.device)
    return (roles[..., None] == position).any(1)


def attention_along(
    pattern: Float[Tensor, "batch dest src"], path: RolePath, roles: RolePositions
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Average one head's attention along a path, to all its sources together.

    Over the examples and chains that have a source, whose number is the second result; 0 if none.
    """
    sources = path_sources(path, roles, pattern.shape[-1])
    count = sources.any(-1).float().sum()
    along = pattern[rows_of(path.dest, roles)].float().masked_fill(~sources, 0.0)
    return along.sum() / count.clamp(min=1), count


def first_real(real: Bool[Tensor, "batch pos"]) -> Int[Tensor, " batch"]:
    """Return the position of every example's first token that is no padding."""
    return real.int().argmax(1)


def shifted(x: Tensor, by: Int[Tensor, " batch"], dims: tuple[int, ...]) -> Tensor:
    """Shift each example along some axes by its own number of places, cyclically."""
    for dim in dims:
        place = torch.arange(x.shape[dim], device=x.device) - by[:, None]
        shape = [len(x), *[1] * (dim - 1), x.shape[dim], *[1] * (x.ndim - dim - 1)]
        x = x.gather(dim, (place % x.shape[dim]).view(shape).expand(x.shape))
    return x
