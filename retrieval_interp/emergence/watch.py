"""Following a circuit's paths during training, so that checkpoints need not be kept.

`train --watch circuit.json` measures at every log step, and where the run begins, and appends to
the run folder's watch.jsonl: first a line with the circuit, then one per step. A measurement costs
as much as a few training steps; there are 40 or 50 between two log lines.

Weights are copied into a second model, which is measured, so that training is the same to the last
bit with and without.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from retrieval_interp.circuits import Circuit
from retrieval_interp.config.recipe import Recipe
from retrieval_interp.emergence.probe import (
    EXAMPLES,
    Probe,
    Snapshot,
    check_has_paths,
    named,
    snapshot_from_dict,
)
from retrieval_interp.storage.files import append_json_lines, read_json_lines, write_whole
from retrieval_interp.storage.run_folder import watch_path
from retrieval_interp.tasks import InputError
from retrieval_interp.tasks.structured import from_data


@dataclass(frozen=True)
class _Heading:
    """The first line of watch.jsonl."""

    circuit: dict[str, Any]


class Watch:
    """Measures a circuit's paths along one training run.

    Args:
        circuit: whose paths to follow.
        examples: how many sequences of the test split (paper: 32).
        seed: of these sequences.

    Attributes:
        snapshots: what was measured so far, by rising step.

    Raises:
        InputError: the circuit has no paths.
    """

    def __init__(self, circuit: Circuit, examples: int = EXAMPLES, seed: int = 0):
        check_has_paths(circuit)
        self.circuit, self.examples, self.seed = circuit, examples, seed
        self.snapshots: list[Snapshot] = []
        self._path: Path | None = None

    def check(self, folder: Path, recipe: Recipe) -> None:
        """Refuse a run folder that was watched with another circuit, before it is changed.

        Raises:
            InputError: it was, or its watch.jsonl is damaged.
        """
        path = watch_path(folder)
        found = read_watch(path, len(recipe.task.role_names))
        if found is not None and not same_circuit(found[0], self.circuit):
            raise InputError(
                f"{path}: expected the paths of the circuit that is watched, found those of "
                "another one; watch the same circuit, or move this file away"
            )

    def start(self, folder: Path | None, recipe: Recipe, step: int, model: torch.nn.Module) -> None:
        """Begin where a run begins or resumes.

        Args:
            folder: the run folder, whose lines after `step` are already dropped; without one
                nothing is written.
            recipe: how the model is trained.
            step: steps done so far.
            model: the trained model, on its device.

        Raises:
            InputError: the circuit does not fit the model, or watch.jsonl cannot be written.
        """
        from retrieval_interp.training.model import build_model

        device = next(model.parameters()).device
        self._probe = Probe(recipe.task, self.circuit, self.examples, self.seed, device)
        self._copy = build_model(recipe.model, recipe.task, recipe.seed, device).eval()
        self.snapshots = []
        if folder is not None:
            self._path = watch_path(folder)
            if found := read_watch(self._path, len(recipe.task.role_names)):
                self.snapshots = found[1]
            else:
                write_whole(self._path, json.dumps(self._heading()) + "\n")
        if not any(snapshot.step == step for snapshot in self.snapshots):
            self.measure(step, model)

    @torch.no_grad()
    def measure(self, step: int, model: torch.nn.Module) -> None:
        """Measure the model after a step and append a line to watch.jsonl."""
        weights = dict(model.named_parameters())
        for name, parameter in self._copy.named_parameters():
            parameter.copy_(weights[name])
        snapshot = replace(self._probe.measure(self._copy, step), source="watch")
        self.snapshots.append(snapshot)
        if self._path is not None:
            rows = [snapshot.to_dict()]
            if not self._path.exists():  # deleted during the run
                rows = [self._heading(), *(row.to_dict() for row in self.snapshots)]
            append_json_lines(self._path, rows)

    def _heading(self) -> dict[str, Any]:
        return {"circuit": self.circuit.to_dict()}


def read_watch(path: Path, n_roles: int) -> tuple[Circuit, list[Snapshot]] | None:
    """Read a run folder's watch.jsonl; `n_roles` is the number of roles of the run's task.

    Returns:
        The circuit and the snapshots by rising step; None if there is no such file.

    Raises:
        InputError: a line is damaged; its number is named.
    """
    lines = list(read_json_lines(path))
    if not lines:
        return None
    first: _Heading = from_data(_Heading, lines[0], f"{path}: line 1")
    with named(f"{path}: line 1"):
        circuit = Circuit.from_dict(first.circuit, n_roles)
    snapshots = [
        snapshot_from_dict(row, circuit, f"{path}: line {number}")
        for number, row in enumerate(lines[1:], start=2)
    ]
    by_step = {snapshot.step: snapshot for snapshot in snapshots}
    return circuit, [by_step[step] for step in sorted(by_step)]


def same_circuit(first: Circuit, second: Circuit) -> bool:
    """Whether two circuits name the same mechanisms and the same enabling paths."""
    return first.mechanisms == second.mechanisms and first.enabling == second.enabling
