"""Heads that are patched from a counterfactual prompt, except for the paths that they keep.

A head writes, at dest, the sum over src of P[dest, src] V[src]: its attention times its values. For
a path (dest, src) that is not kept, P, V or both are patched: taken from a run of the intact model
on the counterfactual prompt (`Batch.counterfactual_activations`). Nothing is rescaled. In
TransformerLens's terms this patches `hook_z`, `hook_pattern` or `hook_v`, path by path.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from jaxtyping import Bool
from torch import Tensor

from retrieval_interp.circuits.mechanisms import Mechanism, Output, OwnPattern, WithPaths
from retrieval_interp.circuits.paths import RolePath, RolePositions, path_mask
from retrieval_interp.tasks import InputError, parse_role, role_name
from retrieval_interp.tasks.structured import from_data
from retrieval_interp.tasks.task import HeadActivations, Roles

Patch = Literal["z", "pattern", "v"]  # what is patched: attention and values, or one of them
PATCHES: tuple[Patch, ...] = get_args(Patch)
Region = tuple[tuple[RolePath, ...], tuple[int, ...], Patch | None]  # paths, rows, what is patched
_ATTENTION = ("z", "pattern")  # what patches attention


@dataclass(frozen=True)
class Counterfactual(WithPaths):
    """The head is patched from the counterfactual prompt, except for its rows and paths.

    Attributes:
        rows: roles whose whole rows are kept.
        patch: what of everything else is taken from the counterfactual.
        partly_patched: further paths and rows, with only attention or only values patched.
    """

    kind = "counterfactual"
    keeps_own = True
    replaces_output = True
    is_patched = True
    rows: tuple[int, ...] = ()
    patch: Patch = "z"
    partly_patched: Region = (), (), "z"

    @property
    def reads_pattern(self) -> bool:
        """Whether the output needs the head's attention on the prompt itself."""
        return any((self.paths, self.rows, *self.partly_patched[:2])) or self.patch == "v"

    @property
    def regions(self) -> tuple[Patch | None, list[Region]]:
        """What is patched everywhere, and what instead in some regions."""
        return self.patch, [(self.paths, self.rows, None), self.partly_patched]

    def output(
        self, here: HeadActivations, there: HeadActivations | None, roles: RolePositions
    ) -> Output:
        there, (everywhere, regions) = self.checked(there), self.regions
        z = patched_output(here, there, everywhere)
        for paths, rows, patch in regions:
            if paths or rows:
                places = path_mask(paths, roles, z.shape[1], rows, any_chains=True)
                z = z + patched_output_from(places, here, there, patch)
                z = z - patched_output_from(places, here, there, everywhere)
        return z

    def value_weights(
        self, own: OwnPattern, there: HeadActivations | None, roles: RolePositions
    ) -> OwnPattern:
        """Its own attention where that is not patched, else the counterfactual's.

        Those that are `partly_patched` do not count.
        """
        pattern, (everywhere, regions) = self.checked(there).pattern.to(own), self.regions
        paths, rows, patch = regions[0]
        places = path_mask(paths, roles, own.shape[1], rows, any_chains=True)
        inside, outside = (pattern if p in _ATTENTION else own for p in (patch, everywhere))
        return inside.where(places, outside)

    def checked(self, there: HeadActivations | None) -> HeadActivations:
        """Return the attention on the counterfactual; an error if there is none."""
        if there is None:
            raise InputError(
                f"{self.kind}: expected a batch with the attention of a counterfactual prompt, "
                "found one without; see ri.with_counterfactual"
            )
        return there

    def adding(self, *paths: RolePath) -> Mechanism:
        return replace(self, paths=tuple(dict.fromkeys((*self.paths, *paths))))

    def _places(self, names: Sequence[str]) -> list[str]:
        return [*super()._places(names), *(role_name(row, names) for row in self.rows)]

    @classmethod
    def stored(cls) -> dict[str, Any]:
        return {"rows": tuple[str, ...], "patch": Patch}

    def to_dict(self, names: Sequence[str] = ()) -> dict[str, Any]:
        data = super().to_dict(names)
        rows = [role_name(row, names) for row in self.rows]
        return {**data, "rows": rows}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], roles: Roles) -> Mechanism:
        names = from_data(tuple[str, ...], data.get("rows", []), "rows")
        made: Any = super().from_dict({**data, "rows": []}, roles)
        with_rows: Mechanism = replace(made, rows=tuple(parse_role(name, roles) for name in names))
        return with_rows

    @classmethod
    def from_words(cls, words: Sequence[str], roles: Roles) -> Mechanism:
        rows = [word for word in words if "<-" not in word and "=" not in word]
        made: Any = super().from_words([word for word in words if word not in rows], roles)
        with_rows: Mechanism = replace(made, rows=tuple(parse_role(row, roles) for row in rows))
        return with_rows


@dataclass(frozen=True)
class Patched(Counterfactual):
    """The reverse: the head is intact, but its rows and paths are patched."""

    kind = "patched"

    @property
    def regions(self) -> tuple[Patch | None, list[Region]]:
        return None, [(self.paths, self.rows, self.patch)]


def patched_pattern_and_values(
    here: HeadActivations, there: HeadActivations, patch: Patch | None
) -> tuple[Tensor, Tensor]:
    """Return attention and values with `patch`, or nothing (None), patched."""
    pattern = there.pattern if patch in _ATTENTION else here.pattern
    return pattern.to(here.z), (there.v if patch in ("z", "v") else here.v).to(here.z)


def patched_output(here: HeadActivations, there: HeadActivations, patch: Patch | None) -> Output:
    """Return what the head writes with `patch`, or nothing, patched everywhere."""
    if patch in ("z", None):
        return here.z if patch is None else there.z.to(here.z)
    pattern, v = patched_pattern_and_values(here, there, patch)
    return pattern @ v


def patched_output_from(
    places: Bool[Tensor, "batch dest src"],
    here: HeadActivations,
    there: HeadActivations,
    patch: Patch | None,
) -> Output:
    """Return what the head writes from some places of its pattern alone."""
    pattern, v = patched_pattern_and_values(here, there, patch)
    return pattern.masked_fill(~places, 0.0) @ v  # rows of padding may be NaN
