"""How much of what a model has learned a circuit keeps, and how much it has to keep.

With *intact* the model's own loss and *uninformed* the loss of one that knows nothing (the task's
plateau where it names one, else the loss with every head uniform), a circuit keeps

    (uninformed - loss) / (uninformed - intact)

A task without a tolerance of its own asks for 95% of that.
"""

from dataclasses import replace

from circuits.circuit import UNIFORM, Head
from circuits.scores.scorer import Scorer, is_unlearned
from tasks import Task

KEPT = 0.95


def uninformed_loss(scorer: Scorer) -> float:
    """The loss of a model that knows nothing: the plateau, or with every head uniform."""
    if scorer.task.plateau is not None:
        return scorer.task.plateau
    cfg = scorer.model.cfg
    heads = [Head(layer, head) for layer in range(cfg.n_layers) for head in range(cfg.n_heads)]
    return scorer.loss(replace(scorer.empty_circuit, mechanisms=dict.fromkeys(heads, UNIFORM)))


def kept_share(loss: float, intact: float, uninformed: float) -> float:
    """The share of what was learned that is kept; NaN if nothing was learned."""
    learned = uninformed - intact
    return (uninformed - loss) / learned if learned > 0 else float("nan")


def tolerance_of(task: Task, intact: float, uninformed: float) -> float:
    """The loss that a working circuit stays below: the task's, or that which keeps 95%."""
    if task.tolerance is not None:
        return task.tolerance
    return uninformed - KEPT * (uninformed - intact)


def has_learned(task: Task, intact: float, uninformed: float) -> bool:
    """Whether the intact model does better than one that knows nothing."""
    return not is_unlearned(intact, task) and intact < uninformed


def default_tolerance(scorer: Scorer, intact: float) -> float:
    """`tolerance_of` for a scorer's model, task and examples."""
    own = scorer.task.tolerance
    return tolerance_of(scorer.task, intact, uninformed_loss(scorer)) if own is None else own
