"""Scoring a circuit (paper, appendix E, steps 3, 5 and 6, and beyond).

1. Each head replaced alone, all others left as they are.
2. All heads replaced together: the *combined* loss.
3. Every path ablated twice: *ablated too* (frozen), left out with all other replacements in place,
   as in the paper, which shows what it carries; and *cut live* in the intact model, which shows
   what it carries or enables.
   Of several paths of which any one suffices, all are cut, and all but one.
   What the intact model needs is decided by two standard errors.
4. For every path, the later paths that it enables (`circuits.scores.enabling`).
5. A control: random circuits of the same size and mechanisms (`circuits.scores.control`).

A path that the circuit lists as enabling has no frozen score, since the circuit does without it.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.circuit import Circuit, Head, HeadPath
from retrieval_interp.circuits.hooks.points import is_causal
from retrieval_interp.circuits.mechanisms import Mechanism
from retrieval_interp.circuits.runs.hook_runs import has_hooks
from retrieval_interp.circuits.runs.losses import mean_loss, standard_error
from retrieval_interp.circuits.runs.mean_attention import mean_attention
from retrieval_interp.circuits.scores.control import allowed_paths, random_control
from retrieval_interp.circuits.scores.enabling import LEAST_DROP, Cut, Enabled, enabled_by
from retrieval_interp.circuits.scores.number_table import number_table
from retrieval_interp.circuits.scores.scorer import Progress, Scorer, no_progress
from retrieval_interp.circuits.scores.tolerance import (
    Bar,
    kept_share,
    tolerance_of,
    uninformed_loss,
)
from retrieval_interp.tasks import Batch, InputError, Task

_ENABLING = 128  # examples on which enabled paths are found
NOT_SHOWN = "Enabled paths are not shown"


class Measured(NamedTuple):
    """A mean loss over examples, and its standard error."""

    loss: float
    se: float


@dataclass(frozen=True)
class HeadScore:
    """The loss with only this head replaced."""

    head: Head
    mechanism: Mechanism
    loss: float
    se: float


@dataclass(frozen=True)
class LivePathScore:
    """A path cut in the intact model, with later attention recomputed.

    Attributes:
        path: the path.
        attention: its mean attention in the intact model.
        live_loss: the loss when it is cut.
        live_se: its standard error.
        enables: the circuit's later paths that lose attention when it is cut, measured on the
            first 128 examples.
        nearly: if there are none, the later path that loses most.
        needed: whether the intact model needs it, by two standard errors: True if `live_loss` is
            above the limit, False if below, None if that is not clear.
    """

    path: HeadPath
    attention: float
    live_loss: float
    live_se: float
    enables: tuple[Enabled, ...]
    nearly: Enabled | None
    needed: bool | None


@dataclass(frozen=True)
class PathScore(LivePathScore):
    """A path of a circuit, ablated both ways.

    Attributes:
        ablated_loss: the loss with the whole circuit in place except this path.
        se: its standard error.
    """

    ablated_loss: float
    se: float


@dataclass(frozen=True)
class RedundantScore:
    """Paths of which the intact model is said to need any one, cut live.

    Attributes:
        paths: the same role path in several heads.
        live_loss: the loss when all are cut.
        live_se: its standard error.
        left_losses: for each path, the loss when all others are cut.
        shares: for each path, how much it does alone: the share of what cutting all costs that is
            saved by leaving this one.
        enables: the circuit's later paths that lose attention when all are cut.
        needed: whether the model needs one of them, by two standard errors; None if not clear.
        suffice: for each path, whether it is enough alone, in the same way.
    """

    paths: tuple[HeadPath, ...]
    live_loss: float
    live_se: float
    left_losses: tuple[float, ...]
    shares: tuple[float, ...]
    enables: tuple[Enabled, ...]
    needed: bool | None
    suffice: tuple[bool | None, ...]

    def text(self, names: Sequence[str] = ()) -> str:
        """The heads, then the path, as in `L1.H0, L2.H0 s0<-s2`."""
        heads = ", ".join(str(path.head) for path in self.paths)
        return f"{heads} {self.paths[0].path.text(names)}"

    @property
    def one_suffices(self) -> bool:
        """Whether the model needs one of them, and any one will do, each by two standard errors."""
        return bool(self.needed) and all(self.suffice)


@dataclass(frozen=True)
class CircuitScore:
    """The scores of a circuit on one set of examples; printed, its losses and those of its paths.

    Attributes:
        circuit: the circuit scored.
        examples: number of examples.
        tolerance: the loss below which a circuit counts as working (paper: 0.05).
        uninformed_loss: the loss of a model that knows nothing (`circuits.scores.tolerance`).
        uninformed: what such a model is, in words.
        baseline_loss: the intact model's loss.
        baseline_se: its standard error.
        heads: one row per head of the model, including those left as they are.
        combined_loss: the loss with all mechanisms in place.
        combined_se: its standard error.
        excess_se: the standard error of what the circuit costs, combined minus baseline, example by
            example.
        paths: one row per path of the circuit.
        enabling: one row per path that only enables.
        redundant: one row per set of paths of which any one is said to suffice.
        control: the combined losses of random circuits of the same size and mechanisms, ascending;
            of the first 32 examples where these suffice (`circuits.scores.control`).
        notes: what could not be measured, and what the numbers do not show, one sentence each.
        loss_name: readable name of the loss.
        attention: the intact model's mean attention by role on these examples.
    """

    circuit: Circuit
    examples: int
    tolerance: float
    uninformed_loss: float
    uninformed: str
    baseline_loss: float
    baseline_se: float
    heads: tuple[HeadScore, ...]
    combined_loss: float
    combined_se: float
    excess_se: float
    paths: tuple[PathScore, ...]
    enabling: tuple[LivePathScore, ...]
    redundant: tuple[RedundantScore, ...]
    control: tuple[float, ...]
    notes: tuple[str, ...] = ()
    loss_name: str = "loss"
    attention: Float[Tensor, "layer head dest src"] | None = field(
        default=None, compare=False, repr=False
    )

    @property
    def limit(self) -> float:
        """The loss that a sufficient circuit stays below.

        The tolerance, or the loss of a model that knows nothing, if that is lower.
        """
        return min(self.tolerance, self.uninformed_loss)

    @property
    def better(self) -> bool:
        """Whether the circuit does better than the intact model, by two standard errors."""
        return self.combined_loss + 2 * self.excess_se < self.baseline_loss

    @property
    def sufficient(self) -> bool:
        """Whether the circuit replaces some head and its loss stays below the limit."""
        return bool(self.circuit.mechanisms) and self.combined_loss < self.limit

    @property
    def reachable(self) -> bool:
        """Whether the intact model itself is below the limit.

        Otherwise any cut exceeds it, and what the intact model needs cannot be told.
        """
        return self.baseline_loss < self.limit

    @property
    def kept(self) -> float:
        """The share of what the model has learned that the circuit keeps; NaN if that is nothing.

        It is (uninformed - combined) / (uninformed - baseline): 1 if the circuit is as good as the
        intact model.
        """
        return kept_share(self.combined_loss, self.baseline_loss, self.uninformed_loss)

    @property
    def minimal(self) -> bool:
        """Whether it is sufficient, but not without any single one of its paths."""
        return self.sufficient and not self.spared

    @property
    def spared(self) -> tuple[HeadPath, ...]:
        """Paths that can be left out, one at a time, with a loss below the limit."""
        return tuple(row.path for row in self.paths if row.ablated_loss < self.limit)

    def __str__(self) -> str:
        names = self.circuit.role_names
        rows = [
            (row.path.text(names), [row.attention, row.ablated_loss, row.live_loss])
            for row in self.paths
        ]
        rows += [
            (row.path.text(names), [row.attention, math.nan, row.live_loss])
            for row in self.enabling
        ]
        rows += [(row.text(names), [math.nan, math.nan, row.live_loss]) for row in self.redundant]
        kept = f" ({self.kept:.1%} of what was learned)" if math.isfinite(self.kept) else ""
        return "\n".join(
            [
                f"{self.loss_name} {self.baseline_loss:.4f} +- {self.baseline_se:.4f} intact",
                f"{self.loss_name} {self.combined_loss:.4f} +- {self.combined_se:.4f} with "
                f"{len(self.circuit.mechanisms)} of {len(self.heads)} heads replaced{kept}",
                f"{self.loss_name} {self.uninformed_loss:.4f} knowing nothing ({self.uninformed})",
                *number_table("path", ("attention", "ablated too", "cut live"), rows),
                *self.notes,
            ]
        )


def score_circuit(
    model: Any,
    task: Task,
    circuit: Circuit,
    batch: Batch,
    tolerance: float | None = None,
    controls: int = 20,
    progress: Progress = no_progress,
) -> CircuitScore:
    """Score a circuit: each head alone, all together, each path ablated both ways, and a control.

    Let loss(C) be the mean loss, over examples and asked symbols, of the model with circuit C in
    place of its attention (heads that C does not name keep their own). For a circuit C:

        baseline            loss(∅), of the intact model
        head h alone        loss({h: C[h]})
        combined            loss(C)
        path p ablated too  loss(C without p): all attention is fixed; what p carries
        path p cut live     loss(cut p): p's attention is set to 0 in the intact model, its row is
                            not rescaled, all later attention is recomputed; what p carries or
                            enables
        standard error      s / √n, with s the sample standard deviation of the n examples' losses
        kept                (uninformed - combined) / (uninformed - baseline)
        sufficient          combined < tolerance, and < uninformed
        minimal             sufficient, but no C without p would be, for any path p

    Args:
        model: a hooked model that reads the batch.
        task: gives the loss.
        circuit: mechanisms of some or all heads.
        batch: the examples, which should not be those used to choose the circuit.
        tolerance: the loss below which a circuit counts as working; by default the task's, or else
            the loss at which 95% of what the model has learned is kept.
        controls: number of random circuits to compare with.
        progress: wraps an iterable to show a bar, as `(items, text)`.

    Raises:
        InputError: the circuit does not fit the model or the batch, or controls is below 0.

    Examples:
        >>> import retrieval_interp as ri
        >>> small = ri.load_checkpoint("small")
        >>> model, task = small.model, small.task
        >>> circuit = ri.parse_circuit(["L2.H0 one-hot s0<-s2 s4<-s6", "L3.H0 uniform"], task)
        >>> batch = task.sample(64, split="test")
        >>> score = ri.score_circuit(model, task, circuit, batch, controls=0)
        >>> round(score.combined_loss, 3), score.sufficient, score.minimal
        (0.034, True, True)
        >>> for row in score.paths:
        ...     print(row.path, round(row.ablated_loss, 2), round(row.live_loss, 2))
        L2.H0 s0<-s2 1.89 1.82
        L2.H0 s4<-s6 0.4 0.41
    """
    if controls < 0:
        raise InputError(f"controls: expected 0 random circuits or more, found {controls}")
    circuit.check_fits(model.cfg.n_layers, model.cfg.n_heads)
    scorer = Scorer(model, task, batch)
    intact = scorer.base_losses.mean(dim=1)
    uninformed = uninformed_loss(model, task, batch, scorer.each)
    bar = Bar(task, intact, uninformed.loss, tolerance)
    if tolerance is None:
        tolerance = tolerance_of(task, mean_loss(scorer.base_losses), uninformed.loss)
    attention = mean_attention(model, batch)
    along = {path: float(attention[path.head][path.path]) for path in circuit.every_path()}
    heads = [Head(la, h) for la in range(model.cfg.n_layers) for h in range(model.cfg.n_heads)]
    empty = replace(circuit, mechanisms={}, enabling=(), redundant=())
    baseline = _measured(scorer.losses(empty))
    head_rows = []
    for head in progress(heads, "scoring heads"):
        alone = _measured(scorer.losses(empty.replace(head, circuit[head])))
        head_rows.append(HeadScore(head, circuit[head], alone.loss, alone.se))
    carrying = list(circuit.paths())
    ablated = [*carrying, *circuit.enabling]
    live = {path: scorer.losses(empty.cut(path)) for path in progress(ablated, "cutting paths")}
    together = {paths: scorer.losses(empty.cut(*paths)) for paths in circuit.redundant}
    left = {
        paths: [
            scorer.losses(empty.cut(*(other for other in paths if other != path))) for path in paths
        ]
        for paths in progress(circuit.redundant, "cutting redundant paths")
    }
    scorer.rebase(circuit)
    combined = _measured(scorer.base_losses)
    excess_se = standard_error(scorer.base_losses.mean(dim=1) - intact)
    frozen = {
        path: _measured(scorer.losses(circuit.without(path)))
        for path in progress(carrying, "scoring paths")
    }
    control: list[float] = []
    if carrying and controls:
        drawn_from = allowed_paths(batch, is_causal(model))
        control = random_control(scorer, circuit, heads, drawn_from, controls, 0, progress)
    notes = _better_notes(task, circuit, uninformed.loss, baseline.loss, combined.loss, excess_se)
    few = batch if has_hooks(model) else batch[:_ENABLING]  # hooks may be made for this batch
    try:
        cuts: list[Cut] = [*ablated, *circuit.redundant]
        lost = enabled_by(model, few, cuts, ablated, 0.0, progress)
    except InputError as error:
        lost = {}
        notes.append(f"{NOT_SHOWN}: {error}.")
    enables = {
        cut: tuple(row for row in rows if row.attention - row.when_cut >= LEAST_DROP)
        for cut, rows in lost.items()
    }
    rows = {
        path: LivePathScore(
            path,
            along[path],
            *_measured(live[path]),
            enables.get(path, ()),
            None if enables.get(path) else next(iter(lost.get(path, ())), None),
            bar.side(live[path].mean(dim=1)),
        )
        for path in ablated
    }
    return CircuitScore(
        circuit,
        len(batch),
        tolerance,
        uninformed.loss,
        uninformed.what,
        baseline.loss,
        baseline.se,
        tuple(head_rows),
        combined.loss,
        combined.se,
        excess_se,
        tuple(
            PathScore(**vars(rows[path]), ablated_loss=frozen[path].loss, se=frozen[path].se)
            for path in carrying
        ),
        tuple(rows[path] for path in circuit.enabling),
        tuple(
            _redundant(paths, cut, left[paths], baseline.loss, enables.get(paths, ()), bar)
            for paths, cut in together.items()
        ),
        tuple(control),
        tuple(notes),
        task.loss_name,
        attention,
    )


def _redundant(
    paths: tuple[HeadPath, ...],
    cut: Float[Tensor, "batch target"],
    left: Sequence[Float[Tensor, "batch target"]],
    intact: float,
    enables: tuple[Enabled, ...],
    bar: Bar,
) -> RedundantScore:
    """The score of some paths from the losses with all of them cut, and with all but one."""
    live, alone = _measured(cut), [mean_loss(losses) for losses in left]
    cost = live.loss - intact
    return RedundantScore(
        paths,
        *live,
        tuple(alone),
        tuple((live.loss - loss) / cost if cost > 0 else math.nan for loss in alone),
        enables,
        bar.side(cut.mean(dim=1)),
        tuple(None if (side := bar.side(each.mean(dim=1))) is None else not side for each in left),
    )


def _better_notes(
    task: Task,
    circuit: Circuit,
    uninformed: float,
    intact: float,
    combined: float,
    error: float,
) -> list[str]:
    """That a circuit does better than the model, and that its paths give the answer away."""
    names = circuit.role_names
    told = [path for path in circuit.paths() if path.path.src == task.answer_role]
    notes = []
    if combined + 2 * error < intact < uninformed:
        notes.append(
            f"The circuit does better than the intact model, by {intact - combined:.4g} +- "
            f"{error:.2g}; so it is not what the model does."
        )
    if told:
        paths = "its path" if len(told) == 1 else f"{len(told)} paths, such as"
        notes.append(
            f"The circuit is told where the answer stands: {paths} {told[0].text(names)} "
            f"{'attends' if len(told) == 1 else 'attend'} to the answer's own role, which the "
            "model has to find. That the loss is low does not show that the model does the same."
        )
    return notes


def _measured(losses: Float[Tensor, "batch target"]) -> Measured:
    each = losses.mean(dim=1)
    return Measured(mean_loss(losses), standard_error(each))


def control_summary(score: CircuitScore) -> str:
    """The control in one sentence; empty without a control."""
    if not score.control:
        return ""
    better = sum(loss <= score.combined_loss for loss in score.control)
    return (
        f"{better} of {len(score.control)} random circuits of the same size and mechanisms do as "
        f"well: they give {score.control[0]:.2f} at best, {statistics.median(score.control):.2f} "
        "at the median."
    )
