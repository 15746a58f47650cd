"""Circuits as data: a mechanism for each head (paper, appendix E).

- `original`: the head's own attention, left as it is.
- `cut`: the head's own attention, with that of its paths set to zero.
- `uniform`: equal weight on every position that the mask allows.
- `identity`: every position attends to itself.
- `one-hot`: a path dest <- src puts all of role dest's attention on role src of the same chain;
  dest <- all.src and dest <- other.src spread it over that role of all, or all other, chains.
- `shared`: as one-hot, but a role may have several sources, which share its attention equally.
- `role-mean`: every path has its own, measured weight; independent of content, but not simple.
- `offset`, `first`, `last`, `same`, `after-same`, `mean`: rules by position or token
  (`circuits.rules`).

In one-hot and shared heads the row of a position without a path is all zeros, as in the paper, or
optionally (`rest`) uniform or identity. `circuits.attention` turns mechanisms into patterns;
`circuits.notation` reads and writes circuits as text.
"""

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from retrieval_interp.circuits.mean_pattern import MeanPattern
from retrieval_interp.circuits.paths import Head as Head
from retrieval_interp.circuits.paths import HeadPath as HeadPath
from retrieval_interp.circuits.paths import RolePath as RolePath
from retrieval_interp.tasks import InputError, Task, role_name
from retrieval_interp.tasks.roles import Roles, check_role_names
from retrieval_interp.tasks.structured import from_data, read_json

Kind = Literal[
    "original", "cut", "uniform", "identity", "one-hot", "shared", "role-mean",
    "offset", "first", "last", "same", "after-same", "mean",
]  # fmt: skip
Rest = Literal["zero", "uniform", "identity"]
KINDS: tuple[Kind, ...] = get_args(Kind)
RESTS: tuple[Rest, ...] = get_args(Rest)
WITH_PATHS = ("one-hot", "shared", "role-mean", "cut")
RULES = ("offset", "first", "last", "same", "after-same", "mean")


# Mechanisms


@dataclass(frozen=True)
class Mechanism:
    """What one head is supposed to do.

    Attributes:
        kind: one of the kinds above.
        paths: the paths of a one-hot, shared, role-mean or cut mechanism, sorted; empty for
            the others.
        weights: the attention of each path of a role-mean mechanism; empty for the others.
        offset: how many positions back an `offset` mechanism looks, below 0 for ahead; 0 for the
            others.
        mean: the pattern of a `mean` mechanism.

    Raises:
        InputError: paths where none belong, a repeated path, two sources for one role in a one-hot
            mechanism, or an offset or mean that is missing or out of place.
    """

    kind: Kind
    paths: tuple[RolePath, ...] = ()
    weights: tuple[float, ...] = ()
    offset: int = 0
    mean: MeanPattern | None = None

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
        if (self.kind == "offset") != (self.offset != 0) or abs(self.offset) >= 2**31:
            raise InputError(
                "expected an offset of 1 to 2^31 - 1, back or ahead, for an offset head and none "
                f"for others, found {self.offset} for {self.kind}"
            )
        if (self.kind == "mean") != (self.mean is not None):
            raise InputError(
                f"expected a measured pattern for a mean head and none for others: {self.kind}"
            )
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
                    f"expected one source per role in a one-hot head, found {first} and {second}; "
                    "use shared"
                )

    def without(self, path: RolePath) -> "Mechanism":
        """The same mechanism without one path; the role's other sources share its attention."""
        kept = [place for place, other in enumerate(self.paths) if other != path]
        return Mechanism(
            self.kind,
            tuple(self.paths[place] for place in kept),
            tuple(self.weights[place] for place in kept) if self.weights else (),
        )

    def row(self, dest: int) -> tuple[tuple[RolePath, float], ...]:
        """The paths of a role, each with its share of the attention."""
        places = [place for place, path in enumerate(self.paths) if path.dest == dest]
        share = 1 / max(1, len(places))
        return tuple(
            (self.paths[place], self.weights[place] if self.weights else share) for place in places
        )

    def text(self, names: Sequence[str] = ()) -> str:
        """The mechanism with a task's names for its roles."""
        if self.kind == "role-mean":
            return f"role-mean of {len(self.paths)} paths"
        if self.kind == "offset":
            return {1: "previous", -1: "next"}.get(self.offset, f"offset {self.offset}")
        return " ".join([self.kind, *(path.text(names) for path in self.paths)])

    def __str__(self) -> str:
        return self.text()


def tidy(mechanism: Mechanism) -> Mechanism:
    """Turn a shared mechanism into one-hot if no role has several sources."""
    if mechanism.kind != "shared":
        return mechanism
    dests = [path.dest for path in mechanism.paths]
    return Mechanism("one-hot" if len(set(dests)) == len(dests) else "shared", mechanism.paths)


ORIGINAL = Mechanism("original")
UNIFORM = Mechanism("uniform")
IDENTITY = Mechanism("identity")


# Circuits


@dataclass(frozen=True, repr=False)
class Circuit:
    """A mechanism for some heads of a model; heads not named are left as they are.

    Attributes:
        mechanisms: the mechanism of each named head; `original` ones are dropped.
        n_roles: number of roles of the circuit's task, 2D+1 in the retrieval task.
        rest: the attention row of a position without a path, in one-hot and shared heads.
        task: the task it belongs to, as `task.to_dict()` gives it.
        enabling: paths that the circuit can do without, since its attention is fixed, but that the
            intact model needs to find where to attend (`circuits.scores.enabling`).
        redundant: sets of two or more paths, the same role path in several heads, of which the
            intact model needs any one (`circuits.discovery.redundancy`).
        role_names: what the task calls its roles, for text and files; s0, s1, ... if empty.
        unfinished: why the search that found it ended early and what is missing; empty if it was
            complete. Circuits that differ in this alone are equal.
    """

    mechanisms: Mapping[Head, Mechanism]
    n_roles: int
    rest: Rest = "zero"
    task: Mapping[str, Any] = field(default_factory=dict)
    enabling: tuple[HeadPath, ...] = ()
    redundant: tuple[tuple[HeadPath, ...], ...] = ()
    role_names: tuple[str, ...] = field(default=(), compare=False)
    unfinished: str = field(default="", compare=False)

    @classmethod
    def empty(cls, task: Task, rest: Rest = "zero") -> "Circuit":
        """The circuit of a task that leaves every head as it is."""
        names = tuple(task.role_names)
        return cls({}, len(names), rest, task.to_dict(), role_names=names)

    @property
    def roles(self) -> Roles:
        """What the roles are called, or how many there are, to read paths."""
        return self.role_names or self.n_roles

    def __post_init__(self) -> None:
        kept = {
            Head(*head): mechanism
            for head, mechanism in sorted(self.mechanisms.items())
            if mechanism.kind != "original"
        }
        object.__setattr__(self, "mechanisms", kept)
        if self.role_names == tuple(map(role_name, range(self.n_roles))):
            object.__setattr__(self, "role_names", ())

    def __hash__(self) -> int:
        heads = tuple(self.mechanisms.items())
        return hash((heads, self.n_roles, self.rest, self.enabling, self.redundant))

    def __getitem__(self, head: tuple[int, int]) -> Mechanism:
        return self.mechanisms.get(Head(*head), ORIGINAL)

    def paths(self) -> Iterator[HeadPath]:
        """All one-hot and shared paths, by layer, head and role."""
        for head, mechanism in self.mechanisms.items():
            if mechanism.kind in ("one-hot", "shared"):
                for path in mechanism.paths:
                    yield HeadPath(head, path)

    def every_path(self) -> Iterator[HeadPath]:
        """The one-hot and shared paths, those that enable, and those of which one suffices."""
        yield from self.paths()
        yield from self.enabling
        yield from itertools.chain(*self.redundant)

    def replace(self, head: tuple[int, int], mechanism: Mechanism) -> "Circuit":
        """A copy with another mechanism for one head."""
        mechanisms = {**self.mechanisms, Head(*head): mechanism}
        return replace(self, mechanisms=mechanisms, unfinished="")

    def cut(self, *paths: HeadPath) -> "Circuit":
        """A copy with more paths of original heads cut."""
        circuit = self
        for head, path in paths:
            circuit = circuit.replace(head, Mechanism("cut", (*circuit[head].paths, path)))
        return circuit

    def without(self, path: HeadPath) -> "Circuit":
        """A copy without one path."""
        return self.replace(path.head, self[path.head].without(path.path))

    def check_fits(self, n_layers: int, n_heads: int) -> None:
        """Check that the model has every head that the circuit names.

        Raises:
            InputError: naming the heads that the model has.
        """
        for head in [*self.mechanisms, *(path.head for path in self.every_path())]:
            if not (0 <= head.layer < n_layers and 0 <= head.head < n_heads):
                raise InputError(
                    f"circuit: expected heads from L0.H0 to L{n_layers - 1}.H{n_heads - 1}, which "
                    f"the model has, found {head}"
                )

    def __repr__(self) -> str:
        """One line per head; `~` marks paths that only enable, then sets of which one suffices."""
        names = self.role_names
        lines = [f"{head} {mechanism.text(names)}" for head, mechanism in self.mechanisms.items()]
        lines += [f"{path.head} ~{path.path.text(names)}" for path in self.enabling]
        lines += [one_suffices(paths, names) for paths in self.redundant]
        lines += [f"unfinished: {self.unfinished}"] if self.unfinished else []
        return "\n".join(lines) or "empty circuit: every head as it is"

    # Files

    def to_dict(self) -> dict[str, Any]:
        """The circuit as JSON data; `from_dict` reads it back."""
        names = self.role_names
        redundant = [[path.text(names) for path in paths] for paths in self.redundant]
        return {
            "task": dict(self.task),
            **({"role_names": list(names)} if names else {}),
            "rest": self.rest,
            "heads": [
                {
                    **head._asdict(),
                    "mechanism": mechanism.kind,
                    "paths": [list(path.ends(names)) for path in mechanism.paths],
                    **({"weights": list(mechanism.weights)} if mechanism.weights else {}),
                    **({"offset": mechanism.offset} if mechanism.offset else {}),
                    **({"mean": mechanism.mean.rows} if mechanism.mean else {}),
                }
                for head, mechanism in self.mechanisms.items()
            ],
            "enabling": [path.text(names) for path in self.enabling],
            **({"redundant": redundant} if redundant else {}),
            **({"unfinished": self.unfinished} if self.unfinished else {}),
        }

    @classmethod
    def from_dict(cls, data: Any, roles: Roles | None = None) -> "Circuit":
        """Read a circuit for a task with these roles: their number, or `task.role_names`.

        Paths are read with the names that the file gives its roles, or else with the task's.
        Without a task there are as many roles as the file names.

        Raises:
            InputError: a key is missing, unknown or malformed; the message names the head.
        """
        file = from_data(_File, data, "circuit")
        if roles is None:
            roles = file.role_names or _roles_named(file)
        n_roles = roles if isinstance(roles, int) else len(roles)
        if len(file.role_names) not in (0, n_roles):
            raise InputError(
                f"circuit: role_names: expected {n_roles}, as the task has, found "
                f"{len(file.role_names)}"
            )
        own = () if isinstance(roles, int) else tuple(roles)
        check_role_names(file.role_names, "circuit")
        for number, name in enumerate(file.role_names):
            if name in own and own[number] != name:
                raise InputError(
                    f"circuit: role_names: expected {name!r:.40} for s{own.index(name)}, as the "
                    f"task has it, found it for s{number}"
                )
        roles = file.role_names or roles
        mechanisms: dict[Head, Mechanism] = {}
        for row in file.heads:
            head = Head(row.layer, row.head)
            if min(head) < 0 or head in mechanisms:
                raise InputError(f"circuit: expected every head once, from L0.H0 on, found {head}")
            try:
                paths = tuple(RolePath.join(dest, source, roles) for dest, source in row.paths)
                mean = MeanPattern.from_rows(row.mean) if row.mean else None
                mechanisms[head] = Mechanism(row.mechanism, paths, row.weights, row.offset, mean)
            except InputError as error:
                raise InputError(f"circuit: {head}: {error}") from None
        enabling = _paths(file.enabling, roles, "enabling")
        redundant = tuple(_paths(paths, roles, "redundant") for paths in file.redundant)
        for same in redundant:
            if len(set(same)) < max(2, len(same)) or len({path.path for path in same}) > 1:
                raise InputError(
                    "circuit: redundant: expected the same path of two or more heads, found "
                    f"{', '.join(map(str, same)) or 'none'}"
                )
        circuit = cls(
            mechanisms,
            n_roles,
            file.rest,
            file.task,
            enabling,
            redundant,
            own or file.role_names,
            file.unfinished,
        )
        seen = set(circuit.paths())
        for path in enabling:
            if path in seen:
                raise InputError(f"circuit: enabling: expected every path once, found {path} twice")
            seen.add(path)
        return circuit

    def to_json(self, record: Mapping[str, Any] | None = None) -> str:
        """The circuit as JSON with one line per head, so that a text diff compares circuits.

        Args:
            record: how it was found (command, versions, date); ignored when reading.
        """
        data = {**self.to_dict(), **({"record": dict(record)} if record else {})}
        heads = data.pop("heads")
        lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in data.items()]
        listed = ",\n".join("    " + json.dumps(row) for row in heads)
        lines.insert(2, f'  "heads": [\n{listed}\n  ]')
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str, roles: Roles | None = None) -> "Circuit":
        """Read what `to_json` wrote.

        Raises:
            InputError: not JSON, or not a circuit.
        """
        return cls.from_dict(read_json(text, "circuit"), roles)


def one_suffices(paths: Sequence[HeadPath], names: Sequence[str] = ()) -> str:
    """`any one of L2.H0, L2.H3 suffices for s0<-s4`."""
    heads = ", ".join(str(path.head) for path in paths)
    return f"any one of {heads} suffices for {paths[0].path.text(names)}"


def _roles_named(file: "_File") -> int:
    """As many roles as the paths of a file name."""
    paths = itertools.chain(*(row.paths for row in file.heads))
    texts = [*itertools.chain(*paths), *file.enabling, *itertools.chain(*file.redundant)]
    numbers = re.findall(r"\bs([0-9]{1,6})\b", " ".join(texts))
    return 1 + max(map(int, numbers), default=0)


def _paths(texts: Sequence[str], roles: Roles, key: str) -> tuple[HeadPath, ...]:
    try:
        return tuple(HeadPath.parse(text, roles) for text in texts)
    except InputError as error:
        raise InputError(f"circuit: {key}: {error}") from None


@dataclass(frozen=True)
class _HeadRow:
    layer: int
    head: int
    mechanism: Kind
    paths: tuple[tuple[str, str], ...] = ()
    weights: tuple[float, ...] = ()
    offset: int = 0
    mean: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class _File:
    """A circuit as JSON."""

    heads: tuple[_HeadRow, ...]
    task: dict[str, Any] = field(default_factory=dict)
    role_names: tuple[str, ...] = ()
    rest: Rest = "zero"
    enabling: tuple[str, ...] = ()
    redundant: tuple[tuple[str, ...], ...] = ()
    unfinished: str = ""
    record: dict[str, Any] = field(default_factory=dict)
