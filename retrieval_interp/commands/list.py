"""List what there is to choose from: `retrieval-interp list [checkpoints|presets|grids|tasks]`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from safetensors import safe_open

from retrieval_interp.commands.options import parse_options
from retrieval_interp.storage.files import shipped_checkpoints
from retrieval_interp.views.tables import terminal_width, text_table

_SIZES = ("steps", "hops", "length", "graph")  # of the tasks here, what says most


@dataclass(frozen=True)
class ListOptions:
    """List shipped checkpoints, presets, grids and tasks.

    Attributes:
        kind: what to list; default all.
    """

    kind: Annotated[Literal["all", "checkpoints", "presets", "grids", "tasks"], "kind"] = "all"


def main(argv: Sequence[str], prog: str = "retrieval-interp list") -> None:
    kind = parse_options(ListOptions, argv, prog).kind
    texts = [
        "\n".join(text_table(header, rows, width=terminal_width()))
        for name, (header, *rows) in _tables().items()
        if kind in ("all", name)
    ]
    print("\n\n".join(texts))


def _tables() -> dict[str, list[list[str]]]:
    from retrieval_interp import tasks
    from retrieval_interp.presets import PRESETS
    from retrieval_interp.sweep.grid import GRIDS, SCALES

    tables = {
        "checkpoints": [["checkpoint", "task", "layers x heads", "loss"]],
        "presets": [["preset", "task", "layers x heads", "steps x examples"]],
        "grids": [["grid or scale", "what sweep --grid and --scale run"]],
        "tasks": [["task", "what is asked"]],
    }
    for name, path in shipped_checkpoints().items():
        with safe_open(path, framework="numpy") as file:
            record = json.loads(file.metadata()["retrieval_interp"])
        loss = f"{record['training']['validation_loss']:.4f}"
        tables["checkpoints"].append([name, *_named(record["task"], record["model"]), loss])
    for name, recipe in PRESETS.items():
        known = _named(recipe.task.to_dict(), vars(recipe.model))
        tables["presets"].append([name, *known, f"{recipe.steps} x {recipe.batch}"])
    abouts = GRIDS | {name: scale.about for name, scale in SCALES.items()}
    tables["grids"] += map(list, abouts.items())
    bases = ("Task", "TrainingTask", "TokenTask")
    for name in dir(tasks):
        if name.endswith("Task") and name not in bases:
            tables["tasks"].append([name, getattr(tasks, name).__doc__.splitlines()[0]])
    return tables


def _named(task: dict[str, Any], model: dict[str, Any]) -> tuple[str, str]:
    """Name a task with its parameter that says most, and the sizes of a model."""
    names = [name for name in (*_SIZES, *task) if name in task and name != "name"]
    size = f", {names[0]} {task[names[0]]}" if names else ""
    return f"{task['name']}{size}", f"{model['layers']} x {model['heads']}"
