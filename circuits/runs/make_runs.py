"""Running a model under many circuits in the fastest way that is exact.

Role runs have many small operations, which threads within PyTorch make slower, not faster. So a
batch is divided among as many threads as PyTorch may use, and each runs its part on its own.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.runs.hook_runs import HookBase, HookRuns, parts_of
from retrieval_interp.circuits.runs.role_runs import SCORED_ROLE, RoleBase, RoleRuns
from retrieval_interp.tasks import Batch, Task

_CHECKED = 16  # examples on which role runs are compared with the model
_LEAST = 1_000_000  # numbers in all residual streams that are worth a thread
KEPT = 500_000_000  # bytes of queries, keys and values

Item = TypeVar("Item")
Result = TypeVar("Result")


def make_runs(model: Any, batch: Batch, task: Task) -> "Runs":
    """The fastest way that is exact for this model, batch and loss."""
    parts = parts_of(model, batch)
    if not _role_runs_are_exact(model, batch, task):
        return Runs([HookRuns(model, part, task.answer_roles) for part in parts])
    threads = torch.get_num_threads() if batch.inputs.device.type == "cpu" else 1
    cfg = model.cfg
    if len(parts) == 1:
        numbers = cfg.n_layers * batch.roles[0].numel() * cfg.d_model
        parts = list(batch.parts(max(_LEAST // numbers, math.ceil(len(batch) / threads))))
    each = 4 * 3 * cfg.n_layers * cfg.n_heads * cfg.d_head * parts[0].roles.numel()
    runs = [RoleRuns(model, part, place * each < KEPT) for place, part in enumerate(parts)]
    return Runs(runs, min(threads, len(parts)))


def _role_runs_are_exact(model: Any, batch: Batch, task: Task) -> bool:
    """Whether they are known to be, and a few outputs agree with the model's."""
    if batch.counterfactual is not None or task.answer_roles != (SCORED_ROLE,):
        return False
    if not RoleRuns.supports(model, batch):
        return False
    few = batch[:_CHECKED]
    runs, empty = RoleRuns(model, few, keep=False), Circuit({}, batch.roles.shape[-1])
    example = torch.arange(len(few), device=batch.roles.device)[:, None]
    with torch.no_grad():
        outputs = model(few.inputs)[example, few.roles[:, :, SCORED_ROLE]]
    # Anything that `supports` does not check shows here.
    return torch.allclose(runs.outputs(empty, runs.base(empty)), outputs, 1e-4, 1e-4, True)


@dataclass(frozen=True)
class Base:
    """A run of a circuit from which others differ little, in parts."""

    circuit: Circuit
    parts: Sequence[HookBase | RoleBase]


class Runs:
    """Runs of a batch in parts, several at a time.

    Args:
        parts: runs of consecutive parts of the batch.
        threads: how many run at a time; hooks, which change the model, allow one.
    """

    def __init__(self, parts: Sequence[HookRuns] | Sequence[RoleRuns], threads: int = 1):
        self.parts: Sequence[Any] = parts
        self.threads = threads

    @property
    def compute_changes_only(self) -> bool:
        """Whether a run computes only what differs, so that many cost little."""
        return isinstance(self.parts[0], RoleRuns)

    def base(self, circuit: Circuit, old: Base | None = None) -> Base:
        """Run a circuit from which the next ones differ little, reusing an old base."""
        olds = old.parts if old else [None] * len(self.parts)
        parts = self._each(lambda pair: pair[0].base(circuit, pair[1]), zip(self.parts, olds))
        return Base(circuit, parts)

    def outputs(self, circuit: Circuit, base: Base) -> Float[Tensor, "batch pos d_out"]:
        """The outputs of all examples under a circuit."""

        def outputs(pair: tuple[Any, Any]) -> Tensor:
            runs, of_base = pair
            found: Tensor = runs.outputs(circuit, of_base)
            if len(self.parts) > self.threads:
                runs.last = None  # keeping it for all parts would take much memory
            return found

        parts = self._each(outputs, zip(self.parts, base.parts))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _each(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        if self.threads == 1:
            return [function(item) for item in items]
        threads = torch.get_num_threads()
        try:  # in these threads PyTorch starts no others
            with ThreadPoolExecutor(self.threads, "runs", torch.set_num_threads, (1,)) as pool:
                return list(pool.map(function, items))
        finally:
            torch.set_num_threads(threads)
