"""Score a circuit by exact losses (paper, appendix E, steps 3, 5 and 6, and beyond).

1. The intact model: its loss, with each head replaced, and with each path *cut live* (its attention
   set to zero, all later attention recomputed). Two standard errors decide what it needs.
2. The circuit: its *combined* loss with all heads replaced, also with each path removed from it,
   and with each replaced head *zero-ablated* (all attention at zero).
3. A control: random circuits of the same size and mechanisms.
"""

import itertools
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.hooks import HookedModel, has_hooks
from retrieval_interp.circuits.losses import (
    Measured,
    Progress,
    Removal,
    Scorer,
    SomeRemoval,
    all_but_one,
    cut_losses,
    no_progress,
    removed_losses,
    standard_error,
    with_cut,
)
from retrieval_interp.circuits.means import mean_attention
from retrieval_interp.circuits.mechanisms import Mechanism
from retrieval_interp.circuits.paths import Head, HeadPath, RolePath
from retrieval_interp.circuits.replacement import with_counterfactual
from retrieval_interp.circuits.scores.enabling import Enabled, enabled_by
from retrieval_interp.circuits.tolerance import (
    Limit,
    has_learned,
    is_better,
    kept_share,
    measure_uninformed,
)
from retrieval_interp.tasks import Batch, Task
from retrieval_interp.tasks.messages import check_type, shown

QUICK = 32  # examples that tell most random circuits from the given one
_REDRAWS = 20  # in a tiny model a random circuit may equal the given one, which is no control
_ENABLING = 128  # examples on which enabled paths are found


@dataclass(frozen=True)
class HeadScore:
    """A head: the loss with it alone replaced, and that of the circuit with it zero-ablated."""

    head: Head
    mechanism: Mechanism
    loss: float
    se: float
    zero_ablated: Measured | None  # zero-ablated in the circuit; None if it keeps its own attention
    needed: bool | None  # above the limit then by two standard errors; None if not clear
    enables: tuple[Enabled, ...]  # if its pattern is fixed and needed: the paths it serves


@dataclass(frozen=True)
class LivePathScore:
    """A path cut in the intact model, with later attention recomputed."""

    path: HeadPath
    attention: float  # its mean in the intact model
    live_loss: float
    live_se: float
    enables: tuple[Enabled, ...]  # later paths that lose attention or values, on 128 examples
    needed: bool | None  # live_loss above the limit by two standard errors; None if not clear


@dataclass(frozen=True)
class PathScore(LivePathScore):
    """A path of a circuit, cut in the intact model and removed from the circuit."""

    removed_loss: float  # with the whole circuit in place except this path
    se: float


@dataclass(frozen=True)
class RedundantScore:
    """A set of paths of which the intact model needs one, cut live together and singly."""

    paths: tuple[HeadPath, ...]  # the same role path in several heads
    live_loss: float  # when all are cut
    live_se: float
    left_losses: tuple[float, ...]  # when all paths but this one are cut, for each path
    enables: tuple[Enabled, ...]  # later paths that lose attention or values when all are cut
    needed: bool | None  # whether the model needs one, by two standard errors; None if not clear
    suffice: tuple[bool | None, ...]  # for each path, whether it suffices alone, likewise

    def text(self) -> str:
        """Return the heads, then the path, as in `L1.H0, L2.H0 s0<-s2`."""
        heads = ", ".join(str(path.head) for path in self.paths)
        return f"{heads} {self.paths[0].path}"

    @property
    def one_suffices(self) -> bool:
        """Whether the model needs one of them, and any one will do, each by two standard errors."""
        return bool(self.needed) and all(self.suffice)


@dataclass(frozen=True, repr=False)
class CircuitScore:
    """The scores of a circuit on one set of examples."""

    circuit: Circuit
    examples: int
    tolerance: float  # the loss below which a circuit counts as working (paper: 0.05)
    loss_name: str
    intact_loss: float  # of the intact model
    intact_se: float
    uninformed_loss: float  # of a model that knows nothing
    uninformed_model: str  # what such a model is
    heads: tuple[HeadScore, ...]  # every head of the model, replaced or left as it is
    enabling: tuple[LivePathScore, ...]  # every path that only enables
    redundant: tuple[RedundantScore, ...]
    combined_loss: float  # with the circuit in place
    combined_se: float
    excess_se: float  # of combined minus intact, example by example
    paths: tuple[PathScore, ...]  # every path of the circuit
    rest_zero_ablated_loss: float  # with all heads of fixed patterns that are not needed
    control: tuple[float, ...]  # combined losses of random circuits, ascending (`random_control`)
    notes: tuple[str, ...] = ()  # one sentence each
    learned: bool = True  # whether the intact model does better than one that knows nothing

    def __repr__(self) -> str:
        return shown(self)

    @property
    def limit(self) -> float:
        """The tolerance, or the loss of a model that knows nothing, if that is lower."""
        return min(self.tolerance, self.uninformed_loss)

    @property
    def better(self) -> bool:
        """Whether the circuit does better than the intact model, as `is_better` decides."""
        return is_better(self.combined_loss, self.excess_se, self.intact_loss, self.uninformed_loss)

    @property
    def sufficient(self) -> bool:
        """Whether the circuit replaces some head and its loss stays below the limit.

        No circuit is sufficient in a model that has not learned the task.
        """
        replaces = self.learned and bool(self.circuit.mechanisms)
        return replaces and self.combined_loss < self.limit

    @property
    def needed_as_such(self) -> list[HeadScore]:
        """Heads with a fixed pattern, such as identity, that a sufficient circuit needs."""
        fixed = [row for row in self.heads if row.mechanism.is_one_unit]
        return [row for row in fixed if self.sufficient and row.needed]

    @property
    def enables(self) -> dict[HeadPath | Head, tuple[Enabled, ...]]:
        """The later paths that each path serves, and each head that is needed as such."""
        enables: dict[HeadPath | Head, tuple[Enabled, ...]] = {}
        enables.update((row.path, row.enables) for row in (*self.paths, *self.enabling))
        enables.update((row.head, row.enables) for row in self.needed_as_such)
        return enables

    @property
    def reachable(self) -> bool:
        """Whether the intact model is below the limit; if not, nothing shows what it needs."""
        return self.learned and self.intact_loss < self.limit

    @property
    def kept(self) -> float:
        """The share of what the model learned that the circuit keeps; NaN if it learned nothing."""
        if not self.learned:
            return math.nan
        return kept_share(self.combined_loss, self.intact_loss, self.uninformed_loss)

    @property
    def minimal(self) -> bool:
        """Whether it is sufficient, but not without any single one of its paths."""
        return self.sufficient and not self.spared

    @property
    def spared(self) -> tuple[HeadPath, ...]:
        """Paths that can be removed, one at a time, with a loss below the limit."""
        return tuple(row.path for row in self.paths if row.removed_loss < self.limit)


def score_circuit(
    model: HookedModel,
    task: Task,
    circuit: Circuit,
    batch: Batch,
    tolerance: float | None = None,
    controls: int = 20,
    progress: Progress = no_progress,
) -> CircuitScore:
    """Score a circuit: each head, all together, each path removed and cut, and a control.

    Let loss(C) be the mean loss, over examples and asked symbols, of the model with circuit C in
    place of its attention (heads that C does not name keep their own):

        intact              loss(∅), of the intact model
        only head h         loss({h: C[h]})
        combined            loss(C)
        path p removed      loss(C without p): what p carries
        h zero-ablated      loss(C with no attention in h): whether what h writes is needed
        path p cut live     loss(cut p) of the intact model: what p carries or enables
        kept                (uninformed - combined) / (uninformed - intact)
        sufficient          combined < tolerance, and < uninformed
        minimal             sufficient, but no C without p would be, for any path p

    Args:
        model: a hooked model that reads the batch.
        task: gives the loss.
        circuit: what to score.
        batch: the examples, other ones than those used to choose the circuit.
        tolerance: the loss below which a circuit counts as working; by default the task's, or else
            the loss at which 95% of what the model has learned is kept.
        controls: number of random circuits to compare with.
        progress: wraps an iterable to show a progress bar, as `(items, text)`.
    """
    Circuit.check(circuit)
    check_type(batch, Batch, "batch")
    if circuit.is_patched and batch.counterfactual_activations is None:
        batch = with_counterfactual(model, batch, task.counterfactual(batch, seed=0))
    scorer = Scorer(model, task, batch)
    intact = scorer.base_losses.mean(dim=1)
    uninformed = measure_uninformed(model, task, batch, scorer.losses_by_example)
    limit = Limit(task, intact, uninformed.loss, tolerance)
    alone = {
        head: Measured.of(scorer.losses(scorer.empty_circuit.replace(head, circuit[head])))
        for head in progress(scorer.heads, "replacing heads")
    }
    cut, redundant = _cut_live(scorer, circuit, limit, progress)
    combined = scorer.losses(circuit, as_base=True).mean(dim=1)
    paths = []
    for path, losses in removed_losses(scorer, circuit, progress):
        loss, se = Measured.of(losses)
        paths.append(PathScore(**vars(cut[path]), removed_loss=loss, se=se))
    zero_ablated = {
        head: scorer.losses_by_example(with_cut(circuit, head))
        for head in progress(list(circuit.mechanisms), "zero-ablating heads")
        if not circuit[head].keeps_own
    }
    needed = {head: limit.clearly_above(losses) for head, losses in zero_ablated.items()}
    fixed = [head for head in zero_ablated if circuit[head].is_one_unit]
    enables = _enables(scorer, circuit, [head for head in fixed if needed[head]], progress)
    rest_zero_ablated = circuit
    for head in fixed:
        rest_zero_ablated = rest_zero_ablated if needed[head] else with_cut(rest_zero_ablated, head)
    score = CircuitScore(
        circuit=circuit,
        examples=len(batch),
        tolerance=limit.tolerance,
        loss_name=task.loss_name,
        intact_loss=Measured.of(intact).mean,
        intact_se=Measured.of(intact).se,
        uninformed_loss=uninformed.loss,
        uninformed_model=uninformed.description,
        heads=tuple(
            HeadScore(
                head=head,
                mechanism=circuit[head],
                loss=alone[head].mean,
                se=alone[head].se,
                zero_ablated=Measured.of(zero_ablated[head]) if head in zero_ablated else None,
                needed=needed.get(head),
                enables=enables.get(head, ()),
            )
            for head in scorer.heads
        ),
        enabling=tuple(cut[path] for path in circuit.enabling),
        redundant=redundant,
        combined_loss=Measured.of(combined).mean,
        combined_se=Measured.of(combined).se,
        excess_se=standard_error(combined - intact),
        paths=tuple(paths),
        rest_zero_ablated_loss=scorer.loss(rest_zero_ablated),
        control=tuple(random_control(scorer, circuit, controls, progress=progress)),
        learned=has_learned(intact, uninformed),
    )
    return replace(score, notes=tuple(_notes(score, task.answer_role)))


def _enables(
    scorer: Scorer, circuit: Circuit, cuts: Sequence[SomeRemoval], progress: Progress
) -> dict[SomeRemoval, tuple[Enabled, ...]]:
    """Find the paths that each cut takes something from, on the first 128 examples."""
    model, batch = scorer.model, scorer.batch
    few = batch if has_hooks(model) else batch[:_ENABLING]  # hooks may be made for this batch
    paths = [*circuit.paths(), *circuit.enabling]
    return enabled_by(model, few, cuts, paths, progress=progress) if cuts else {}


def _cut_live(
    scorer: Scorer, circuit: Circuit, limit: Limit, progress: Progress
) -> tuple[dict[HeadPath, LivePathScore], tuple[RedundantScore, ...]]:
    """Cut every path, and every set of which one suffices, in the intact model."""
    sets, attention = circuit.redundant, mean_attention(scorer.model, scorer.batch)
    paths = [*circuit.paths(), *circuit.enabling]
    cuts: list[Removal] = [*paths, *sets]
    enables = _enables(scorer, circuit, cuts, progress)
    cuts += itertools.chain(*map(all_but_one, sets))
    cut = {removal: losses.mean(dim=1) for removal, losses in cut_losses(scorer, cuts, progress)}
    rows = {}
    for path in paths:
        rows[path] = LivePathScore(
            path=path,
            attention=float(attention[path.head][path.path]),
            live_loss=Measured.of(cut[path]).mean,
            live_se=Measured.of(cut[path]).se,
            enables=enables[path],
            needed=limit.clearly_above(cut[path]),
        )
    redundant = []
    for same in sets:
        spared = [cut[fewer] for fewer in all_but_one(same)]
        fails = map(limit.clearly_above, spared)
        score = RedundantScore(
            paths=same,
            live_loss=Measured.of(cut[same]).mean,
            live_se=Measured.of(cut[same]).se,
            left_losses=tuple(float(losses.mean()) for losses in spared),
            enables=enables[same],
            needed=limit.clearly_above(cut[same]),
            suffice=tuple(None if above is None else not above for above in fails),
        )
        redundant.append(score)
    return rows, tuple(redundant)


def _notes(score: CircuitScore, answer_role: int | None) -> Iterator[str]:
    to_answer = [path for path in score.circuit.paths() if path.path.src == answer_role]
    if score.better and score.learned:
        by = f"{score.intact_loss - score.combined_loss:.4g} +- {score.excess_se:.2g}"
        better = f"The circuit does better than the intact model, by {by}"
        yield f"{better}; so it is not what the model does."
    if to_answer:
        first, count = to_answer[0], len(to_answer)
        several = f"{count} paths, such as {first} attend"
        subject = several if count > 1 else f"its path {first} attends"
        yield (
            f"The circuit is told where the answer stands: {subject} to "
            "the answer's own role, which the model has to find. That the loss is low does not "
            "show that the model does the same; `ri.why` puts in place what cannot know it."
        )


# The control


def random_circuit(
    circuit: Circuit, heads: Sequence[Head], paths: Sequence[list[RolePath]], draw: random.Random
) -> Circuit:
    """Draw a circuit of the same mechanisms, numbers of paths and shared roles, at random places.

    Mechanisms that are measured, or keep a head's own attention, stay. All others are shuffled
    among the heads of layers that allow the same paths; `paths` are these, by layer.
    """
    free = {h for h, m in circuit.mechanisms.items() if not (m.keeps_own or m.is_measured)}
    mechanisms = {head: m for head, m in circuit.mechanisms.items() if head not in free}
    alike: dict[tuple[RolePath, ...], list[Head]] = defaultdict(list)
    for head in heads:
        alike[tuple(paths[head.layer])] += [head] if head in free else []
    for allowed, group in alike.items():
        for place, head in zip(draw.sample(group, len(group)), sorted(group)):
            mechanisms[place] = _redrawn(circuit[head], allowed, draw)
    return replace(circuit, mechanisms=mechanisms, enabling=(), redundant=())


def _redrawn(mechanism: Mechanism, paths: Sequence[RolePath], draw: random.Random) -> Mechanism:
    # The circuit's paths are added, since they need not have a source in these examples.
    sources: dict[int, list[RolePath]] = defaultdict(list)
    for path in dict.fromkeys([*paths, *mechanism.paths]):
        sources[path.dest].append(path)
    free, chosen = sorted(sources), list[RolePath]()
    counts = Counter(path.dest for path in mechanism.paths).values()
    for count in sorted(counts, reverse=True):
        dest = draw.choice([dest for dest in free if len(sources[dest]) >= count])
        free.remove(dest)
        chosen += draw.sample(sources[dest], count)
    return mechanism.with_paths(chosen) if chosen else mechanism


def random_control(
    scorer: Scorer, circuit: Circuit, count: int, seed: int = 0, progress: Progress = no_progress
) -> list[float]:
    """Return the losses of random circuits of the same size and mechanisms, in ascending order.

    The loss of a random circuit is from the first 32 examples alone if it is above the given
    circuit's by four standard errors there. A circuit without paths has no control.
    """
    if not count or not any(circuit.paths()):
        return []
    draw, losses = random.Random(seed), []
    paths = [layer.paths for layer in scorer.positions]
    quick = Scorer(scorer.model, scorer.task, scorer.batch[:QUICK])
    goal = scorer.loss(circuit)
    for _ in progress(range(count), "random circuits"):
        for _ in range(1 + _REDRAWS):
            drawn = random_circuit(circuit, scorer.heads, paths, draw)
            if drawn.mechanisms != circuit.mechanisms:
                break
        loss, error = Measured.of(quick.losses(drawn))
        losses.append(scorer.loss(drawn) if loss - 4 * error <= goal else loss)
    return sorted(losses)
