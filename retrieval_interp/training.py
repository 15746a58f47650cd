"""Freed memory, which training keeps for its next step."""

import ctypes
import math
import re
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from einops import rearrange
from jaxtyping import Int
from torch import Tensor, nn

from retrieval_interp.circuits.models.either import check_trainable
from retrieval_interp.config import Recipe
from retrieval_interp.model import build_model
from retrieval_interp.storage.run_folder import RunFolder, read_metrics
from retrieval_interp.tasks import InputError
from retrieval_interp.tasks.structured import to_data

if TYPE_CHECKING:
    from retrieval_interp.circuits.models.transformer import Transformer

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt(3)


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for later tensors; otherwise each step gets it page by page.

    It changes the whole process; without glibc (macOS, musl) nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, 2**30)
        mallopt(TRIM_THRESHOLD, 2**31 - 1)


def choose_device(name: str) -> torch.device:
    """The device of that name; `auto` is CUDA if available, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", name) is None:
        raise InputError(f"device: expected auto, cpu or cuda, found {name!r:.40}")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device: expected a CUDA device for {name!r}, found none; use cpu")
    return device


def compiled(model: nn.Module, inputs: Tensor) -> Callable[[Tensor], Tensor]:
    """The model compiled for inputs of one shape, or, with a warning, the model itself on failure.

    Earlier compilations of this process are dropped: torch counts all models of a class together
    and runs the ninth (of other depths or sizes) uncompiled.

    The model's gradients are set to zero. `inputs` are like those to come.
    """
    # einops registers a type on first use, which in compiled code would trigger a recompilation.
    rearrange(nn.Parameter(torch.zeros(1)), "one -> one")
    mode = "reduce-overhead" if inputs.is_cuda else "default"
    try:
        torch.compiler.reset()
        forward = torch.compile(model, mode=mode, dynamic=False)
        forward(inputs).sum().backward()
        return forward
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        warnings.warn(f"torch.compile failed, training goes on uncompiled: {reason}", stacklevel=3)
        return model
    finally:
        model.zero_grad()


FINAL_STEPS = 100
OnStep = Callable[[int, dict[str, Any] | None], None]


@runtime_checkable
class Callback(Protocol):
    """Sees the model where a run begins, every `log_every` steps and at the last step.

    It must change neither the model nor any random state; an InputError from it ends the run.
    """

    def check(self, folder: Path, recipe: Recipe) -> None:
        """Refuse a run folder before anything in it is changed."""

    def start(self, folder: Path | None, recipe: Recipe, step: int, model: nn.Module) -> None:
        """Begin after `step` steps; later log lines are gone. Without a folder, write nothing."""

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

    `orders` keeps the last epoch's.
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
    on_step: OnStep = lambda step, row: None,
    watch: Callback | None = None,
) -> Trained:
    """Train a model by a recipe, or resume the run in `out`.

    With the mean squared error of `RetrievalTask`, a model that has learned nothing stays at the
    plateau 1 - 1/N. It needs TransformerLens 3.

    Args:
        recipe: task, model and optimization.
        out: run folder; without one nothing is written.
        device: `auto`, `cpu` or `cuda`.
        compile: use `torch.compile`; if that fails, a warning says why and the run is eager.
        on_step: called after each step with the number of steps done and its metrics row, if any.
        watch: looks at the model every `log_every` steps; does not change the training.

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
    where = choose_device(device)
    folder = RunFolder(Path(out), recipe) if out is not None else None
    with closing(folder) if folder else nullcontext():
        return _train(recipe, folder, where, compile, on_step, watch)


def _train(
    recipe: Recipe,
    folder: RunFolder | None,
    device: torch.device,
    compile: bool,
    on_step: OnStep,
    watch: Callback | None,
) -> Trained:
    task, last = recipe.task, recipe.steps
    if watch and folder:
        watch.check(folder.path, recipe)
    model = build_model(recipe.model, task, recipe.seed, device, recipe.init)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, weight_decay=recipe.weight_decay, fused=True)
    start, seconds = folder.restore(model, optimizer) if folder else (0, 0.0)
    metrics = read_metrics(folder.path) if folder else []
    if watch:
        watch.start(folder.path if folder else None, recipe, start, model)

    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16")
    validation = task.sample(recipe.validation_examples, recipe.seed, device, split="validation")
    forward: Callable[[Tensor], Tensor] = model
    if compile and start < last:
        with autocast:
            forward = compiled(model, task.sample(recipe.batch, recipe.seed, device).inputs)
    record: dict[str, Any] = {
        "recipe": to_data(recipe),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "compiled": forward is not model,
        "versions": {name: version(name) for name in ("torch", "transformer-lens")},
    }

    orders: dict[int, Tensor] = {}
    clock = time.perf_counter() - seconds
    total, since = torch.zeros((), device=device), start
    for step in range(start, last):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate_at(step)
        batch = task.examples(step_indices(recipe, step, orders).to(device), recipe.seed)
        with autocast:
            outputs = forward(batch.inputs).float()
        loss = task.loss(outputs, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()

        done, row = step + 1, None
        seconds = time.perf_counter() - clock
        logged = done % recipe.log_every == 0
        if logged or done > last - FINAL_STEPS:
            with torch.no_grad():
                partial = task.partial_losses(model(validation.inputs), validation).tolist()
            train_loss, validation_loss = float(total) / (done - since), statistics.fmean(partial)
            if not math.isfinite(train_loss + validation_loss):
                raise InputError(
                    f"training: expected finite losses, found {train_loss} in training and "
                    f"{validation_loss} in validation at step {done}; lower the learning "
                    "rate or add warm-up, and give another --out (what was saved is kept)"
                )
            row = {
                "step": done,
                "train_loss": train_loss,
                "validation_loss": validation_loss,
                "partial_losses": partial,
                "learning_rate": recipe.learning_rate_at(step),
                "seconds": round(seconds, 3),
            }
            total.zero_()
            since = done
            metrics.append(row)
            if folder:
                folder.log(row)
        if watch and (logged or done == last):
            watch.measure(done, model)
        if folder and (done % recipe.checkpoint_every == 0 or done == last):
            folder.save(done, seconds, model, optimizer, record | _result(metrics, done))
        on_step(done, row)
    return Trained(model.eval(), recipe, record | _result(metrics, last), metrics)


def _result(metrics: list[dict[str, Any]], step: int) -> dict[str, Any]:
    """The end of a training record: the step, and losses averaged over the last 100 steps."""
    last = [row for row in metrics if step - FINAL_STEPS < row["step"] <= step]
    if not last:
        return {"step": step}
    partial = [row["partial_losses"] for row in last]
    return {
        "step": step,
        "seconds": last[-1]["seconds"],
        "train_loss": statistics.fmean(row["train_loss"] for row in last),
        "validation_loss": statistics.fmean(row["validation_loss"] for row in last),
        "partial_losses": [statistics.fmean(column) for column in zip(*partial)],
    }
