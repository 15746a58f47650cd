"""Following a circuit's paths through the checkpoints of a run folder (paper, section 9.2).

1. Every checkpoint is measured in turn. Damaged checkpoints, those of another run, and steps
   without one are skipped with a note.
2. Steps without a checkpoint are taken from watch.jsonl if the run was watched with the same
   circuit.
3. Losses are the run's own, from metrics.jsonl; where it has none, those on the measured examples.
"""

from collections.abc import Mapping
from pathlib import Path

import torch

from retrieval_interp.circuits import Circuit, discover
from retrieval_interp.circuits.scores.scorer import Progress, no_progress
from retrieval_interp.commands.search_line import line_with
from retrieval_interp.config.recipe import Recipe
from retrieval_interp.emergence.probe import EXAMPLES, Probe, Snapshot
from retrieval_interp.emergence.series import Losses, Series
from retrieval_interp.emergence.watch import read_watch, same_circuit
from retrieval_interp.storage.checkpoint import Checkpoint, load_checkpoint
from retrieval_interp.storage.files import check_run_folder
from retrieval_interp.storage.run_folder import (
    checkpoint_files,
    read_metrics,
    read_recipe,
    watch_path,
)
from retrieval_interp.tasks import InputError
from retrieval_interp.views.score_text import describe

DISCOVERY_EXAMPLES = 512
_NAMED = 5  # missing steps that a note lists


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

    Raises:
        InputError: not a run folder, nothing readable in it, a circuit that does not fit, or none
            found because the model has not learned the task.
    """
    run = Path(run)
    check_run_folder(run)
    recipe = read_recipe(run)
    tolerance = recipe.task.tolerance if tolerance is None else tolerance
    files, notes = checkpoint_files(run), list[str]()
    watched = _watched(run, recipe, notes)
    if not files and watched is None:
        raise InputError(
            f"{run}: expected a run folder with checkpoints/step-*.safetensors, found none; "
            f"{notes[0] if notes else 'train until the first checkpoint'}"
        )
    if circuit is None and watched is not None:
        circuit, circuit_from = watched[0], "as watched while training (watch.jsonl)"
    if circuit is None:
        newest = _last_readable(run, files, recipe, device)
        circuit = _discovered(newest, tolerance, seed, progress)
        circuit_from = (
            f"found in {newest.name} on {DISCOVERY_EXAMPLES} examples, seed {seed}, "
            f"tolerance {tolerance:g}"
        )
    circuit.check_fits(recipe.model.layers, recipe.model.heads)
    snapshots: dict[int, Snapshot] = {}
    probe = Probe(recipe.task, circuit, examples, seed, device)
    for step in progress(list(files), "checkpoints"):
        try:
            model = _load(files[step], step, recipe, device).model
            snapshots[step] = probe.measure(model, step)
        except InputError as error:
            notes.append(f"skipped: {error}")
    if watched is not None and same_circuit(watched[0], circuit):
        snapshots |= {row.step: row for row in watched[1] if row.step not in snapshots}
    elif watched is not None:
        notes.append(
            f"skipped: {watch_path(run)}, which follows another circuit; leave out --circuit "
            "to follow that one"
        )
    if not snapshots:
        raise InputError(
            f"{run}: expected at least one step that can be measured, found none; "
            f"{notes[0] if notes else 'watch.jsonl is empty'}"
        )
    notes += _gaps(recipe, snapshots)
    ordered = tuple(snapshots[step] for step in sorted(snapshots))
    last = ordered[-1]
    if last.combined_loss > tolerance:
        notes.append(
            f"the circuit does not hold: with all of it in place the {recipe.task.loss_name} at "
            f"step {last.step} is {last.combined_loss:.4f}, not below {tolerance:g} (intact: "
            f"{last.baseline_loss:.4f}); the frozen losses of its paths say little"
        )
    losses = _losses(run, recipe, ordered, notes)
    return Series(str(run), recipe, circuit, circuit_from, tolerance, ordered, losses, tuple(notes))


def _watched(run: Path, recipe: Recipe, notes: list[str]) -> tuple[Circuit, list[Snapshot]] | None:
    try:
        return read_watch(watch_path(run), len(recipe.task.role_names))
    except InputError as error:
        notes.append(f"skipped: {error}")
        return None


def _load(file: Path, step: int, recipe: Recipe, device: str | torch.device) -> Checkpoint:
    """A checkpoint of a run; refuses one of another task, model or step."""
    checkpoint = load_checkpoint(file, device)
    if (checkpoint.task, checkpoint.config) != (recipe.task, recipe.model):
        raise InputError(
            f"{file}: expected a checkpoint of this run, found one of another: "
            f"{describe(checkpoint.model, checkpoint.task)}"
        )
    named = checkpoint.training.get("step", step)
    if named != step:
        raise InputError(f"{file}: expected the weights of step {step}, found step {named!s:.20}")
    return checkpoint


def _last_readable(
    run: Path, files: Mapping[int, Path], recipe: Recipe, device: str | torch.device
) -> Checkpoint:
    reason = "found none"
    for step in sorted(files, reverse=True):
        try:
            return _load(files[step], step, recipe, device)
        except InputError as error:
            reason = f"the last problem: {error}"
    raise InputError(f"{run}: expected a checkpoint that can be read, {reason}")


def _discovered(checkpoint: Checkpoint, tolerance: float, seed: int, progress: Progress) -> Circuit:
    model, task = checkpoint.model, checkpoint.task
    line = line_with(progress)
    found = discover(model, task, tolerance, DISCOVERY_EXAMPLES, seed=seed, progress=line)
    if not any(found.paths()) and not found.enabling:
        raise InputError(
            f"{checkpoint.name}: expected a model in which a circuit can be found, found one that "
            "has not learned the task; train on, or say which paths to follow with --circuit"
        )
    return found


def _gaps(recipe: Recipe, snapshots: Mapping[int, Snapshot]) -> list[str]:
    """A note on the checkpoint steps up to the last one at which nothing was measured, if any."""
    last, every = max(snapshots), recipe.checkpoint_every
    missing = [step for step in range(every, last, every) if step not in snapshots]
    if not missing:
        return []
    listed = ", ".join(map(str, missing[:_NAMED]))
    if len(missing) > _NAMED:
        listed += f", ... ({len(missing)} in all)"
    return [
        f"gap: nothing measured at {'step' if len(missing) == 1 else 'steps'} {listed}; what "
        "happens there is interpolated from the neighbours"
    ]


def _losses(
    run: Path, recipe: Recipe, snapshots: tuple[Snapshot, ...], notes: list[str]
) -> tuple[Losses, ...]:
    """The run's own losses, and measured ones where it logged none."""
    measured = {
        at.step: Losses(at.step, at.baseline_loss, at.partial_losses, None, False)
        for at in snapshots
    }
    logged: dict[int, Losses] = {}
    try:
        for row in read_metrics(run):
            step, partial = row["step"], tuple(map(float, row["partial_losses"]))
            if len(partial) != recipe.task.n_targets:
                raise InputError(
                    f"{run}/metrics.jsonl: expected {recipe.task.n_targets} partial losses a line, "
                    f"found {len(partial)} at step {step}"
                )
            loss, train_loss = float(row["validation_loss"]), float(row["train_loss"])
            logged[step] = Losses(step, loss, partial, train_loss, True)
    except InputError as error:
        notes.append(f"skipped: {error}")
        logged = {}
    found = measured | logged
    return tuple(found[step] for step in sorted(found))
