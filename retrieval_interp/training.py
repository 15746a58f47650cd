"""Training a HookedTransformer on a retrieval task.

1. The batch of a step is a function of the recipe's seed and the step alone, and so is the learning
   rate; a run therefore goes on from weights and optimizer state, exactly.
2. AdamW on the mean squared error of the queries (paper, section 7.1), through `torch.compile`.
3. Every `log_every` steps, and in each of the last 100, the validation loss on fresh examples; its
   mean over the last 100 steps is the final validation loss (section 7.1).
4. Every `checkpoint_every` steps a checkpoint and the state to resume from.
5. On request a circuit's paths are followed on the way (`retrieval_interp.emergence.watch`).
"""

import importlib.metadata
import math
import re
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from circuits.transformer import Transformer
from retrieval_interp.config import to_dict
from retrieval_interp.emergence.watch import Watch
from retrieval_interp.model import build_model
from retrieval_interp.recipe import Recipe
from retrieval_interp.run_folder import RunFolder, checkpoint_files
from tasks import InputError

FINAL_STEPS = 100


@dataclass(frozen=True)
class Trained:
    """What a run ends with.

    Attributes:
        model: in evaluation mode.
        recipe: how it was made.
        record: the training record, as a checkpoint holds it.
        metrics: a row a log step: step, train_loss, validation_loss, partial_losses, learning_rate,
            seconds.
    """

    model: Transformer
    recipe: Recipe
    record: dict[str, Any]
    metrics: list[dict[str, Any]]


def choose_device(name: str) -> torch.device:
    """`auto` is CUDA where there is some, else the CPU.

    Raises:
        InputError: CUDA is asked for where there is none, or no such device exists.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", name) is None:
        raise InputError(f"device: expected auto, cpu or cuda, found {name!r:.40}")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device: expected a CUDA device for {name!r}, found none; use cpu")
    return device


def step_indices(recipe: Recipe, step: int, orders: dict[int, Tensor]) -> Int[Tensor, " batch"]:
    """Which training examples a step sees: a fresh order of the training set every epoch.

    Args:
        recipe: its seed decides the orders.
        step: counted from 0.
        orders: the last epoch's order, kept between calls.
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
    watch: Watch | None = None,
) -> Trained:
    """Run a recipe, or go on with the run that `out` holds.

    Args:
        recipe: task, model and optimization.
        out: run folder; without one nothing is written.
        device: `auto`, `cpu` or `cuda`.
        compile: use `torch.compile`; where that fails a warning says why and the run is eager.
        on_step: called after each step with the number of steps done and the metrics row that the
            step logged, if any.
        watch: measures a circuit's paths every `log_every` steps; training goes the same way.

    Raises:
        InputError: the folder holds another recipe, cannot be written, or the loss is not finite.
    """
    target = choose_device(device)
    folder = RunFolder(Path(out), recipe) if out is not None else None
    try:
        if watch and folder:
            watch.check(folder.path, recipe)
        return _train(recipe, folder, target, compile, on_step, watch)
    finally:
        if folder is not None:
            folder.close()


def _train(
    recipe: Recipe,
    folder: RunFolder | None,
    device: torch.device,
    compile: bool,
    on_step: Callable[[int, dict[str, Any] | None], None],
    watch: Watch | None,
) -> Trained:
    task = recipe.task
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    model = build_model(recipe.model, task, recipe.seed, device, recipe.init)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        trained, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, fused=True
    )
    first, seconds = folder.restore(model, optimizer) if folder else (0, 0.0)
    metrics = folder.metrics() if folder else []
    if watch:
        watch.start(folder.path if folder else None, recipe, first, model)
    validation = task.sample(recipe.validation_examples, recipe.seed, device, split="validation")
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16")
    with autocast:
        sample = task.sample(recipe.batch, 0, device)
        forward = _compiled(model, sample.inputs) if compile else model
    record = {
        "recipe": to_dict(recipe),
        "device": _device_name(device),
        "threads": torch.get_num_threads(),
        "compiled": forward is not model,
        "versions": {
            name: importlib.metadata.version(name) for name in ("torch", "transformer-lens")
        },
    }
    if folder and first and first not in checkpoint_files(folder.path):
        folder.save_checkpoint(first, model, {**record, **_result(metrics, first)})
    orders: dict[int, Tensor] = {}
    total = torch.zeros((), device=device)
    since = 0
    clock = time.perf_counter() - seconds
    for step in range(first, recipe.steps):
        rate = recipe.learning_rate_at(step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        batch = task.examples(step_indices(recipe, step, orders).to(device), recipe.seed)
        with autocast:
            outputs = forward(batch.inputs)
        loss = task.loss(outputs.float(), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
        since += 1
        done, row = step + 1, None
        if done % recipe.log_every == 0 or done > recipe.steps - FINAL_STEPS:
            partial = evaluate(model, task, validation)
            train_loss = float(total) / since
            row = {
                "step": done,
                "train_loss": train_loss,
                "validation_loss": statistics.fmean(partial),
                "partial_losses": partial,
                "learning_rate": rate,
                "seconds": round(time.perf_counter() - clock, 3),
            }
            total.zero_()
            since = 0
            if not math.isfinite(train_loss + sum(partial)):
                raise InputError(
                    f"training: expected finite losses, found {train_loss} in training and "
                    f"{statistics.fmean(partial)} in validation at step {done}; lower the learning "
                    "rate or add warm-up, and give another --out (what was saved is kept)"
                )
            metrics.append(row)
            if folder:
                folder.log(metrics)
        if watch and (done % recipe.log_every == 0 or done == recipe.steps):
            watch.measure(done, model)
        if folder and (done % recipe.checkpoint_every == 0 or done == recipe.steps):
            elapsed = time.perf_counter() - clock
            folder.save(done, elapsed, model, optimizer, {**record, **_result(metrics, done)})
        on_step(done, row)
    record |= _result(metrics, recipe.steps)
    return Trained(model.eval(), recipe, record, metrics)


def _result(metrics: list[dict[str, Any]], step: int) -> dict[str, Any]:
    """The end of a training record: where it stands, averaged over the last 100 steps."""
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


@torch.no_grad()
def evaluate(model: Transformer, task: Any, batch: Any) -> list[float]:
    """The partial losses of a model on a batch."""
    partial: list[float] = task.partial_losses(model(batch.inputs), batch).tolist()
    return partial


def _compiled(model: Transformer, inputs: Tensor) -> Callable[[Tensor], Tensor]:
    """The model through torch.compile, or itself with a warning where that does not work."""
    mode = "reduce-overhead" if inputs.is_cuda else "default"
    try:
        compiled = torch.compile(model, mode=mode)
        compiled(inputs).sum().backward()
        return compiled
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        warnings.warn(f"torch.compile failed, training goes on uncompiled: {reason}", stacklevel=3)
        return model
    finally:
        model.zero_grad()


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
