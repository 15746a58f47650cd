"""Circuits as data: a mechanism for each head; also as text and JSON.

`circuits.mechanisms` has the mechanisms, `circuits.paths` heads and paths.
"""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from retrieval_interp.circuits import patched_heads as patched_heads  # adds to MECHANISMS
from retrieval_interp.circuits.mechanisms import MECHANISMS, ORIGINAL, Cut, Mechanism, Original
from retrieval_interp.circuits.paths import Head, HeadPath, RolePath, named
from retrieval_interp.tasks import InputError, Task, role_name
from retrieval_interp.tasks.messages import check_type, nearest
from retrieval_interp.tasks.structured import from_data, read_json
from retrieval_interp.tasks.task import Roles, check_role_names


@dataclass(frozen=True, repr=False)
class Circuit:
    """A mechanism for some heads of a model; heads not named are left as they are.

    Attributes:
        mechanisms: the mechanism of each named head; `original` ones are dropped.
        n_roles: number of roles of the circuit's task, 2D+1 in the retrieval task.
        task: the task it belongs to, as `task.to_dict()` gives it.
        enabling: further paths that the intact model needs. A one-hot or shared head does without
            them, because its attention is fixed (`circuits.scores.enabling`).
        redundant: sets of paths, the same in several heads, of which the intact model needs one;
            they may overlap (`interchangeable`).
        role_names: the task's names of its roles, for text and files; s0, s1, ... if empty.
        unfinished: why the search that found it ended early and what is missing, if it did.
    """

    mechanisms: Mapping[Head, Mechanism]
    n_roles: int
    task: Mapping[str, Any] = field(default_factory=dict)
    enabling: tuple[HeadPath, ...] = ()
    redundant: tuple[tuple[HeadPath, ...], ...] = ()
    role_names: tuple[str, ...] = field(default=(), compare=False)
    unfinished: str = field(default="", compare=False)

    @classmethod
    def empty(cls, task: Task) -> "Circuit":
        """Return the circuit of a task that leaves every head as it is."""
        names = tuple(task.role_names)
        return cls({}, len(names), task.to_dict(), role_names=names)

    def __post_init__(self) -> None:
        if self.role_names == tuple(map(role_name, range(self.n_roles))):
            object.__setattr__(self, "role_names", ())
        names, mechanisms = self.role_names, sorted(self.mechanisms.items())
        kept = {Head(*head): made.named(names) for head, made in mechanisms if made != ORIGINAL}
        object.__setattr__(self, "mechanisms", kept)
        object.__setattr__(self, "enabling", named(self.enabling, names))
        object.__setattr__(self, "redundant", tuple(named(s, names) for s in self.redundant))

    def __hash__(self) -> int:
        return hash((tuple(self.mechanisms.items()), self.n_roles, self.enabling, self.redundant))

    def __getitem__(self, head: tuple[int, int]) -> Mechanism:
        return self.mechanisms.get(Head(*head), ORIGINAL)

    @property
    def roles(self) -> Roles:
        """The names of the roles, or their number, to read paths with."""
        return self.role_names or self.n_roles

    def paths(self) -> Iterator[HeadPath]:
        """Yield the paths of mechanisms that follow them (one-hot, shared, your own)."""
        for head, mechanism in self.mechanisms.items():
            if mechanism.follows_paths:
                yield from (HeadPath(head, path) for path in mechanism.paths)

    @property
    def is_patched(self) -> bool:
        """Whether some heads are patched from a counterfactual prompt."""
        return any(mechanism.is_patched for mechanism in self.mechanisms.values())

    def every_path(self) -> Iterator[HeadPath]:
        """Yield `paths`, and all others that the intact model needs."""
        return itertools.chain(self.paths(), self.enabling, *self.redundant)

    def heads(self) -> list[Head]:
        """Return every head that the circuit names."""
        return [*self.mechanisms, *(path.head for path in self.every_path())]

    def replace(self, head: tuple[int, int], mechanism: Mechanism) -> "Circuit":
        """Return a copy with another mechanism for one head."""
        mechanisms = {**self.mechanisms, Head(*head): mechanism}
        return replace(self, mechanisms=mechanisms, unfinished="")

    def cut(self, *paths: HeadPath) -> "Circuit":
        """Return a copy with more paths of original heads cut."""
        circuit = self
        for head, path in paths:
            if type(circuit[head]) not in (Original, Cut):
                raise InputError(
                    f"cut: expected {head} to be original or cut, found {circuit[head]}; use "
                    "Circuit.without to remove a path"
                )
            circuit = circuit.replace(head, Cut((*circuit[head].paths, path)))
        return circuit

    def without(self, path: HeadPath) -> "Circuit":
        """Return a copy without one path."""
        return self.replace(path.head, self[path.head].without(path.path))

    @staticmethod
    def check(given: object) -> None:
        """Refuse anything that is not a circuit, such as its text."""
        check_type(given, Circuit, "circuit", ", as ri.parse_circuit reads it from text")

    def check_fits(self, n_layers: int, n_heads: int) -> None:
        """Check that the model has every head that the circuit names."""
        for head in self.heads():
            if not (0 <= head.layer < n_layers and 0 <= head.head < n_heads):
                raise InputError(
                    f"circuit: expected heads from L0.H0 to L{n_layers - 1}.H{n_heads - 1}, which "
                    f"the model has, found {head}"
                )

    def check_roles(self, task: Task) -> None:
        """Check that the circuit has as many roles as a task."""
        expected = len(task.role_names)
        if self.n_roles != expected:
            raise InputError(
                f"circuit: expected one for the task's {expected} roles, found one for "
                f"{self.n_roles}"
            )

    def __repr__(self) -> str:
        """One line per head; `~` marks paths that the intact model needs besides, then sets."""
        names = self.role_names
        lines = [f"{head} {mechanism.text(names)}" for head, mechanism in self.mechanisms.items()]
        lines += [f"{path.head} ~{path.path.text(names)}" for path in self.enabling]
        lines += interchangeable(self.redundant, names)
        lines += [f"unfinished: {self.unfinished}"] if self.unfinished else []
        return "\n".join(lines) or "empty circuit: every head as it is"

    def to_dict(self) -> dict[str, Any]:
        """Return the circuit as JSON data; `from_dict` reads it back."""
        names = self.role_names
        data = {
            "task": dict(self.task),
            "role_names": list(names),
            "heads": [
                {**head._asdict(), **mechanism.to_dict(names)}
                for head, mechanism in self.mechanisms.items()
            ],
            "enabling": [path.text(names) for path in self.enabling],
            "redundant": [[path.text(names) for path in paths] for paths in self.redundant],
            "unfinished": self.unfinished,
        }
        always = ("task", "heads", "enabling")
        return {key: value for key, value in data.items() if value or key in always}

    @classmethod
    def from_dict(cls, data: Any, roles: Roles | None = None) -> "Circuit":
        """Read a circuit for a task with these roles, or as many as its paths name.

        Paths are read with the file's own names of roles, if it has any. These may differ from the
        task's, but a name that both have must mean the same role.
        """
        file: _File = from_data(_File, data, "circuit")
        check_role_names(file.role_names, "circuit")
        if not all(file.redundant):
            raise InputError("circuit: redundant: expected sets of paths, found an empty one")
        texts = json.dumps([file.heads, file.enabling, file.redundant])
        mentioned = 1 + max(map(int, re.findall(r"\bs([0-9]{1,6})\b", texts)), default=0)
        names, roles = file.role_names, roles or file.role_names or mentioned
        task_names = () if isinstance(roles, int) else tuple(roles)
        n_roles = roles if isinstance(roles, int) else len(roles)
        moved = any(a != b and a in task_names for a, b in zip(names, task_names))
        if moved or len(names) not in (0, n_roles):
            raise InputError(
                f"circuit: role_names: expected {n_roles}, in the task's order, found "
                f"{', '.join(names)}"
            )
        written: Roles = names or roles

        def paths(texts: Iterable[str]) -> tuple[HeadPath, ...]:
            return tuple(HeadPath.parse(text, written) for text in texts)

        return cls(
            mechanisms=_read_heads(file, written),
            n_roles=n_roles,
            task=file.task,
            enabling=paths(file.enabling),
            redundant=tuple(map(paths, file.redundant)),
            role_names=task_names or names,
            unfinished=file.unfinished,
        )

    def to_json(self, record: Mapping[str, Any] | None = None) -> str:
        """Return JSON with one line per head; `record` says how it was found."""
        data = {**self.to_dict(), **({"record": dict(record)} if record else {})}
        rows = ",\n".join("    " + json.dumps(row) for row in data["heads"])
        lines = [
            f"  {json.dumps(key)}: " + (f"[\n{rows}\n  ]" if key == "heads" else json.dumps(value))
            for key, value in data.items()
        ]
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str, roles: Roles | None = None) -> "Circuit":
        """Read what `to_json` wrote."""
        return cls.from_dict(read_json(text, "circuit"), roles)


def interchangeable(
    sets: Sequence[tuple[HeadPath, ...]], names: Sequence[str] = ()
) -> dict[str, tuple[HeadPath, ...]]:
    """Describe sets of interchangeable paths: sentences, with the paths of each.

    Of each set the model needs one path. So a set that overlaps with no other one becomes `any one
    of L2.H0, L2.H3 suffices for s0<-s4`. If overlapping sets are all sets of k among n heads, any
    n - k + 1 heads suffice; of other overlapping sets it only says that one path of each is needed.
    """
    sentences = {}
    for paths in sets:
        overlapping = [group for group in sets if set(group) & set(paths)]
        every = tuple(sorted(set(itertools.chain(*overlapping))))
        overlapping = [group for group in sets if set(group) & set(every)]
        is_complete = set(overlapping) == set(itertools.combinations(every, len(paths)))
        joined = every if is_complete else paths
        heads, path = ", ".join(str(head) for head, _ in joined), paths[0].path.text(names)
        enough = len(every) - len(paths) + 1
        text = f"any {enough} of {heads} suffice" if enough > 1 else f"any one of {heads} suffices"
        sentences[f"{text if is_complete else f'one of {heads} is needed'} for {path}"] = joined
    return sentences


@dataclass(frozen=True)
class _HeadRow:
    layer: int
    head: int
    mechanism: str


@dataclass(frozen=True)
class _File:
    heads: tuple[dict[str, Any], ...]
    task: dict[str, Any] = field(default_factory=dict)
    role_names: tuple[str, ...] = ()
    enabling: tuple[str, ...] = ()
    redundant: tuple[tuple[str, ...], ...] = ()
    unfinished: str = ""
    record: dict[str, Any] = field(default_factory=dict)


def _read_heads(file: _File, roles: Roles) -> dict[Head, Mechanism]:
    mechanisms = dict[Head, Mechanism]()
    for number, row in enumerate(file.heads):
        identity = {key: row[key] for key in _HeadRow.__annotations__ if key in row}
        stated = from_data(_HeadRow, identity, f"circuit: heads[{number}]")
        head, kind = Head(stated.layer, stated.head), MECHANISMS.get(stated.mechanism)
        if min(head) < 0 or head in mechanisms:
            given = f"{head} twice" if head in mechanisms else str(head)
            raise InputError(f"circuit: expected every head once, from L0.H0 on, found {given}")
        if kind is None:
            raise InputError(
                f"circuit: {head}: expected the mechanism "
                f"{nearest(stated.mechanism, MECHANISMS, ' or '.join(MECHANISMS))}, found "
                f"{stated.mechanism!r:.60}"
            )
        try:
            parameters = {key: value for key, value in row.items() if key not in identity}
            mechanisms[head] = kind.from_dict(parameters, roles)
        except InputError as error:
            raise InputError(f"circuit: {head}: {error}") from None
    return mechanisms


def suppose(circuit: Circuit, line: str) -> Circuit:
    """Add one line to a circuit: a mechanism for a head, or paths to those that it has."""
    words = re.sub(r"\s*<-\s*", "<-", line).split() if isinstance(line, str) else []
    if len(words) < 2:
        raise InputError(
            "expected a head and what it does, such as L1.H0 s0<-s2, L0.H0 one-hot s2<-s1 s4<-s3, "
            "L1.H0 uniform, or L1.H0 one-hot, without paths, for a head that attends nowhere; "
            f"found {line!r:.80}"
        )
    head, kind = Head.parse(words[0]), MECHANISMS.get(words[1])
    if words[1].startswith("~"):
        enabling = {HeadPath(head, RolePath.parse(word[1:], circuit.roles)) for word in words[1:]}
        return replace(circuit, enabling=tuple(sorted({*circuit.enabling, *enabling})))
    if kind is not None and not kind.is_measured:
        return circuit.replace(head, kind.from_words(words[2:], circuit.roles))
    if kind is not None:
        measured = "expected no paths, and a workbench, which measures it, as bench.suppose does"
        raise InputError(f"{kind.kind}: {measured}, found {line!r:.80}")
    if not RolePath.is_meant(words[1]):
        every = f"{', '.join(MECHANISMS)} (one-hot without paths: the head attends nowhere)"
        expected = nearest(words[1], MECHANISMS, every)
        raise InputError(f"expected {expected}, or a path such as s0<-s2, found {line!r:.80}")
    parsed = [RolePath.parse(word, circuit.roles) for word in words[1:]]
    return circuit.replace(head, circuit[head].adding(*parsed))


def parse_circuit(lines: str | Iterable[str], task: Task) -> Circuit:
    """Read a circuit of a task from one text or several lines; other heads are left as they are.

    Examples:
        >>> import retrieval_interp as ri
        >>> task = ri.RetrievalTask(steps=3)
        >>> ri.parse_circuit(["L0.H0 one-hot s4<-s3", "L1.H0 uniform", "L2.H0 s0<-s1 s0<-s2"], task)
        L0.H0 one-hot s4<-s3
        L1.H0 uniform
        L2.H0 shared s0<-s1 s0<-s2
    """
    check_type(task, Task, "task")
    if isinstance(lines, str):
        lines = filter(str.strip, lines.splitlines())
    return reduce(suppose, lines, Circuit.empty(task))


def parse_head_path(text: str, n_roles: int | Task) -> HeadPath:
    """Read `L1.H0 s0<-s2`; with a task for `n_roles`, also with its names of roles."""
    return HeadPath.parse(text, n_roles if isinstance(n_roles, int) else n_roles.role_names)


def circuit_diff(old: Circuit, new: Circuit) -> list[str]:
    """Return what changed, a line per head: `L1.H0: uniform -> one-hot s0<-s2`."""
    heads = sorted(old.mechanisms.keys() | new.mechanisms.keys())
    names = new.role_names or old.role_names
    lines = []
    for head in heads:
        before, after = old[head].text(names), new[head].text(names)
        if old[head] != new[head]:
            lines.append(f"{head}: {before} -> {'another ' * (before == after)}{after}")
    for sign, having, lacking in (("-", old, new), ("+", new, old)):
        paths = [path for path in having.enabling if path not in lacking.enabling]
        lines += [f"enabling: {sign} {path.text(names)}" for path in paths]
        common = interchangeable(lacking.redundant, names)
        texts = [text for text in interchangeable(having.redundant, names) if text not in common]
        lines += [f"redundant: {sign} {text}" for text in texts]
    return lines
