"""The losses of a model under many circuits, on one batch of examples.

A circuit replaces what some heads attend to. `Scorer` measures each example's loss with a circuit
in place; it always equals that of a whole run with hooks (`replacement.ablated`). Circuits that are
compared with each other differ little. So `Scorer` keeps one run, the *base*, and with another
circuit computes only what differs from the base, in one of two ways:

1. **With hooks, from the first layer that differs** (`HookRuns`): for any hooked model.

   - What every block of the base returned is kept. Blocks before the first head whose mechanism
     differs would return the same, so they are skipped.
   - The patterns of mechanisms are kept (`replacement.KeptPatterns`).

2. **Only the roles that a change can reach, and the answer needs** (`role_runs.RoleRuns`): for
   models of vectors in which every position has a role.

`make_runs` takes the second way if the model and the batch are of that kind, and a few outputs
agree with the model's own; otherwise the first. A `Scorer` changes to the first for good once a
user's mechanism changes a head's own attention or output. Large batches run in parts. Parts of the
second way run in several threads, because threads inside PyTorch's operations do little for tensors
so small.

docs/speed.md measures how much time each of these saves.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits import fits
from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.hooks import (
    HookedModel,
    answer_hooks,
    heads_of,
    hooked,
    parts_of,
    positions_by_layer,
    run_model,
)
from retrieval_interp.circuits.mechanisms import OneHot
from retrieval_interp.circuits.paths import Head, HeadPath
from retrieval_interp.circuits.replacement import KeptPatterns, ablated
from retrieval_interp.circuits.role_runs import SCORED_ROLE, RoleBase, RoleRuns
from retrieval_interp.tasks import Batch, InputError, Task

_CHECKED = 16  # examples on which role runs are compared with the model
_WORTH_A_THREAD = 1_000_000  # numbers in all residual streams

Progress = Callable[[Iterable[Any], str], Iterable[Any]]
Removal = HeadPath | tuple[HeadPath, ...] | Head  # a path, several at once, or all of a head
SomeRemoval = TypeVar("SomeRemoval", bound=Removal)
Result = TypeVar("Result")


def no_progress(items: Iterable[Any], text: str) -> Iterable[Any]:
    """Show no progress bar."""
    return items


def mean_loss(losses: Float[Tensor, "batch target"]) -> float:
    """Average over targets, then examples: in one order, so equal runs score equal."""
    return float(losses.mean(dim=1).mean())


def standard_error(losses: Float[Tensor, " batch"]) -> float:
    """Return the standard error of a mean over n examples, s / √n; 0 for a single one."""
    return float(losses.std()) / len(losses) ** 0.5 if len(losses) > 1 else 0.0


class Measured(NamedTuple):
    """A mean over examples, of losses or of what they change by, and its standard error."""

    mean: float
    se: float

    @classmethod
    def of(cls, losses: Tensor) -> "Measured":
        """Average losses [batch], or [batch target] over targets first."""
        by_example = losses.mean(dim=1) if losses.ndim > 1 else losses
        return cls(float(by_example.mean()), standard_error(by_example))


class Scorer:
    """Losses of one model on one batch under many circuits."""

    def __init__(self, model: HookedModel, task: Task, batch: Batch):
        fits.check_model_fits(model, batch, task)
        fits.check_batch_fits(batch, task)
        self.model, self.task, self.batch = model, task, batch
        self.heads = heads_of(model)
        self.runs = make_runs(model, batch, task)
        self.positions = positions_by_layer(model, batch)
        self.base_circuit = self.empty_circuit  # of the run that is kept
        self.base_run = self.runs.base(self.base_circuit)
        outputs = self.runs.outputs(self.base_circuit, self.base_run)
        fits.check_answers(task, batch, outputs)
        self.base_losses = self._losses(outputs)
        if not bool(torch.isfinite(self.base_losses).all()):
            raise InputError(
                "scoring: expected finite losses of the intact model, found NaN or infinity; its "
                "weights are broken"
            )

    @property
    def empty_circuit(self) -> Circuit:
        """The circuit that leaves every head as it is."""
        return Circuit.empty(self.task)

    def rebase_if(
        self, circuit: Circuit, accepts: Callable[[Float[Tensor, "batch target"]], bool]
    ) -> bool:
        """Run a circuit, which becomes the base of later runs only if its losses are accepted."""
        if circuit == self.base_circuit:
            return accepts(self.base_losses)
        self._check(circuit)
        self._use_hooks_if_needed(circuit)
        run = self.runs.base(circuit, self.base_run)
        losses = self._losses(self.runs.outputs(circuit, run))
        accepted = accepts(losses)
        if accepted:
            self.base_circuit, self.base_run, self.base_losses = circuit, run, losses
        return accepted

    def free_base_run(self) -> None:
        """Start the base run again, without what earlier runs have filled it with.

        Role runs compute of it what some run needs, and keep that. With hooks, which keep all at
        once, this would free nothing.
        """
        self.base_run = self.runs.base(self.base_circuit)

    def losses(self, circuit: Circuit, as_base: bool = False) -> Float[Tensor, "batch target"]:
        """Return the loss of each example and asked symbol, with a circuit in place.

        With `as_base` the run becomes the base of later ones.
        """
        if as_base:
            self.rebase_if(circuit, lambda losses: True)
            return self.base_losses
        self._check(circuit)
        self._use_hooks_if_needed(circuit)
        return self._losses(self.runs.outputs(circuit, self.base_run))

    def losses_by_example(self, circuit: Circuit) -> Float[Tensor, " batch"]:
        """Return the loss of every example, the mean over asked symbols."""
        return self.losses(circuit).mean(dim=1)

    def loss(self, circuit: Circuit) -> float:
        """Return the mean loss with a circuit in place (`mean_loss`)."""
        return mean_loss(self.losses(circuit))

    def _check(self, circuit: Circuit) -> None:
        circuit.check_fits(self.model.cfg.n_layers, self.model.cfg.n_heads)
        circuit.check_roles(self.task)
        for head, mechanism in circuit.mechanisms.items():
            self.positions[head.layer].check(mechanism.paths, f"{head}: ", circuit.role_names)
        if circuit.is_patched and self.batch.counterfactual_activations is None:
            raise InputError("circuit: expected a batch with a counterfactual, found one without")

    def _use_hooks_if_needed(self, circuit: Circuit) -> None:
        """Go over to hook runs for good if role runs cannot run a circuit."""
        if self.runs.are_cheap and not RoleRuns.can_run(circuit):
            self.runs = make_hook_runs(self.model, self.batch, self.task)
            self.base_run = self.runs.base(self.base_circuit)

    def _losses(self, outputs: Tensor) -> Float[Tensor, "batch target"]:
        # Otherwise half-precision losses would be averaged in half precision.
        outputs = outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs
        losses = self.task.example_losses(outputs, self.batch)
        fits.check_losses(losses, self.batch)
        return losses


# What is cut or removed


def with_cut(circuit: Circuit, removal: Removal) -> Circuit:
    """Cut one more path of a circuit, several paths, or all attention of a head."""
    if isinstance(removal, Head):
        return circuit.replace(removal, OneHot(()))
    return circuit.cut(*((removal,) if isinstance(removal, HeadPath) else removal))


def all_but_one(paths: tuple[HeadPath, ...]) -> list[tuple[HeadPath, ...]]:
    """Return all paths except the first, then all except the second, and so on."""
    return [tuple(path for path in paths if path != spared) for spared in paths]


def cut_losses(
    scorer: Scorer, removals: Sequence[SomeRemoval], progress: Progress = no_progress
) -> Iterator[tuple[SomeRemoval, Float[Tensor, "batch target"]]]:
    """Cut each path, or set of paths, in the intact model: what it carries or enables.

    Its attention is set to zero, its row is not rescaled, and all later attention is recomputed.
    """
    for removal in progress(removals, "cutting paths"):
        yield removal, scorer.losses(with_cut(scorer.empty_circuit, removal))


def removed_losses(
    scorer: Scorer, circuit: Circuit, progress: Progress = no_progress
) -> Iterator[tuple[HeadPath, Float[Tensor, "batch target"]]]:
    """Remove each path from a circuit, where attention is fixed: what it carries.

    It is fast if the circuit is the scorer's base (`Scorer.losses`).
    """
    for path in progress(list(circuit.paths()), "removing paths"):
        yield path, scorer.losses(circuit.without(path))


# Runs


def make_runs(model: HookedModel, batch: Batch, task: Task) -> "Runs":
    """Choose the faster of the two ways that is exact for this model, batch and loss."""
    if not _role_runs_are_exact(model, batch, task):
        return make_hook_runs(model, batch, task)
    parts = parts_of(model, batch)
    threads = torch.get_num_threads() if batch.inputs.device.type == "cpu" else 1
    if len(parts) == 1:
        streams = model.cfg.n_layers * batch.roles[0].numel() * model.cfg.d_model
        fewest = max(_WORTH_A_THREAD // streams, math.ceil(len(batch) / threads))
        parts = list(batch.parts(fewest))
    return Runs([RoleRuns(model, part) for part in parts], min(threads, len(parts)))


def make_hook_runs(model: HookedModel, batch: Batch, task: Task) -> "Runs":
    """Make the runs that are exact for every hooked model and every circuit."""
    return Runs([HookRuns(model, part, task.scored_roles) for part in parts_of(model, batch)])


def _role_runs_are_exact(model: HookedModel, batch: Batch, task: Task) -> bool:
    """Whether role runs support model and batch, and a few outputs agree."""
    if batch.counterfactual_activations is not None or task.scored_roles != (SCORED_ROLE,):
        return False
    if not RoleRuns.supports(model, batch):
        return False
    few = batch[:_CHECKED]
    runs, empty = RoleRuns(model, few), Circuit({}, batch.roles.shape[-1])
    example = torch.arange(len(few), device=batch.roles.device)[:, None]
    with torch.no_grad():
        outputs = run_model(model, few)[example, few.roles[:, :, SCORED_ROLE]]
    # Anything that `supports` does not check shows here.
    return torch.allclose(runs.outputs(empty, runs.base(empty)), outputs, 1e-4, 1e-4, True)


@dataclass(frozen=True)
class HookBase:
    """A whole run; `returned` is of each block but the last, or empty if no run can start there."""

    circuit: Circuit
    outputs: Float[Tensor, "batch answer d_out"]
    returned: Sequence[Any]


class HookRuns:
    """Runs of a hooked model on a batch, from the first layer that differs from a base.

    If the task has scored roles, logits are computed at these only; with a large vocabulary all
    would fill the memory.
    """

    def __init__(self, model: HookedModel, batch: Batch, scored_roles: tuple[int, ...] = ()):
        self.model, self.batch = model, batch
        self.reading = answer_hooks(model, batch, scored_roles)
        self.patterns = KeptPatterns(model, batch)

    @torch.no_grad()
    def base(self, circuit: Circuit, old: HookBase | None = None) -> HookBase:
        """Run a circuit as a base, from where it differs from an old one."""
        layer = self.first_layer(circuit, old)
        if old is not None and layer == len(self.model.blocks):
            return replace(old, circuit=circuit)
        returned = list(old.returned[:layer]) if old else []
        before = returned[-1] if returned else None
        handles = [
            block.register_forward_hook(lambda block, inputs, output: returned.append(output))
            for block in self.model.blocks[layer:-1]
        ]
        try:
            outputs = self._run(circuit, layer, before)
        finally:
            for handle in handles:
                handle.remove()
        if returned:  # a model may do more between blocks than pass on what they return
            again = self._run(circuit, len(returned), returned[-1])
            same = torch.allclose(again, outputs, atol=1e-5, rtol=1e-5, equal_nan=True)
            returned = returned if same and len(returned) == len(self.model.blocks) - 1 else []
        return HookBase(circuit, outputs, returned)

    @torch.no_grad()
    def outputs(self, circuit: Circuit, base: HookBase) -> Float[Tensor, "batch answer d_out"]:
        """Return the outputs under a circuit, run from where it differs from the base."""
        layer = self.first_layer(circuit, base)
        if layer == len(self.model.blocks):
            return base.outputs
        return self._run(circuit, layer, [None, *base.returned][layer])

    def first_layer(self, circuit: Circuit, base: HookBase | None) -> int:
        """Return the first layer that differs from a base; n_layers if none does."""
        if base is None:
            return 0
        heads = circuit.mechanisms.keys() | base.circuit.mechanisms.keys()
        layers = [head.layer for head in heads if circuit[head] != base.circuit[head]]
        layer = min(layers, default=len(self.model.blocks))
        return layer if base.returned or not layers else 0

    def _run(self, circuit: Circuit, layer: int, before: Any) -> Tensor:
        reading = hooked(self.model, self.reading)
        with ablated(self.model, circuit, self.batch, layer, self.patterns), reading:
            return run_model(self.model, self.batch, layer, before)


Base = Sequence[HookBase | RoleBase]  # the run that is kept, part by part


@dataclass(frozen=True)
class Runs:
    """Runs of consecutive parts of a batch; several at a time, unless hooks change the model."""

    parts: Sequence[HookRuns] | Sequence[RoleRuns]
    threads: int = 1

    @property
    def are_cheap(self) -> bool:
        """Whether a run computes only roles that a circuit changes."""
        return isinstance(self.parts[0], RoleRuns)

    def base(self, circuit: Circuit, old: Base | None = None) -> Base:
        """Run a circuit as the base of the next ones, reusing an old base."""
        olds: Sequence[Any] = old or [None] * len(self.parts)
        return self._in_threads(lambda part, old: part.base(circuit, old), olds)

    def outputs(self, circuit: Circuit, base: Base) -> Float[Tensor, "batch answer d_out"]:
        """Return the outputs of all examples under a circuit."""
        outputs = self._in_threads(lambda part, base: part.outputs(circuit, base), base)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _in_threads(self, run: Callable[[Any, Any], Result], bases: Sequence[Any]) -> list[Result]:
        """Run every part from its base."""
        if self.threads == 1:
            return list(map(run, self.parts, bases))
        threads = torch.get_num_threads()
        try:  # in these threads PyTorch starts no others
            with ThreadPoolExecutor(self.threads, "runs", torch.set_num_threads, (1,)) as pool:
                return list(pool.map(run, self.parts, bases))
        finally:
            torch.set_num_threads(threads)
