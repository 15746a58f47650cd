"""Mean squared errors of a model under a circuit (paper, appendix E, steps 3, 5 and 6).

1. Each head alone replaced by its mechanism, all others left as they are.
2. All heads replaced together.
3. All heads replaced and one path left out, for every path.

Every hypothesis is run only where it differs from a run that is kept (`circuits.runs`); the numbers
equal those of whole runs with hooks.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from circuits.ablation import is_causal
from circuits.circuit import Circuit, Head, HeadPath
from circuits.mechanisms import Mechanism, check_paths
from circuits.runs import make_runs
from tasks import Batch, InputError, RetrievalTask

Progress = Callable[[Iterable[Any], str], Iterable[Any]]


def no_progress(items: Iterable[Any], what: str) -> Iterable[Any]:
    """Show nothing."""
    return items


class Scorer:
    """Losses of one model on one batch under many circuits."""

    def __init__(self, model: Any, task: RetrievalTask, batch: Batch):
        check_model_fits(model, task)
        self.model, self.task, self.batch = model, task, batch
        self.runs = make_runs(model, batch, task.chains)
        self.base_losses = self._losses(self.runs.outputs(self.runs.base))

    @property
    def empty_circuit(self) -> Circuit:
        """The circuit that leaves every head as it is."""
        return Circuit({}, len(self.task.role_names), task=self.task.to_dict())

    def rebase(self, circuit: Circuit) -> float:
        """Run a circuit, keep what later runs can reuse, and return its MSE."""
        self.base_losses = self._losses(self.runs.rebase(circuit))
        return float(self.base_losses.mean())

    def losses(self, circuit: Circuit) -> Float[Tensor, "batch target"]:
        """The loss of every example and asked symbol with a circuit in place.

        Raises:
            InputError: the circuit does not fit the model or the batch.
        """
        for mechanism in circuit.mechanisms.values():
            check_paths(mechanism.paths, self.batch.roles, is_causal(self.model))
        return self._losses(self.runs.outputs(circuit))

    def mse(self, circuit: Circuit) -> float:
        """The mean of `losses`."""
        return float(self.losses(circuit).mean())

    def _losses(self, outputs: Tensor) -> Float[Tensor, "batch target"]:
        return self.task.example_losses(outputs, self.batch)


def standard_error(losses: Float[Tensor, " batch"]) -> float:
    """The standard error of a mean over examples; NaN for a single one."""
    return float(losses.std()) / len(losses) ** 0.5 if len(losses) > 1 else float("nan")


def check_model_fits(model: Any, task: RetrievalTask) -> None:
    """Refuse a model that cannot read or answer a task.

    Raises:
        InputError: the model's input or output has another size than the task's.
    """
    if (model.cfg.d_vocab, model.cfg.d_vocab_out) != (task.d_in, task.d_out):
        raise InputError(
            f"expected a model with {task.d_in} inputs and {task.d_out} outputs, as the task has, "
            f"found {model.cfg.d_vocab} and {model.cfg.d_vocab_out}"
        )


@dataclass(frozen=True)
class HeadScore:
    """MSE with only this head replaced."""

    head: Head
    mechanism: Mechanism
    mse: float


@dataclass(frozen=True)
class PathScore:
    """MSE with the whole circuit in place and this path left out."""

    path: HeadPath
    ablated_mse: float


@dataclass(frozen=True)
class CircuitScore:
    """What a circuit is worth, on one set of examples.

    Attributes:
        circuit: the circuit scored.
        examples: how many examples.
        tolerance: the MSE below which a circuit counts as working (paper: 0.05).
        baseline_mse: the intact model's.
        heads: a row a head of the model, those left as they are included.
        combined_mse: with all mechanisms in place.
        paths: a row a path.
    """

    circuit: Circuit
    examples: int
    tolerance: float
    baseline_mse: float
    heads: tuple[HeadScore, ...]
    combined_mse: float
    paths: tuple[PathScore, ...]

    @property
    def sufficient(self) -> bool:
        """The whole circuit stays below the tolerance."""
        return self.combined_mse < self.tolerance

    @property
    def minimal(self) -> bool:
        """No path can be left out without passing the tolerance."""
        return all(score.ablated_mse > self.tolerance for score in self.paths)


def score_circuit(
    model: Any,
    task: RetrievalTask,
    circuit: Circuit,
    batch: Batch,
    tolerance: float = 0.05,
    progress: Progress = no_progress,
) -> CircuitScore:
    """Score every head alone, all together, and all less each path.

    Args:
        model: a hooked model that reads the batch.
        task: gives the loss.
        circuit: mechanisms of some or all heads.
        batch: the examples; they should not be those on which the circuit was chosen.
        tolerance: the MSE below which a circuit counts as working.
        progress: wraps an iterable to show a bar, as `(items, text)`.

    Raises:
        InputError: the circuit does not fit the model or the batch.
    """
    scorer = Scorer(model, task, batch)
    baseline = float(scorer.base_losses.mean())
    all_heads = [
        Head(layer, head)
        for layer in range(model.cfg.n_layers)
        for head in range(model.cfg.n_heads)
    ]
    circuit.check_fits(model.cfg.n_layers, model.cfg.n_heads)
    empty = Circuit({}, circuit.n_roles, circuit.rest, circuit.task)
    heads = tuple(
        HeadScore(head, circuit[head], scorer.mse(empty.replace(head, circuit[head])))
        for head in progress(all_heads, "scoring heads")
    )
    combined = scorer.rebase(circuit)
    paths = tuple(
        PathScore(path, scorer.mse(circuit.without(path)))
        for path in progress(list(circuit.paths()), "scoring paths")
    )
    return CircuitScore(circuit, len(batch), tolerance, baseline, heads, combined, paths)
