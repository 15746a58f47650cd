"""What the roles and heads of a circuit are called in pictures."""

from collections.abc import Collection
from typing import NamedTuple

from jaxtyping import Bool
from torch import Tensor

from retrieval_interp.circuits.circuit import Circuit, HeadPath, RolePath
from retrieval_interp.tasks import (
    Batch,
    RetrievalTask,
    Task,
    role_letters,
    role_name,
    symbol_letter,
)


class RoleNames(NamedTuple):
    """Names of every role for people: in words, and shorter."""

    labels: tuple[str, ...]
    symbols: tuple[str, ...]


def names_for(circuit: Circuit, task: Task | None) -> RoleNames:
    """As the task says; without one in a chain's letters, or s0, s1, ... for other tasks."""
    if task is not None:
        own = tuple(task.role_symbols) != tuple(task.role_names)
        return RoleNames(task.role_labels, task.role_symbols if own else task.role_labels)
    roles = range(circuit.n_roles)
    if circuit.task.get("name", RetrievalTask.name) == RetrievalTask.name:
        symbols = (symbol_letter(role // 2) + ("" if role else "?") for role in roles)
        return RoleNames(tuple(map(role_letters, roles)), tuple(symbols))
    names = tuple(map(role_name, roles))
    return RoleNames(names, names)


def head_kind(paths: Collection[HeadPath], batch: Batch) -> str:
    """What a head with these paths is commonly called, or nothing.

    On every chain of the batch, all of its paths lead to the position before (`previous-token
    head`), to an earlier position with the same token (`duplicate-token head`), or to the one
    after such a position (`induction head`). The last two need tokens.
    """
    kinds = {_path_kind(path.path, batch) for path in paths}
    return kinds.pop() if len(kinds) == 1 else ""


def _path_kind(path: RolePath, batch: Batch) -> str:
    dest, src = batch.roles[:, :, path.dest], batch.roles[:, :, path.src]
    there = (dest >= 0) & (src >= 0)

    def always(holds: Bool[Tensor, "batch chain"]) -> bool:
        return bool(holds[there].all())

    if not there.any() or not always(src < dest):
        return ""
    if always(dest - src == 1):
        return "previous-token head"
    if batch.tokens is None:
        return ""
    asked, found, before = (
        batch.tokens.gather(1, place.clamp(min=0)) for place in (dest, src, src - 1)
    )
    if always(asked == found):
        return "duplicate-token head"
    return "induction head" if always((src > 0) & (asked == before)) else ""
