"""Mechanisms: simple attention patterns that can replace a head's own (paper, appendix E).

Each is a subclass of `Mechanism`, which text and files find by its `kind`; its pattern is built for
some `Positions`. Rows without a path are all zeros, as in the paper. Searches and scans try those
that `RULES` lists, and count their `cost`.
"""

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar, get_type_hints

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from retrieval_interp.circuits.paths import (
    Positions,
    RolePath,
    RolePositions,
    first_real,
    path_mask,
    path_sources,
    rows_of,
    shifted,
)
from retrieval_interp.tasks import InputError
from retrieval_interp.tasks.structured import from_data, to_data, value_fits
from retrieval_interp.tasks.task import HeadActivations, Roles

Pattern = Float[Tensor, "#batch dest src"]
OwnPattern = Float[Tensor, "batch dest src"]  # of the head itself in a run
Output = Float[Tensor, "batch dest d_head"]  # what a head writes, z = P V
MECHANISMS: dict[str, type["Mechanism"]] = {}
"""Every class of mechanism, by its `kind`; `circuit` imports those of `patched_heads`, too."""
_DIGITS = 5  # decimals of a mean pattern's weights


def _defaults(mechanism: Any) -> dict[str, Any]:
    """The fields of a class of mechanisms, and their defaults."""
    return (
        {field.name: field.default for field in fields(mechanism)}
        if is_dataclass(mechanism)
        else {}
    )


class Mechanism:
    """What replaces a head's attention.

    Subclasses are frozen dataclasses that define `kind` and `pattern`. Instead of `pattern`, a
    `Rule` defines `targets`, a mechanism that `keeps_own` attention `changed`, and one that
    `replaces_output` `output`. One with paths is a `WithPaths`. All else has a default.
    """

    kind: ClassVar[str]  # the word for it in text and files
    keeps_own: ClassVar[bool] = False  # its pattern is the head's own, `changed`
    replaces_output: ClassVar[bool] = False  # it defines what the head writes (`output`)
    is_patched: ClassVar[bool] = False  # from a counterfactual prompt (`patched_heads`)

    def pattern(self, positions: Positions) -> Pattern:
        """Build its pattern in float32; [1 dest src] if it is the same for all examples."""
        found = "one that keeps the head's own attention" if self.keeps_own else "none"
        raise InputError(f"{self.kind}: expected a mechanism with a `pattern`, found {found}")

    def changed(self, pattern: OwnPattern, roles: RolePositions) -> OwnPattern:
        """Change the head's own attention, if it `keeps_own`."""
        return pattern.masked_fill(path_mask(self.paths, roles, pattern.shape[-1]), 0.0)

    def output(
        self, here: HeadActivations, there: HeadActivations | None, roles: RolePositions
    ) -> Output:
        """Return what the head writes, if it `replaces_output`.

        `here` is its attention in the run at hand, `there` on a counterfactual prompt.
        """
        raise InputError(f"{self.kind}: the head keeps what it writes")

    def value_weights(
        self, own: OwnPattern, there: HeadActivations | None, roles: RolePositions
    ) -> OwnPattern:
        """Return the attention by which values are weighed, given the one in place and `there`."""
        return own

    @property
    def reads_pattern(self) -> bool:
        """Whether it needs the head's own attention."""
        return self.keeps_own

    # What searches and scores ask

    is_measured: ClassVar[bool] = False  # it is measured on a model, so cannot be written as text
    reads_tokens: ClassVar[bool] = False  # it needs token ids, so a model that reads no vectors
    writes: ClassVar[str] = "adds what stands at fixed places"  # in words, if it `is_one_unit`

    @property
    def cost(self) -> tuple[int, int]:
        """The cost in a search: of a head, and for each role. Subclasses state two numbers."""
        return 0, 10

    @property
    def is_one_unit(self) -> bool:
        """Whether it is scored as a whole, as uniform: it neither `keeps_own` nor follows paths."""
        return not (self.keeps_own or self.follows_paths)

    # Paths

    follows_paths: ClassVar[bool] = False  # every row is that of the role's paths alone
    paths: tuple[RolePath, ...] = ()  # sorted

    def with_paths(self, paths: Iterable[RolePath]) -> "Mechanism":
        """Return the mechanism with these paths; of one that follows none, one-hot or shared."""
        return one_hot_or_shared(paths)

    def adding(self, *paths: RolePath) -> "Mechanism":
        """Return the mechanism with more paths; one that follows none is replaced by these."""
        if not self.follows_paths:
            return one_hot_or_shared(dict.fromkeys(paths))
        return self.with_paths(dict.fromkeys((*self.paths, *paths)))

    def without(self, path: RolePath) -> "Mechanism":
        """Return the mechanism without one path; a role's other sources share its attention."""
        kept = [other for other in self.paths if other != path]
        return self.with_paths(kept) if path in self.paths else self

    def named(self, names: Sequence[str]) -> "Mechanism":
        """The same mechanism, whose paths are printed with these names of roles."""
        return self

    # Text and files

    def __init_subclass__(cls) -> None:
        kind = vars(cls).get("kind")
        if cls.__module__ != __name__:
            namesake = MECHANISMS.get(kind or "")
            if kind is None or (namesake is not None and namesake.__module__ == __name__):
                given = "none" if kind is None else f"{kind!r}, a built-in"
                raise InputError(
                    f"{cls.__name__}: expected a `kind` of its own, the word for it in text and "
                    f"files, found {given}"
                )
        cost = vars(cls).get("cost", (0, 0))
        if not isinstance(cost, (property, tuple)):
            raise InputError(
                f"{cls.__name__}: expected a `cost` of two numbers, of the head and for each role, "
                f"found {cost!r}"
            )
        if kind is not None:
            MECHANISMS[kind] = cls

    def text(self, names: Sequence[str] = ()) -> str:
        """Return the mechanism as text, with a task's names for its roles.

        Numbers and words in its fields follow as `name=value`, unless they are the defaults.
        """
        words, stored = [self.kind, *self._places(names)], self.stored()
        for name, default in _defaults(type(self)).items():
            value = getattr(self, name)
            if name in stored and isinstance(value, (int, float, str)) and value != default:
                words.append(f"{name}={value if isinstance(value, str) else json.dumps(value)}")
        return " ".join(words)

    def _places(self, names: Sequence[str]) -> list[str]:
        """Return where it acts, as words."""
        return [path.text(names) for path in self.paths]

    def __str__(self) -> str:
        return self.text()

    def to_dict(self, names: Sequence[str] = ()) -> dict[str, Any]:
        """Return it as JSON data for a circuit file; `from_dict` reads it."""
        paths = [list(path.ends(names)) for path in self.paths]
        values = {name: to_data(getattr(self, name)) for name in self.stored()}
        return {"mechanism": self.kind, "paths": paths, **values}

    @classmethod
    def stored(cls) -> dict[str, Any]:
        """The fields that files have besides paths, with their types."""
        types = get_type_hints(cls)
        return {name: types[name] for name in _defaults(cls) if name != "paths"}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], roles: Roles) -> "Mechanism":
        types = {"paths": tuple[tuple[str, str], ...], **(stored := cls.stored())}
        if unknown := data.keys() - types.keys():
            raise InputError(f"expected the keys {', '.join(types)}, found {min(unknown)!r:.60}")
        optional = {name for name, default in _defaults(cls).items() if default is not MISSING}
        if missing := stored.keys() - data.keys() - optional:
            raise InputError(f"{cls.kind}: expected a value for {min(missing)!r}, found none")
        values = {key: from_data(types[key], value, key) for key, value in data.items()}
        paths = [RolePath.join(dest, src, roles) for dest, src in values.pop("paths", ())]
        return cls._made(paths, **values)

    @classmethod
    def from_words(cls, words: Sequence[str], roles: Roles) -> "Mechanism":
        """Read the words after its kind in a line of text: paths, and fields as `name=value`."""
        stored, data, paths = cls.stored(), dict[str, Any](), []
        for word in words:
            name, _, value = word.partition("=")
            if name in stored:
                data[name] = value  # as text, unless its type is another
                if not value_fits(value, stored[name])[0]:
                    with suppress(ValueError):
                        data[name] = json.loads(value)
            elif re.fullmatch("[a-z_]+=[^<>-].*", word):
                expected = " or ".join(f"{name}=" for name in stored) or "no fields"
                raise InputError(f"{cls.kind}: expected {expected}, found {word!r:.60}")
            else:
                paths.append(list(RolePath.parse(word, roles).ends()))
        data["paths"] = paths
        return cls.from_dict(data, roles)

    @classmethod
    def _made(cls, paths: Sequence[RolePath], **values: Any) -> "Mechanism":
        """Make one with these paths and stored fields."""
        if paths:
            raise InputError(f"{cls.kind}: expected no paths, found {paths[0]}")
        return cls(**values)


@dataclass(frozen=True)
class WithPaths(Mechanism):
    """A mechanism with paths."""

    paths: tuple[RolePath, ...] = ()

    def __post_init__(self) -> None:
        paths = tuple(sorted(p if type(p) is RolePath else RolePath(*p) for p in self.paths))
        object.__setattr__(self, "paths", paths)
        for first, second in itertools.pairwise(paths):
            if first == second:
                raise InputError(f"expected every path once, found {first} twice")

    @classmethod
    def _made(cls, paths: Sequence[RolePath], **values: Any) -> Mechanism:
        return cls(tuple(paths), **values)

    def with_paths(self, paths: Iterable[RolePath]) -> Mechanism:
        return replace(self, paths=tuple(paths))

    def named(self, names: Sequence[str]) -> Mechanism:
        if all(path.names is names for path in self.paths):
            return self
        return replace(self, paths=tuple(path.named(names) for path in self.paths))


@dataclass(frozen=True)
class Original(Mechanism):
    """The head's own attention, left as it is."""

    kind = "original"
    keeps_own = True


@dataclass(frozen=True)
class Cut(WithPaths):
    """The head's own attention, with that along its paths set to zero, not rescaled."""

    kind = "cut"
    keeps_own = True


@dataclass(frozen=True)
class Uniform(Mechanism):
    """Equal weight on every position that the mask allows."""

    kind = "uniform"
    cost = 0, 0
    writes = "adds the mean of all values that each position may see"

    def pattern(self, positions: Positions) -> Pattern:
        allowed = positions.allowed.float()
        return allowed / allowed.sum(-1, keepdim=True).clamp(min=1)


@dataclass(frozen=True)
class Identity(Mechanism):
    """Every position attends to itself."""

    kind = "identity"
    cost = 0, 0
    writes = "passes each token through its own values"

    def pattern(self, positions: Positions) -> Pattern:
        return torch.eye(positions.n_positions, device=positions.roles.device)[None]


class _ByRole(WithPaths):
    """Attention along paths.

    Where chains overlap, a position has several roles. It then attends along the paths of all of
    them in equal parts, or, if paths have weights, its row is the mean of its roles' rows. A path
    with several sources divides its part among them.
    """

    weights: tuple[float, ...] = ()

    def pattern(self, positions: Positions) -> Pattern:
        positions.check(self.paths)
        roles, size = positions.roles, positions.n_positions
        pattern = torch.zeros(len(roles), size, size, device=roles.device)
        parts = torch.zeros(len(roles), size, device=roles.device)
        for dest in {path.dest for path in self.paths}:
            rows, has_source = rows_of(dest, roles), []
            for index, path in enumerate(self.paths):
                if path.dest == dest:
                    sources = path_sources(path, roles, size).float()
                    count = sources.sum(-1, keepdim=True)
                    share = sources / count.clamp(min=1)
                    share = self.weights[index] * share if self.weights else share
                    pattern.index_put_(rows, share, accumulate=True)
                    has_source.append((count[..., 0] > 0).float())
            used = torch.stack(has_source)  # [path batch chain]
            parts.index_put_(rows, used.amax(0) if self.weights else used.sum(0), accumulate=True)
        return pattern / parts.clamp(min=1)[..., None]


@dataclass(frozen=True)
class Shared(_ByRole):
    """A role's attention on its sources, in equal parts."""

    kind = "shared"
    follows_paths = True

    @property
    def cost(self) -> tuple[int, int]:
        """1 for a role's first source and 2 for each further one; 1 if there is none.

        Attending nowhere costs something, because no softmax can do it.
        """
        return max(1, 2 * len(self.paths) - len({path.dest for path in self.paths})), 0

    def with_paths(self, paths: Iterable[RolePath]) -> Mechanism:
        return (
            one_hot_or_shared(paths)
            if type(self) in (OneHot, Shared)
            else super().with_paths(paths)
        )


@dataclass(frozen=True)
class OneHot(Shared):
    """All of a role's attention on one source each."""

    kind = "one-hot"

    def __post_init__(self) -> None:
        super().__post_init__()
        for first, second in itertools.pairwise(self.paths):
            if first.dest == second.dest:
                raise InputError(
                    f"expected one source per role in a one-hot head, found {first} and {second}; "
                    "use shared"
                )


@dataclass(frozen=True)
class RoleMean(_ByRole):
    """A measured weight for every path: the head's mean attention by role."""

    kind = "role-mean"
    cost = 0, 3
    is_measured = True
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.weights) != len(self.paths) or not all(0 <= w <= 1 for w in self.weights):
            raise InputError(
                f"expected a weight from 0 to 1 for each of {len(self.paths)} paths of a role-mean "
                f"head, found {list(self.weights)}"
            )
        weights = dict(zip(self.paths, self.weights))
        super().__post_init__()
        object.__setattr__(self, "weights", tuple(weights[path] for path in self.paths))

    def with_paths(self, paths: Iterable[RolePath]) -> Mechanism:
        weights, paths = dict(zip(self.paths, self.weights)), tuple(paths)
        return RoleMean(paths, tuple(weights.get(path, 0.0) for path in paths))

    def text(self, names: Sequence[str] = ()) -> str:
        return f"role-mean of {len(self.paths)} paths"


class Rule(Mechanism):
    """Attention by position or token: to its `targets`, in equal parts.

    A position without one, as where its token is new, attends to the first that the mask allows.
    """

    cost = 3, 0

    def pattern(self, positions: Positions) -> Pattern:
        real, tokens = positions.real, positions.tokens
        if real is None:
            return self._rows(positions)
        starts = first_real(real)  # positions count from the first real one
        tokens = None if tokens is None else shifted(tokens, -starts, (1,))
        pattern = self._rows(replace(positions, tokens=tokens, real=None))
        pattern = shifted(pattern.expand(len(real), -1, -1), starts, (1, 2))
        return pattern * (real[:, :, None] & real[:, None, :])

    def _rows(self, positions: Positions) -> Pattern:
        targets = self.targets(positions) & positions.allowed
        first = positions.allowed.int().argmax(-1, keepdim=True).expand(len(targets), -1, -1)
        targets = targets.scatter(-1, first, targets.gather(-1, first) | ~targets.any(-1, True))
        return targets / targets.sum(-1, keepdim=True)

    def targets(self, positions: Positions) -> Bool[Tensor, "#batch dest src"]:
        """Return the positions to attend to; those that the mask forbids are dropped."""
        raise InputError(f"{self.kind}: expected a rule with `targets` or a `pattern`, found none")


@dataclass(frozen=True)
class First(Rule):
    """The first position that the mask allows, the attention sink of many language models."""

    kind = "first"
    cost = 1, 0

    def targets(self, positions: Positions) -> Bool[Tensor, "#batch dest src"]:
        allowed = positions.allowed
        return torch.zeros_like(allowed).scatter(-1, allowed.int().argmax(-1, keepdim=True), True)


@dataclass(frozen=True)
class Previous(Rule):
    """The position before (previous-token head)."""

    kind = "previous"
    cost = 1, 0

    def targets(self, positions: Positions) -> Bool[Tensor, "#batch dest src"]:
        return torch.ones_like(positions.allowed).tril(-1).triu(-1)


@dataclass(frozen=True)
class Same(Rule):
    """The earlier positions with the same token, in equal parts (duplicate-token head)."""

    kind = "same"
    reads_tokens = True
    cost = 2, 0
    after: ClassVar[bool] = False

    def targets(self, positions: Positions) -> Bool[Tensor, "#batch dest src"]:
        tokens = positions.tokens
        if tokens is None:
            raise InputError(
                f"{self.kind}: expected token ids, which this rule compares, found vectors; use "
                "role paths"
            )
        targets = (tokens[:, :, None] == tokens[:, None, :]).tril(-1)
        if self.after:
            targets = torch.nn.functional.pad(targets[:, :, :-1], (1, 0))
        return targets


@dataclass(frozen=True)
class AfterSame(Same):
    """The positions after the earlier ones with the same token, in equal parts (induction)."""

    kind = "after-same"
    after: ClassVar[bool] = True


@dataclass(frozen=True)
class Mean(Rule):
    """Mean attention by position, measured: the part of attention that ignores content.

    Shorter sequences use its first rows. In longer ones, the rows of later positions are means over
    the second half of its rows, by offset, and for the attention to the first position (the sink).
    """

    kind = "mean"
    cost = 0, 5
    is_measured = True
    weights: Float[Tensor, "dest src"] = field(compare=False)  # rounded as in files
    _compared: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        weights = self.weights.detach().float().cpu()
        square = weights.ndim == 2 and 0 < weights.shape[0] == weights.shape[1]
        if not square or not bool(((weights >= 0).all(-1) & (weights.sum(-1) <= 1.01)).all()):
            raise InputError(
                "mean: expected a square pattern of weights from 0 to 1 that sum to at most 1 in a "
                f"row, found {list(weights.shape)}"
            )
        rounded = weights.mul(10**_DIGITS).round() / 10**_DIGITS
        object.__setattr__(self, "weights", rounded)
        object.__setattr__(self, "_compared", rounded.contiguous().numpy().tobytes())

    @classmethod
    def stored(cls) -> dict[str, Any]:
        return {"mean": tuple[tuple[float, ...], ...]}

    @classmethod
    def _made(cls, paths: Sequence[RolePath], **values: Any) -> Mechanism:
        rows = [torch.tensor(row) for row in values["mean"]]
        square = pad_sequence([*rows, torch.zeros(len(rows))], batch_first=True)[:-1]
        return super()._made(paths, weights=square)

    @property
    def mean(self) -> list[list[float]]:
        """Weights by row, without the zeros at its end, rounded."""
        rows = [[round(weight, _DIGITS) for weight in row] for row in self.weights.tolist()]
        lengths = [max((n for n, weight in enumerate(row, 1) if weight), default=0) for row in rows]
        return [row[:length] for row, length in zip(rows, lengths)]

    def _rows(self, positions: Positions) -> Pattern:
        return self.of_length(positions.n_positions).to(positions.roles.device) * positions.allowed

    def of_length(self, n_positions: int) -> Float[Tensor, "dest src"]:
        """Return the pattern for sequences of a length."""
        measured = len(self.weights)
        if n_positions <= measured:
            return self.weights[:n_positions, :n_positions]
        if bool(self.weights.triu(1).any()):
            raise InputError(
                f"mean: expected sequences of at most {measured} positions, on which this pattern, "
                f"which looks ahead, was measured, found {n_positions}"
            )
        pattern = torch.zeros(n_positions, n_positions)
        pattern[:measured, :measured] = self.weights
        later = self.weights[measured // 2 :]
        pattern[measured:, 0] = later[:, 0].mean()
        dest = torch.arange(measured, n_positions)
        for offset in range(measured - 1):
            share = self.weights.diagonal(-offset)[max(1, measured // 2 - offset) :].sum()
            pattern[dest, dest - offset] = share / len(later)
        return pattern


ORIGINAL = Original()
UNIFORM = Uniform()
IDENTITY = Identity()
FIRST = First()
PREVIOUS = Previous()
SAME = Same()
AFTER_SAME = AfterSame()
RULES: list[Mechanism] = [FIRST, PREVIOUS, SAME, AFTER_SAME]
"""The rules that searches and scans try, the simplest first; append one of your own.

For a model that reads vectors, those that read tokens are left out; searches also leave out `first`
and `previous` there, as the roles say what stands at a position.
"""


def pattern_of(mechanism: Mechanism, positions: Positions) -> Pattern:
    """Return a mechanism's pattern; one that is not built in is checked."""
    if type(mechanism).__module__ == __name__:
        return mechanism.pattern(positions)
    if "__dataclass_fields__" not in vars(type(mechanism)):
        expected = "a class with @dataclass(frozen=True), which equals another by its fields"
        raise InputError(f"{mechanism.kind}: expected {expected}, found none")
    pattern = mechanism.pattern(positions)
    size, kind = positions.n_positions, mechanism.kind
    if pattern.shape[1:] != (size, size) or len(pattern) not in (1, len(positions.roles)):
        shape = f"[1 or {len(positions.roles)}, {size}, {size}]"
        raise InputError(f"{kind}: expected a pattern {shape}, found {list(pattern.shape)}")
    lowest, highest = float(pattern.min()), float(pattern.sum(-1).max())
    if not (lowest >= 0 and highest <= 1 + 1e-4):
        raise InputError(
            f"{kind}: expected weights of at least 0, and at most 1 in a row, found {lowest:.4g} "
            f"and {highest:.4g}"
        )
    if bool(pattern.masked_fill(positions.allowed, 0.0).any()):
        raise InputError(f"{kind}: expected no weight where the mask hides a position, found some")
    return pattern


def one_hot_or_shared(paths: Iterable[RolePath]) -> Shared:
    """Return the mechanism along these paths: one-hot if no role has several sources, or shared."""
    paths = tuple(paths)
    dests = [path.dest for path in paths]
    return OneHot(paths) if len(set(dests)) == len(dests) else Shared(paths)
