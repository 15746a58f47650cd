"""Train a model by a recipe, compiled; a run folder is resumed exactly where it stopped."""

import ctypes
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Int
from torch import Tensor, nn

from retrieval_interp.circuits.hooks import HookedModel
from retrieval_interp.circuits.models.plain import has_hooked_transformer, hooked_model
from retrieval_interp.config import Recipe
from retrieval_interp.device import choose_device
from retrieval_interp.model import initial_weights, tokenizer_of
from retrieval_interp.storage.checkpoint import RunFolder, read_metrics
from retrieval_interp.tasks import InputError, InputWarning
from retrieval_interp.tasks.structured import to_data


def keep_freed_memory() -> None:
    """Let glibc keep freed memory, so that steps need not get it again page by page."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(-3, 2**30)  # M_MMAP_THRESHOLD
        mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


@contextmanager
def tf32(device: torch.device) -> Iterator[None]:
    """Allow TF32 in matrix products on CUDA, for training only; all else stays float32."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def compiled(model: nn.Module, inputs: Tensor) -> Callable[[Tensor], Tensor]:
    """Compile a model for inputs like these; if that fails, warn and return the model itself.

    Earlier compilations of this process are dropped: torch counts all models of a class together
    and would run the ninth (of other depths or sizes) uncompiled.
    """
    # einops registers a type on first use, which in compiled code would trigger a recompilation.
    rearrange(nn.Parameter(torch.zeros(1)), "one -> one")
    try:
        torch.compiler.reset()
        forward = torch.compile(model, dynamic=False)
        forward(inputs).sum().backward()
        return forward
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        text = f"torch.compile failed, training goes on uncompiled: {reason}"
        warnings.warn(text, InputWarning, stacklevel=3)
        return model
    finally:
        model.zero_grad()


FINAL_STEPS = 100  # over which final losses are averaged
OnStep = Callable[[int, dict[str, Any] | None], None]


@dataclass(frozen=True)
class Trained:
    """The result of a run."""

    model: HookedModel  # in evaluation mode
    record: dict[str, Any]  # the training record, as stored in checkpoints
    # A row per log step: step, train_loss, validation_loss, partial_losses, learning_rate, seconds.
    metrics: list[dict[str, Any]]


def step_indices(recipe: Recipe, step: int, orders: dict[int, Tensor]) -> Int[Tensor, " batch"]:
    """Return the training examples of a step, from a fresh order of the training set every epoch.

    `orders` keeps the order of the last epoch.
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
) -> Trained:
    """Train a model from a recipe, or resume the run in `out`.

    With TransformerLens 3 a HookedTransformer is trained; with version 4 the same weights without
    hook points, which a bridge then gets.

    Args:
        recipe: task, model and optimization.
        out: the run folder; without one, nothing is written.
        device: `auto`, `cpu` or `cuda`.
        compile: use `torch.compile`; if that fails, a warning says why and the run is eager.
        on_step: called after each step with the number of steps done and its metrics row, if any.
    """
    where = choose_device(device)
    folder = RunFolder(Path(out), recipe) if out is not None else None
    with closing(folder) if folder else nullcontext():
        run = _Run(recipe, where)
        start, seconds = folder.restore(run.model, run.optimizer) if folder else (0, 0.0)
        metrics = read_metrics(folder.path) if folder else []
        if compile and start < recipe.steps:
            run.compile()
        record = run.record()

        clock = time.perf_counter() - seconds
        for step in range(start, recipe.steps):
            run.step(step)
            done, row = step + 1, None
            seconds = time.perf_counter() - clock
            if done % recipe.log_every == 0 or done > recipe.steps - FINAL_STEPS:
                row = run.log_row(step, seconds)
                metrics.append(row)
                if folder:
                    folder.log(row)
            if folder and (done % recipe.checkpoint_every == 0 or done == recipe.steps):
                result = record | _result(metrics, done)
                folder.save(done, seconds, run.model, run.optimizer, result)
            on_step(done, row)
        return Trained(run.hooked_model(), record | _result(metrics, recipe.steps), metrics)


class _Run:
    """A model in training: its weights, the optimizer, and the losses since the last log row."""

    def __init__(self, recipe: Recipe, device: torch.device):
        self.recipe, self.task, self.device = recipe, recipe.task, device
        weights = initial_weights(recipe.model, self.task, recipe.seed, recipe.init).to(device)
        # A HookedTransformer is trained itself; a bridge is made of the trained weights.
        self.model: Any = weights
        if has_hooked_transformer():
            self.model = hooked_model(weights, tokenizer_of(self.task))
        self.forward: Callable[[Tensor], Tensor] = self.model
        trained = [weight for weight in self.model.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, weight_decay=recipe.weight_decay, fused=True)
        self.autocast = torch.autocast(
            device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16"
        )
        self.validation = self.task.sample(
            recipe.validation_examples, recipe.seed, device, split="validation"
        )
        self._orders: dict[int, Tensor] = {}  # of `step_indices`
        self._loss_sum = torch.zeros((), device=device)  # over the steps since the last log row
        self._steps_summed = 0

    def compile(self) -> None:
        """Compile the forward pass of training; validation goes through the model itself."""
        example = self.task.sample(self.recipe.batch, self.recipe.seed, self.device)
        with tf32(self.device), self.autocast:
            self.forward = compiled(self.model, example.inputs)

    def record(self) -> dict[str, Any]:
        """Return the beginning of a training record: the recipe, and where it runs."""
        on_gpu = self.device.type == "cuda"
        return {
            "recipe": to_data(self.recipe),
            "device": torch.cuda.get_device_name(self.device) if on_gpu else "cpu",
            "threads": torch.get_num_threads(),
            "compiled": self.forward is not self.model,
            "versions": {name: version(name) for name in ("torch", "transformer-lens")},
        }

    def step(self, step: int) -> None:
        """Take an optimizer step on its batch, and add up the training loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate_at(step)
        indices = step_indices(self.recipe, step, self._orders).to(self.device)
        batch = self.task.examples(indices, self.recipe.seed)
        with tf32(self.device):
            with self.autocast:
                outputs = self.forward(batch.inputs).float()
            loss = self.task.loss(outputs, batch)
            self.optimizer.zero_grad()
            loss.backward()
        self.optimizer.step()
        self._loss_sum += loss.detach()
        self._steps_summed += 1

    @torch.no_grad()
    def log_row(self, step: int, seconds: float) -> dict[str, Any]:
        """Validate after a step, and begin a new mean of the training loss."""
        outputs = self.model(self.validation.inputs)
        partial = self.task.partial_losses(outputs, self.validation).tolist()
        train_loss = float(self._loss_sum) / self._steps_summed
        validation_loss = statistics.fmean(partial)
        if not math.isfinite(train_loss + validation_loss):
            raise InputError(
                f"training: expected finite losses, found {train_loss} in training and "
                f"{validation_loss} in validation at step {step + 1}; lower the learning "
                "rate or add warm-up, and give another --out (what was saved is kept)"
            )
        self._loss_sum.zero_()
        self._steps_summed = 0
        return {
            "step": step + 1,
            "train_loss": train_loss,
            "validation_loss": validation_loss,
            "partial_losses": partial,
            "learning_rate": self.recipe.learning_rate_at(step),
            "seconds": round(seconds, 3),
        }

    def hooked_model(self) -> HookedModel:
        """Return the trained model with hook points, in evaluation mode."""
        if not has_hooked_transformer():
            self.model = hooked_model(self.model, tokenizer_of(self.task))
        model: HookedModel = self.model.eval()
        return model


def _result(metrics: list[dict[str, Any]], step: int) -> dict[str, Any]:
    """Return the end of a training record: the step, and losses averaged over the last 100."""
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
