"""A run folder: config, metrics, checkpoints and the state from which a run resumes exactly.

config.json                          the recipe
metrics.jsonl                        one line per log step
watch.jsonl                          attention paths, one line per log step (`train --watch`)
checkpoints/step-001000.safetensors  weights with their training record
state.safetensors                    weights and optimizer at the last checkpoint
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from retrieval_interp.config import Recipe
from retrieval_interp.storage import files
from retrieval_interp.storage.checkpoint import (
    load_weights,
    read_tensors,
    save_checkpoint,
    write_tensors,
)
from retrieval_interp.tasks import InputError
from retrieval_interp.tasks.structured import from_json, to_data

_MOMENTS = ("exp_avg", "exp_avg_sq")  # of AdamW


class RunFolder:
    """One training run on disk, held by one process at a time.

    Args:
        path: created if missing.
        recipe: must equal the one that the folder holds, if it holds one.
    """

    def __init__(self, path: Path, recipe: Recipe):
        self.path, self.recipe = path, recipe
        held = files.check_own(path, "config.json", "a run's")
        if held:
            files.check_same(_settings(recipe), _settings(read_recipe(path)), path, "run")
        self._lock = files.lock_folder(path, "a run that no other process is training")
        (path / "checkpoints").mkdir(exist_ok=True)
        if not held:
            files.write_json(path / "config.json", to_data(recipe))

    def close(self) -> None:
        self._lock.release()

    def log(self, row: dict[str, Any]) -> None:
        """Append a row of metrics."""
        files.append_json_lines(self.path / "metrics.jsonl", [row])

    def save(
        self,
        step: int,
        seconds: float,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        training: dict[str, Any],
    ) -> None:
        """Write the checkpoint of a step, then the state to resume from."""
        path = self.path / "checkpoints" / f"step-{step:06d}.safetensors"
        save_checkpoint(path, model, self.recipe.task, self.recipe.model, training)
        tensors: dict[str, Tensor] = {}
        for name, parameter in model.named_parameters():
            moments = optimizer.state.get(parameter, {})
            tensors[f"weight.{name}"] = parameter
            tensors |= {f"{key}.{name}": moments[key] for key in _MOMENTS if key in moments}
        content = {"format": 1, "step": step, "seconds": seconds}
        write_tensors(self.path / "state.safetensors", tensors, content)

    def restore(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[int, float]:
        """Load the last state and drop log lines written after it, whose steps are run again.

        Returns:
            Steps done and the seconds they took; (0, 0.0) for a new run.
        """
        path, done, seconds = self.path / "state.safetensors", 0, 0.0
        if path.exists():
            tensors, content = read_tensors(path, "a run's state")
            done, seconds = content["step"], content["seconds"]
            parts: dict[str, dict[str, Tensor]] = {"weight": {}, **{key: {} for key in _MOMENTS}}
            for name, tensor in tensors.items():
                kind, _, weight = name.partition(".")
                parts[kind][weight] = tensor
            load_weights(model, parts["weight"], str(path))
            for name, parameter in model.named_parameters():
                if name in parts["exp_avg"]:
                    state = {key: parts[key][name] for key in _MOMENTS}
                    state["step"] = torch.tensor(float(done))
                    device = parameter.device
                    optimizer.state[parameter] = {k: v.to(device) for k, v in state.items()}
        elif last_step(self.path):
            raise InputError(
                f"{path}: expected the state that belongs to the checkpoints, found none; put it "
                "back or give another --out"
            )
        for log in (self.path / "metrics.jsonl", watch_path(self.path)):
            # A heading has no step.
            kept = [row for row in files.read_json_lines(log) if row.get("step", 0) <= done]
            if log.exists():
                files.write_whole(log, "".join(json.dumps(row) + "\n" for row in kept))
        return done, seconds


def watch_path(path: Path) -> Path:
    """The log of `train --watch` in a run folder."""
    return path / "watch.jsonl"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a run folder's metrics.jsonl."""
    return list(files.read_json_lines(path / "metrics.jsonl"))


def checkpoint_files(path: Path) -> dict[int, Path]:
    """The checkpoints of a run folder by step, rising."""
    found = path.glob("checkpoints/step-*.safetensors")
    return dict(sorted((int(file.stem.removeprefix("step-")), file) for file in found))


def last_step(path: Path) -> int:
    """The step of a run folder's last checkpoint, or 0."""
    return max(checkpoint_files(path), default=0)


def read_recipe(path: Path) -> Recipe:
    """The recipe of a run folder."""
    config = path / "config.json"
    recipe: Recipe = from_json(Recipe, files.read_text(config, "a run's config"), str(config))
    return recipe


def _settings(recipe: Recipe) -> dict[str, Any]:
    return {**to_data(recipe), "task": recipe.task.to_dict()}
