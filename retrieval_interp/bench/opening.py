"""Opening a trained model on a workbench."""

from pathlib import Path
from typing import Any

from retrieval_interp.bench.workbench import Workbench
from retrieval_interp.circuits.scores.scorer import Progress
from retrieval_interp.progress import progress_bar
from retrieval_interp.storage.checkpoint import Checkpoint, load_checkpoint
from retrieval_interp.tasks import InputError, Task
from retrieval_interp.training.device import choose_device


def open(
    what: Any,
    task: Task | None = None,
    *,
    examples: int = 512,
    seed: int = 0,
    tolerance: float | None = None,
    device: str = "auto",
    progress: Progress = progress_bar,
) -> Workbench:
    """Open a trained model on a workbench.

    Args:
        what: a shipped name (`small`), a checkpoint file, a run folder, a loaded `Checkpoint`, or
            any hooked model, which then needs its task.
        task: what the model was trained on; checkpoints bring their own.
        examples: how many examples of the `test` split to measure on.
        seed: of these examples.
        tolerance: the loss that a working circuit stays below; by default the task's, or else the
            loss at which 95% of what the model has learned is kept.
        device: `auto`, `cpu` or `cuda`, for checkpoints; a model stays where it is.
        progress: wraps an iterable to show a bar, as `(items, text)`.

    Raises:
        InputError: no such checkpoint, a model without a task, or a number out of range.

    Examples:
        >>> import retrieval_interp as ri
        >>> bench = ri.open("small", examples=64)
        >>> print(f"{bench.intact_loss:.3f}")
        0.009
        >>> bench.suppose("L2.H0 s0<-s2 s4<-s6", "L3.H0 uniform")
        L2.H0: original -> one-hot s0<-s2 s4<-s6
        L3.H0: original -> uniform
        MSE 0.0337 +- 0.0082 with 2 of 5 heads replaced, below 0.05 (was 0.0087)
    """
    kind, name, training = type(what).__name__, "", {}
    if not hasattr(what, "run_with_hooks"):
        if isinstance(what, (str, Path)):
            if len(str(what)) > 4000:
                raise InputError(f"expected the name of a checkpoint, found {str(what)!r:.40}...")
            what = load_checkpoint(str(what), choose_device(device))
        if isinstance(what, Checkpoint):
            if task is not None:
                raise InputError("task: expected none for a checkpoint, which has its own")
            name, task, training, what = what.name, what.task, what.training, what.model
    if task is None:
        raise InputError(
            f"expected a task with a model that is no checkpoint ({kind}): ri.open(model, task)"
        )
    if not isinstance(task, Task):
        raise InputError(f"expected a task, an instance of ri.Task, found {task!r:.60}")
    if not hasattr(what, "run_with_hooks") or not hasattr(what, "cfg"):
        raise InputError(
            f"expected a hooked model (HookedTransformer, TransformerBridge), found {kind}"
        )
    return Workbench(
        what, task, name or _own_name(what, task), training, examples, seed, tolerance, progress
    )


def _own_name(model: Any, task: Task) -> str:
    """What a model that is no checkpoint is called: by its configuration, or by its task."""
    given = getattr(model.cfg, "model_name", None)
    if given in (None, "", "custom", "native"):  # as HookedTransformers and bridges fill in
        return f"{type(task).__name__} model"
    folder = Path(str(given))
    return folder.name if folder.is_absolute() else str(given)
