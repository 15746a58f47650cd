"""Every single-head and single-path hypothesis of a model, in one call.

1. Each head alone, replaced by uniform and by identity attention.
2. Each path alone, cut live: its attention is set to zero in the intact model and all later
   attention is recomputed.

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
        live_loss: the loss when it is cut, with later attention recomputed.
    """

    path: HeadPath
    attention: float
    live_loss: float


@dataclass(frozen=True)
class AblationSweep(OldNames):
    """The loss of every head and path hypothesis.

    Attributes:
        baseline_loss: the intact model's loss.
        heads: the loss with one head replaced by a mechanism.
        paths: the loss with one path cut.
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
    """Replace every head alone, and cut every path alone.

        heads[h, m] = loss({h: m})    for m uniform and identity: head h replaced, all others intact
        live_loss   = loss(cut p)     p's attention set to 0 in the intact model, everything after
                                      it recomputed

    Each equals the loss of a whole run with hooks, but only what a hypothesis can change is
    computed.

    Args:
        model: a hooked model that reads the batch.
        task: gives the loss.
        batch: the examples.
        least: skip paths with less mean attention.
        progress: wraps an iterable to show a bar, as `(items, text)`.

    Raises:
        InputError: the model does not fit the task.

    Examples:
        >>> import retrieval_interp as ri
        >>> small = ri.load_checkpoint("small")
        >>> batch = small.task.sample(64, split="test")
        >>> sweep = ri.ablation_sweep(small.model, small.task, batch, least=0.3)
        >>> worst = max(sweep.paths, key=lambda row: row.live_loss)
        >>> print(worst.path, round(sweep.baseline_loss, 3), round(worst.live_loss, 2))
        L2.H0 s0<-s2 0.009 1.82
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
        scorer: of the model and the examples; left on the intact model.
        attention: mean attention by role.
        least: skip paths with less mean attention.
        progress: wraps an iterable to show a bar, as `(items, text)`.

    Returns:
        One score per path that the mask allows, by layer, head, destination and source.
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
