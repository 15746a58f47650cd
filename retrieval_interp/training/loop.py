"""Training a HookedTransformer on a retrieval task.

1. The batch and the learning rate of a step depend only on the recipe and the step; a run
   therefore resumes exactly from weights and optimizer state.
2. AdamW on the task's loss, in the paper the mean squared error of the queries (section 7.1),
   through `torch.compile`.
3. The validation loss on fresh examples every `log_every` steps, and in each of the last 100; its
   mean over these is the final validation loss (section 7.1).
4. Every `checkpoint_every` steps a checkpoint and the state to resume from.
5. A `Watcher`, if given, sees the model along the way.
6. Recipes that differ only in their seed can be trained in common steps
   (`retrieval_interp.training.seeds`), each with its own folder.
"""

import importlib.metadata
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor, nn

from retrieval_interp.circuits.models.either import check_trainable
from retrieval_interp.config.recipe import Recipe
from retrieval_interp.storage.run_folder import RunFolder, checkpoint_files, read_metrics
from retrieval_interp.tasks import Batch, InputError
from retrieval_interp.tasks.structured import to_data
from retrieval_interp.training.compiled import compiled
from retrieval_interp.training.device import choose_device
from retrieval_interp.training.model import build_model
from retrieval_interp.training.seeds import Stack

if TYPE_CHECKING:
    from retrieval_interp.circuits.models.transformer import Transformer

FINAL_STEPS = 100


@runtime_checkable
class Watcher(Protocol):
    """Sees the model where a run begins, every `log_every` steps and at the last step, as
    `retrieval_interp.emergence.watch.Watch` does.

    It must change neither the model nor any random state. An InputError from it ends the run.
    """

    def check(self, folder: Path, recipe: Recipe) -> None:
        """Refuse a run folder before anything in it is changed."""

    def start(self, folder: Path | None, recipe: Recipe, step: int, model: nn.Module) -> None:
        """Begin where a run begins or resumes, after `step` steps; without a folder, write nothing.

        Lines after `step` are already dropped from the folder's logs.
        """

    def measure(self, step: int, model: nn.Module) -> None:
        """Look at the model after a step."""


@dataclass(frozen=True)
class Trained:
    """The result of a run.

    Attributes:
        model: in evaluation mode.
        recipe: how it was made.
        record: the training record, as stored in checkpoints.
        metrics: one row per log step: step, train_loss, validation_loss, partial_losses,
            learning_rate, seconds.
    """

    model: "Transformer"
    recipe: Recipe
    record: dict[str, Any]
    metrics: list[dict[str, Any]]


def step_indices(recipe: Recipe, step: int, orders: dict[int, Tensor]) -> Int[Tensor, " batch"]:
    """Which training examples a step sees: a fresh order of the training set every epoch.

    Args:
        recipe: its seed determines the orders.
        step: counted from 0.
        orders: a cache of the last epoch's order.
    """
    epoch, place = divmod(step, recipe.examples // recipe.batch)
    if epoch not in orders:
        orders.clear()
        generator = torch.Generator().manual_seed((recipe.seed * 1_000_003 + epoch) % 2**63)
        orders[epoch] = torch.randperm(recipe.examples, generator=generator)
    return orders[epoch][place * recipe.batch : (place + 1) * recipe.batch]


def train_model(
    recipe: Recipe,
    out: Path | str | None = None,
    device: str = "auto",
    compile: bool = True,
    on_step: Callable[[int, dict[str, Any] | None], None] = lambda step, row: None,
    watch: Watcher | None = None,
) -> Trained:
    """Train a model by a recipe, or resume the run in `out`.

    A step minimizes the task's loss on a batch of the recipe's training set; with the mean squared
    error of `RetrievalTask`, a model that has learned nothing stays at the plateau 1 - 1/N.

    Args:
        recipe: task, model and optimization.
        out: run folder; without one nothing is written.
        device: `auto`, `cpu` or `cuda`.
        compile: use `torch.compile`; if that fails, a warning says why and the run is eager.
        on_step: called after each step with the number of steps done and the metrics row of the
            step, if it was logged.
        watch: measures a circuit's paths every `log_every` steps; does not change the training.

    Raises:
        InputError: the folder holds another recipe or cannot be written, the loss is not finite, or
            TransformerLens is 4 or newer.

    Examples:
        >>> import retrieval_interp as ri
        >>> recipe = ri.Recipe(
        ...     task=ri.RetrievalTask(chains=2, steps=1),
        ...     model=ri.ModelConfig(layers=1, d_model=32),
        ...     steps=20,
        ... )
        >>> trained = ri.train_model(recipe, device="cpu", compile=False)  # a few seconds
        >>> first, last = trained.metrics[0], trained.metrics[-1]
        >>> last["step"], last["validation_loss"] < first["validation_loss"]
        (20, True)
    """
    check_trainable()
    run = _Run(recipe, out, on_step, watch)
    _train([run], device, compile)
    if run.error:
        raise run.error
    return run.trained()


def train_seeds(
    recipes: Sequence[Recipe],
    outs: Sequence[Path | str],
    device: str = "auto",
    compile: bool = True,
    on_step: Callable[[int, int], None] = lambda place, step: None,
) -> list[Trained | InputError]:
    """Train recipes that differ only in their seed, in common steps
    (`retrieval_interp.training.seeds`).

    Each resumes the run in its folder; those behind catch up first. The numbers equal those of
    `train_model` up to rounding, but `seconds` is a run's share of the common steps' time.

    Args:
        recipes: at least one.
        outs: one run folder each.
        device: `auto`, `cpu` or `cuda`.
        compile: use `torch.compile`.
        on_step: called after each step of a recipe with the recipe's index and the number of steps
            done.

    Returns:
        The result of each recipe, or why it failed; a failure does not stop the others.

    Raises:
        InputError: the recipes differ in more than the seed, or the device does not exist.
    """
    if any(replace(recipe, seed=recipes[0].seed) != recipes[0] for recipe in recipes):
        raise InputError(
            "training: expected recipes that differ only in their seeds, found others; train them "
            "one by one"
        )

    def told(place: int) -> Callable[[int, dict[str, Any] | None], None]:
        return lambda step, row: on_step(place, step)

    runs = [_Run(recipe, out, told(i)) for i, (recipe, out) in enumerate(zip(recipes, outs))]
    _train(runs, device, compile)
    return [run.error or run.trained() for run in runs]


class _Run:
    """One recipe in training: its model, its log and what is saved."""

    def __init__(
        self,
        recipe: Recipe,
        out: Path | str | None,
        on_step: Callable[[int, dict[str, Any] | None], None],
        watch: Watcher | None = None,
    ):
        self.recipe, self.out, self.on_step, self.watch = recipe, out, on_step, watch
        self.error: InputError | None = None
        self.folder: RunFolder | None = None
        self.step, self.seconds = 0, 0.0
        self.metrics: list[dict[str, Any]] = []
        self._orders: dict[int, Tensor] = {}
        self._since = 0

    def start(self, device: torch.device, compile: bool, together: int) -> None:
        """Build the model and restore what the folder holds."""
        recipe, task = self.recipe, self.recipe.task
        self.folder = RunFolder(Path(self.out), recipe) if self.out is not None else None
        if self.watch and self.folder:
            self.watch.check(self.folder.path, recipe)
        self.model = build_model(recipe.model, task, recipe.seed, device, recipe.init)
        self.optimizer = _adamw(self.model, recipe)
        if self.folder:
            self.step, self.seconds = self.folder.restore(self.model, self.optimizer)
            self.metrics = read_metrics(self.folder.path)
        if self.watch:
            path = self.folder.path if self.folder else None
            self.watch.start(path, recipe, self.step, self.model)
        self.validation = task.sample(
            recipe.validation_examples, recipe.seed, device, split="validation"
        )
        self.record: dict[str, Any] = {
            "recipe": to_data(recipe),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "threads": torch.get_num_threads(),
            "compiled": compile,
            "versions": {
                name: importlib.metadata.version(name) for name in ("torch", "transformer-lens")
            },
            **({"seeds_together": together} if together > 1 else {}),
        }
        if self.folder and self.step and self.step not in checkpoint_files(self.folder.path):
            self.folder.save_checkpoint(
                self.step, self.model, {**self.record, **_result(self.metrics, self.step)}
            )
        self._device = device
        self._total = torch.zeros((), device=device)

    def batch(self) -> Batch:
        """The examples of the next step."""
        indices = step_indices(self.recipe, self.step, self._orders)
        return self.recipe.task.examples(indices.to(self._device), self.recipe.seed)

    def took(self, loss: Tensor) -> None:
        """Count a step and its loss."""
        self._total += loss.detach()
        self._since += 1
        self.step += 1

    def log(self, partial: list[float], seconds: float) -> dict[str, Any]:
        """Log the step; refuses a loss that is not finite."""
        train_loss = float(self._total) / self._since
        self._total.zero_()
        self._since = 0
        if not math.isfinite(train_loss + sum(partial)):
            raise InputError(
                f"training: expected finite losses, found {train_loss} in training and "
                f"{statistics.fmean(partial)} in validation at step {self.step}; lower the "
                "learning rate or add warm-up, and give another --out (what was saved is kept)"
            )
        row = {
            "step": self.step,
            "train_loss": train_loss,
            "validation_loss": statistics.fmean(partial),
            "partial_losses": partial,
            "learning_rate": self.recipe.learning_rate_at(self.step - 1),
            "seconds": round(seconds, 3),
        }
        self.metrics.append(row)
        if self.folder:
            self.folder.log(self.metrics)
        return row

    def save(self, seconds: float) -> None:
        """Measure and save whatever is due at this step."""
        recipe, step, last = self.recipe, self.step, self.step == self.recipe.steps
        if self.watch and (step % recipe.log_every == 0 or last):
            self.watch.measure(step, self.model)
        if self.folder and (step % recipe.checkpoint_every == 0 or last):
            training = {**self.record, **_result(self.metrics, step)}
            self.folder.save(step, seconds, self.model, self.optimizer, training)

    def trained(self) -> Trained:
        record = self.record | _result(self.metrics, self.recipe.steps)
        return Trained(self.model.eval(), self.recipe, record, self.metrics)

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Keep an error that ends this run, so that the others go on."""
        try:
            yield
        except InputError as error:
            self.error = error


def _train(runs: Sequence[_Run], device_name: str, compile: bool) -> None:
    """Take every run to its end, from wherever it stands."""
    device = choose_device(device_name)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        for run in runs:
            with run.attempt():
                run.start(device, compile, len(runs))
        places = {run.step for run in runs if not run.error}
        for first, last in pairwise(sorted({*places, runs[0].recipe.steps})):
            together = [run for run in runs if run.step == first and not run.error]
            if together:
                _advance(together, last, device, compile)
    finally:
        for run in runs:
            if run.folder:
                run.folder.close()


def _advance(runs: Sequence[_Run], last: int, device: torch.device, compile: bool) -> None:
    """Take runs that stand at the same step to another one, in common steps."""
    recipe, task = runs[0].recipe, runs[0].recipe.task
    module: nn.Module = runs[0].model
    optimizer: torch.optim.Optimizer = runs[0].optimizer
    if len(runs) > 1:
        module = stack = Stack([run.model for run in runs])
        optimizer = _adamw(stack, recipe)
        stack.stack_state([run.optimizer for run in runs], optimizer)
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16")
    with autocast:
        forward = compiled(module, _inputs([run.batch() for run in runs])) if compile else module
    for run in runs:
        run.record |= {"compiled": forward is not module}
        if len(runs) > 1:
            run.record |= {"seeds_together": len(runs)}
    validations = [run.validation for run in runs]
    clock = time.perf_counter()
    for step in range(runs[0].step, last):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate_at(step)
        batches = [run.batch() for run in runs]
        with autocast:
            outputs = forward(_inputs(batches)).float()
        losses = [task.loss(each, batch) for each, batch in _by_run(outputs, batches)]
        optimizer.zero_grad()
        torch.stack(losses).sum().backward()
        optimizer.step()
        for run, loss in zip(runs, losses):
            run.took(loss)
        done = step + 1
        partials: list[list[float]] = []
        if done % recipe.log_every == 0 or done > recipe.steps - FINAL_STEPS:
            with torch.no_grad():
                outputs = module(_inputs(validations))
            partials = [
                task.partial_losses(each, batch).tolist()
                for each, batch in _by_run(outputs, validations)
            ]
        for place, run in enumerate(runs):
            if run.error:
                continue
            row = None
            with run.attempt():
                seconds = run.seconds + (time.perf_counter() - clock) / len(runs)
                row = run.log(partials[place], seconds) if partials else None
                run.save(seconds)
            if not run.error:
                run.on_step(done, row)
        if all(run.error for run in runs):
            return
    for run in runs:
        run.seconds += (time.perf_counter() - clock) / len(runs)


def _inputs(batches: Sequence[Batch]) -> Tensor:
    """The inputs of one model, or of a stack of models."""
    return torch.stack([batch.inputs for batch in batches]) if batches[1:] else batches[0].inputs


def _by_run(outputs: Tensor, batches: Sequence[Batch]) -> Iterable[tuple[Tensor, Batch]]:
    """Each run's outputs with its batch."""
    return zip(outputs.unbind() if batches[1:] else [outputs], batches)


def _adamw(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(
        trained, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, fused=True
    )


def _result(metrics: list[dict[str, Any]], step: int) -> dict[str, Any]:
    """The end of a training record: the step, and losses averaged over the last 100 steps."""
    last = [row for row in metrics if step - FINAL_STEPS < row["step"] <= step]
    if not last:
        return {"step": step}
    partial = [row["partial_losses"] for row in last]
    return {
        "step": step,
        "seconds": last[-1]["seconds"],
        "train_loss": sum(row["train_loss"] for row in last) / len(last),
        "validation_loss": sum(row["validation_loss"] for row in last) / len(last),
        "partial_losses": [sum(column) / len(last) for column in zip(*partial)],
    }
