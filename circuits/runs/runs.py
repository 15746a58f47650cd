"""Running a model under many circuits, of each only what differs from a run that is kept.

`HookRuns` runs any hooked model from the first layer that differs; `RoleRuns` is much faster, and
exact, on vectors. Both have the same two methods: `base(circuit)` runs a circuit from which
others differ little, and `outputs(circuit, base)` computes what differs. `Runs` does it in parts.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.hooks import Hooked, Patterns, ablated, has_hooks
from retrieval_interp.circuits.runs.role_runs import SCORED_ROLE, RoleBase, RoleRuns
from retrieval_interp.circuits.runs.rows import Rows, alone, position_wise, reusing
from retrieval_interp.tasks import Batch, Task

WHOLE = 512  # examples per run; more are no faster and take memory
PART = 256  # examples per part of a larger batch; as fast as 512; 2.2 GB, not 2.5, for 4,096
LOGITS = 300_000_000  # numbers that a run's logits may have; a language model has many a position
NOTED = 200_000_000  # numbers that a run may note to be used again
_CHECKED = 16  # examples on which role runs are compared with the model
_LEAST = 1_000_000  # numbers in all residual streams that are worth a thread

Item = TypeVar("Item")
Result = TypeVar("Result")


def parts_of(model: Any, batch: Batch) -> list[Batch]:
    """Split a large batch, unless the model has hooks, which may be made for this batch."""
    fitting = max(1, LOGITS // (batch.inputs.shape[1] * model.cfg.d_vocab_out))
    if has_hooks(model) or len(batch) <= min(WHOLE, fitting):
        return [batch]
    return list(batch.parts(min(PART, fitting)))


@dataclass(frozen=True)
class HookBase:
    """A whole run; `returned` is of each block but the last, or empty if no run can start there."""

    circuit: Circuit
    outputs: Float[Tensor, "batch answer d_out"]
    returned: Sequence[Any]
    rows: Rows


class HookRuns:
    """Runs of a hooked model on a batch.

    If the task has answer roles, logits are computed at these only; with a large vocabulary all
    would fill the memory.
    """

    def __init__(self, model: Any, batch: Batch, answers: tuple[int, ...] = (), most: int = NOTED):
        self.model, self.batch, self.hooked = model, batch, Hooked(model)
        self.reading = answer_hooks(model, batch, answers)
        self.patterns = Patterns(batch, model)
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
        rows, known = (dict(old.rows), old.rows) if old else (Rows(), Rows())
        before = returned[-1] if returned else None
        handles = [
            block.register_forward_hook(lambda block, inputs, output: returned.append(output))
            for block in self.model.blocks[layer:-1]
        ]
        try:
            with reusing(self.modules, known, rows):
                outputs = self._run(circuit, layer, before)
        finally:
            for handle in handles:
                handle.remove()
        if old is None:  # some modules may look at other positions
            self.modules = alone(rows)
        if returned:  # a model may do more between blocks than pass on what they return
            again = self._run(circuit, len(returned), returned[-1])
            same = torch.allclose(again, outputs, atol=1e-5, rtol=1e-5, equal_nan=True)
            returned = returned if same and len(returned) == len(self.model.blocks) - 1 else []
        return HookBase(circuit, outputs, returned, rows)

    @torch.no_grad()
    def outputs(self, circuit: Circuit, base: HookBase) -> Float[Tensor, "batch answer d_out"]:
        """The outputs under a circuit, computed from where it differs from the base."""
        layer = self.first_layer(circuit, base)
        if layer == len(self.model.blocks):
            return base.outputs
        with reusing(self.modules, base.rows):
            return self._run(circuit, layer, [None, *base.returned][layer])

    def first_layer(self, circuit: Circuit, base: HookBase | None) -> int:
        """The first layer that differs from a base; the number of layers if none does."""
        if base is None:
            return 0
        heads = circuit.mechanisms.keys() | base.circuit.mechanisms.keys()
        layers = [head.layer for head in heads if circuit[head] != base.circuit[head]]
        layer = min(layers, default=len(self.model.blocks))
        return layer if base.returned or not layers else 0

    def _run(self, circuit: Circuit, layer: int = 0, before: Any = None) -> Tensor:
        reading = self.model.hooks(fwd_hooks=self.reading)
        with ablated(self.model, circuit, self.batch, layer, self.patterns), reading:
            return self.hooked.run(self.batch, layer, before)


def answer_hooks(
    model: Any, batch: Batch, answer_roles: tuple[int, ...]
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
    bridged = "unembed.hook_in" in model.hook_dict
    last = f"blocks.{model.cfg.n_layers - 1}.hook_resid_post"
    return [("unembed.hook_in" if bridged else last, at_answers)]


def make_runs(model: Any, batch: Batch, task: Task) -> "Runs":
    """The fastest way that is exact for this model, batch and loss."""
    parts = parts_of(model, batch)
    if not _role_runs_are_exact(model, batch, task):
        most = NOTED // len(parts)
        return Runs([HookRuns(model, part, task.answer_roles, most) for part in parts])
    threads = torch.get_num_threads() if batch.inputs.device.type == "cpu" else 1
    if len(parts) == 1:
        numbers = model.cfg.n_layers * batch.roles[0].numel() * model.cfg.d_model
        parts = list(batch.parts(max(_LEAST // numbers, math.ceil(len(batch) / threads))))
    return Runs([RoleRuns(model, part) for part in parts], min(threads, len(parts)))


def _role_runs_are_exact(model: Any, batch: Batch, task: Task) -> bool:
    """Whether they are known to be, and a few outputs agree with the model's."""
    if batch.counterfactual is not None or task.answer_roles != (SCORED_ROLE,):
        return False
    if not RoleRuns.supports(model, batch):
        return False
    few = batch[:_CHECKED]
    runs, empty = RoleRuns(model, few), Circuit({}, batch.roles.shape[-1])
    example = torch.arange(len(few), device=batch.roles.device)[:, None]
    with torch.no_grad():
        outputs = Hooked(model).run(few)[example, few.roles[:, :, SCORED_ROLE]]
    # Anything that `supports` does not check shows here.
    return torch.allclose(runs.outputs(empty, runs.base(empty)), outputs, 1e-4, 1e-4, True)


Base = Sequence[HookBase | RoleBase]  # a run from which others differ little, part by part


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
        return self._each(lambda pair: pair[0].base(circuit, pair[1]), zip(self.parts, olds))

    def outputs(self, circuit: Circuit, base: Base) -> Float[Tensor, "batch pos d_out"]:
        """The outputs of all examples under a circuit."""
        parts = self._each(lambda pair: pair[0].outputs(circuit, pair[1]), zip(self.parts, base))
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
