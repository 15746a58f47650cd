"""Estimated effects of circuits on the loss: first order, and the curvature of a squared error."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from retrieval_interp.circuits.attribution.gradients import PatternGradients, pattern_gradients
from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.runs.fits import check_batch_fits, check_model_fits
from retrieval_interp.circuits.runs.hook_runs import has_hooks
from retrieval_interp.circuits.runs.losses import standard_error
from retrieval_interp.tasks import Batch, InputError, Task

_PART = 128  # examples per pass; their patterns and gradients are held for all layers


@dataclass(frozen=True)
class Estimate:
    """The estimated change of the loss when a circuit takes the place of another.

    Attributes:
        first: the first-order part.
        first_se: its standard error over examples.
        curvature: the second-order part; 0 where the loss has no diagonal second derivative.
        curvature_se: its standard error over examples, the random draws included.
    """

    first: float
    first_se: float
    curvature: float
    curvature_se: float

    @property
    def effect(self) -> float:
        """Both parts together."""
        return self.first + self.curvature


class Attribution:
    """Estimates from the gradients on one set of examples."""

    def __init__(self, parts: Sequence[PatternGradients]):
        self.parts = parts

    @property
    def has_curvature(self) -> bool:
        return bool(self.parts[0].of_outputs)

    def effects(self, circuits: Sequence[Circuit]) -> list[float]:
        """The estimated effects of many circuits, without standard errors.

        Raises:
            InputError: a circuit does not fit the batch.
        """
        if not circuits:
            return []
        total = torch.zeros(len(circuits))
        for part in self.parts:
            pairs = [part.projections(circuit) for circuit in circuits]
            first = torch.stack([pair[0] for pair in pairs]).sum(dim=1)
            second = torch.stack([pair[1] for pair in pairs])
            curvature = second.square().mean(dim=1).sum(dim=1) / 2 if second.shape[1] else 0.0
            total += (first + curvature).cpu()
        effects: list[float] = (total / sum(len(part.losses) for part in self.parts)).tolist()
        return effects

    def estimate(self, circuit: Circuit) -> Estimate:
        """The estimated change of the loss when `circuit` replaces the one in place.

        Raises:
            InputError: the circuit does not fit the batch.
        """
        pairs = [part.projections(circuit) for part in self.parts]
        first = torch.cat([pair[0] for pair in pairs])
        second = torch.cat([pair[1] for pair in pairs], dim=1)
        squares = 0.5 * second.square().mean(0) if len(second) else torch.zeros_like(first)
        return Estimate(
            float(first.mean()), standard_error(first), float(squares.mean()),
            standard_error(squares),
        )  # fmt: skip


def attribute(
    model: Any,
    task: Task,
    batch: Batch,
    circuit: Circuit | None = None,
    draws: int = 1,
    seed: int = 0,
) -> Attribution:
    """Estimate what any change of attention does to the loss, from one forward pass.

    Let P be the patterns of all heads with a circuit in place, y(P) the outputs, l(y) an example's
    loss, and dP the change that another circuit makes (a cut, a replaced head, a path left out or
    added; of several heads at once, too). With J the Jacobian of y by P and H the second derivative
    of l by y,

        l(y(P + dP)) - l(y(P))  ≈  ⟨∂l/∂P, dP⟩ + ½ (J dP)ᵀ H (J dP)              (Gauss-Newton)

    H is diagonal for a squared error, so w = ±√H with random signs has E[w wᵀ] = H, and the second
    term is ½ E⟨Jᵀw, dP⟩²: one more backward pass per draw of w gives it for all dP at once, without
    bias. For other losses (cross entropy) the first term stands alone.

    Estimates rank hypotheses well and measure them badly: where later attention is sharp, a large
    change does much more than a small one suggests.

    Args:
        model: a hooked model; left unchanged.
        task: gives the loss.
        batch: the examples, taken 128 at a time.
        circuit: the circuit in place; by default none, the intact model.
        draws: number of draws of w per example; 0 leaves out the second term.
        seed: of the draws.

    Returns:
        An object whose `estimate(circuit)` gives the estimated change of the loss when `circuit`
        takes the place of the one in place.

    Raises:
        InputError: the model does not fit the task, the loss has no gradient (accuracy), or a
            gradient is not finite.

    Examples:
        >>> import retrieval_interp as ri
        >>> small = ri.load_checkpoint("small")
        >>> batch = small.task.sample(64, split="test")
        >>> attribution = ri.attribute(small.model, small.task, batch)
        >>> empty = ri.parse_circuit([], small.task)
        >>> for path in ("L2.H0 s0<-s2", "L2.H0 s0<-s4"):
        ...     cut = empty.cut(ri.parse_head_path(path, n_roles=7))
        ...     print(path, round(attribution.estimate(cut).effect, 4))
        L2.H0 s0<-s2 0.0209
        L2.H0 s0<-s4 0.0
    """
    check_model_fits(model, batch, task)
    check_batch_fits(batch, task)
    circuit = Circuit.empty(task) if circuit is None else circuit
    if circuit.n_roles != len(task.role_names):
        raise InputError(
            f"circuit: expected one for the task's {len(task.role_names)} roles, found one for "
            f"{circuit.n_roles}"
        )
    parts = [batch] if has_hooks(model) else batch.parts(_PART)  # hooks may be made for this batch
    return Attribution(
        [
            pattern_gradients(model, task, part, circuit, draws, seed + place)
            for place, part in enumerate(parts)
        ]
    )


def rank_correlation(ones: Sequence[float], others: Sequence[float]) -> float:
    """Spearman's rank correlation of two lists of numbers; equal numbers share their mean rank.

    NaN for fewer than two numbers, or if all are equal.
    """
    if len(ones) < 2:
        return float("nan")
    ranks = []
    for numbers in (ones, others):
        _, place, counts = torch.tensor(numbers, dtype=torch.float64).unique(
            return_inverse=True, return_counts=True
        )
        rank = (counts.cumsum(0) - (counts - 1) / 2)[place]
        ranks.append(rank - rank.mean())
    norms = [float(rank.norm()) for rank in ranks]
    return float(ranks[0] @ ranks[1]) / (norms[0] * norms[1]) if all(norms) else float("nan")
