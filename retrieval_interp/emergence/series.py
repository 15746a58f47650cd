"""The paths of a circuit along a training run (paper, section 9 and appendix D).

1. `follow_run` measures a circuit's paths in every checkpoint of a run: their mean attention, and
   the losses when each one is cut in the intact model.
2. `path_emergence` and `loss_emergence` say when curves cross a threshold, interpolated between the
   measured steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import torch

from retrieval_interp.circuits import Circuit, HeadPath, Scorer, Search, SearchOptions
from retrieval_interp.circuits.hooks import HookedModel
from retrieval_interp.circuits.losses import Progress, cut_losses, no_progress
from retrieval_interp.circuits.means import mean_attention
from retrieval_interp.config import Recipe
from retrieval_interp.storage import checkpoint
from retrieval_interp.storage.files import checkpoint_files, find_checkpoint, read_text
from retrieval_interp.tasks import Batch, InputError, Task, TrainingTask
from retrieval_interp.tasks.structured import from_data, from_json, to_data

THRESHOLD = 0.5  # of attention, and of losses in units of a symbol's variance (1 in the paper)
LEAST_ATTENTION = 0.05  # a path that ends below this has no attention


@dataclass(frozen=True)
class Crossing:
    """Where a curve first passes a threshold."""

    step: float  # of training, interpolated; the first measured one if already past there
    after: int | None  # the last measured step before the crossing, None if there is none
    by: int  # the first measured step past the threshold

    def __str__(self) -> str:
        return f"<= {self.by}" if self.after is None else f"{self.step:.0f}"


def first_above(steps: Sequence[int], values: Sequence[float], threshold: float) -> Crossing | None:
    """Return the first of rising steps at which a curve exceeds a threshold; None if none does."""
    place = next((i for i, value in enumerate(values) if value > threshold), None)
    if place is None:
        return None
    if place == 0:
        return Crossing(float(steps[0]), None, steps[0])
    before, after = steps[place - 1], steps[place]
    low, high = values[place - 1], values[place]
    share = min(1.0, (threshold - low) / (high - low))
    return Crossing(before + share * (after - before), before, after)


def first_below(steps: Sequence[int], values: Sequence[float], threshold: float) -> Crossing | None:
    """Return the first of rising steps at which a curve goes below a threshold."""
    return first_above(steps, [-value for value in values], -threshold)


def half_of_final(steps: Sequence[int], values: Sequence[float], above: float) -> Crossing | None:
    """Return where a curve exceeds half of its last value; None if that is not `above`."""
    return first_above(steps, values, values[-1] / 2) if values[-1] > above else None


def in_order(when: Mapping[str, Crossing | None], pairs: Sequence[tuple[str, str]]) -> bool | None:
    """Say whether of each pair of curves the first crosses first; never counts as last.

    None if it cannot be decided: fewer than two cross, or both of a pair at the same step.
    """
    steps = {name: inf if crossing is None else crossing.step for name, crossing in when.items()}
    step_pairs = [(steps[first], steps[second]) for first, second in pairs]
    if any(second < first for first, second in step_pairs):
        return False
    passed = [(first, second) for first, second in step_pairs if second < inf]
    return True if passed and all(first < second for first, second in passed) else None


@dataclass(frozen=True)
class PathAtStep:
    """One path at one step."""

    attention: float  # mean, in [0, 1]
    live_losses: tuple[float, ...]  # of each asked symbol, with the path cut


@dataclass(frozen=True)
class Snapshot:
    """A circuit's paths in the model of one step."""

    step: int
    partial_losses: tuple[float, ...]  # of each asked symbol in the intact model
    combined_losses: tuple[float, ...]  # the same with the whole circuit in place
    paths: dict[str, PathAtStep]  # by their text, in the order of `paths_of`
    reads_part: ClassVar[bool] = True  # files may hold more, which is skipped


@dataclass(frozen=True)
class LogRow:
    """The losses of one step."""

    step: int
    validation_loss: float
    partial_losses: tuple[float, ...]  # of each asked symbol
    train_loss: float | None  # mean since the previous log line; None where not logged
    reads_part: ClassVar[bool] = True  # files may hold more, which is skipped


@dataclass(frozen=True)
class Series:
    """What was measured along a training run."""

    run: str  # the folder's name
    recipe: Recipe
    circuit: Circuit  # whose paths were followed
    circuit_from: str  # where it comes from, in words
    tolerance: float  # a path is necessary if cutting it at the last step costs more than this loss
    snapshots: tuple[Snapshot, ...]  # by rising step, at least one
    losses: tuple[LogRow, ...]  # by rising step, of every logged step
    reads_part: ClassVar[bool] = True  # files may hold more, which is skipped

    @property
    def paths(self) -> tuple[HeadPath, ...]:
        """Carrying paths, then those that only enable."""
        return paths_of(self.circuit)

    @property
    def steps(self) -> list[int]:
        """The measured steps."""
        return [snapshot.step for snapshot in self.snapshots]

    @property
    def plateau(self) -> float:
        """The loss before anything is learned."""
        return self.recipe.task.plateau or self.recipe.task.loss_scale

    def attention(self, path: HeadPath) -> list[float]:
        """Return a path's mean attention at every measured step."""
        return [snapshot.paths[str(path)].attention for snapshot in self.snapshots]

    def necessity(self, path: HeadPath) -> list[float]:
        """Compute the share of what is learned that is lost without a path, at every measured step.

        What is learned of a symbol is how far its loss is below the plateau; what is lost is how
        far it rises when the path is cut in the intact model, at most back to the plateau. Both are
        averaged over the asked symbols and divided; the divisor is at least the tolerance, so that
        noise on the plateau counts for little.
        """
        top = self.plateau
        return [
            fmean(
                min(cut, top) - min(loss, top)
                for cut, loss in zip(snapshot.paths[str(path)].live_losses, snapshot.partial_losses)
            )
            / self.learned(snapshot)
            for snapshot in self.snapshots
        ]

    def learned(self, snapshot: Snapshot) -> float:
        """Say how far the losses of a step are below the plateau, at least the tolerance."""
        learned = fmean(max(self.plateau - loss, 0.0) for loss in snapshot.partial_losses)
        return max(learned, self.tolerance)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON data; `read_series` reads it back."""
        return dict(to_data(self))


def paths_of(circuit: Circuit) -> tuple[HeadPath, ...]:
    """Return the paths to follow, at least one: carrying ones, then those that only enable."""
    paths = (*circuit.paths(), *circuit.enabling)
    if not paths:
        raise InputError(
            "circuit: expected at least one path to follow, found none; train on until the task is "
            "learned, or say which paths to follow"
        )
    return paths


def read_series(path: Path | str) -> Series:
    """Read the file that `emergence --json` wrote."""
    text = read_text(Path(path), "a series, as emergence --json writes it")
    read: Series = from_json(Series, text, str(path))
    names = set(map(str, read.paths))
    rows = all(snapshot.paths.keys() == names for snapshot in read.snapshots)
    if not (read.snapshots and read.losses and rows):
        raise InputError(
            f"{path}: expected snapshots of the circuit's {len(names)} paths and losses, found "
            "others or none"
        )
    circuit = Circuit.from_dict(read.circuit.to_dict(), len(read.recipe.task.role_names))
    return replace(read, circuit=circuit)


@torch.no_grad()
def measure(model: HookedModel, task: Task, batch: Batch, circuit: Circuit, step: int) -> Snapshot:
    """Measure the attention of every path in one model, and the losses without it (section 9.1)."""
    scorer, attention = Scorer(model, task, batch), mean_attention(model, batch)
    intact = _by_symbol(scorer.base_losses)
    measured = {
        str(path): PathAtStep(round(float(attention[path.head][path.path]), 7), _by_symbol(losses))
        for path, losses in cut_losses(scorer, paths_of(circuit))
    }
    return Snapshot(step, intact, _by_symbol(scorer.losses(circuit, as_base=True)), measured)


def _by_symbol(losses: torch.Tensor) -> tuple[float, ...]:
    return tuple(round(loss, 7) for loss in losses.mean(dim=0).tolist())


def follow_run(
    run: Path | str,
    circuit: Circuit | None = None,
    examples: int = 32,
    seed: int = 0,
    tolerance: float | None = None,
    device: str | torch.device = "cpu",
    progress: Progress = no_progress,
    circuit_from: str = "as given",
) -> Series:
    """Measure the paths of a circuit at every checkpoint of a run (section 9.2, appendix D).

    Args:
        run: a run folder.
        circuit: whose paths to follow; by default `discover` finds one in the last checkpoint.
        examples: how many sequences of the test split (paper: 32).
        seed: of these sequences.
        tolerance: the loss that a discovered circuit stays below; a path is necessary if cutting
            it at the last step costs more. By default the task's.
        device: where the models run.
        progress: wraps an iterable to show a progress bar, as `(items, text)`.
        circuit_from: where a given circuit comes from, in words.
    """
    run = Path(run)
    recipe, files = checkpoint.read_recipe(run), checkpoint_files(run)
    last = find_checkpoint(str(run))
    task, tolerance = recipe.task, recipe.task.tolerance if tolerance is None else tolerance
    if circuit is None:
        model = checkpoint.load_checkpoint(last, device).model
        circuit = Search(model, task, SearchOptions(tolerance, seed=seed)).run(progress)
        circuit_from = f"found in {last}, seed {seed}, tolerance {tolerance:g}"
    paths_of(circuit)
    circuit.check_fits(recipe.model.layers, recipe.model.heads)
    batch = task.sample(examples, seed, device, split="test")
    snapshots = tuple(
        measure(checkpoint.load_checkpoint(files[step], device).model, task, batch, circuit, step)
        for step in progress(list(files), "checkpoints")
    )
    rows, where = checkpoint.read_metrics(run), f"{run}/metrics.jsonl"
    losses = [from_data(LogRow, row, where) for row in rows] or [
        LogRow(snapshot.step, fmean(snapshot.partial_losses), snapshot.partial_losses, None)
        for snapshot in snapshots
    ]
    return Series(str(run), recipe, circuit, circuit_from, tolerance, snapshots, tuple(losses))


@dataclass(frozen=True)
class PathEmergence:
    """When a path appears; steps are interpolated, "half" is above half of the last value."""

    path: HeadPath
    attention: float  # mean at the last measured step
    above: Crossing | None  # 0.5
    attention_half: Crossing | None
    necessity: float  # at the last step, cut in the intact model
    necessity_half: Crossing | None
    carries: bool  # or only enables

    @property
    def name(self) -> str:
        """The path, with ~ if it only enables."""
        return f"{self.path}{'' if self.carries else ' ~'}"


def path_emergence(series: Series) -> list[PathEmergence]:
    """Say when each path of a series appears, in the circuit's order."""
    rows, steps = list[PathEmergence](), series.steps
    least_necessity = series.tolerance / series.learned(series.snapshots[-1])
    for path in series.paths:
        attention, necessity = series.attention(path), series.necessity(path)
        rows.append(
            PathEmergence(
                path=path,
                attention=attention[-1],
                above=first_above(steps, attention, THRESHOLD),
                attention_half=half_of_final(steps, attention, LEAST_ATTENTION),
                necessity=necessity[-1],
                necessity_half=half_of_final(steps, necessity, least_necessity),
                carries=path not in series.circuit.enabling,
            )
        )
    return rows


def loss_emergence(series: Series) -> dict[str, Crossing | None]:
    """Say when each partial loss is first below 0.5, by symbol (x_1, x_2, ...)."""
    rows = [(row.step, row.partial_losses) for row in series.losses]
    return loss_crossings(series.recipe.task, rows)


def loss_crossings(
    task: TrainingTask, rows: Sequence[tuple[int, Sequence[float]]]
) -> dict[str, Crossing | None]:
    """Say the same of rows with a step and its partial losses."""
    steps, below = [step for step, _ in rows], THRESHOLD * task.loss_scale
    curves = zip(task.asked, zip(*(losses for _, losses in rows)))
    return {symbol: first_below(steps, losses, below) for symbol, losses in curves}
