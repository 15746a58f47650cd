"""Scoring a circuit (paper, appendix E, steps 3, 5 and 6, and beyond), in three parts.

1. The intact model: its loss, with each head replaced, and with each path cut. For a set of
   interchangeable paths: with all of them cut, and with all but one. What the intact model needs is
   decided by two standard errors. For every path, the later paths that it enables
   (`circuits.scores.enabling`).
2. The circuit: the *combined* loss with all heads replaced, and with each path removed from it.
3. A control: random circuits of the same size and mechanisms (`circuits.scores.control`).
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.hooks.hooked import has_hooks, is_causal
from retrieval_interp.circuits.mechanisms import Mechanism
from retrieval_interp.circuits.paths import Head, HeadPath
from retrieval_interp.circuits.runs.means import mean_attention, standard_error
from retrieval_interp.circuits.scores.control import allowed_paths, random_control
from retrieval_interp.circuits.scores.enabling import LEAST_DROP, Enabled, enabled_by
from retrieval_interp.circuits.scores.scorer import (
    Cut,
    Measured,
    Progress,
    Scorer,
    all_but_one,
    cut_losses,
    heads_of,
    no_progress,
    removed_losses,
)
from retrieval_interp.circuits.scores.tolerance import Bar, Uninformed, kept_share, uninformed_loss
from retrieval_interp.tasks import Batch, InputError, Task

_ENABLING = 128  # examples on which enabled paths are found
_ROWS = 20  # of a printed table
_WIDTH = 12  # characters of a number's column
NOT_SHOWN = "Enabled paths are not shown"


@dataclass(frozen=True)
class HeadScore:
    """The loss with only this head replaced."""

    head: Head
    mechanism: Mechanism
    loss: float
    se: float


@dataclass(frozen=True)
class LivePathScore:
    """A path cut in the intact model, with later attention recomputed."""

    path: HeadPath
    attention: float  # its mean in the intact model
    live_loss: float  # when it is cut
    live_se: float
    enables: tuple[Enabled, ...]  # later paths that lose attention then, on the first 128 examples
    nearly: Enabled | None  # if there are none, the later path that loses most
    needed: bool | None  # live_loss above the limit by two standard errors; None if not clear


@dataclass(frozen=True)
class PathScore(LivePathScore):
    """A path of a circuit, cut in the intact model and removed from the circuit."""

    ablated_loss: float  # with the whole circuit in place except this path
    se: float


@dataclass(frozen=True)
class RedundantScore:
    """Paths of which the intact model is said to need any one, cut live."""

    paths: tuple[HeadPath, ...]  # the same role path in several heads
    live_loss: float  # when all are cut
    live_se: float
    left_losses: tuple[float, ...]  # for each path, when all others are cut
    shares: tuple[float, ...]  # of what cutting all costs, what is saved by leaving this one
    enables: tuple[Enabled, ...]  # the later paths that lose attention when all are cut
    needed: bool | None  # one of them, by two standard errors; None if not clear
    suffice: tuple[bool | None, ...]  # for each path, whether it is enough by itself, likewise

    def text(self, names: Sequence[str] = ()) -> str:
        """The heads, then the path, as in `L1.H0, L2.H0 s0<-s2`."""
        heads = ", ".join(str(path.head) for path in self.paths)
        return f"{heads} {self.paths[0].path.text(names)}"

    @property
    def one_suffices(self) -> bool:
        """Whether the model needs one of them, and any one will do, each by two standard errors."""
        return bool(self.needed) and all(self.suffice)


@dataclass(frozen=True)
class IntactScore:
    """The intact model, and what single changes of it cost."""

    loss: float
    se: float
    uninformed: Uninformed  # the loss of a model that knows nothing, and what such a model is
    heads: tuple[HeadScore, ...]  # every head of the model, replaced or left as it is
    paths: tuple[LivePathScore, ...]  # every path of the circuit
    enabling: tuple[LivePathScore, ...]  # every path that only enables
    redundant: tuple[RedundantScore, ...]
    attention: Float[Tensor, "layer head dest src"] = field(compare=False, repr=False)
    unshown: str = ""  # why it is not shown what paths enable; empty if it is


@dataclass(frozen=True)
class ReplacedScore:
    """The model with the circuit in place."""

    loss: float
    se: float
    excess_se: float  # of combined minus intact, example by example
    paths: tuple[PathScore, ...]


@dataclass(frozen=True)
class CircuitScore:
    """The scores of a circuit on one set of examples; printed, its losses and those of its paths.

    Attributes:
        circuit: the circuit.
        examples: number of examples.
        tolerance: the loss below which a circuit counts as working (paper: 0.05).
        intact: the intact model, and it with single heads replaced or single paths cut.
        replaced: the model with the circuit in place, and with single paths removed from it.
        control: the combined losses of random circuits of the same size and mechanisms, ascending;
            of the first 32 examples where these suffice (`circuits.scores.control`).
        notes: what could not be measured, and what the numbers do not show, one sentence each.
        loss_name: readable name of the loss.
    """

    circuit: Circuit
    examples: int
    tolerance: float
    intact: IntactScore
    replaced: ReplacedScore
    control: tuple[float, ...]
    notes: tuple[str, ...] = ()
    loss_name: str = "loss"

    # The numbers of the three parts by the names that tables and files use.
    baseline_loss = property(attrgetter("intact.loss"))
    baseline_se = property(attrgetter("intact.se"))
    uninformed_loss = property(attrgetter("intact.uninformed.loss"))
    uninformed = property(attrgetter("intact.uninformed.what"))
    heads = property(attrgetter("intact.heads"))
    enabling = property(attrgetter("intact.enabling"))
    redundant = property(attrgetter("intact.redundant"))
    attention = property(attrgetter("intact.attention"))
    combined_loss = property(attrgetter("replaced.loss"))
    combined_se = property(attrgetter("replaced.se"))
    excess_se = property(attrgetter("replaced.excess_se"))
    paths = property(attrgetter("replaced.paths"))

    @property
    def limit(self) -> float:
        """The tolerance, or the loss of a model that knows nothing, if that is lower."""
        return float(min(self.tolerance, self.uninformed_loss))

    @property
    def better(self) -> bool:
        """Whether the circuit does better than the intact model, by two standard errors."""
        return bool(self.combined_loss + 2 * self.excess_se < self.baseline_loss)

    @property
    def sufficient(self) -> bool:
        """Whether the circuit replaces some head and its loss stays below the limit."""
        return bool(self.circuit.mechanisms) and self.combined_loss < self.limit

    @property
    def reachable(self) -> bool:
        """Whether the intact model is below the limit; else it cannot be told what it needs."""
        return bool(self.baseline_loss < self.limit)

    @property
    def kept(self) -> float:
        """The share of what the model has learned that the circuit keeps; NaN if it is nothing."""
        return kept_share(self.combined_loss, self.baseline_loss, self.uninformed_loss)

    @property
    def minimal(self) -> bool:
        """Whether it is sufficient, but not without any single one of its paths."""
        return self.sufficient and not self.spared

    @property
    def spared(self) -> tuple[HeadPath, ...]:
        """Paths that can be removed, one at a time, with a loss below the limit."""
        return tuple(row.path for row in self.paths if row.ablated_loss < self.limit)

    def __str__(self) -> str:
        names, loss = self.circuit.role_names, self.loss_name
        removed = {row.path: row.ablated_loss for row in self.paths}
        rows = [
            (row.path.text(names), [row.attention, removed.get(row.path, math.nan), row.live_loss])
            for row in (*self.paths, *self.enabling)
        ]
        rows += [(row.text(names), [math.nan, math.nan, row.live_loss]) for row in self.redundant]
        kept = f" ({self.kept:.1%} of what was learned)" if math.isfinite(self.kept) else ""
        return "\n".join(
            [
                f"{loss} {self.baseline_loss:.4f} +- {self.baseline_se:.4f} intact",
                f"{loss} {self.combined_loss:.4f} +- {self.combined_se:.4f} with "
                f"{len(self.circuit.mechanisms)} of {len(self.heads)} heads replaced{kept}",
                f"{loss} {self.uninformed_loss:.4f} knowing nothing ({self.uninformed})",
                *number_table("path", ("attention", "removed", "cut live"), rows),
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
    """Score a circuit: each head, all together, each path removed and cut, and a control.

    Let loss(C) be the mean loss, over examples and asked symbols, of the model with circuit C in
    place of its attention (heads that C does not name keep their own). For a circuit C:

        baseline            loss(∅), of the intact model
        only head h         loss({h: C[h]})
        combined            loss(C)
        path p removed      loss(C without p): all attention is fixed; what p carries
        path p cut live     loss(cut p): p's attention is set to 0 in the intact model, its row is
                            not rescaled, all later attention is recomputed; what p carries or
                            enables
        standard error      s / √n, with s the sample standard deviation of the n examples' losses
        kept                (uninformed - combined) / (uninformed - baseline)
        sufficient          combined < tolerance, and < uninformed
        minimal             sufficient, but no C without p would be, for any path p

    A path that the circuit lists as enabling is only cut, since the circuit does without it.

    Args:
        model: a hooked model that reads the batch.
        task: gives the loss.
        circuit: the circuit.
        batch: the examples, which should not be those used to choose the circuit.
        tolerance: the loss below which a circuit counts as working; by default the task's, or else
            the loss at which 95% of what the model has learned is kept.
        controls: number of random circuits to compare with.
        progress: wraps an iterable to show a bar, as `(items, text)`.

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
    uninformed = uninformed_loss(model, task, batch, scorer.each)
    bar = Bar(task, scorer.base_losses.mean(dim=1), uninformed.loss, tolerance)
    intact = _intact(scorer, circuit, uninformed, bar, progress)
    replaced = _replaced(scorer, circuit, intact, progress)
    control = _control(scorer, circuit, controls, progress)
    notes = _notes(task, circuit, intact, replaced)
    return CircuitScore(
        circuit, len(batch), bar.tolerance, intact, replaced, control, notes, task.loss_name
    )


def _intact(
    scorer: Scorer, circuit: Circuit, uninformed: Uninformed, bar: Bar, progress: Progress
) -> IntactScore:
    """The intact model, with each head replaced, and with each path cut."""
    model, batch, empty = scorer.model, scorer.batch, scorer.empty_circuit
    baseline, attention = Measured.of(scorer.base_losses), mean_attention(model, batch)
    heads = []
    for head in progress(heads_of(model), "replacing heads"):
        losses = scorer.losses(empty.replace(head, circuit[head]))
        heads.append(HeadScore(head, circuit[head], *Measured.of(losses)))
    paths = [*circuit.paths(), *circuit.enabling]
    left = itertools.chain(*map(all_but_one, circuit.redundant))
    cuts: list[Cut] = [*paths, *circuit.redundant, *left]
    cut = {each: losses.mean(dim=1) for each, losses in cut_losses(scorer, cuts, progress)}
    few = batch if has_hooks(model) else batch[:_ENABLING]  # hooks may be made for this batch
    unshown, later = "", dict[Cut, tuple[Enabled, ...]]()
    try:
        later = enabled_by(model, few, [*paths, *circuit.redundant], paths, 0.0, progress)
    except InputError as error:
        unshown = f"{NOT_SHOWN}: {error}."
    enables = {
        each: tuple(row for row in rows if row.attention - row.when_cut >= LEAST_DROP)
        for each, rows in later.items()
    }
    rows = [
        LivePathScore(
            path,
            float(attention[path.head][path.path]),
            *Measured.of(cut[path]),
            enables.get(path, ()),
            None if enables.get(path) else next(iter(later.get(path, ())), None),
            bar.side(cut[path]),
        )
        for path in paths
    ]
    redundant = [
        _redundant(same, cut, baseline, enables.get(same, ()), bar) for same in circuit.redundant
    ]
    n = len(paths) - len(circuit.enabling)
    return IntactScore(
        *baseline, uninformed, tuple(heads), tuple(rows[:n]), tuple(rows[n:]), tuple(redundant),
        attention, unshown,
    )  # fmt: skip


def _redundant(
    paths: tuple[HeadPath, ...],
    cut: Mapping[Cut, Float[Tensor, " batch"]],
    intact: Measured,
    enables: tuple[Enabled, ...],
    bar: Bar,
) -> RedundantScore:
    """The score of some paths from the losses with all of them cut, and with all but one."""
    live, left = Measured.of(cut[paths]), [cut[few] for few in all_but_one(paths)]
    cost, losses = live.loss - intact.loss, [float(each.mean()) for each in left]
    shares = [(live.loss - loss) / cost if cost > 0 else math.nan for loss in losses]
    sides = map(bar.side, left)
    suffice = tuple(None if above is None else not above for above in sides)
    needed = bar.side(cut[paths])
    return RedundantScore(paths, *live, tuple(losses), tuple(shares), enables, needed, suffice)


def _replaced(
    scorer: Scorer, circuit: Circuit, intact: IntactScore, progress: Progress
) -> ReplacedScore:
    """The model with the circuit in place, and with each path removed from it."""
    own = scorer.base_losses.mean(dim=1)
    scorer.rebase(circuit)
    combined = scorer.base_losses.mean(dim=1)
    removed = {path: Measured.of(x) for path, x in removed_losses(scorer, circuit, progress)}
    paths = [
        PathScore(**vars(row), ablated_loss=removed[row.path].loss, se=removed[row.path].se)
        for row in intact.paths
    ]
    return ReplacedScore(*Measured.of(combined), standard_error(combined - own), tuple(paths))


def _control(scorer: Scorer, circuit: Circuit, count: int, progress: Progress) -> tuple[float, ...]:
    """The losses of random circuits; none for a circuit without paths."""
    if not count or not any(circuit.paths()):
        return ()
    paths = allowed_paths(scorer.batch, is_causal(scorer.model))
    heads = heads_of(scorer.model)
    return tuple(random_control(scorer, circuit, heads, paths, count, progress=progress))


def _notes(
    task: Task, circuit: Circuit, intact: IntactScore, replaced: ReplacedScore
) -> tuple[str, ...]:
    """That a circuit beats the model, that it is told the answer, and what is missing."""
    told = [path for path in circuit.paths() if path.path.src == task.answer_role]
    notes = []
    if replaced.loss + 2 * replaced.excess_se < intact.loss < intact.uninformed.loss:
        notes.append(
            f"The circuit does better than the intact model, by {intact.loss - replaced.loss:.4g} "
            f"+- {replaced.excess_se:.2g}; so it is not what the model does."
        )
    if told:
        paths = "its path" if len(told) == 1 else f"{len(told)} paths, such as"
        notes.append(
            f"The circuit is told where the answer stands: {paths} "
            f"{told[0].text(circuit.role_names)} attend{'s' if len(told) == 1 else ''} to the "
            "answer's own role, which the model has to find. That the loss is low does not show "
            "that the model does the same."
        )
    return (*notes, *filter(None, [intact.unshown]))


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


def number_table(
    what: str, header: Sequence[str], rows: Sequence[tuple[str, Sequence[float]]]
) -> list[str]:
    """Lines of a table of named numbers, only its first rows; NaN leaves a cell empty."""
    names = [what, *(name for name, _ in rows[:_ROWS])]
    cells = [[f"{x:.4f}".replace("nan", "") for x in numbers] for _, numbers in rows[:_ROWS]]
    width = max(map(len, names))
    lines = [
        name.ljust(width) + "".join(cell.rjust(_WIDTH) for cell in line)
        for name, line in zip(names, [header, *cells])
    ]
    more = [f"and {len(rows) - _ROWS} more"] if len(rows) > _ROWS else []
    return ["", *lines, *more] if rows else []
