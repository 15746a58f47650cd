"""Running a model under many circuits in the fastest way that is exact.

There are two ways with the same interface: `circuits.runs.hook_runs` for any hooked model, and
`circuits.runs.role_runs`, much faster, for plain transformers in which every position has a role.

The second has many small operations, which threads within PyTorch make slower, not faster. So a
batch is divided among as many threads as PyTorch may use, and each runs its part alone.
"""

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.runs.hook_runs import HookRuns, parts_of
from retrieval_interp.circuits.runs.role_runs import SCORED_ROLE, RoleRuns
from retrieval_interp.tasks import Batch, Task

_CHECKED = 16  # examples on which role runs are compared with the model
_LEAST = 1_000_000  # numbers in all residual streams that are worth a thread
KEPT = 500_000_000  # bytes of queries, keys and values

Item = TypeVar("Item")
Result = TypeVar("Result")
_workers: list[ThreadPoolExecutor] = []


def make_runs(model: Any, batch: Batch, task: Task) -> "Runs":
    """The fastest way that is exact for this model, batch and loss."""
    empty = Circuit({}, batch.roles.shape[-1])
    if not _role_runs_are_exact(model, batch, task):
        wholes = [HookRuns(model, p, empty, task.answer_roles) for p in parts_of(model, batch)]
        return wholes[0] if len(wholes) == 1 else PartedRuns(wholes)
    threads = torch.get_num_threads() if batch.inputs.device.type == "cpu" else 1
    parts = parts_of(model, batch)
    if len(parts) == 1:
        numbers = model.cfg.n_layers * batch.roles[0].numel() * model.cfg.d_model
        parts = list(batch.parts(max(_LEAST // numbers, math.ceil(len(batch) / threads))))
    each = RoleRuns.bytes_to_keep(model, parts[0])

    def make(place: int) -> RoleRuns:
        return RoleRuns(model, parts[place], empty, keep=place * each < KEPT)

    runs = _each(make, range(len(parts)), threads)
    return runs[0] if threads == len(runs) == 1 else PartedRuns(runs, threads)


def _role_runs_are_exact(model: Any, batch: Batch, task: Task) -> bool:
    """Whether they are known to be, and a few outputs agree with the model's."""
    if task.answer_roles != (SCORED_ROLE,) or not RoleRuns.supports(model, batch):
        return False
    few = batch[:_CHECKED]
    runs = RoleRuns(model, few, Circuit({}, batch.roles.shape[-1]), keep=False)
    example = torch.arange(len(few), device=batch.roles.device)[:, None]
    with torch.no_grad():
        outputs = model(few.inputs)[example, few.roles[:, :, SCORED_ROLE]]
    # Anything that `supports` does not check shows here.
    return torch.allclose(runs.base_outputs, outputs, 1e-4, 1e-4, equal_nan=True)


class PartedRuns:
    """Runs of a batch in parts, several at a time.

    Args:
        parts: runs of consecutive parts of the batch.
        threads: how many run at a time; hooks, which change the model, allow one.
    """

    def __init__(self, parts: Sequence[HookRuns | RoleRuns], threads: int = 1):
        self.parts, self.threads = parts, threads
        self.base = parts[0].base

    def rebase(self, circuit: Circuit) -> Float[Tensor, "batch pos d_out"]:
        outputs = _each(lambda runs: runs.rebase(circuit), self.parts, self.threads)
        self.base = circuit
        return torch.cat(outputs)

    def outputs(self, circuit: Circuit) -> Float[Tensor, "batch pos d_out"]:
        return torch.cat(_each(lambda runs: self._outputs(runs, circuit), self.parts, self.threads))

    def _outputs(self, runs: HookRuns | RoleRuns, circuit: Circuit) -> Tensor:
        outputs = runs.outputs(circuit)
        if isinstance(runs, RoleRuns) and len(self.parts) > self.threads:
            runs.forget()  # keeping it for all parts would take much memory
        return outputs


Runs = HookRuns | RoleRuns | PartedRuns


# Threads


def _each(function: Callable[[Item], Result], items: Sequence[Item], threads: int) -> list[Result]:
    """The function of every item; always by the same thread for the same place."""
    if threads == 1:
        return [function(item) for item in items]
    while len(_workers) < threads:
        _workers.append(_worker())
    return [
        future.result()
        for future in [
            _workers[place % threads].submit(function, item) for place, item in enumerate(items)
        ]
    ]


def _worker() -> ThreadPoolExecutor:
    """A thread in which PyTorch starts no others."""
    threads = torch.get_num_threads()
    worker = ThreadPoolExecutor(1, "runs", torch.set_num_threads, (1,))
    # Asking makes the setting that thread's own.
    worker.submit(torch.get_num_threads).result()
    torch.set_num_threads(threads)  # of threads that are started later
    return worker


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_workers.clear)  # threads do not survive a fork
