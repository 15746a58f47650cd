"""Every single-head and single-path hypothesis of a model, in one call.

1. Each head alone replaced by uniform and by identity attention.
2. Each path alone cut: its attention is set to zero in the intact model, all later attention is
   computed anew.

Exact, and computed only where a hypothesis can change the answer (`circuits.runs.hook_runs`).
"""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from circuits.circuit import IDENTITY, UNIFORM, Head, HeadPath, Mechanism
from circuits.hooks.points import is_causal
from circuits.runs.mean_attention import mean_attention
from circuits.scores.control import allowed_paths
from circuits.scores.old_names import OldNames
from circuits.scores.scorer import Progress, Scorer, mean_loss, no_progress
from tasks import Batch, Task


@dataclass(frozen=True)
class LiveScore(OldNames):
    """A path cut in the intact model.

    Attributes:
        path: the path.
        attention: its mean attention in the intact model.
        live_loss: the loss when it is cut, later attention recomputed.
    """

    path: HeadPath
    attention: float
    live_loss: float


@dataclass(frozen=True)
class AblationSweep(OldNames):
    """What every head and every path is worth alone.

    Attributes:
        baseline_loss: of the intact model.
        heads: loss with a head replaced by a mechanism.
        paths: loss with a path cut.
    """

    baseline_loss: float
    heads: dict[tuple[Head, Mechanism], float]
    paths: list[LiveScore]


def ablation_sweep(
    model: Any,
    task: Task,
    batch: Batch,
    least: float = 0.0,
    progress: Progress = no_progress,
) -> AblationSweep:
    """Score every head alone and cut every path alone.

    Args:
        model: a hooked model that reads the batch.
        task: gives the loss.
        batch: the examples.
        least: paths with less mean attention are left out.
        progress: wraps an iterable to show a bar, as `(items, text)`.

    Raises:
        InputError: the model does not fit the task.
    """
    scorer = Scorer(model, task, batch)
    attention = mean_attention(model, batch)
    n_layers, n_heads = attention.shape[:2]
    choices = [
        (Head(layer, head), mechanism)
        for layer in range(n_layers)
        for head in range(n_heads)
        for mechanism in (UNIFORM, IDENTITY)
    ]
    heads = {
        (head, mechanism): scorer.loss(scorer.empty_circuit.replace(head, mechanism))
        for head, mechanism in progress(choices, "replacing heads")
    }
    baseline = mean_loss(scorer.base_losses)
    return AblationSweep(baseline, heads, live_sweep(scorer, attention, least, progress))


def live_sweep(
    scorer: Scorer,
    attention: Float[Tensor, "layer head dest src"],
    least: float = 0.05,
    progress: Progress = no_progress,
) -> list[LiveScore]:
    """Cut every path with some attention, one at a time, in the intact model.

    Args:
        scorer: of the model and the examples; it is left on the intact model.
        attention: mean attention by role.
        least: paths with less mean attention are left out.
        progress: wraps an iterable to show a bar, as `(items, text)`.

    Returns:
        A score a path that the mask allows, by layer, head, destination and source.
    """
    scorer.rebase(scorer.empty_circuit)
    allowed = allowed_paths(scorer.batch, is_causal(scorer.model))
    paths = [
        HeadPath(Head(layer, head), path)
        for layer in range(attention.shape[0])
        for head in range(attention.shape[1])
        for path in allowed
        if attention[layer, head][path] >= least
    ]
    return [
        LiveScore(
            path,
            float(attention[path.head][path.path]),
            scorer.loss(scorer.empty_circuit.cut(path)),
        )
        for path in progress(paths, "cutting paths")
    ]
