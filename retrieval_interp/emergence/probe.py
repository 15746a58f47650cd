"""Measures the paths of a circuit in the model of one training step (paper, section 9.1)."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits import Circuit, Scorer, mean_attention
from retrieval_interp.circuits.attention import check_paths
from retrieval_interp.emergence.series import PathAtStep, Snapshot, paths_of
from retrieval_interp.tasks import InputError, TrainingTask

EXAMPLES = 32  # sequences, as in section 9.1


class Probe:
    """Measures a circuit's paths in one model after another, on the same examples.

    Args:
        task: what the models are trained on.
        circuit: whose one-hot, shared and enabling paths are followed.
        examples: how many sequences of the test split (paper: 32).
        seed: of these sequences.
        device: where the models are.
    """

    def __init__(
        self,
        task: TrainingTask,
        circuit: Circuit,
        examples: int = EXAMPLES,
        seed: int = 0,
        device: str | torch.device = "cpu",
    ):
        check_has_paths(circuit)
        self.task, self.circuit, self.seed = task, circuit, seed
        self.batch = task.sample(examples, seed, device, split="test")
        for path in paths_of(circuit):
            check_paths((path.path,), self.batch.roles, True, f"{path.head}: ")

    @torch.no_grad()
    def measure(self, model: Any, step: int) -> Snapshot:
        """The attention of every path in a model, and what the path is worth.

        Args:
            model: a hooked, causal model, unchanged afterwards.
            step: how many steps it was trained.
        """
        circuit, paths = self.circuit, paths_of(self.circuit)
        circuit.check_fits(model.cfg.n_layers, model.cfg.n_heads)
        scorer = Scorer(model, self.task, self.batch)
        attention = mean_attention(model, self.batch)
        intact, empty = _by_symbol(scorer.base_losses), scorer.empty_circuit
        live = {path: _by_symbol(scorer.losses(empty.cut(path))) for path in paths}
        scorer.rebase(circuit)
        combined = _by_symbol(scorer.base_losses)
        frozen = {
            path: _by_symbol(scorer.losses(circuit.without(path))) for path in circuit.paths()
        }
        found = {
            str(path): PathAtStep(
                float(attention[path.head][path.path]), live[path], frozen.get(path)
            )
            for path in paths
        }
        return Snapshot(step, len(self.batch), self.seed, intact, combined, found)


def check_has_paths(circuit: Circuit) -> None:
    """Refuse a circuit that has no paths to follow."""
    if not paths_of(circuit):
        raise InputError(
            "circuit: expected at least one path to follow through training (of a one-hot or "
            "shared head, or an enabling one), found none"
        )


def _by_symbol(losses: Float[Tensor, "batch target"]) -> tuple[float, ...]:
    return tuple(losses.mean(dim=0).tolist())
