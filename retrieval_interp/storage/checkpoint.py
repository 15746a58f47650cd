"""Checkpoints, run folders and circuit files; nothing is pickled.

A checkpoint is one safetensors file with weights by HookedTransformer's own names. Its metadata has
one key, `retrieval_interp`, with JSON: `format`, `model`, `task`, `training` (the training record)
and `sha256` (over all these and the weights). A run folder has:

config.json                          the recipe
metrics.jsonl                        one line per log step
checkpoints/step-001000.safetensors  weights with their training record
state.safetensors                    weights and optimizer at the last checkpoint
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim import Optimizer

from retrieval_interp.circuits import Circuit
from retrieval_interp.circuits.hooks import HookedModel, is_causal
from retrieval_interp.circuits.models.plain import PlainTransformer, hooked_model
from retrieval_interp.circuits.paths import Mask, Positions
from retrieval_interp.config import ModelConfig, Recipe
from retrieval_interp.device import choose_device
from retrieval_interp.model import empty_weights, tokenizer_of
from retrieval_interp.storage import files
from retrieval_interp.storage.files import shipped_checkpoints as shipped_checkpoints
from retrieval_interp.tasks import InputError, Task, TrainingTask
from retrieval_interp.tasks.messages import check_type
from retrieval_interp.tasks.structured import from_data, from_json, to_data

_KEY = "retrieval_interp"
_MOMENTS = ("exp_avg", "exp_avg_sq")  # of AdamW


@dataclass(frozen=True)
class Checkpoint:
    """A model, its task, and how it was trained."""

    name: str  # the name by which it was loaded
    model: Any  # in evaluation mode; with TransformerLens 4 a TransformerBridge
    task: TrainingTask
    config: ModelConfig
    training: dict[str, Any]  # the training record, possibly empty


@dataclass(frozen=True)
class _Content:
    model: ModelConfig
    task: TrainingTask
    training: dict[str, Any]
    format: Literal[1]


def save_checkpoint(
    path: Path, model: nn.Module, task: TrainingTask, config: ModelConfig, training: dict[str, Any]
) -> None:
    """Write a checkpoint of a HookedTransformer or a native bridge, whole or not at all."""
    check_type(task, TrainingTask, "task")
    native = getattr(getattr(model, "cfg", None), "architecture", "") == "TransformerLensNative"
    plain = PlainTransformer.of(model) if native else model
    weights: dict[str, Tensor] = dict(plain.named_parameters())
    if "blocks.0.attn.W_Q" not in weights:
        raise InputError(
            f"{path}: expected a HookedTransformer or a native bridge, found another model "
            f"({type(model).__name__})"
        )
    write_tensors(path, weights, to_data(_Content(config, task, training, 1)))


def write_tensors(path: Path, tensors: dict[str, Tensor], content: dict[str, Any]) -> None:
    """Write tensors with JSON metadata and a digest over both."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    signed = {**content, "sha256": _digest(tensors, content)}
    files.write_whole(path, save(tensors, {_KEY: json.dumps(signed)}))


def read_tensors(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_tensors` wrote: tensors on the CPU, and the metadata without the digest."""
    try:
        with safe_open(path, framework="pt") as file:
            content = json.loads((file.metadata() or {})[_KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        digest = content.pop("sha256")
    except (SafetensorError, OSError, ValueError, KeyError, AttributeError) as error:
        raise InputError(
            f"{path}: expected {kind}, a whole safetensors file of retrieval-interp, found: "
            f"{type(error).__name__}, {error!s:.120}"
        ) from None
    if digest != _digest(tensors, content):
        raise InputError(
            f"{path}: expected contents that match the file's sha256, found others; get it again"
        )
    return tensors, content


def _digest(tensors: dict[str, Tensor], content: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def load_checkpoint(name: str | Path, device: str | torch.device = "cpu") -> Checkpoint:
    """Load a model with its task, by shipped name (`small`), file or run folder (`runs/a`)."""
    chosen = choose_device(device)
    path = files.find_checkpoint(str(name))
    tensors, content = read_tensors(path, "a checkpoint")
    read: _Content = from_data(_Content, content, str(path))
    weights = empty_weights(read.model, read.task).to(chosen)
    load_weights(weights, tensors, str(path))
    model: Any = hooked_model(weights, tokenizer_of(read.task))
    return Checkpoint(
        name=str(name),
        model=model.eval(),
        task=read.task,
        config=read.model,
        training=read.training,
    )


@torch.no_grad()
def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Copy weights into a model by name; all must be there, of the right shape and finite."""
    parameters = dict(model.named_parameters())
    for name in sorted(parameters.keys() | tensors.keys()):
        wanted, given = (
            list(weights[name].shape) if name in weights else None
            for weights in (parameters, tensors)
        )
        if wanted != given:
            raise InputError(f"{where}: expected {name} of shape {wanted}, found {given}")
        if not torch.isfinite(tensors[name]).all():
            raise InputError(f"{where}: expected finite weights, found NaN or infinity in {name}")
        parameters[name].copy_(tensors[name])


class RunFolder:
    """One training run on disk, locked by one process at a time; it always has the same recipe."""

    def __init__(self, path: Path, recipe: Recipe):
        self.path, self.recipe = path, recipe
        exists = files.check_own(path, "config.json", "a run's")
        if exists:
            files.check_same(to_data(recipe), to_data(read_recipe(path)), path, "run")
        self.close = files.lock_folder(path, "a run that no other process is training").release
        (path / "checkpoints").mkdir(exist_ok=True)
        if not exists:
            files.write_json(path / "config.json", to_data(recipe))

    def log(self, row: dict[str, Any]) -> None:
        """Append a row of metrics."""
        with open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def save(
        self, step: int, time: float, model: nn.Module, optimizer: Optimizer, record: dict[str, Any]
    ) -> None:
        """Write the checkpoint of a step, then the state to resume from."""
        path = self.path / "checkpoints" / f"step-{step:06d}.safetensors"
        save_checkpoint(path, model, self.recipe.task, self.recipe.model, record)
        tensors: dict[str, Tensor] = {}
        for name, parameter in model.named_parameters():
            moments = optimizer.state.get(parameter, {})
            tensors[f"weight.{name}"] = parameter
            tensors |= {f"{key}.{name}": moments[key] for key in _MOMENTS if key in moments}
        progress = {"format": 1, "step": step, "seconds": time}
        write_tensors(self.path / "state.safetensors", tensors, progress)

    def restore(self, model: nn.Module, optimizer: Optimizer) -> tuple[int, float]:
        """Load the last state and drop later log lines; return its step and seconds, or zeros."""
        path, done, seconds = self.path / "state.safetensors", 0, 0.0
        if path.exists():
            tensors, content = read_tensors(path, "a run's state")
            done, seconds = content["step"], content["seconds"]
            weights = {name: tensors[f"weight.{name}"] for name, _ in model.named_parameters()}
            load_weights(model, weights, str(path))
            for name, parameter in model.named_parameters():
                if f"exp_avg.{name}" in tensors:
                    moments = {key: tensors[f"{key}.{name}"] for key in _MOMENTS}
                    state = {"step": torch.tensor(float(done)), **moments}
                    device = parameter.device
                    optimizer.state[parameter] = {k: v.to(device) for k, v in state.items()}
        elif files.last_step(self.path):
            raise InputError(
                f"{path}: expected the state that belongs to the checkpoints, found none; put it "
                "back or give another --out"
            )
        log = self.path / "metrics.jsonl"
        kept = [row for row in files.read_json_lines(log) if row["step"] <= done]
        if log.exists():
            files.write_whole(log, "".join(json.dumps(row) + "\n" for row in kept))
        return done, seconds


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a run folder's metrics.jsonl."""
    return list(files.read_json_lines(path / "metrics.jsonl"))


def read_recipe(path: Path) -> Recipe:
    """Read the recipe of a run folder."""
    config = path / "config.json"
    return from_json(Recipe, files.read_text(config, "a run's config"), str(config))


def read_circuit(path: Path, task: Task, model: HookedModel, trained: str) -> Circuit:
    """Read a circuit file for a model and its task.

    `trained` completes "steps = 3, as ..." in an error.
    """
    text = files.read_text(path, "a circuit")
    batch = task.sample(2, 0, next(model.parameters()).device, "train")
    try:
        circuit = Circuit.from_json(text, task.role_names)
        circuit.check_fits(model.cfg.n_layers, model.cfg.n_heads)
        positions = Positions.of(batch, Mask(is_causal(model, batch)))
        placed = [(head, mechanism.paths) for head, mechanism in circuit.mechanisms.items()]
        placed += [(listed.head, (listed.path,)) for listed in circuit.every_path()]
        for head, paths in placed:
            positions.check(paths, f"{head}: ", task.role_names)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    expected = task.to_dict()
    for key in ("name", "steps", "graph") if circuit.task else ():
        if (value := circuit.task.get(key, expected.get(key))) != expected.get(key):
            raise InputError(
                f"{path}: expected a circuit for a task with {key} = {expected.get(key)!r:.80}, as "
                f"{trained}, found one for {value!r:.80}"
            )
    return circuit if circuit.task else replace(circuit, task=expected)
