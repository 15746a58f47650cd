"""Lists what there is to choose from: `retrieval-interp list [checkpoints|presets|grids|tasks]`."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tyro

from retrieval_interp.commands.command import parse_options
from retrieval_interp.storage.files import shipped_checkpoints
from retrieval_interp.views.tables import terminal_width, text_table


@dataclass(frozen=True)
class ListOptions:
    """List shipped checkpoints, presets, grids and tasks.

    Attributes:
        kind: what to list; default all.
    """

    kind: tyro.conf.Positional[Literal["all", "checkpoints", "presets", "grids", "tasks"]] = "all"


def main(argv: Sequence[str], prog: str = "retrieval-interp list") -> None:
    kind = parse_options(ListOptions, argv, prog).kind
    texts = [
        "\n".join(text_table(header, list(rows()), width=terminal_width()))
        for name, (header, rows) in TABLES.items()
        if kind in ("all", name)
    ]
    print("\n\n".join(texts))


def _checkpoints() -> Iterator[list[str]]:
    from safetensors import safe_open

    for name, path in shipped_checkpoints().items():
        with safe_open(path, framework="numpy") as file:
            record = json.loads(file.metadata()["retrieval_interp"])
        sizes = f"{record['model']['layers']} x {record['model']['heads']}"
        yield [name, _named(record["task"]), sizes, f"{record['training']['validation_loss']:.4f}"]


def _presets() -> Iterator[list[str]]:
    from retrieval_interp.config import PRESETS

    for name, recipe in PRESETS.items():
        sizes = f"{recipe.model.layers} x {recipe.model.heads}"
        yield [name, _named(recipe.task.to_dict()), sizes, f"{recipe.steps} x {recipe.batch}"]


def _named(task: dict[str, Any]) -> str:
    """A task with its parameter that says most."""
    size = next(name for name in ("steps", "hops", "length", "graph", "pairs") if name in task)
    return f"{task['name']}, {size} {task[size]}"


def _grids() -> Iterator[list[str]]:
    from retrieval_interp.sweep.scales import GRIDS, SCALES

    yield from ([name, about] for name, about in GRIDS.items())
    yield from ([name, scale.about] for name, scale in SCALES.items())


def _tasks() -> Iterator[list[str]]:
    from retrieval_interp import tasks

    bases = ("Task", "TrainingTask", "TokenTask", "VectorTask")
    for name in dir(tasks):
        if name.endswith("Task") and name not in bases:
            yield [name, getattr(tasks, name).__doc__.splitlines()[0]]


TABLES = {
    "checkpoints": (["checkpoint", "task", "layers x heads", "loss"], _checkpoints),
    "presets": (["preset", "task", "layers x heads", "steps x examples"], _presets),
    "grids": (["grid or scale", "what sweep --grid and --scale run"], _grids),
    "tasks": (["task", "what is asked"], _tasks),
}
