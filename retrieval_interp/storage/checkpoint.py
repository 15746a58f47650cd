"""Checkpoints: one safetensors file with the weights and everything needed to read them.

The metadata has one key, `retrieval_interp`, whose JSON holds `format`, `model`, `task`, `training`
(how it was made) and `sha256` (over the rest and the weights). Weights have HookedTransformer's own
names. Nothing is pickled.
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
from torch import Tensor

from retrieval_interp.circuits import Circuit
from retrieval_interp.circuits.attention import check_paths
from retrieval_interp.circuits.models.either import has_hooked_transformer
from retrieval_interp.config import ModelConfig
from retrieval_interp.model import build_model, tokenizer_of
from retrieval_interp.storage.files import find_checkpoint, read_text, write_whole
from retrieval_interp.storage.files import shipped_checkpoints as shipped_checkpoints
from retrieval_interp.tasks import InputError, Task, TrainingTask
from retrieval_interp.tasks.structured import from_data, to_data

_KEY = "retrieval_interp"


@dataclass(frozen=True)
class Checkpoint:
    """A model, its task, and how it was trained.

    Attributes:
        name: the name it was loaded by.
        model: in evaluation mode; with TransformerLens 4 a TransformerBridge.
        task: what it was trained on.
        config: the model's sizes.
        training: the training record, possibly empty.
    """

    name: str
    model: Any
    task: TrainingTask
    config: ModelConfig
    training: dict[str, Any]


@dataclass(frozen=True)
class _Content:
    model: ModelConfig
    task: TrainingTask
    training: dict[str, Any]
    format: Literal[1]


def save_checkpoint(
    path: Path,
    model: torch.nn.Module,
    task: TrainingTask,
    config: ModelConfig,
    training: dict[str, Any],
) -> None:
    """Write a checkpoint of a HookedTransformer, whole or not at all."""
    weights: dict[str, Tensor] = dict(model.named_parameters())
    if "blocks.0.attn.W_Q" not in weights:
        raise InputError(
            f"{path}: expected the weights of a HookedTransformer, found those of another model "
            f"({type(model).__name__})"
        )
    sizes = to_data(config)
    content = {"format": 1, "model": sizes, "task": task.to_dict(), "training": training}
    write_tensors(path, weights, content)


def write_tensors(path: Path, tensors: dict[str, Tensor], content: dict[str, Any]) -> None:
    """Write tensors with JSON metadata and a digest over both."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    signed = {**content, "sha256": _digest(tensors, content)}
    write_whole(path, save(tensors, {_KEY: json.dumps(signed)}))


def read_tensors(path: Path, what: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_tensors` wrote: tensors on the CPU, and the metadata without the digest."""
    try:
        with safe_open(path, framework="pt") as file:
            content = json.loads((file.metadata() or {})[_KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        digest = content.pop("sha256")
    except (SafetensorError, OSError, ValueError, KeyError, AttributeError) as error:
        raise InputError(
            f"{path}: expected {what}, a whole safetensors file of retrieval-interp, found: "
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
    """Load a model with its task, by shipped name, file or run folder.

    Args:
        name: `small`, `runs/a/checkpoints/step-001000.safetensors`, `runs/a`, ...
        device: where to put the model.

    Examples:
        >>> import retrieval_interp as ri
        >>> small = ri.load_checkpoint("small")
        >>> small.model.cfg.n_layers, small.task.steps, small.training["step"]
        (5, 3, 12000)
        >>> batch = small.task.sample(64, split="test")
        >>> loss = small.task.loss(small.model(batch.inputs), batch)
        >>> print(f"{loss.item():.3f}")
        0.009
    """
    path = find_checkpoint(str(name))
    tensors, content = read_tensors(path, "a checkpoint")
    read: _Content = from_data(_Content, content, str(path))
    if has_hooked_transformer():
        model: Any = build_model(read.model, read.task)
        load_weights(model, tensors, str(path))
    else:
        from retrieval_interp.circuits.models.bridge import make_bridge

        model = make_bridge(tensors, tokenizer_of(read.task))
    model.to(device, print_details=False)
    return Checkpoint(str(name), model.eval(), read.task, read.model, read.training)


@torch.no_grad()
def load_weights(model: torch.nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Copy weights into a HookedTransformer; all must be there, of the right shape and finite."""
    own = dict(model.named_parameters())
    expected = {name: list(weight.shape) for name, weight in own.items()}
    found = {name: list(tensor.shape) for name, tensor in tensors.items()}
    for name in sorted(expected | found):
        if expected.get(name) != found.get(name):
            raise InputError(
                f"{where}: expected {name} of shape {expected.get(name)}, found {found.get(name)}"
            )
        if not torch.isfinite(tensors[name]).all():
            raise InputError(f"{where}: expected finite weights, found NaN or infinity in {name}")
        own[name].copy_(tensors[name])


def read_circuit(
    path: Path, task: Task, n_layers: int, n_heads: int, trained: str, causal: bool = True
) -> Circuit:
    """Read a circuit file, written by `--save-circuit` or by hand, for a model of these sizes.

    Args:
        task: what the model was trained on.
        trained: completes "steps = 3, as ..." in an error.
        causal: whether the model masks later positions.
    """
    text = read_text(path, "a circuit")
    try:
        circuit = Circuit.from_json(text, task.role_names)
        circuit.check_fits(n_layers, n_heads)
        roles = task.sample(2).roles
        placed = [(head, mechanism.paths) for head, mechanism in circuit.mechanisms.items()]
        placed += [(listed.head, (listed.path,)) for listed in circuit.every_path()]
        for head, paths in placed:
            check_paths(paths, roles, causal, f"{head}: ", task.role_names)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    own = task.to_dict()
    for key in ("name", "steps", "graph"):
        if circuit.task and (found := circuit.task.get(key, own.get(key))) != own.get(key):
            raise InputError(
                f"{path}: expected a circuit for a task with {key} = {own.get(key)!r:.80}, as "
                f"{trained}, found one for {found!r:.80}"
            )
    # A circuit written by hand need not name its task.
    return circuit if circuit.task else replace(circuit, task=own)
