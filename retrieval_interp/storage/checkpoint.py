"""Checkpoints: one safetensors file with the weights and everything needed to read them.

The metadata has one key, `retrieval_interp`, whose JSON holds `format` (version), `model`, `task`,
`training` (how it was made) and `sha256` (over the rest and the weights, so that any damaged byte
is noticed). Weights have HookedTransformer's own names. Nothing is pickled.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from retrieval_interp.circuits.models.version import has_hooked_transformer
from retrieval_interp.config.model_config import ModelConfig
from retrieval_interp.config.weight_shapes import weight_shapes
from retrieval_interp.storage.files import write_whole
from retrieval_interp.storage.find_checkpoint import find_checkpoint as find_checkpoint
from retrieval_interp.storage.find_checkpoint import shipped_checkpoints as shipped_checkpoints
from retrieval_interp.tasks import InputError, TokenTask, TrainingTask
from retrieval_interp.tasks.structured import from_data, to_data
from retrieval_interp.tasks.training_task import BEGIN
from retrieval_interp.training.word_tokenizer import word_tokenizer

FORMAT = 1
METADATA_KEY = "retrieval_interp"
_WEIGHT_TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Checkpoint:
    """A model, its task, and how it was trained.

    Attributes:
        name: the name it was loaded by.
        model: in evaluation mode, on the requested device; a HookedTransformer, or with
            TransformerLens 4 a TransformerBridge.
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
    """The metadata of a checkpoint without its digest."""

    model: ModelConfig
    task: TrainingTask
    training: dict[str, Any]
    format: int = FORMAT


def save_checkpoint(
    path: Path,
    model: torch.nn.Module,
    task: TrainingTask,
    config: ModelConfig,
    training: dict[str, Any],
) -> None:
    """Write a checkpoint atomically.

    Raises:
        InputError: the file cannot be written, or the model is no HookedTransformer of this kind.
    """
    weights: dict[str, Tensor] = dict(model.named_parameters())
    if weights.keys() != weight_shapes(config, task).keys():
        raise InputError(
            f"{path}: expected the weights of a HookedTransformer of these sizes, found those of "
            f"another model ({type(model).__name__})"
        )
    sizes = to_data(config)
    content = {"format": FORMAT, "model": sizes, "task": task.to_dict(), "training": training}
    write_tensors(path, weights, content)


def write_tensors(path: Path, tensors: dict[str, Tensor], content: dict[str, Any]) -> None:
    """Write tensors with JSON metadata and a digest over both."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    signed = {**content, "sha256": _digest(tensors, content)}
    write_whole(path, save(tensors, {METADATA_KEY: json.dumps(signed)}))


def read_tensors(path: Path, what: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_tensors` wrote: tensors on the CPU, and the metadata without the digest.

    Raises:
        InputError: missing, not a safetensors file, truncated, damaged, or of another format.
    """
    if not path.is_file():
        raise InputError(f"{path}: expected {what}, found no file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError, TypeError, KeyError) as error:
        raise InputError(
            f"{path}: expected {what} (a whole safetensors file), found: "
            f"{' '.join(str(error).split())[:120]}"
        ) from None
    if METADATA_KEY not in metadata:
        raise InputError(
            f"{path}: expected {what} written by retrieval-interp, found a safetensors file "
            f"without its {METADATA_KEY!r} metadata"
        )
    try:
        content = json.loads(metadata[METADATA_KEY])
        digest = content.pop("sha256")
        version = content["format"]
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise InputError(
            f"{path}: expected {what}, found metadata that cannot be read; the file is damaged"
        ) from None
    if version != FORMAT:
        raise InputError(
            f"{path}: expected format {FORMAT}, found {version!r:.20}; this file needs another "
            "version of retrieval-interp"
        )
    if digest != _digest(tensors, content):
        raise InputError(
            f"{path}: expected contents that match the file's sha256, found others; the file is "
            "damaged or was edited, get it again"
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

    Raises:
        InputError: the checkpoint is not found, damaged or of an unknown task, or weights are
            missing, unexpected, of the wrong shape or type, NaN or infinite.

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
    task, config = read.task, read.model
    # Before the model takes memory: a damaged config can claim any size.
    vectors = not isinstance(task, TokenTask)
    _check_weights(weight_shapes(config, task), tensors, str(path), vectors)
    model = _make_model(config, task, tensors, device)
    return Checkpoint(str(name), model.eval(), task, config, read.training)


def _make_model(
    config: ModelConfig,
    task: TrainingTask,
    tensors: Mapping[str, Tensor],
    device: str | torch.device,
) -> Any:
    """The model of the installed TransformerLens with these weights."""
    if has_hooked_transformer():
        from retrieval_interp.training.model import build_model

        model: Any = build_model(config, task)
        _copy_weights(model, tensors)
    else:
        from retrieval_interp.circuits.models.bridge import make_bridge

        tokenizer = None
        if isinstance(task, TokenTask):
            tokenizer = word_tokenizer(task.vocabulary, BEGIN)
        model = make_bridge(tensors, tokenizer)
    model.to(device, print_details=False)
    return model


def load_weights(model: torch.nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Copy weights into a HookedTransformer, strictly.

    Raises:
        InputError: a weight is missing, extra, of another shape or type, or not finite; or the
            positional embedding is not zero.
    """
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    _check_weights(shapes, tensors, where, vectors=getattr(model, "reads_vectors", False))
    _copy_weights(model, tensors)


def _check_weights(
    shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Tensor], where: str, vectors: bool
) -> None:
    for problem, names in (
        ("missing", sorted(shapes.keys() - tensors.keys())),
        ("extra", sorted(tensors.keys() - shapes.keys())),
    ):
        if names:
            raise InputError(
                f"{where}: expected exactly the model's {len(shapes)} weights, found "
                f"{len(names)} {problem}: {names[0]}"
            )
    for name, shape in shapes.items():
        tensor = tensors[name]
        if tensor.shape != shape or tensor.dtype not in _WEIGHT_TYPES:
            raise InputError(
                f"{where}: expected {name} as floats of shape {list(shape)}, found "
                f"{str(tensor.dtype).removeprefix('torch.')} of shape {list(tensor.shape)}"
            )
        if not bool(torch.isfinite(tensor.float()).all()):
            raise InputError(f"{where}: expected finite weights, found NaN or infinity in {name}")
    if vectors and bool(tensors["pos_embed.W_pos"].any()):
        raise InputError(
            f"{where}: expected pos_embed.W_pos to be zero (the input carries its position), "
            "found other numbers"
        )


@torch.no_grad()
def _copy_weights(model: torch.nn.Module, tensors: Mapping[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        parameter.copy_(tensors[name])
