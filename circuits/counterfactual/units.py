"""Units that a circuit may keep (heads, rows, paths), and estimates of their effect.

Write P and V for a head's attention and values, and P' and V' for those on the counterfactual
prompt. With all heads at z' + α (z - z'), where z = P V, and g the gradient of the metric by z
there, a path contributes to first order (P V - P' V') g; a row or head the sum over its paths. This
is attribution patching. We take the mean over a few α (integrated gradients), because one end ranks
what is worth restoring and the other what is harmful to remove. One pass for each α gives all
units.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits import hooks
from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.deadline import Deadline
from retrieval_interp.circuits.hooks import HookedModel
from retrieval_interp.circuits.mechanisms import ORIGINAL, Mechanism
from retrieval_interp.circuits.patched_heads import (
    Counterfactual,
    Patch,
    Patched,
    patched_output,
    patched_pattern_and_values,
)
from retrieval_interp.circuits.paths import Head, HeadPath, RolePath, role_masks
from retrieval_interp.tasks import Batch, InputError, Task, parse_role, role_name
from retrieval_interp.tasks.task import HeadActivations, Outputs, Roles

ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0)  # points on the way from the counterfactual to the prompt
LEVELS = ("heads", "rows", "paths")  # of units, from coarse to fine
LOGIT_DIFFERENCE = "logit difference"
PROBABILITY = "log probability"
# By the method of a task that returns it.
METRICS = {"log_probabilities": PROBABILITY, "logit_differences": LOGIT_DIFFERENCE}
_BACKWARD_NUMBERS = 500_000_000  # numbers that a backward pass may keep
_BOOTSTRAPS = 200  # bootstrap samples of prompts, which tell how stable a ranking is
_MAIN_PATH_SHARE = 1 / 3  # of a head's or row's estimate, with which a path stands for it
Metric = Callable[[Outputs, Batch], Float[Tensor, " batch"]]


class Unit(NamedTuple):
    """A head, its row of a role `dest`, or its path from there to the role `src`."""

    head: Head
    dest: int | None = None
    src: int | None = None

    @classmethod
    def parse(cls, text: str, roles: Roles) -> "Unit":
        """Read `L2.H0`, `L2.H0 s0` or `L2.H0 s0<-s2`."""
        head, _, rest = str(text).strip().partition(" ")
        if RolePath.is_meant(rest):
            return cls(Head.parse(head), *RolePath.parse(rest, roles))
        return cls(Head.parse(head), parse_role(rest, roles) if rest else None)

    @property
    def level(self) -> str:
        """One of `LEVELS`."""
        return LEVELS[sum(role is not None for role in (self.dest, self.src))]

    def text(self, names: Sequence[str] = ()) -> str:
        if self.dest is None:
            return str(self.head)
        roles = [role for role in (self.dest, self.src) if role is not None]
        return f"{self.head} " + "<-".join(role_name(role, names) for role in roles)


def keep_units(
    empty: Circuit, heads: Iterable[Head], units: Sequence[Unit], patch: Patch = "z"
) -> Circuit:
    """Return the circuit that keeps units and patches all others (denoising)."""
    regions = _regions(units)
    mechanisms: dict[Head, Mechanism]
    mechanisms = {head: Counterfactual(*regions.get(head, ((), ())), patch) for head in heads}
    mechanisms |= {unit.head: ORIGINAL for unit in units if unit.dest is None}
    return replace(empty, mechanisms=mechanisms)


def patch_units(empty: Circuit, units: Sequence[Unit], patch: Patch = "z") -> Circuit:
    """Return the circuit that patches units and keeps all others (noising)."""
    mechanisms: dict[Head, Mechanism]
    mechanisms = {head: Patched(*region, patch) for head, region in _regions(units).items()}
    mechanisms |= {unit.head: Counterfactual(patch=patch) for unit in units if unit.dest is None}
    return replace(empty, mechanisms=mechanisms)


def patching_part(
    empty: Circuit, heads: Iterable[Head], units: Sequence[Unit], unit: Unit, patch: Patch
) -> Circuit:
    """Return the circuit that keeps units, but patches one's attention or values.

    `patch` says which of the two that unit takes from the counterfactual: `pattern` or `v`.
    """
    circuit = keep_units(empty, heads, [kept for kept in units if kept != unit])
    mechanism = circuit[unit.head]
    if unit.dest is None or not isinstance(mechanism, Counterfactual):
        return circuit.replace(unit.head, Counterfactual(patch=patch))
    partly_patched = *_regions([unit])[unit.head], patch
    return circuit.replace(unit.head, replace(mechanism, partly_patched=partly_patched))


def _regions(units: Iterable[Unit]) -> dict[Head, tuple[tuple[RolePath, ...], tuple[int, ...]]]:
    """Return the paths and the rows of each head that are units."""
    by_head: dict[Head, list[Unit]] = {}
    for unit in units:
        by_head.setdefault(unit.head, []).append(unit)
    regions = {}
    for head, of_head in by_head.items():
        paths = [RolePath(d, s) for _, d, s in of_head if d is not None and s is not None]
        rows = sorted(d for _, d, s in of_head if d is not None and s is None)
        regions[head] = tuple(paths), tuple(rows)
    return regions


class MetricTask(Task):
    """A task whose loss is minus a metric, so that a `Scorer` measures the metric.

    By default the metric is the task's log probability, or else its logit difference, or else minus
    its loss (`is_loss`).
    """

    loss_name = "share lost"

    def __init__(self, task: Task, metric: Metric | None = None):
        named = next((name for name in METRICS if hasattr(task, name)), "")
        self.task, self._metric = task, metric or getattr(task, named, None)
        self.is_loss = self._metric is None
        self.metric_name = "metric" if metric else METRICS.get(named, task.loss_name)
        self.role_names, self.scored_roles = tuple(task.role_names), task.scored_roles
        self.vocabulary, self.answer_role = task.vocabulary, task.answer_role
        self.role_labels, self.role_symbols = task.role_labels, task.role_symbols

    def example_losses(self, outputs: Outputs, batch: Batch) -> Float[Tensor, "batch 1"]:
        return -self.metric(outputs, batch)[:, None]

    def metric(self, outputs: Outputs, batch: Batch) -> Float[Tensor, " batch"]:
        function = self._metric or self.task.example_losses
        metric: Tensor = function(outputs, batch).view(len(batch), -1).mean(1)
        return -metric if self.is_loss else metric

    def to_dict(self) -> dict[str, Any]:
        return self.task.to_dict()


class Contributions(NamedTuple):
    """The estimated contribution of each unit to the metric of every example.

    The axis `split` has two entries, which add up to it: by attention, and by values.
    """

    heads: Float[Tensor, "split batch layer head"]
    rows: Float[Tensor, "split batch layer head dest"]
    paths: Float[Tensor, "split batch layer head dest src"]
    slopes: Float[Tensor, "layer batch pos head d_head"]  # of the metric by z

    def by_example(self, unit: Unit) -> Float[Tensor, "split batch"]:
        """Return the estimates of one unit."""
        level: Tensor = getattr(self, unit.level)
        roles = [role for role in (unit.dest, unit.src) if role is not None]
        for index in (*unit.head, *roles):
            level = level[:, :, index]
        return level

    def of(self, unit: Unit) -> float:
        """Return a unit's whole estimate, the mean over examples."""
        return float(self.by_example(unit).sum(0).mean())

    def units(self, level: str, examples: Sequence[int] | None = None) -> list[Unit]:
        """Rank the units of a level, the largest first; rows and paths only if above 0.

        By the mean over all examples, or over those listed, which may repeat (bootstrap).
        """
        values: Tensor = getattr(self, level).sum(0)
        values = (values if examples is None else values[list(examples)]).mean(0)
        return _ranked(values, values > (-torch.inf if level == "heads" else 0.0))

    def against(self, level: str) -> list[Unit]:
        """Rank the units of a level with negative estimates, the most harmful first."""
        values: Tensor = getattr(self, level).sum(0).mean(0)
        return _ranked(-values, values < 0)

    def stability(self, units: Sequence[Unit]) -> dict[Unit, float]:
        """Return how often, in bootstrap samples, each of n units is in the top n."""
        draw, n_examples = random.Random(0), self.heads.shape[1]
        times, counts = Counter[Unit](), Counter(unit.level for unit in units)
        for _ in range(_BOOTSTRAPS):
            prompts = draw.choices(range(n_examples), k=n_examples)
            for level, count in counts.items():
                times.update(self.units(level, prompts)[:count])
        return {unit: times[unit] / _BOOTSTRAPS for unit in units}

    def main_path(self, unit: Unit, allowed: Sequence[RolePath]) -> HeadPath | None:
        """Return a unit's path; of a head or row its largest, if a third of it or more."""
        if unit.dest is not None and unit.src is not None:
            return HeadPath(unit.head, RolePath(unit.dest, unit.src))
        paths = [path for path in allowed if unit.dest in (None, path.dest)]
        sizes = {path: abs(self.of(Unit(unit.head, *path))) for path in paths}
        best = max(paths, key=sizes.__getitem__, default=None)
        if best is None or sizes[best] < _MAIN_PATH_SHARE * abs(self.of(unit)):
            return None
        return HeadPath(unit.head, best)


def _ranked(values: Float[Tensor, "layer head *role"], chosen: Tensor) -> list[Unit]:
    """Return the chosen units, those with the largest values first."""
    order = values[chosen].argsort(descending=True, stable=True)
    places = chosen.nonzero()[order].tolist()
    return [Unit(Head(layer, head), *roles) for layer, head, *roles in places]


def estimate_units(
    model: HookedModel,
    task: MetricTask,
    batch: Batch,
    patch: Patch = "z",
    alphas: Sequence[float] = ALPHAS,
    deadline: Deadline | None = None,
) -> Contributions:
    """Estimate what every head, row and path contributes to the metric.

    One pass for each point on the way from the counterfactual (0) to the prompt (1), for as many
    prompts at a time as memory allows. Raises OutOfTime if the deadline passes before the last.
    """
    parts = []
    for part in batch.parts(prompts_at_once(model, batch)):
        runs = []
        for alpha in alphas:
            if deadline is not None:
                deadline.check()
            runs.append(_estimated(model, task, part, patch, alpha))
        parts.append([torch.stack(of_runs).mean(0) for of_runs in zip(*runs)])
    return Contributions(*(torch.cat(of_parts, dim=1) for of_parts in zip(*parts)))


def prompts_at_once(model: HookedModel, batch: Batch) -> int:
    """Return how many prompts a backward pass has room for; all if hooks are set."""
    cfg, positions = model.cfg, batch.inputs.shape[1]
    numbers = cfg.n_layers * positions * (16 * cfg.d_model + 2 * cfg.n_heads * positions)
    room = len(batch) if hooks.has_hooks(model) else int(_BACKWARD_NUMBERS // numbers)
    return max(1, min(len(batch), room))


@torch.enable_grad()
def _estimated(
    model: HookedModel, task: MetricTask, batch: Batch, patch: Patch, alpha: float
) -> Contributions:
    """Estimate from the gradients of one run, at one point on the way."""
    assert batch.counterfactual_activations is not None
    by_layer = batch.counterfactual_activations
    added: dict[int, Tensor] = {}

    def mix(z: Float[Tensor, "batch pos head d_head"], hook: Any) -> Tensor:
        layer = hook.layer()
        there, patched = by_layer[layer], by_layer[layer].z.to(z)
        if patch == "v" and layer not in noted["pattern"]:
            raise InputError(
                "patch: expected z or pattern for a model that shows its attention after its use, "
                "found v"
            )
        if patch != "z":
            unseen = z.new_zeros(0, z.shape[2])
            here = HeadActivations(noted["pattern"].get(layer, unseen), noted["v"][layer], z)
            of_heads = [patched_output(here.of(h), there.of(h), patch) for h in range(z.shape[2])]
            patched = torch.stack(of_heads, dim=2)
        added[layer] = torch.zeros_like(z).requires_grad_()
        return torch.lerp(patched, z, alpha) + added[layer]

    mixing = hooks.in_all_layers(model, "hook_z", mix)
    mixing += hooks.answer_hooks(model, batch, task.scored_roles)
    with hooks.noting(model, "pattern", "v") as noted, hooks.hooked(model, mixing):
        metric = task.metric(hooks.run_model(model, batch).float(), batch)
    if not metric.requires_grad:
        raise InputError(
            f"expected a metric with a gradient, found that the {task.metric_name} has none"
        )
    layers = range(model.cfg.n_layers)
    slopes = torch.autograd.grad(metric.sum(), [added[n] for n in layers], materialize_grads=True)
    levels = []
    for layer, slope in enumerate(slopes):
        here = HeadActivations(noted["pattern"][layer], noted["v"][layer], slope).map(_detached)
        there = by_layer[layer].map(_detached)
        levels.append(_levels(contributions(here, there, patch), batch))
    heads, rows, paths = (torch.stack(level, dim=2).cpu() for level in zip(*levels))
    return Contributions(heads, rows, paths, torch.stack(slopes).float())


def _detached(x: Tensor) -> Tensor:
    return x.detach().float()


def contributions(
    here: HeadActivations, there: HeadActivations, patch: Patch
) -> Float[Tensor, "split batch head dest src"]:
    """Split what sources contribute to destinations: by attention, and by values.

    `here.z` is the gradient g of the metric by z. With P, V attention and values here, P', V' on
    the counterfactual, and V g the product of values at a source with g at a destination,

        P V g - P' V' g  =  (P - P') (V g + V' g) / 2  +  (P + P') / 2 (V g - V' g)
    """
    group = here.z.shape[2] // here.v.shape[2]

    def product(v: Tensor) -> Float[Tensor, "batch head dest src"]:
        return torch.einsum("bdhe,bshe->bhds", here.z, v.repeat_interleave(group, dim=2))

    there_pattern, there_v = patched_pattern_and_values(here, there, patch)
    here_product, there_product = product(here.v), product(there_v)
    by_attention = (here.pattern - there_pattern) * (here_product + there_product) / 2
    by_values = (here.pattern + there_pattern) / 2 * (here_product - there_product)
    return torch.stack([by_attention, by_values])


def _levels(added: Float[Tensor, "split batch head dest src"], batch: Batch) -> list[Tensor]:
    """Sum contributions over heads, rows and paths of any two chains, [split batch head ...]."""
    added = added.nan_to_num()  # rows of padding may be NaN
    standing = role_masks(batch.roles, added.shape[-1]).to(added)
    rows = torch.einsum("xbhds,bid->xbhi", added, standing)
    paths = torch.einsum("xbhds,bid,bjs->xbhij", added, standing, standing)
    return [added.sum((-2, -1)), rows, paths]
