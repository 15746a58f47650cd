"""Following a circuit's paths through the checkpoints of a run folder (paper, section 9.2).

What cannot be measured, such as a damaged checkpoint, is skipped with a note. Steps without a
checkpoint are taken from watch.jsonl if the run was watched with the same circuit. Losses are the
run's own, from metrics.jsonl; where it has none, those on the measured examples.
"""

from pathlib import Path

import torch

from retrieval_interp.circuits import Circuit, discover
from retrieval_interp.circuits.scores.scorer import Progress, no_progress
from retrieval_interp.config.recipe import Recipe
from retrieval_interp.emergence.series import Losses, Series, Snapshot
from retrieval_interp.emergence.watch import EXAMPLES, Probe, read_watch, same_circuit
from retrieval_interp.storage.checkpoint import Checkpoint, load_checkpoint
from retrieval_interp.storage.files import check_run_folder, read_part
from retrieval_interp.storage.run_folder import checkpoint_files, read_metrics, read_recipe
from retrieval_interp.tasks import InputError
from retrieval_interp.views.score_text import describe

DISCOVERY_EXAMPLES = 512


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
    if last.combined_loss > tolerance:
        notes.append(
            f"the circuit does not hold: with all of it in place the {recipe.task.loss_name} at "
            f"step {last.step} is {last.combined_loss:.4f}, not below {tolerance:g} (intact: "
            f"{last.baseline_loss:.4f}); losses with a path removed say little"
        )
    losses = {at.step: Losses.measured(at) for at in ordered}
    try:
        losses |= _logged(run)
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


def _logged(run: Path) -> dict[int, Losses]:
    """The run's own losses."""
    where = f"{run}/metrics.jsonl"
    rows = [read_part(Losses, {**row, "logged": True}, where) for row in read_metrics(run)]
    return {row.step: row for row in rows}
