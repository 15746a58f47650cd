"""A run folder: config, metrics, checkpoints and the state from which a run resumes exactly.

    config.json                          the recipe
    metrics.jsonl                        one line per log step
    watch.jsonl                          attention paths, one line per log step (`train --watch`)
    checkpoints/step-001000.safetensors  weights with their training record
    state.safetensors                    weights and optimizer at the last checkpoint

A killed run loses what came after its last state: later log lines are dropped on resuming, since
the same steps are run again with the same numbers.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

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
    read_text,
    write_json,
    write_whole,
)
from retrieval_interp.tasks import InputError
from retrieval_interp.tasks.structured import from_data, from_json, to_data

_MOMENTS = ("exp_avg", "exp_avg_sq")  # of AdamW


@dataclass(frozen=True)
class _State:
    """The metadata of state.safetensors."""

    step: int
    seconds: float
    format: Literal[1]


class RunFolder:
    """One training run on disk, held by one process at a time.

    Args:
        path: created if missing.
        recipe: must equal the one that the folder holds, if it holds one.
    """

    def __init__(self, path: Path, recipe: Recipe):
        self.path, self.recipe = path, recipe
        held = check_own(path, "config.json", "a run's")
        if held:
            check_same(_settings(recipe), _settings(read_recipe(path)), path, "run")
        self._lock = lock_folder(path, "a run that no other process is training")
        (path / "checkpoints").mkdir(exist_ok=True)
        if not held:
            write_json(path / "config.json", to_data(recipe))

    def close(self) -> None:
        self._lock.release()

    def log(self, row: dict[str, Any]) -> None:
        """Append a row of metrics."""
        append_json_lines(metrics_path(self.path), [row])

    def save(
        self,
        step: int,
        seconds: float,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        training: dict[str, Any],
    ) -> None:
        """Write the state to resume from, then the checkpoint of its step."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in model.named_parameters():
            tensors[f"weight.{name}"] = parameter
            for key in _MOMENTS:
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
                    step = torch.tensor(float(state.step))
                    moments = {key: tensors[f"{key}.{name}"] for key in _MOMENTS}
                    optimizer.state[parameter] = {
                        key: value.to(parameter.device)
                        for key, value in {"step": step, **moments}.items()
                    }
        elif last_step(self.path):
            raise InputError(
                f"{path}: expected the state that belongs to the checkpoints, found none; put it "
                "back or give another --out"
            )
        for log in (metrics_path(self.path), watch_path(self.path)):
            rows = list(read_json_lines(log))
            # A heading has no step.
            kept = [json.dumps(row) + "\n" for row in rows if row.get("step", 0) <= state.step]
            if log.exists():
                write_whole(log, "".join(kept))
        return state.step, state.seconds


def metrics_path(path: Path) -> Path:
    """The log of losses in a run folder."""
    return path / "metrics.jsonl"


def watch_path(path: Path) -> Path:
    """The log of `train --watch` in a run folder."""
    return path / "watch.jsonl"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a run folder's metrics.jsonl."""
    return list(read_json_lines(metrics_path(path)))


def checkpoint_files(path: Path) -> dict[int, Path]:
    """The checkpoints of a run folder by step, rising."""
    files = path.glob("checkpoints/step-*.safetensors")
    return dict(sorted((int(file.stem.removeprefix("step-")), file) for file in files))


def last_step(path: Path) -> int:
    """The step of a run folder's last checkpoint, or 0."""
    return max(checkpoint_files(path), default=0)


def read_recipe(path: Path) -> Recipe:
    """The recipe of a run folder."""
    config = path / "config.json"
    recipe: Recipe = from_json(Recipe, read_text(config, "a run's config"), str(config))
    return recipe


def _settings(recipe: Recipe) -> Mapping[str, Any]:
    return {**to_data(recipe), "task": recipe.task.to_dict()}
