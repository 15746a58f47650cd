"""Measures a circuit's paths: in one model (`Probe`), or along a training run (`Watch`).

`train --watch circuit.json` measures at every log step, and where the run begins, so that
checkpoints need not be kept. It appends to the run folder's watch.jsonl: first a line with the
circuit, then one per step. A copy of the model is measured, so that training is the same to the
last bit.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from retrieval_interp.circuits import Circuit, Scorer, mean_attention
from retrieval_interp.circuits.attention import check_paths
from retrieval_interp.circuits.scores.scorer import cut_losses, removed_losses
from retrieval_interp.config.recipe import Recipe
from retrieval_interp.emergence.series import PathAtStep, Snapshot, paths_of, read_snapshot
from retrieval_interp.storage.files import append_json_lines, read_json_lines
from retrieval_interp.storage.run_folder import watch_path
from retrieval_interp.tasks import InputError, TrainingTask
from retrieval_interp.tasks.structured import from_data

EXAMPLES = 32  # sequences, as in section 9.1


class Probe:
    """Measures a circuit's paths in one model after another, on the same examples (section 9.1)."""

    def __init__(
        self,
        task: TrainingTask,
        circuit: Circuit,
        examples: int = EXAMPLES,
        seed: int = 0,
        device: str | torch.device = "cpu",
    ):
        self.task, self.circuit, self.seed = task, circuit, seed
        self.paths = paths_of(circuit)
        self.batch = task.sample(examples, seed, device, split="test")
        for path in self.paths:
            check_paths((path.path,), self.batch.roles, True, f"{path.head}: ")

    @torch.no_grad()
    def measure(self, model: Any, step: int) -> Snapshot:
        """The attention of every path in a hooked, causal model, and what the path is worth."""
        self.circuit.check_fits(model.cfg.n_layers, model.cfg.n_heads)
        scorer, attention = Scorer(model, self.task, self.batch), mean_attention(model, self.batch)
        intact = _by_symbol(scorer.base_losses)
        live = {path: _by_symbol(losses) for path, losses in cut_losses(scorer, self.paths)}
        scorer.rebase(self.circuit)
        combined = _by_symbol(scorer.base_losses)
        removed = removed_losses(scorer, self.circuit)
        frozen = {path: _by_symbol(losses) for path, losses in removed}
        measured = {
            str(path): PathAtStep(float(attention[path.head][path.path]), losses, frozen.get(path))
            for path, losses in live.items()
        }
        return Snapshot(step, len(self.batch), self.seed, intact, combined, measured)


def _by_symbol(losses: torch.Tensor) -> tuple[float, ...]:
    return tuple(losses.mean(dim=0).tolist())


class Watch:
    """Measures a circuit's paths along one training run.

    Args:
        circuit: whose paths to follow.
        examples: how many sequences of the test split (paper: 32).
        seed: of these sequences.

    Attributes:
        snapshots: what was measured so far, by rising step.
    """

    def __init__(self, circuit: Circuit, examples: int = EXAMPLES, seed: int = 0):
        paths_of(circuit)  # refuses one without paths
        self.circuit, self.examples, self.seed = circuit, examples, seed
        self.snapshots: list[Snapshot] = []
        self._path: Path | None = None

    def check(self, folder: Path, recipe: Recipe) -> None:
        """Refuse a run folder that was watched with another circuit, before it is changed."""
        found = read_watch(folder, recipe)
        if found is not None and not same_circuit(found[0], self.circuit):
            raise InputError(
                f"{watch_path(folder)}: expected the paths of the circuit that is watched, found "
                "those of another one; watch the same circuit, or move this file away"
            )

    def start(self, folder: Path | None, recipe: Recipe, step: int, model: torch.nn.Module) -> None:
        """Begin where a run begins or resumes, after `step` steps.

        Lines after `step` are already dropped from the folder; without one nothing is written.
        """
        from retrieval_interp.model import build_model

        device = next(model.parameters()).device
        self._probe = Probe(recipe.task, self.circuit, self.examples, self.seed, device)
        self._copy = build_model(recipe.model, recipe.task, recipe.seed, device).eval()
        self.snapshots = []
        if folder is not None:
            self._path = watch_path(folder)
            if found := read_watch(folder, recipe):
                self.snapshots = found[1]
            else:
                append_json_lines(self._path, [{"circuit": self.circuit.to_dict()}])
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
            append_json_lines(self._path, [snapshot.to_dict()])


@dataclass(frozen=True)
class _Heading:
    """The first line of watch.jsonl."""

    circuit: dict[str, Any]


def read_watch(run: Path, recipe: Recipe) -> tuple[Circuit, list[Snapshot]] | None:
    """The circuit and the snapshots of a run folder's watch.jsonl, by rising step; None without."""
    path = watch_path(run)
    lines = list(read_json_lines(path))
    if not lines:
        return None
    heading: _Heading = from_data(_Heading, lines[0], f"{path}: line 1")
    circuit = Circuit.from_dict(heading.circuit, len(recipe.task.role_names))
    snapshots = {
        row["step"]: read_snapshot(row, circuit, f"{path}: line {number}")
        for number, row in enumerate(lines[1:], start=2)
    }
    return circuit, [snapshots[step] for step in sorted(snapshots)]


def same_circuit(first: Circuit, second: Circuit) -> bool:
    """Whether two circuits name the same mechanisms and the same enabling paths."""
    return (first.mechanisms, first.enabling) == (second.mechanisms, second.enabling)
