"""Every head and path of a model, ablated one at a time, without a circuit."""

from dataclasses import dataclass

from retrieval_interp.circuits.hooks import HookedModel
from retrieval_interp.circuits.losses import Progress, Scorer, cut_losses, mean_loss, no_progress
from retrieval_interp.circuits.means import mean_attention
from retrieval_interp.circuits.mechanisms import IDENTITY, UNIFORM, Mechanism
from retrieval_interp.circuits.paths import Head, HeadPath, named
from retrieval_interp.tasks import Batch, Task


@dataclass(frozen=True)
class CutPath:
    """A path, its mean attention in the intact model, and the loss when it is cut there."""

    path: HeadPath
    attention: float
    live_loss: float


@dataclass(frozen=True, repr=False)
class Ablations:
    """The loss of every head and path hypothesis."""

    intact_loss: float  # of the intact model
    heads: dict[tuple[Head, Mechanism], float]  # with one head replaced by a mechanism
    paths: list[CutPath]  # with one path cut

    def __repr__(self) -> str:
        return f"Ablations: {len(self.heads)} of heads, {len(self.paths)} of paths, see .by_rise"

    @property
    def head_rises(self) -> dict[Head, float]:
        """By how much the loss rises with each head uniform or identity, the smaller rise."""
        rises: dict[Head, float] = {}
        for (head, _), loss in self.heads.items():
            rise = loss - self.intact_loss
            rises[head] = min(rise, rises.get(head, rise))
        return rises

    @property
    def by_rise(self) -> list[CutPath]:
        """The paths, those whose cut raises the loss most first."""
        return sorted(self.paths, key=lambda row: -row.live_loss)


def ablations(
    model: HookedModel,
    task: Task,
    batch: Batch,
    least_attention: float = 0.0,
    progress: Progress = no_progress,
) -> Ablations:
    """Replace every head, and cut every path, one at a time.

        heads[h, m] = loss({h: m})    for m uniform and identity, all other heads intact
        live_loss   = loss(cut p)     of the intact model

    Only what a hypothesis can change is computed (`circuits.losses`).

    Args:
        model: a hooked model that reads the batch.
        task: gives the loss.
        batch: the examples.
        least_attention: skip paths with less mean attention.
        progress: wraps an iterable to show a progress bar, as `(items, text)`.
    """
    scorer, attention = Scorer(model, task, batch), mean_attention(model, batch)
    empty = scorer.empty_circuit
    replaced = [(head, mechanism) for head in scorer.heads for mechanism in (UNIFORM, IDENTITY)]
    choices = progress(replaced, "replacing heads")
    heads = {choice: scorer.loss(empty.replace(*choice)) for choice in choices}
    paths_of = [layer.paths for layer in scorer.positions]
    allowed = [HeadPath(head, path) for head in scorer.heads for path in paths_of[head.layer]]
    cuts = named(
        [p for p in allowed if attention[p.head][p.path] >= least_attention], empty.role_names
    )
    paths = [
        CutPath(path, float(attention[path.head][path.path]), mean_loss(losses))
        for path, losses in cut_losses(scorer, cuts, progress)
    ]
    return Ablations(mean_loss(scorer.base_losses), heads, paths)
