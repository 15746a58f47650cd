"""Heads, paths between roles, and how both are written."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from retrieval_interp.tasks import InputError, Task, parse_role, role_name
from retrieval_interp.tasks.task import Roles

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

    def ends(self, names: Sequence[str] | Task = ()) -> tuple[str, str]:
        """The names of destination and source, as `join` reads them."""
        names = names.role_names if isinstance(names, Task) else names or self.names
        return role_name(self.dest, names), role_name(self.src, names)

    def text(self, names: Sequence[str] | Task = ()) -> str:
        """The path with the names of a task's roles, or of the task that has them."""
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

    def text(self, names: Sequence[str] | Task = ()) -> str:
        return f"{self.head} {self.path.text(names)}"

    def __repr__(self) -> str:
        return self.text()


def named(paths: Iterable[HeadPath], names: Sequence[str]) -> tuple[HeadPath, ...]:
    """The same paths, printed with these names of roles."""
    return tuple(HeadPath(Head(*head), RolePath(*path).named(names)) for head, path in paths)
