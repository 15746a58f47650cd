"""A circuit: a mechanism a head, as data that can be saved, compared and edited."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, NamedTuple

from circuits.mechanisms import (
    KINDS,
    ORIGINAL,
    RESTS,
    Mechanism,
    Rest,
    RolePath,
    parse_role_path,
)
from tasks import InputError, parse_role, role_name

_MOST_DRAWN = 200  # layers


class Head(NamedTuple):
    """An attention head."""

    layer: int
    head: int

    def __str__(self) -> str:
        return f"L{self.layer}.H{self.head}"


class HeadPath(NamedTuple):
    """A path of one head, written `L1.H0 s0<-s2`."""

    head: Head
    path: RolePath

    def __str__(self) -> str:
        return f"{self.head} {self.path}"


def parse_head(text: str) -> Head:
    """Read `L1.H0`.

    Raises:
        InputError: not of that form.
    """
    match = re.fullmatch(r"\s*L([0-9]{1,6})\.H([0-9]{1,6})\s*", text)
    if match is None:
        raise InputError(f"expected a head such as L1.H0, found {text!r:.60}")
    return Head(int(match[1]), int(match[2]))


def parse_head_path(text: str, n_roles: int) -> HeadPath:
    """Read `L1.H0 s0<-s2`.

    Raises:
        InputError: not of that form, or a role out of range.
    """
    head, _, path = text.strip().partition(" ")
    return HeadPath(parse_head(head), parse_role_path(path, n_roles))


@dataclass(frozen=True, repr=False)
class Circuit:
    """Which mechanism stands in for each head; heads not named are left as they are.

    Attributes:
        mechanisms: the mechanism of each named head; `original` ones are dropped.
        n_roles: how many roles the circuit's task has, 2D+1.
        rest: the attention row of a position without a path, in one-hot and shared heads.
        task: the task it speaks of, as `task.to_dict()` gives it.
        enabling: paths that the circuit does without, its attention being given, but by which the
            living model finds where to attend (`circuits.enabling`).
    """

    mechanisms: Mapping[Head, Mechanism]
    n_roles: int
    rest: Rest = "zero"
    task: Mapping[str, Any] = field(default_factory=dict)
    enabling: tuple[HeadPath, ...] = ()

    def __post_init__(self) -> None:
        kept = {
            Head(*head): mechanism
            for head, mechanism in sorted(self.mechanisms.items())
            if mechanism.kind != "original"
        }
        object.__setattr__(self, "mechanisms", kept)

    def __getitem__(self, head: tuple[int, int]) -> Mechanism:
        return self.mechanisms.get(Head(*head), ORIGINAL)

    def paths(self) -> Iterator[HeadPath]:
        """Every one-hot or shared path of every head, by layer, head and role."""
        for head, mechanism in self.mechanisms.items():
            if mechanism.kind in ("one-hot", "shared"):
                for path in mechanism.paths:
                    yield HeadPath(head, path)

    def replace(self, head: tuple[int, int], mechanism: Mechanism) -> "Circuit":
        """The same circuit with another mechanism for one head."""
        mechanisms = {**self.mechanisms, Head(*head): mechanism}
        return replace(self, mechanisms=mechanisms)

    def cut(self, path: HeadPath) -> "Circuit":
        """The same circuit with one more path of an original head cut."""
        return self.replace(path.head, Mechanism("cut", (*self[path.head].paths, path.path)))

    def without(self, path: HeadPath) -> "Circuit":
        """The same circuit less one path."""
        return self.replace(path.head, self[path.head].without(path.path))

    def check_fits(self, n_layers: int, n_heads: int) -> None:
        """Refuse a circuit that names a head which a model lacks.

        Raises:
            InputError: with the heads that there are.
        """
        for head in [*self.mechanisms, *(path.head for path in self.enabling)]:
            if not (0 <= head.layer < n_layers and 0 <= head.head < n_heads):
                raise InputError(
                    f"circuit: expected heads from L0.H0 to L{n_layers - 1}.H{n_heads - 1}, which "
                    f"the model has, found {head}"
                )

    # Display

    def __repr__(self) -> str:
        """A line a head; `~` marks paths that only enable."""
        lines = [f"{head} {mechanism}" for head, mechanism in self.mechanisms.items()]
        lines += [f"{path.head} ~{path.path}" for path in self.enabling]
        return "\n".join(lines) or "empty circuit: every head as it is"

    def _repr_html_(self) -> str:
        """The circuit drawn, for notebooks."""
        from circuits.drawing import draw_circuit

        heads = [*self.mechanisms, *(path.head for path in self.enabling)]
        n_layers = 1 + max((head.layer for head in heads), default=-1)
        if not 0 < n_layers <= _MOST_DRAWN:
            return f"<pre>{escape(repr(self))}</pre>"
        # As a chain's sequence runs: the last pair first, the query at the end.
        pairs = range(2 * ((self.n_roles - 1) // 2), 0, -2)
        order = [*(role for last in pairs for role in (last - 1, last)), 0]
        order += range(len(order), self.n_roles)
        return draw_circuit(self, n_layers, order)

    # Files

    def to_dict(self) -> dict[str, Any]:
        """The circuit as JSON data; `from_dict` reads it back."""
        return {
            "task": dict(self.task),
            "rest": self.rest,
            "heads": [
                {
                    "layer": head.layer,
                    "head": head.head,
                    "mechanism": mechanism.kind,
                    "paths": [[role_name(dest), role_name(src)] for dest, src in mechanism.paths],
                    **({"weights": list(mechanism.weights)} if mechanism.weights else {}),
                }
                for head, mechanism in self.mechanisms.items()
            ],
            "enabling": [str(path) for path in self.enabling],
        }

    @classmethod
    def from_dict(cls, data: Any, n_roles: int) -> "Circuit":
        """Read a circuit for a task of `n_roles` roles.

        Raises:
            InputError: a key is missing, unknown or of the wrong form; the head is named.
        """
        _expect_keys(data, {"heads"}, {"task", "rest", "enabling", "record"}, "circuit")
        if not isinstance(data["heads"], list):
            raise InputError("circuit: expected heads to be a list")
        task = data.get("task", {})
        if not isinstance(task, dict):
            raise InputError("circuit: expected task to be an object")
        mechanisms: dict[Head, Mechanism] = {}
        for index, row in enumerate(data["heads"]):
            where = f"circuit: heads[{index}]"
            _expect_keys(row, {"layer", "head", "mechanism"}, {"paths", "weights"}, where)
            for key in ("layer", "head"):
                if isinstance(row[key], bool) or not isinstance(row[key], int) or row[key] < 0:
                    raise InputError(
                        f"{where}: expected {key} to be a number from 0, found {row[key]!r:.60}"
                    )
            head = Head(row["layer"], row["head"])
            if head in mechanisms:
                raise InputError(f"{where}: expected every head once, found {head} twice")
            if row["mechanism"] not in KINDS:
                raise InputError(
                    f"{where} ({head}): expected a mechanism of {', '.join(KINDS)}, "
                    f"found {row['mechanism']!r:.60}"
                )
            paths = row.get("paths", [])
            if not isinstance(paths, list) or not all(
                isinstance(path, list) and len(path) == 2 for path in paths
            ):
                raise InputError(
                    f'{where} ({head}): expected paths as [["s0", "s2"], ...], found {paths!r:.80}'
                )
            weights = row.get("weights", [])
            if not isinstance(weights, list) or not all(
                type(weight) in (int, float) and 0 <= weight <= 1 for weight in weights
            ):
                raise InputError(
                    f"{where} ({head}): expected weights as a list of numbers from 0 to 1"
                )
            try:
                mechanisms[head] = Mechanism(
                    row["mechanism"],
                    tuple(
                        RolePath(parse_role(dest, n_roles), parse_role(src, n_roles))
                        for dest, src in paths
                    ),
                    tuple(map(float, weights)),
                )
            except InputError as error:
                raise InputError(f"{where} ({head}): {error}") from None
        rest = data.get("rest", "zero")
        if rest not in RESTS:
            raise InputError(f"circuit: expected rest of {', '.join(RESTS)}, found {rest!r:.40}")
        enabling = data.get("enabling", [])
        if not isinstance(enabling, list) or not all(isinstance(path, str) for path in enabling):
            raise InputError('circuit: expected enabling as ["L0.H0 s2<-s1", ...]')
        try:
            listed = tuple(parse_head_path(path, n_roles) for path in enabling)
        except InputError as error:
            raise InputError(f"circuit: enabling: {error}") from None
        circuit = cls(mechanisms, n_roles, rest, task, listed)
        seen = set(circuit.paths())
        for path in listed:
            if path in seen:
                raise InputError(f"circuit: enabling: expected every path once, found {path} twice")
            seen.add(path)
        return circuit

    def to_json(self, record: Mapping[str, Any] | None = None) -> str:
        """One line a head, so that two circuits can be compared with a text diff.

        Args:
            record: how it was found (command, versions, date); reading passes over it.
        """
        data = self.to_dict()
        found = f',\n  "record": {json.dumps(dict(record))}' if record else ""
        heads = ",\n".join("    " + json.dumps(row) for row in data["heads"])
        return (
            f'{{\n  "task": {json.dumps(data["task"])},\n  "rest": {json.dumps(data["rest"])},\n'
            f'  "heads": [\n{heads}\n  ],\n'
            f'  "enabling": {json.dumps(data["enabling"])}{found}\n}}\n'
        )

    @classmethod
    def from_json(cls, text: str, n_roles: int) -> "Circuit":
        """Read what `to_json` wrote.

        Raises:
            InputError: not JSON, or not a circuit.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"circuit: expected JSON, found {str(error)[:80]}") from None
        return cls.from_dict(data, n_roles)


def _expect_keys(row: Any, required: set[str], optional: set[str], where: str) -> None:
    if not isinstance(row, dict):
        raise InputError(f"{where}: expected an object, found {type(row).__name__}")
    missing, unknown = required - row.keys(), row.keys() - required - optional
    if missing:
        raise InputError(f"{where}: expected the key {sorted(missing)[0]!r}, which is missing")
    if unknown:
        raise InputError(
            f"{where}: expected the keys {sorted(required | optional)}, found "
            f"{sorted(unknown)[0]!r:.60}"
        )
