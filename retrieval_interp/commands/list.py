"""Lists what there is to choose from: `retrieval-interp list [checkpoints|presets|grids|tasks]`.

It does not load torch, which takes seconds: only the headers of checkpoints and the docstrings of
tasks are read, and presets, which need torch, are repeated here by name (a test compares).
"""

import ast
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from retrieval_interp import tasks
from retrieval_interp.commands.command import parse_options
from retrieval_interp.storage.find_checkpoint import shipped_checkpoints
from retrieval_interp.sweep.scales import GRIDS, SCALES
from retrieval_interp.views.tables import terminal_width, text_table

PRESETS = {
    "small": "the default: D = 3, 5 layers",
    "transformer-a": "transformer A of section 8: D = 3, 12 layers",
    "transformer-b": "transformer B, another seed",
    "transformer-c": "transformer C, another seed",
    "transformer-d": "transformer D of section 9: D = 4, 24 layers, no MLPs",
    **{f"section7-ic-{n}": f"section 7 with curriculum: D = 5, layers: {n}" for n in range(1, 9)},
    **{f"section7-nonic-{n}": f"section 7 without: D = 3, layers: {n}" for n in range(1, 9)},
    "conditional": "conditional retrieval, the example of section 3.1: 6 layers",
    "equations": "a language model of equations in words: D = 2, 6 layers",
    "repeated": "induction heads on repeated random tokens: 2 layers, no MLPs",
    "k-hop": "1 to 3 hops of induction: 4 layers, no MLPs",
    "k-hop-7": "1 to 7 hops in the 4 layers that they need at least, no MLPs",
}

_BASES = {"Task", "TrainingTask", "TokenTask", "VectorTask"}


@dataclass(frozen=True)
class ListOptions:
    """List shipped checkpoints, presets, grids and tasks.

    Attributes:
        kind: what to list; default all.
    """

    kind: tyro.conf.Positional[Literal["all", "checkpoints", "presets", "grids", "tasks"]] = "all"


def main(argv: Sequence[str], prog: str = "retrieval-interp list") -> None:
    kind = parse_options(ListOptions, argv, prog).kind
    scales = {name: scale.about for name, scale in SCALES.items()}
    tables: dict[str, tuple[list[str], Iterable[Sequence[str]]]] = {
        "checkpoints": (["checkpoint", "task", "layers x heads", "loss"], _checkpoints()),
        "presets": (["preset", "what train --preset trains"], PRESETS.items()),
        "grids": (["grid or scale", "what sweep --grid and --scale run"], (GRIDS | scales).items()),
        "tasks": (["task", "what is asked"], _tasks()),
    }
    texts = [
        "\n".join(text_table(header, list(rows), width=terminal_width()))
        for name, (header, rows) in tables.items()
        if kind in ("all", name)
    ]
    print("\n\n".join(texts))


def _tasks() -> Iterator[list[str]]:
    """The exported tasks, and how their docstrings begin."""
    names = {name for name in dir(tasks) if name.endswith("Task")} - _BASES
    for path in sorted(Path(tasks.__file__).parent.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.name in names:
                first, *_ = (ast.get_docstring(node) or "").splitlines()
                yield [node.name, first.removesuffix(".")]


def _checkpoints() -> Iterator[list[str]]:
    from safetensors import safe_open

    for name, path in shipped_checkpoints().items():
        with safe_open(path, framework="numpy") as file:
            record = json.loads(file.metadata()["retrieval_interp"])
        model, task = record["model"], record["task"]
        yield [
            name,
            f"{task['name']}, {_size(task)}",
            f"{model['layers']} x {model['heads']}",
            f"{record['training']['validation_loss']:.4f}",
        ]


def _size(task: dict[str, Any]) -> str:
    """The parameter of a task that says most."""
    for name, letter in (("steps", "D"), ("hops", "K"), ("length", "length"), ("pairs", "pairs")):
        if name in task:
            return f"{letter} = {task[name]}"
    return str(task["graph"])
