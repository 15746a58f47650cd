"""Mechanisms: what a head attends to, one class for each (paper, appendix E).

The row of a position without a path is all zeros, as in the paper. A new mechanism is a subclass;
text and files find it by its `kind`. Searches and scans try what `RULES` lists; what a mechanism
costs them is their `cost`.
"""

import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from retrieval_interp.circuits import attention
from retrieval_interp.circuits.paths import RolePath
from retrieval_interp.tasks import Batch, InputError, role_name
from retrieval_interp.tasks.roles import Roles
from retrieval_interp.tasks.structured import from_data
from retrieval_interp.tasks.task import Attended

Pattern = Float[Tensor, "#batch dest src"]
Own = Float[Tensor, "batch dest src"]  # a head's own attention
Output = Float[Tensor, "batch dest d_head"]  # what a head writes, z = P V
MECHANISMS: dict[str, type["Mechanism"]] = {}
"""Every class of mechanism, by its `kind`."""
EVERYTHING_BEFORE = attention.Mask()
_DIGITS = 5  # of a mean pattern's weights that are kept


@dataclass(frozen=True)
class Where:
    """The positions for which a pattern is built."""

    roles: attention.Places
    n_positions: int  # sequence length
    mask: attention.Mask = EVERYTHING_BEFORE  # of the layer
    tokens: Int[Tensor, "batch pos"] | None = None  # None where inputs are vectors
    real: Bool[Tensor, "batch pos"] | None = None  # False at padding, to which no rule attends
    _checked: set[RolePath] = field(default_factory=set, compare=False, repr=False)

    def check(self, paths: Iterable[RolePath], where: str = "", names: Sequence[str] = ()) -> None:
        """Check that paths fit these positions, each once; errors start with `where`."""
        last = self.roles.shape[-1] - 1
        for path in paths:
            if path in self._checked:
                continue
            if not (0 <= path.dest <= last and 0 <= path.src <= last):
                raise InputError(f"{where}expected roles from s0 to s{last}, found the path {path}")
            before = self._before(path)
            hidden = before[~self.mask.allows(before)]
            if len(hidden):
                expected = f"less than {self.mask.window} positions away (the layer's window)"
                found = f"is {int(hidden.abs().max())} away"
                if self.mask.causal and int(hidden.min()) < 0:
                    expected = "before its destination (the model is causal)"
                    found = "comes later in the sequence"
                raise InputError(
                    f"{where}expected a source {expected}, found {path.text(names)}: "
                    f"{role_name(path.src, names)} {found}"
                )
            self._checked.add(path)

    def _before(self, path: RolePath) -> Int[Tensor, " number"]:
        """How far before its destinations a path's sources are, where both are present."""
        dest, src = self.roles[:, :, path.dest], self.roles[:, :, path.src]
        return (dest - src)[(dest >= 0) & (src >= 0)]

    @cached_property
    def paths(self) -> list[RolePath]:
        """The role paths that have a source, and that the mask allows in every example."""
        roles, found = range(self.roles.shape[-1]), []
        for path in itertools.starmap(RolePath, itertools.product(roles, roles)):
            before = self._before(path)
            if len(before) and bool(self.mask.allows(before).all()):
                found.append(path)
        return found

    @property
    def allowed(self) -> Bool[Tensor, "#batch dest src"]:
        """Which sources each destination may attend to: never padding."""
        position = torch.arange(self.n_positions, device=self.roles.device)
        allowed = self.mask.allows(position[:, None] - position)[None]
        return allowed if self.real is None else allowed & self.real[:, None, :]

    @classmethod
    def of(cls, batch: Batch, mask: attention.Mask) -> "Where":
        """The positions of a batch, in a layer with this mask."""
        return cls(batch.roles, batch.inputs.shape[1], mask, batch.tokens, batch.attention_mask)


class Mechanism:
    """What one head is supposed to do. Each kind is a frozen dataclass below."""

    kind: ClassVar[str]  # the word for it in text and files
    parameters: ClassVar[Mapping[str, Any]] = {}  # what files say besides paths, and of which type
    keeps_own: ClassVar[bool] = False  # its pattern is made of the head's own attention (`changed`)
    replaces_output: ClassVar[bool] = False  # it says what the head writes (`output`)
    follows_paths: ClassVar[bool] = False  # it attends along its paths alone, in equal parts
    is_measured: ClassVar[bool] = False  # on a model, so that nobody writes it as text
    writes: ClassVar[str] = "adds what stands at fixed places"  # where its pattern is fixed
    reads_tokens: ClassVar[bool] = False  # so that it says nothing of a model that reads vectors
    cost: ClassVar[tuple[int, int]] = (0, 10)  # to a search: of a head, and for each role
    paths: tuple[RolePath, ...] = ()  # sorted

    def __init_subclass__(cls) -> None:
        kind = vars(cls).get("kind")
        if cls.__module__ != __name__:
            known = MECHANISMS.get(kind or "")
            if kind is None or (known is not None and known.__module__ == __name__):
                found = "none" if kind is None else f"{kind!r}, a built-in"
                raise InputError(
                    f"{cls.__name__}: expected a `kind` of its own, the word for it in text and "
                    f"files, found {found}"
                )
        if kind is not None:
            MECHANISMS[kind] = cls

    def pattern(self, where: Where) -> Pattern:
        """Its attention, in float32; [1 dest src] if it is the same for every example."""
        raise InputError(f"{self.kind}: the head keeps its own attention, no pattern to build")

    @property
    def is_fixed(self) -> bool:
        """Whether its pattern neither is the head's own nor follows stated paths, as of uniform."""
        return not (self.keeps_own or self.follows_paths)

    def shares(self, dest: int) -> tuple[tuple[int, float], ...] | None:
        """The roles that role `dest` attends to, each with its share of the attention.

        None where that depends on positions. Of a cut mechanism, the roles that are cut.
        """
        return None

    @property
    def reads_pattern(self) -> bool:
        """Whether the head's own attention has to be known."""
        return self.keeps_own

    def changed(self, own: Own, roles: attention.Places) -> Own:
        """What becomes of the head's own attention, if it `keeps_own`."""
        return own.masked_fill(attention.joined(self.paths, roles, own.shape[-1]), 0.0)

    def output(self, own: Attended, other: Attended | None, roles: attention.Places) -> Output:
        """What the head writes, if it `replaces_output`.

        `own` is what it does in the run at hand, `other` on a counterfactual prompt.
        """
        raise InputError(f"{self.kind}: the head keeps what it writes")

    def named(self, names: Sequence[str]) -> "Mechanism":
        """The same mechanism, whose paths are printed with these names of roles."""
        return self

    def text(self, names: Sequence[str] = ()) -> str:
        """The mechanism with a task's names for its roles."""
        return " ".join([self.kind, *(path.text(names) for path in self.paths)])

    def __str__(self) -> str:
        return self.text()

    def adding(self, *paths: RolePath) -> "Mechanism":
        """The mechanism with more paths; one that has none gives way to these."""
        return along(dict.fromkeys(paths))

    def without(self, path: RolePath) -> "Mechanism":
        """The same mechanism without one path; a role's other sources share its attention."""
        return self

    def to_dict(self, names: Sequence[str] = ()) -> dict[str, Any]:
        """What a circuit file says of it; `from_dict` reads it."""
        paths = [list(path.ends(names)) for path in self.paths]
        values = {name: getattr(self, name) for name in self.parameters}
        values = {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}
        return {"mechanism": self.kind, "paths": paths, **values}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], roles: Roles) -> "Mechanism":
        types = {"paths": tuple[tuple[str, str], ...], **cls.parameters}
        if unknown := data.keys() - types.keys():
            raise InputError(f"expected the keys {', '.join(types)}, found {min(unknown)!r:.60}")
        if missing := cls.parameters.keys() - data.keys():
            raise InputError(f"{cls.kind}: expected the key {min(missing)!r}")
        values = {key: from_data(types[key], value, key) for key, value in data.items()}
        paths = [RolePath.join(dest, src, roles) for dest, src in values.pop("paths", ())]
        return cls._made(paths, **values)

    @classmethod
    def from_words(cls, words: Sequence[str], roles: Roles) -> "Mechanism":
        """Read what stands after its kind in a line of text."""
        return cls._made([RolePath.parse(word, roles) for word in words])

    @classmethod
    def _made(cls, paths: Sequence[RolePath], **values: Any) -> "Mechanism":
        """One with what a file or a line says."""
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

    def without(self, path: RolePath) -> Mechanism:
        return replace(self, paths=tuple(kept for kept in self.paths if kept != path))

    def named(self, names: Sequence[str]) -> Mechanism:
        if all(path.names is names for path in self.paths):
            return self
        return replace(self, paths=tuple(path.named(names) for path in self.paths))

    def shares(self, dest: int) -> tuple[tuple[int, float], ...] | None:
        sources = [path.src for path in self.paths if path.dest == dest]
        return tuple((src, 1 / len(sources)) for src in sources)


@dataclass(frozen=True)
class Original(Mechanism):
    """The head's own attention, left as it is."""

    kind = "original"
    keeps_own = True


@dataclass(frozen=True)
class Cut(WithPaths):
    """The head's own attention, with that of its paths set to zero."""

    kind = "cut"
    keeps_own = True


@dataclass(frozen=True)
class Uniform(Mechanism):
    """Equal weight on every position that the mask allows."""

    kind = "uniform"
    cost = 0, 0
    writes = "adds the mean of all values that each position may see"

    def pattern(self, where: Where) -> Pattern:
        allowed = where.allowed.float()
        return allowed / allowed.sum(-1, keepdim=True).clamp(min=1)


@dataclass(frozen=True)
class Identity(Mechanism):
    """Every position attends to itself."""

    kind = "identity"
    cost = 0, 0
    writes = "passes each token through its own values"

    def pattern(self, where: Where) -> Pattern:
        return torch.eye(where.n_positions, device=where.roles.device)[None]

    def shares(self, dest: int) -> tuple[tuple[int, float], ...]:
        return ((dest, 1.0),)


class _ByRole(WithPaths):
    """Attention along paths.

    A position with several roles, where chains overlap, attends along the paths of all of them in
    equal parts, or has the mean of its roles' rows if paths have weights. A path shares its part
    among its sources.
    """

    weights: tuple[float, ...] = ()

    def pattern(self, where: Where) -> Pattern:
        where.check(self.paths)
        roles, size = where.roles, where.n_positions
        pattern = torch.zeros(len(roles), size, size, device=roles.device)
        parts = torch.zeros(len(roles), size, device=roles.device)
        for dest in {path.dest for path in self.paths}:
            at, found = attention.rows_of(dest, roles), []
            for place, path in enumerate(self.paths):
                if path.dest == dest:
                    sources = attention.path_sources(path, roles, size).float()
                    count = sources.sum(-1, keepdim=True)
                    share = sources / count.clamp(min=1)
                    share = self.weights[place] * share if self.weights else share
                    pattern.index_put_(at, share, accumulate=True)
                    found.append((count[..., 0] > 0).float())
            each = torch.stack(found)
            parts.index_put_(at, each.amax(0) if self.weights else each.sum(0), accumulate=True)
        return pattern / parts.clamp(min=1)[..., None]


@dataclass(frozen=True)
class Shared(_ByRole):
    """A role's attention on its sources, in equal parts."""

    kind = "shared"
    follows_paths = True

    def adding(self, *paths: RolePath) -> Mechanism:
        return along(dict.fromkeys((*self.paths, *paths)))

    def without(self, path: RolePath) -> Mechanism:
        return along(kept for kept in self.paths if kept != path)


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
    """A measured weight for every path; independent of content, but not simple."""

    kind = "role-mean"
    cost = 0, 3
    parameters: ClassVar[Mapping[str, Any]] = {"weights": tuple[float, ...]}
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

    def without(self, path: RolePath) -> Mechanism:
        kept = {p: w for p, w in zip(self.paths, self.weights) if p != path}
        return RoleMean(tuple(kept), tuple(kept.values()))

    def shares(self, dest: int) -> tuple[tuple[int, float], ...]:
        return tuple((p.src, w) for p, w in zip(self.paths, self.weights) if p.dest == dest)

    def text(self, names: Sequence[str] = ()) -> str:
        return f"role-mean of {len(self.paths)} paths"


class Rule(Mechanism):
    """Attention by position or token: to `targets`, in equal parts.

    A position without one, as where its token is new, attends to the first that the mask allows.
    """

    cost = 3, 0

    def pattern(self, where: Where) -> Pattern:
        real, tokens = where.real, where.tokens
        if real is None:
            return self._rows(where)
        starts = attention.first_real(real)  # positions count from the first real one
        tokens = None if tokens is None else attention.shifted(tokens, -starts, (1,))
        pattern = self._rows(replace(where, tokens=tokens, real=None))
        pattern = attention.shifted(pattern.expand(len(real), -1, -1), starts, (1, 2))
        return pattern * (real[:, :, None] & real[:, None, :])

    def _rows(self, where: Where) -> Pattern:
        targets = self.targets(where) & where.allowed
        first = where.allowed.int().argmax(-1, keepdim=True).expand(len(targets), -1, -1)
        targets = targets.scatter(-1, first, targets.gather(-1, first) | ~targets.any(-1, True))
        return targets / targets.sum(-1, keepdim=True)

    def targets(self, where: Where) -> Bool[Tensor, "#batch dest src"]:
        """The positions that each position attends to, among those that the mask allows."""
        raise NotImplementedError


@dataclass(frozen=True)
class First(Rule):
    """The first position that the mask allows, where heads of language models rest (a sink)."""

    kind = "first"
    cost = 1, 0

    def targets(self, where: Where) -> Bool[Tensor, "#batch dest src"]:
        allowed = where.allowed
        return torch.zeros_like(allowed).scatter(-1, allowed.int().argmax(-1, keepdim=True), True)


@dataclass(frozen=True)
class Previous(Rule):
    """The position before."""

    kind = "previous"
    cost = 1, 0

    def targets(self, where: Where) -> Bool[Tensor, "#batch dest src"]:
        return torch.ones_like(where.allowed).tril(-1).triu(-1)


@dataclass(frozen=True)
class Same(Rule):
    """The earlier positions with the same token, in equal parts."""

    kind = "same"
    reads_tokens = True
    cost = 2, 0
    after: ClassVar[bool] = False

    def targets(self, where: Where) -> Bool[Tensor, "#batch dest src"]:
        tokens = where.tokens
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
    """Mean attention by position, measured; what of a head's attention does not depend on content.

    Shorter sequences use its first rows. In longer ones, later positions use the mean by offset of
    the second half of its rows, and of their attention to the first position, the sink.
    """

    kind = "mean"
    cost = 0, 5
    parameters: ClassVar[Mapping[str, Any]] = {"mean": tuple[tuple[float, ...], ...]}
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
    def _made(cls, paths: Sequence[RolePath], **values: Any) -> Mechanism:
        rows = [torch.tensor(row) for row in values["mean"]]
        square = pad_sequence([*rows, torch.zeros(len(rows))], batch_first=True)[:-1]
        return super()._made(paths, weights=square)

    @property
    def mean(self) -> list[list[float]]:
        """Weights by row, without the zeros at its end, rounded."""
        rows = [[round(weight, _DIGITS) for weight in row] for row in self.weights.tolist()]
        lengths = [max((at + 1 for at, w in enumerate(row) if w), default=0) for row in rows]
        return [row[:length] for row, length in zip(rows, lengths)]

    def _rows(self, where: Where) -> Pattern:
        return self.of_length(where.n_positions).to(where.roles.device) * where.allowed

    def of_length(self, n_positions: int) -> Float[Tensor, "dest src"]:
        """The pattern of sequences of a length."""
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
        at = torch.arange(measured, n_positions)
        for offset in range(measured - 1):
            share = self.weights.diagonal(-offset)[max(1, measured // 2 - offset) :].sum()
            pattern[at, at - offset] = share / len(later)
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

Where a model reads vectors, those that read tokens are left out, and by searches also the two by
position, as roles say there what positions are.
"""


def rule(kind: str, function: Callable[..., Any], tokenizer: Any = None) -> Mechanism:
    """A rule of one's own from a function, which searches and scans try from now on.

    Args:
        kind: its word in text and files.
        function: from the tokens of one example, padding left out, to the weights [dest src] that
            a head is to have, as a tensor, an array or lists. A row has at most 1 in sum, and
            weights on positions that the mask hides are dropped. Or from the text and the
            tokenizer to a name and the weights, as the programs of Hayes et al.
            (https://arxiv.org/abs/2606.19317); then a row is scaled to 1, and one without weights
            attends to the first position.
        tokenizer: gives words, with their blanks, in place of token ids.

    Examples:
        >>> def after_comma(words):  # to the last word behind a comma
        ...     size, weights = len(words), torch.zeros(len(words), len(words))
        ...     for dest in range(size):
        ...         behind = [n for n in range(1, dest + 1) if words[n - 1] == ","]
        ...         weights[dest, behind[-1] if behind else 0] = 1
        ...     return weights
        >>> import retrieval_interp as ri
        >>> made = ri.rule("after-comma", after_comma, tokenizer=None)
    """

    needed = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    reads_text = len(needed) == 2
    if reads_text and tokenizer is None:
        raise InputError(f"{kind}: expected a tokenizer, which the function reads, found none")

    def pattern(self: Mechanism, where: Where) -> Pattern:
        if where.tokens is None:
            raise InputError(f"{kind}: expected token ids, found vectors")
        weights = torch.zeros(len(where.roles), where.n_positions, where.n_positions)
        for example, ids in enumerate(where.tokens.cpu()):
            real = torch.ones(len(ids)).bool() if where.real is None else where.real[example].cpu()
            tokens = ids[real].tolist()
            if reads_text:
                begun = tokenizer("")["input_ids"] == tokens[:1]  # by the tokenizer itself
                returned = function(tokenizer.decode(tokens[begun:]), tokenizer)
            else:
                words = tokens if tokenizer is None else [tokenizer.decode([n]) for n in tokens]
                returned = function(words)
            made = returned[1] if isinstance(returned[0], str) else returned  # a name before it
            made = torch.as_tensor(made, dtype=torch.float32)
            if made.shape != (len(tokens), len(tokens)):
                size, found = [len(tokens)] * 2, list(made.shape)
                raise InputError(f"{kind}: expected weights of shape {size}, found {found}")
            weights[example, real.nonzero(), real.nonzero()[:, 0]] = made
        weights = weights.to(where.roles.device) * where.allowed
        if not reads_text:
            return weights
        total = weights.clamp(min=0).sum(-1, keepdim=True)
        scaled = weights.clamp(min=0) / total
        return torch.where(total == 0, FIRST.pattern(where), scaled)

    body = {"kind": kind, "pattern": pattern, "reads_tokens": True, "cost": Rule.cost}
    cls: Any = type("OwnRule", (Mechanism,), {**body, "__module__": function.__module__})
    made: Mechanism = dataclass(frozen=True)(cls)()
    RULES[:] = [*(known for known in RULES if known.kind != kind), made]
    return made


def pattern_of(mechanism: Mechanism, where: Where) -> Pattern:
    """Its pattern, which is checked if the mechanism is one's own."""
    pattern = mechanism.pattern(where)
    if type(mechanism).__module__ == __name__:
        return pattern
    size, kind = where.n_positions, mechanism.kind
    if pattern.shape[1:] != (size, size) or len(pattern) not in (1, len(where.roles)):
        shape = f"[1 or {len(where.roles)}, {size}, {size}]"
        raise InputError(f"{kind}: expected a pattern {shape}, found {list(pattern.shape)}")
    lowest, highest = float(pattern.min()), float(pattern.sum(-1).max())
    if not (lowest >= 0 and highest <= 1 + 1e-4):
        raise InputError(
            f"{kind}: expected weights of at least 0, and at most 1 in a row, found {lowest:.4g} "
            f"and {highest:.4g}"
        )
    if bool(pattern.masked_fill(where.allowed, 0.0).any()):
        raise InputError(f"{kind}: expected no weight where the mask hides a position, found some")
    return pattern


def along(paths: Iterable[RolePath]) -> Shared:
    """The mechanism that attends along these paths: one-hot if no role has several sources."""
    paths = tuple(paths)
    dests = [path.dest for path in paths]
    return OneHot(paths) if len(set(dests)) == len(dests) else Shared(paths)
