"""The losses of a model under many circuits, on one batch of examples.

A circuit replaces what some heads attend to. `Scorer` measures each example's loss with a circuit
in place; it always equals that of a whole run with hooks (`hooks.ablated`). Circuits that are
compared with each other differ little. So one run is kept, the *base*, and of a run with another
circuit only what differs from the base is computed, in one of two ways:

1. **With hooks, from the first layer that differs** (`HookRuns`): for any hooked model.

   - Of the base it is kept what every block returned. Blocks before the first head whose mechanism
     differs would return the same, so they are skipped.
   - In later layers, MLPs and linear maps act on each position alone. They are computed only where
     what they take differs from what they took in the base (`only_where_different`). Only
     attention moves anything between positions: nothing differs before the first position that a
     circuit reaches.
   - The patterns of mechanisms are kept (`hooks.KeptPatterns`).

2. **Only the roles that a change can reach** (`role_runs.RoleRuns`): for models of vectors in which
   every position has a role.

   - The residual stream of the base is kept by role. A role is *affected* from the layer on in
     which it attends otherwise than in the base, or to an affected role.
   - It is *needed* if the answer's role attends to it in a later layer, directly or not.
   - Only roles that are both are computed. All others equal the base's, or do not matter.

`make_runs` takes the second way if the model and the batch are of that kind, and a few outputs
agree with the model's own; otherwise the first. Large batches run in parts. Parts of the second way
run in several threads, as threads inside PyTorch's operations do little for tensors so small.

What each of this brings is measured in docs/speed.md.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from retrieval_interp.circuits import fits
from retrieval_interp.circuits.circuit import Circuit, Head, HeadPath
from retrieval_interp.circuits.counterfactual.mechanism import keeps_some
from retrieval_interp.circuits.hooks import (
    KeptPatterns,
    ablated,
    has_hooks,
    heads_of,
    hook_points,
    hooked,
    parts_of,
    run_model,
    where_by_layer,
)
from retrieval_interp.circuits.mechanisms import OneHot
from retrieval_interp.circuits.models.contract import HookedModel
from retrieval_interp.circuits.role_runs import SCORED_ROLE, RoleBase, RoleRuns
from retrieval_interp.tasks import Batch, InputError, Task

NOTED = 200_000_000  # numbers that a run may note to be used again
_CHECKED = 16  # examples on which role runs are compared with the model
_WORTH_A_THREAD = 1_000_000  # numbers in all residual streams

Progress = Callable[[Iterable[Any], str], Iterable[Any]]
Removal = HeadPath | tuple[HeadPath, ...] | Head  # a path, several at once, or all of a head
SomeRemoval = TypeVar("SomeRemoval", bound=Removal)
Item = TypeVar("Item")
Result = TypeVar("Result")


def no_progress(items: Iterable[Any], text: str) -> Iterable[Any]:
    """Show no progress bar."""
    return items


def mean_loss(losses: Float[Tensor, "batch target"]) -> float:
    """The mean over targets, then examples: one order of sums, so that equal runs score equal."""
    return float(losses.mean(dim=1).mean())


def standard_error(losses: Float[Tensor, " batch"]) -> float:
    """The standard error of the mean over n examples, s / √n; 0 for a single one."""
    return float(losses.std()) / len(losses) ** 0.5 if len(losses) > 1 else 0.0


class Measured(NamedTuple):
    """A mean loss over examples, and its standard error."""

    loss: float
    se: float

    @classmethod
    def of(cls, losses: Tensor) -> "Measured":
        """From the loss of each example, or of each of its asked symbols."""
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
        self.where = where_by_layer(model, batch)
        self.kept = self.runs.base(self.empty_circuit)
        outputs = self.runs.outputs(self.base, self.kept)
        fits.check_answers(task, batch, outputs)
        self.base_losses = self._losses(outputs)
        if not bool(torch.isfinite(self.base_losses).all()):
            raise InputError(
                "scoring: expected finite losses of the intact model, found NaN or infinity; its "
                "weights are broken"
            )

    @property
    def base(self) -> Circuit:
        """The circuit of the run that is kept."""
        return self.kept[0].circuit

    @property
    def empty_circuit(self) -> Circuit:
        """The circuit that leaves every head as it is."""
        return Circuit.empty(self.task)

    def rebase(self, circuit: Circuit) -> float:
        """Run a circuit, keep what later runs can reuse, and return its loss."""
        if circuit != self.base:
            self._check(circuit)
            kept = self.runs.base(circuit, self.kept)
            losses = self._losses(self.runs.outputs(circuit, kept))
            self.kept, self.base_losses = kept, losses
        return mean_loss(self.base_losses)

    def losses(self, circuit: Circuit) -> Float[Tensor, "batch target"]:
        """The loss of every example and asked symbol, with a circuit in place."""
        self._check(circuit)
        return self._losses(self.runs.outputs(circuit, self.kept))

    def each(self, circuit: Circuit) -> Float[Tensor, " batch"]:
        """The loss of every example, the mean over what is asked."""
        return self.losses(circuit).mean(dim=1)

    def loss(self, circuit: Circuit) -> float:
        """The mean of `losses`, by `mean_loss`."""
        return mean_loss(self.losses(circuit))

    def _check(self, circuit: Circuit) -> None:
        circuit.check_fits(self.model.cfg.n_layers, self.model.cfg.n_heads)
        circuit.check_roles(self.task)
        for head, mechanism in circuit.mechanisms.items():
            self.where[head.layer].check(mechanism.paths, f"{head}: ", circuit.role_names)
        if keeps_some(circuit) and self.batch.counterfactual is None:
            raise InputError("circuit: expected a batch with a counterfactual, found one without")

    def _losses(self, outputs: Tensor) -> Float[Tensor, "batch target"]:
        # Otherwise half-precision losses would be averaged in half precision.
        outputs = outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs
        losses = self.task.example_losses(outputs, self.batch)
        fits.check_losses(losses, self.batch)
        return losses


# What is cut or removed


def with_cut(circuit: Circuit, removal: Removal) -> Circuit:
    """A circuit with one more path cut, or several, or with all attention of a head at zero."""
    if isinstance(removal, Head):
        return circuit.replace(removal, OneHot(()))
    return circuit.cut(*((removal,) if isinstance(removal, HeadPath) else removal))


def all_but_one(paths: tuple[HeadPath, ...]) -> list[tuple[HeadPath, ...]]:
    """All of them except the first, then all except the second, and so on."""
    return [tuple(path for path in paths if path != spared) for spared in paths]


def cut_losses(
    scorer: Scorer, removals: Sequence[SomeRemoval], progress: Progress = no_progress
) -> Iterator[tuple[SomeRemoval, Float[Tensor, "batch target"]]]:
    """Cut each path, or set of paths, in the intact model: what it carries, or enables.

    Its attention is set to zero, its row is not rescaled, and all later attention is recomputed.
    """
    for removal in progress(removals, "cutting paths"):
        yield removal, scorer.losses(with_cut(scorer.empty_circuit, removal))


def removed_losses(
    scorer: Scorer, circuit: Circuit, progress: Progress = no_progress
) -> Iterator[tuple[HeadPath, Float[Tensor, "batch target"]]]:
    """Remove each path from a circuit, in which all attention is fixed: what the path carries."""
    scorer.rebase(circuit)
    for path in progress(list(circuit.paths()), "removing paths"):
        yield path, scorer.losses(circuit.without(path))


# Runs


def make_runs(model: HookedModel, batch: Batch, task: Task) -> "Runs":
    """The faster of the two ways that is exact for this model, batch and loss."""
    parts = parts_of(model, batch)
    if not _role_runs_are_exact(model, batch, task):
        most = NOTED // len(parts)
        return Runs([HookRuns(model, part, task.answer_roles, most) for part in parts])
    threads = torch.get_num_threads() if batch.inputs.device.type == "cpu" else 1
    if len(parts) == 1:
        streams = model.cfg.n_layers * batch.roles[0].numel() * model.cfg.d_model
        fewest = max(_WORTH_A_THREAD // streams, math.ceil(len(batch) / threads))
        parts = list(batch.parts(fewest))
    return Runs([RoleRuns(model, part) for part in parts], min(threads, len(parts)))


def _role_runs_are_exact(model: HookedModel, batch: Batch, task: Task) -> bool:
    """Whether they are known to be, and a few outputs agree with the model's."""
    if batch.counterfactual is not None or task.answer_roles != (SCORED_ROLE,):
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


Base = Sequence["HookBase | RoleBase"]  # the run that is kept, part by part


@dataclass(frozen=True)
class Runs:
    """Runs of consecutive parts of a batch; several at a time, unless hooks change the model."""

    parts: Sequence[Any]  # HookRuns, or RoleRuns
    threads: int = 1

    @property
    def compute_changes_only(self) -> bool:
        """Whether a run computes only what differs, so that many cost little."""
        return isinstance(self.parts[0], RoleRuns)

    def base(self, circuit: Circuit, old: Base | None = None) -> Base:
        """Run a circuit from which the next ones differ little, reusing an old base."""
        olds: Sequence[Any] = old or [None] * len(self.parts)
        return self._in_threads(lambda pair: pair[0].base(circuit, pair[1]), zip(self.parts, olds))

    def outputs(self, circuit: Circuit, base: Base) -> Float[Tensor, "batch pos d_out"]:
        """The outputs of all examples under a circuit."""
        pairs = zip(self.parts, base)
        parts = self._in_threads(lambda pair: pair[0].outputs(circuit, pair[1]), pairs)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _in_threads(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> list[Result]:
        if self.threads == 1:
            return [function(item) for item in items]
        threads = torch.get_num_threads()
        try:  # in these threads PyTorch starts no others
            with ThreadPoolExecutor(self.threads, "runs", torch.set_num_threads, (1,)) as pool:
                return list(pool.map(function, items))
        finally:
            torch.set_num_threads(threads)


# Runs with hooks

InputOutput = dict[
    nn.Module, tuple[Tensor, Tensor]
]  # what each module took and gave, [batch pos d]


@dataclass(frozen=True)
class HookBase:
    """A whole run; `returned` is of each block but the last, or empty if no run can start there."""

    circuit: Circuit
    outputs: Float[Tensor, "batch answer d_out"]
    returned: Sequence[Any]
    noted: InputOutput


class HookRuns:
    """Runs of a hooked model on a batch, from the first layer that differs from a base.

    If the task has answer roles, logits are computed at these only; with a large vocabulary all
    would fill the memory. At most so many numbers (`most`) are noted of what modules do.
    """

    def __init__(
        self, model: HookedModel, batch: Batch, answers: tuple[int, ...] = (), most: int = NOTED
    ):
        self.model, self.batch = model, batch
        self.reading = answer_hooks(model, batch, answers)
        self.patterns = KeptPatterns(batch, model)
        n_examples, n_positions = batch.inputs.shape[:2]
        size = 7 * model.cfg.n_layers * model.cfg.d_model * n_examples * n_positions
        self.modules = [] if has_hooks(model) or size > most else position_wise(model)

    @torch.no_grad()
    def base(self, circuit: Circuit, old: HookBase | None = None) -> HookBase:
        """Run a circuit as the base of others, from where it differs from an old one."""
        layer = self.first_layer(circuit, old)
        if old is not None and layer == len(self.model.blocks):
            return replace(old, circuit=circuit)
        returned = list(old.returned[:layer]) if old else []
        noted, known = (dict(old.noted), old.noted) if old else (InputOutput(), InputOutput())
        before = returned[-1] if returned else None
        handles = [
            block.register_forward_hook(lambda block, inputs, output: returned.append(output))
            for block in self.model.blocks[layer:-1]
        ]
        try:
            with only_where_different(self.modules, known, noted):
                outputs = self._run(circuit, layer, before)
        finally:
            for handle in handles:
                handle.remove()
        if old is None:
            self.modules = [module for module in noted if acts_alone(module, *noted[module])]
        if returned:  # a model may do more between blocks than pass on what they return
            again = self._run(circuit, len(returned), returned[-1])
            same = torch.allclose(again, outputs, atol=1e-5, rtol=1e-5, equal_nan=True)
            returned = returned if same and len(returned) == len(self.model.blocks) - 1 else []
        return HookBase(circuit, outputs, returned, noted)

    @torch.no_grad()
    def outputs(self, circuit: Circuit, base: HookBase) -> Float[Tensor, "batch answer d_out"]:
        """The outputs under a circuit, computed from where it differs from the base."""
        layer = self.first_layer(circuit, base)
        if layer == len(self.model.blocks):
            return base.outputs
        with only_where_different(self.modules, base.noted):
            return self._run(circuit, layer, [None, *base.returned][layer])

    def first_layer(self, circuit: Circuit, base: HookBase | None) -> int:
        """The first layer that differs from a base; the number of layers if none does."""
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


def answer_hooks(
    model: HookedModel, batch: Batch, answer_roles: tuple[int, ...]
) -> list[tuple[str, Callable[..., Tensor]]]:
    """Hooks that keep only the answer roles' positions before logits are computed.

    For an absent role any position is kept; `Task.answers` leaves it out. As many answers as there
    are positions are not picked out: `Task.answers` could not tell them from whole sequences.
    """
    positions = batch.roles[:, :, list(answer_roles)].flatten(1).clamp(min=0)
    if not answer_roles or positions.shape[1] == batch.inputs.shape[1]:
        return []
    example = torch.arange(len(batch), device=positions.device)[:, None]

    def at_answers(residual: Tensor, hook: Any) -> Tensor:
        return residual[example, positions]

    # A bridge needs whole sequences up to its last layer norm.
    bridged = "unembed.hook_in" in hook_points(model)
    last = f"blocks.{model.cfg.n_layers - 1}.hook_resid_post"
    return [("unembed.hook_in" if bridged else last, at_answers)]


def position_wise(model: HookedModel) -> list[nn.Module]:
    """A model's MLPs and the linear maps of its attention, if they are modules."""
    mlps = [getattr(block, "mlp", None) for block in model.blocks]
    inside = [module for block in model.blocks for module in block.attn.modules()]
    linear = [x for x in inside if getattr(getattr(x, "weight", None), "ndim", 0) == 2]
    leaves = [module for module in linear if not list(module.children())]
    return [*(mlp for mlp in mlps if isinstance(mlp, nn.Module)), *leaves]


def acts_alone(module: nn.Module, took: Tensor, gave: Tensor) -> bool:
    """Whether a module gives the same for the last position without the others."""
    difference = (module(took[-1:, -1:]) - gave[-1:, -1:]).abs().max()
    return bool(difference <= 1e-4 * gave.abs().max())


@contextmanager
def only_where_different(
    modules: list[nn.Module], known: InputOutput, noted: InputOutput | None = None
) -> Iterator[None]:
    """Compute modules only at positions where they take something else than in a known run.

    What modules take and give is noted, if asked for.
    """

    def partly(module: nn.Module, whole: Callable[..., Any]) -> Callable[..., Any]:
        def forward(x: Tensor, *arguments: Any, **named: Any) -> Any:
            if arguments or named:  # which may differ, as the residual of a Bloom's MLP
                return whole(x, *arguments, **named)
            took, gave = known.get(module, (x[:0], x))
            if x.ndim != 3 or took.shape != x.shape:
                output = whole(x)
            else:
                differs = (x != took).any(-1)
                differs[0, 0] |= ~differs.any()  # there is always something to compute
                output = gave.clone()
                output[differs] = whole(x[differs][None])[0]
            if noted is not None and isinstance(output, Tensor) and x.ndim == output.ndim == 3:
                noted[module] = x, output
            return output

        return forward

    before = [vars(module).get("forward") for module in modules]
    try:
        for module in modules:
            vars(module)["forward"] = partly(module, module.forward)
        yield
    finally:
        for module, forward in zip(modules, before):
            vars(module)["forward"] = forward
            if forward is None:
                del vars(module)["forward"]
