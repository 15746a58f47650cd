"""How much of what a model has learned a circuit keeps, and how much it has to keep.

With *intact* the model's own loss and *uninformed* the loss of one that knows nothing (the task's
plateau where it names one, else the loss with every head uniform), a circuit keeps

    (uninformed - loss) / (uninformed - intact)

A task without a tolerance of its own asks for 95% of that.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from circuits.circuit import UNIFORM, Circuit, Head
from circuits.scores.scorer import Scorer, is_unlearned
from tasks import Task

KEPT = 0.95


def uninformed_loss(model: Any, task: Task, loss: Callable[[Circuit], float]) -> float:
    """The loss of a model that knows nothing: the plateau, or with every head uniform."""
    if task.plateau is not None:
        return task.plateau
    heads = itertools.product(range(model.cfg.n_layers), range(model.cfg.n_heads))
    uniform = {Head(*head): UNIFORM for head in heads}
    return loss(replace(Circuit.empty(task), mechanisms=uniform))


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
    model, task = scorer.model, scorer.task
    if task.tolerance is not None:
        return task.tolerance
    return tolerance_of(task, intact, uninformed_loss(model, task, scorer.loss))
