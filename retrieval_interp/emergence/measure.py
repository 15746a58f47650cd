"""Measures a circuit's paths: in one model, along a training run, at a run folder's checkpoints.

`train --watch circuit.json` measures at every log step, and where the run begins, so that
checkpoints need not be kept. It appends to the run folder's watch.jsonl: first a line with the
circuit, then one per step. A copy of the model is measured, so that training is the same to the
last bit.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from retrieval_interp.circuits import Circuit, Scorer, discover, mean_attention
from retrieval_interp.circuits.attention import check_paths
from retrieval_interp.circuits.scores.scorer import Progress, cut_losses, no_progress
from retrieval_interp.config import Recipe
from retrieval_interp.emergence.series import (
    Losses,
    PathAtStep,
    Series,
    Snapshot,
    paths_of,
    read_snapshot,
)
from retrieval_interp.storage.checkpoint import Checkpoint, load_checkpoint
from retrieval_interp.storage.files import (
    append_json_lines,
    check_run_folder,
    read_json_lines,
    read_part,
)
from retrieval_interp.storage.run_folder import (
    checkpoint_files,
    read_metrics,
    read_recipe,
    watch_path,
)
from retrieval_interp.tasks import InputError, TrainingTask
from retrieval_interp.tasks.structured import from_data
from retrieval_interp.views.score_text import describe

EXAMPLES = 32  # sequences, as in section 9.1
DISCOVERY_EXAMPLES = 512


class Probe:
    """Measures a circuit's paths in one model after another, on the same examples (section 9.1)."""

    def __init__(
        self,
        task: TrainingTask,
        circuit: Circuit,
        examples: int = EXAMPLES,
        seed: int = 0,
        device: str | torch.device = "cpu",
    ):
        self.task, self.circuit, self.seed = task, circuit, seed
        self.paths = paths_of(circuit)
        self.batch = task.sample(examples, seed, device, split="test")
        for path in self.paths:
            check_paths((path.path,), self.batch.roles, True, f"{path.head}: ")

    @torch.no_grad()
    def measure(self, model: Any, step: int) -> Snapshot:
        """The attention of every path in a hooked, causal model, and the losses without it."""
        self.circuit.check_fits(model.cfg.n_layers, model.cfg.n_heads)
        scorer, attention = Scorer(model, self.task, self.batch), mean_attention(model, self.batch)
        intact = _by_symbol(scorer.base_losses)
        measured = {
            str(path): PathAtStep(float(attention[path.head][path.path]), _by_symbol(losses))
            for path, losses in cut_losses(scorer, self.paths)
        }
        scorer.rebase(self.circuit)
        combined = _by_symbol(scorer.base_losses)
        return Snapshot(step, len(self.batch), self.seed, intact, combined, measured)


def _by_symbol(losses: torch.Tensor) -> tuple[float, ...]:
    return tuple(losses.mean(dim=0).tolist())


class Watch:
    """Measures a circuit's paths along one training run.

    Args:
        circuit: whose paths to follow.
        examples: how many sequences of the test split (paper: 32).
        seed: of these sequences.

    Attributes:
        snapshots: what was measured so far, by rising step.
    """

    def __init__(self, circuit: Circuit, examples: int = EXAMPLES, seed: int = 0):
        paths_of(circuit)  # refuses one without paths
        self.circuit, self.examples, self.seed = circuit, examples, seed
        self.snapshots: list[Snapshot] = []
        self._path: Path | None = None

    def check(self, folder: Path, recipe: Recipe) -> None:
        """Refuse a run folder that was watched with another circuit, before it is changed."""
        found = read_watch(folder, recipe)
        if found is not None and not same_circuit(found[0], self.circuit):
            raise InputError(
                f"{watch_path(folder)}: expected the paths of the circuit that is watched, found "
                "those of another one; watch the same circuit, or move this file away"
            )

    def start(self, folder: Path | None, recipe: Recipe, step: int, model: torch.nn.Module) -> None:
        """Begin where a run begins or resumes, after `step` steps.

        Lines after `step` are already dropped from the folder; without one nothing is written.
        """
        from retrieval_interp.model import build_model

        device = next(model.parameters()).device
        self._probe = Probe(recipe.task, self.circuit, self.examples, self.seed, device)
        self._copy = build_model(recipe.model, recipe.task, recipe.seed, device).eval()
        self.snapshots = []
        if folder is not None:
            self._path = watch_path(folder)
            if found := read_watch(folder, recipe):
                self.snapshots = found[1]
            else:
                append_json_lines(self._path, [{"circuit": self.circuit.to_dict()}])
        if not any(snapshot.step == step for snapshot in self.snapshots):
            self.measure(step, model)

    @torch.no_grad()
    def measure(self, step: int, model: torch.nn.Module) -> None:
        """Measure the model after a step and append a line to watch.jsonl."""
        weights = dict(model.named_parameters())
        for name, parameter in self._copy.named_parameters():
            parameter.copy_(weights[name])
        snapshot = replace(self._probe.measure(self._copy, step), source="watch")
        self.snapshots.append(snapshot)
        if self._path is not None:
            append_json_lines(self._path, [snapshot.to_dict()])


@dataclass(frozen=True)
class _Heading:
    """The first line of watch.jsonl."""

    circuit: dict[str, Any]


def read_watch(run: Path, recipe: Recipe) -> tuple[Circuit, list[Snapshot]] | None:
    """The circuit and the snapshots of a run folder's watch.jsonl, by rising step; None without."""
    path = watch_path(run)
    lines = list(read_json_lines(path))
    if not lines:
        return None
    heading: _Heading = from_data(_Heading, lines[0], f"{path}: line 1")
    circuit = Circuit.from_dict(heading.circuit, len(recipe.task.role_names))
    snapshots = {
        row["step"]: read_snapshot(row, circuit, f"{path}: line {number}")
        for number, row in enumerate(lines[1:], start=2)
    }
    return circuit, [snapshots[step] for step in sorted(snapshots)]


def same_circuit(first: Circuit, second: Circuit) -> bool:
    """Whether two circuits name the same mechanisms and the same enabling paths."""
    return (first.mechanisms, first.enabling) == (second.mechanisms, second.enabling)


def follow_run(
    run: Path | str,
    circuit: Circuit | None = None,
    examples: int = EXAMPLES,
    seed: int = 0,
    tolerance: float | None = None,
    device: str | torch.device = "cpu",
    progress: Progress = no_progress,
    circuit_from: str = "as given",
) -> Series:
    """Measure the paths of a circuit at every checkpoint of a run (section 9.2, appendix D).

    What cannot be measured, such as a damaged checkpoint, is skipped with a note. Steps without a
    checkpoint are taken from watch.jsonl if the run was watched with the same circuit. Losses are
    the run's own, from metrics.jsonl; where it has none, those on the measured examples.

    Args:
        run: a run folder.
        circuit: whose paths to follow; by default the one that the run was watched with, else one
            that `discover` finds in the last checkpoint.
        examples: how many sequences of the test split (paper: 32).
        seed: of these sequences.
        tolerance: the loss that a discovered circuit stays below; a path is necessary if cutting
            it at the last step costs more. By default the task's.
        device: where the models run.
        progress: wraps an iterable to show a bar, as `(items, text)`.
        circuit_from: where a given circuit comes from, in words.
    """
    run, notes = Path(run), list[str]()
    check_run_folder(run)
    recipe, files = read_recipe(run), checkpoint_files(run)
    tolerance = recipe.task.tolerance if tolerance is None else tolerance
    watched = None
    try:
        watched = read_watch(run, recipe)
    except InputError as error:
        notes.append(f"skipped: {error}")
    if not files and watched is None:
        raise InputError(
            f"{run}: expected a run folder with checkpoints/step-*.safetensors, found none; "
            f"{notes[0] if notes else 'train until the first checkpoint'}"
        )
    if circuit is None and watched is not None:
        circuit, circuit_from = watched[0], "as watched while training (watch.jsonl)"
    if circuit is None:
        newest = _load(files[max(files)], max(files), recipe, device)
        circuit = _discovered(newest, tolerance, seed, progress)
        circuit_from = (
            f"found in {newest.name} on {DISCOVERY_EXAMPLES} examples, seed {seed}, "
            f"tolerance {tolerance:g}"
        )
    circuit.check_fits(recipe.model.layers, recipe.model.heads)
    snapshots: dict[int, Snapshot] = {}
    if watched is not None and same_circuit(watched[0], circuit):
        snapshots = {row.step: row for row in watched[1]}
    elif watched is not None:
        notes.append(
            f"skipped: {run}/watch.jsonl, which follows another circuit; leave out --circuit to "
            "follow that one"
        )
    probe = Probe(recipe.task, circuit, examples, seed, device)
    for step in progress(list(files), "checkpoints"):
        try:
            snapshots[step] = probe.measure(_load(files[step], step, recipe, device).model, step)
        except InputError as error:
            notes.append(f"skipped: {error}")
    if not snapshots:
        raise InputError(f"{run}: expected a step that can be measured, found none; {notes[:1]}")
    ordered = tuple(snapshots[step] for step in sorted(snapshots))
    last = ordered[-1]
    if missing := set(range(0, last.step, recipe.checkpoint_every)) - {0, *snapshots}:
        notes.append(
            f"gap: nothing measured at steps {', '.join(map(str, sorted(missing)))}; what happens "
            "there is interpolated from the neighbours"
        )
    if (combined := fmean(last.combined_losses)) > tolerance:
        notes.append(
            f"the circuit does not hold: with all of it in place the {recipe.task.loss_name} at "
            f"step {last.step} is {combined:.4f}, not below {tolerance:g} (intact: "
            f"{fmean(last.partial_losses):.4f})"
        )
    losses = {at.step: Losses.measured(at) for at in ordered}
    try:
        where = f"{run}/metrics.jsonl"
        logged = [read_part(Losses, {**row, "logged": True}, where) for row in read_metrics(run)]
        losses |= {row.step: row for row in logged}
    except InputError as error:
        notes.append(f"skipped: {error}")
    rows = tuple(losses[step] for step in sorted(losses))
    return Series(str(run), recipe, circuit, circuit_from, tolerance, ordered, rows, tuple(notes))


def _load(file: Path, step: int, recipe: Recipe, device: str | torch.device) -> Checkpoint:
    """A checkpoint of a run; refuses one of another task, model or step."""
    checkpoint = load_checkpoint(file, device)
    found = checkpoint.training.get("step", step)
    if (checkpoint.task, checkpoint.config, found) != (recipe.task, recipe.model, step):
        raise InputError(
            f"{file}: expected a checkpoint of step {step} of this run, found step {found!s:.20} "
            f"of {describe(checkpoint.model, checkpoint.task)}"
        )
    return checkpoint


def _discovered(checkpoint: Checkpoint, tolerance: float, seed: int, progress: Progress) -> Circuit:
    model, task = checkpoint.model, checkpoint.task
    found = discover(model, task, tolerance, DISCOVERY_EXAMPLES, seed=seed, progress=progress)
    if not any(found.paths()) and not found.enabling:
        raise InputError(
            f"{checkpoint.name}: expected a model in which a circuit can be found, found one that "
            "has not learned the task; train on, or say which paths to follow with --circuit"
        )
    return found
