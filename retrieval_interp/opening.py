"""Open a trained model on a workbench."""

from pathlib import Path
from typing import Any

from retrieval_interp.bench import Workbench, prompt_task
from retrieval_interp.circuits.hooks import HookedModel
from retrieval_interp.circuits.losses import Progress
from retrieval_interp.device import check_device, choose_device
from retrieval_interp.progress import progress_bar
from retrieval_interp.storage.checkpoint import Checkpoint, load_checkpoint
from retrieval_interp.tasks import InputError, Task


def open(
    model: Any,
    task: Task | str | None = None,
    *,
    answer: str = "",
    place: str = "",
    examples: int = 512,
    seed: int = 0,
    tolerance: float | None = None,
    device: str = "auto",
    progress: Progress = progress_bar,
) -> Workbench:
    """Open a trained model on a workbench.

    Args:
        model: a shipped name (`small`), a checkpoint file, a run folder, a loaded `Checkpoint`, or
            any hooked model, which then needs its task.
        task: what the model was trained on; checkpoints have their own. Or a prompt: then the
            examples are changes of one of its words, and all heads are patched from these at first.
        answer: what follows a prompt; by default what the model says.
        place: words of a prompt to change; by default the one the answer depends on most.
        examples: how many examples of the `test` split to measure on; `seed` says which.
        tolerance: the loss that a working circuit stays below; by default the task's, or else the
            loss at which 95% of what the model has learned is kept.
        device: `auto`, `cpu` or `cuda`, where to load a checkpoint; a model stays where it is.
        progress: wraps an iterable to show a progress bar, as `(items, text)`.
    """
    name, training = "", {}
    if isinstance(model, (str, Path)):
        model = load_checkpoint(str(model), choose_device(device))
    if isinstance(model, Checkpoint):
        if task is not None:
            raise InputError("task: expected none for a checkpoint, which has its own")
        name, task, training = model.name, model.task, model.training
        model = model.model
    opened, question = repr(name) if name else "model, task", None
    if isinstance(task, str) and hasattr(model, "run_with_hooks"):
        question, task = prompt_task(model, task, answer, place, seed, progress)
        examples = min(examples, len(task) // 2)
        chosen = f"answer={question.answer!r}, place={question.place.text!r}"
        opened = f"model, {question.prompt!r}, {chosen}"
    task = _checked_task(model, task)
    check_device(model, device)
    bench = Workbench(
        model=model,
        task=task,
        name=name or _name_of(model, task),
        opened=opened,
        training=training,
        examples=examples,
        seed=seed,
        stated=tolerance,
        progress=progress,
        question=question,
    )
    if question is not None:
        bench.keep()
    return bench


def _checked_task(model: Any, task: Any) -> Task:
    """Check that what is opened is a hooked model and a task, not the class of one; return it."""
    hooked = hasattr(model, "run_with_hooks") and not isinstance(model, type)
    if not hooked or not isinstance(task, Task):
        is_class = isinstance(task, type) and issubclass(task, Task)
        call = "; write task()" if is_class else ""
        raise InputError(
            "expected the name of a checkpoint, or ri.open(model, task) with a hooked model and a "
            f"task, found {type(model).__name__} and the task {task!r:.60}{call}"
        )
    return task


def _name_of(model: HookedModel, task: Task) -> str:
    """Return the model's own name, or that of its task."""
    name = getattr(model.cfg, "model_name", None)
    if name in (None, "", "custom", "native"):  # names that TransformerLens gives
        return f"{type(task).__name__} model"
    return Path(str(name)).name
