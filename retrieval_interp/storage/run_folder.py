"""A run folder: config, metrics, checkpoints and the state from which a run resumes exactly.

    config.json                          the recipe
    metrics.jsonl                        one line per log step
    watch.jsonl                          attention paths, one line per log step (`train --watch`)
    checkpoints/step-001000.safetensors  weights with their training record
    state.safetensors                    weights and optimizer at the last checkpoint

A killed run loses what came after its last state: later log lines are dropped on resuming, since
the same steps are run again with the same numbers. The state is written before the checkpoint; a
run killed between the two writes the checkpoint on resuming. A config or log that is deleted during
a run is written again.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from retrieval_interp.config.recipe import Recipe
from retrieval_interp.storage.checkpoint import (
    FORMAT,
    load_weights,
    read_tensors,
    save_checkpoint,
    write_tensors,
)
from retrieval_interp.storage.files import (
    append_json_lines,
    check_own,
    check_same,
    lock_folder,
    read_json_lines,
    read_part,
    read_text,
    write_json,
    write_whole,
)
from retrieval_interp.tasks import InputError
from retrieval_interp.tasks.structured import from_data, from_json, to_data


@dataclass(frozen=True)
class _Row:
    """The keys that every line of metrics.jsonl has; it may have more."""

    step: int
    train_loss: float
    validation_loss: float
    partial_losses: tuple[float, ...]
    seconds: float

    def __post_init__(self) -> None:
        if not self.partial_losses:
            raise InputError("expected partial_losses, found none")


@dataclass(frozen=True)
class _State:
    """The metadata of state.safetensors."""

    step: int
    seconds: float
    format: int


class RunFolder:
    """One training run on disk, held by one process at a time.

    Args:
        path: created if missing.
        recipe: must equal the one that the folder holds, if it holds one.

    Raises:
        InputError: the folder holds another recipe or other files, another process trains in it,
            or it cannot be written.
    """

    def __init__(self, path: Path, recipe: Recipe):
        self.path, self.recipe = path, recipe
        if check_own(path, "config.json", "a run's"):
            check_same(_settings(recipe), _settings(read_recipe(path)), path, "run")
        self._lock = lock_folder(path, "a run that no other process is training")
        (path / "checkpoints").mkdir(exist_ok=True)
        self._write_config()

    def _write_config(self) -> None:
        if not (config := self.path / "config.json").exists():
            write_json(config, to_data(self.recipe))

    def close(self) -> None:
        self._lock.release()

    def log(self, rows: list[dict[str, Any]]) -> None:
        """Append the last of all metrics rows so far."""
        path = metrics_path(self.path)
        append_json_lines(path, rows[-1:] if path.exists() else rows)

    def save(
        self,
        step: int,
        seconds: float,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        training: dict[str, Any],
    ) -> None:
        """Write the state to resume from, then the checkpoint of its step.

        Raises:
            InputError: the disk is full or cannot be written; the previous files stay intact.
        """
        self._write_config()
        for log in (metrics_path(self.path), watch_path(self.path)):
            if log.exists():
                with open(log, "rb") as file:
                    os.fsync(file.fileno())
        tensors: dict[str, Tensor] = {}
        for name, parameter in model.named_parameters():
            tensors[f"weight.{name}"] = parameter
            for key in ("exp_avg", "exp_avg_sq"):
                if key in optimizer.state[parameter]:
                    tensors[f"{key}.{name}"] = optimizer.state[parameter][key]
        content = {"format": FORMAT, "step": step, "seconds": seconds}
        write_tensors(self.path / "state.safetensors", tensors, content)
        self.save_checkpoint(step, model, training)

    def save_checkpoint(self, step: int, model: torch.nn.Module, training: dict[str, Any]) -> None:
        """Write the checkpoint of a step."""
        path = self.path / "checkpoints" / f"step-{step:06d}.safetensors"
        save_checkpoint(path, model, self.recipe.task, self.recipe.model, training)

    def restore(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[int, float]:
        """Load the last state, if there is one, and drop log lines written after it.

        Returns:
            Steps done and the seconds they took; (0, 0.0) for a new run.
        """
        path, state = self.path / "state.safetensors", _State(0, 0.0, FORMAT)
        if path.exists():
            tensors, content = read_tensors(path, "a run's state")
            state = from_data(_State, content, f"{path}: a run's state")
            weights = {
                name.removeprefix("weight."): tensor
                for name, tensor in tensors.items()
                if name.startswith("weight.")
            }
            load_weights(model, weights, str(path))
            for name, parameter in model.named_parameters():
                if f"exp_avg.{name}" in tensors:
                    optimizer.state[parameter] = {
                        "step": torch.tensor(float(state.step), device=parameter.device),
                        "exp_avg": tensors[f"exp_avg.{name}"].to(parameter.device),
                        "exp_avg_sq": tensors[f"exp_avg_sq.{name}"].to(parameter.device),
                    }
        elif last_step(self.path):
            raise InputError(
                f"{path}: expected the state that belongs to the checkpoints, found none; put it "
                "back or give another --out"
            )
        for log, rows in (
            (metrics_path(self.path), read_metrics(self.path)),
            (watch_path(self.path), list(read_json_lines(watch_path(self.path)))),
        ):
            if log.exists():
                kept = [row for row in rows if not _later(row, state.step)]
                write_whole(log, "".join(json.dumps(row) + "\n" for row in kept))
        return state.step, state.seconds


def _later(row: dict[str, Any], step: int) -> bool:
    """Whether a line was logged after a step; a heading has no step."""
    return type(row.get("step")) is int and row["step"] > step


def metrics_path(path: Path) -> Path:
    """The log of losses in a run folder."""
    return path / "metrics.jsonl"


def watch_path(path: Path) -> Path:
    """The log of `train --watch` in a run folder."""
    return path / "watch.jsonl"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a run folder's metrics.jsonl.

    Raises:
        InputError: a row lacks a number that every row has.
    """
    rows = list(read_json_lines(metrics_path(path)))
    for number, row in enumerate(rows, start=1):
        read_part(_Row, row, f"{metrics_path(path)}: line {number}")
    return rows


def checkpoint_files(path: Path) -> dict[int, Path]:
    """The checkpoints of a run folder by step, rising."""
    files = {}
    for file in path.glob("checkpoints/step-*.safetensors"):
        step = file.stem.removeprefix("step-")
        if step.isascii() and step.isdigit():
            files[int(step)] = file
    return dict(sorted(files.items()))


def last_step(path: Path) -> int:
    """The step of a run folder's last checkpoint, or 0."""
    return max(checkpoint_files(path), default=0)


def read_recipe(path: Path) -> Recipe:
    """The recipe of a run folder.

    Raises:
        InputError: no config.json, or one that is not a recipe.
    """
    config = path / "config.json"
    recipe: Recipe = from_json(Recipe, read_text(config, "a run's config"), str(config))
    return recipe


def _settings(recipe: Recipe) -> Mapping[str, Any]:
    return {**to_data(recipe), "task": recipe.task.to_dict()}
