"""Searching for a circuit (paper, appendix E, automated).

1. List candidates. Measure each head's mean attention by role; its candidates are uniform,
   identity, one-hot and shared with the role paths above several thresholds, role-mean, and
   original.
2. Start from whole circuits: every head one-hot or shared above one threshold, or every head
   role-mean. While a start does not hold the loss, raise the head that gains most to role-mean or
   back to its original attention.
3. Simplify. Give heads their cheapest candidate that still holds the loss, cheapest replacements
   first; then leave out paths in the same way; repeat until neither changes anything.
4. Revisit. Put back a path that was left out, simplify again, and keep whatever ends up cheaper (if
   more than 24 paths qualify, try those that lower the loss most). Then try to leave out every two
   paths at once.
5. Repeat from several starts and keep the cheapest circuit, or among equally cheap ones the one
   with the lower loss. If no start holds, begin from the intact model, which leaves some heads as
   they are.
6. Cut every path in the intact model. Paths that the model cannot do without but the circuit can
   are listed as enabling.

`circuits.discovery.cost` defines what is simple. A circuit holds if its loss stays two standard
errors below the tolerance on the examples that decide; which trial to look at first is judged on
some of them.

Unlike the paper, the search judges a head with all other replacements in place, not alone in the
intact model: in a model with soft attention a head can look indispensable alone and yet not be
missed once the other heads are sharp, and the reverse.
"""

import itertools
from dataclasses import replace
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

from circuits.circuit import (
    IDENTITY,
    ORIGINAL,
    UNIFORM,
    Circuit,
    Head,
    HeadPath,
    Mechanism,
    RolePath,
    tidy,
)
from circuits.discovery.candidates import propose, role_mean
from circuits.discovery.cost import circuit_cost, cost
from circuits.runs.mean_attention import mean_attention
from circuits.scores.hypotheses import live_sweep
from circuits.scores.scorer import (
    Progress,
    Scorer,
    is_unlearned,
    mean_loss,
    no_progress,
    standard_error,
)
from tasks import Batch, InputError, Task

_THRESHOLDS: tuple[tuple[Literal["one-hot", "shared"], float], ...] = (
    ("one-hot", 0.5),
    ("one-hot", 0.3),
    ("shared", 0.4),
    ("shared", 0.25),
    ("shared", 0.15),
)
_REVISITED = 0.25  # paths with at least this mean attention may be put back
_MOST_REVISITED = 24  # of them, those that lower the loss most
_SCOUTED = 128  # examples for ordering trials


def discover(
    model: Any,
    task: Task,
    tolerance: float | None = None,
    examples: int = 512,
    seed: int = 0,
    restarts: int = 3,
    shared: bool = True,
    progress: Progress = no_progress,
) -> Circuit:
    """Search for the simplest circuit that keeps the loss below the tolerance.

    With loss(C) the mean loss with circuit C in place and se(C) its standard error, it minimizes

        cost(C) = Σ over heads h of cost(C[h])    (circuits.discovery.cost)

    over the circuits that hold:

        loss(C) + 2 se(C) < tolerance

    The search is greedy, from several starts, so a cheaper circuit may exist.

    Args:
        model: a hooked model that reads the task's batches; left unchanged.
        task: draws the examples, from its `discovery` split, and gives the loss.
        tolerance: the loss that the circuit has to stay below; by default the task's (0.05 in the
            paper).
        examples: number of examples that decide.
        seed: of these examples.
        restarts: number of starting circuits, at least 1.
        shared: whether several sources may share a role's attention; otherwise paths are one-hot
            only, as in the paper.
        progress: wraps an iterable to show a bar, as `(items, text)`.

    Returns:
        A circuit that names every replaced head; empty for a model that has not learned the task.
        It is a proposal: score it on other examples with `score_circuit`.

    Raises:
        InputError: the model does not fit the task, or restarts is below 1.

    Examples:
        Takes about half a minute. `~` marks paths that only enable.

        >>> import retrieval_interp as ri
        >>> small = ri.load_checkpoint("small")
        >>> ri.discover(small.model, small.task, examples=128, restarts=1)
        L0.H0 shared s4<-s3 s4<-s4 s6<-s5
        L1.H0 identity
        L2.H0 one-hot s0<-s2 s4<-s6
        L3.H0 identity
        L4.H0 one-hot s0<-s4
        L0.H0 ~s0<-s0
        L0.H0 ~s2<-s1
        L0.H0 ~s2<-s2
        L0.H0 ~s6<-s6
    """
    if restarts < 1:
        raise InputError(f"restarts: expected at least 1, found {restarts}")
    device = next(model.parameters()).device
    batch = task.sample(examples, seed, device, split="discovery")
    tolerance = task.tolerance if tolerance is None else tolerance
    search = Search(model, task, batch, tolerance, shared)
    if is_unlearned(search.baseline_loss, task):
        return search.empty
    circuit = search.run(restarts, progress)
    return replace(circuit, enabling=search.enabling(circuit, progress))


class Search:
    """The search on one model and one set of examples."""

    def __init__(self, model: Any, task: Task, batch: Batch, tolerance: float, shared: bool = True):
        self.tolerance, self.shared = tolerance, shared
        self.judge = Scorer(model, task, batch)
        self.scout = Scorer(model, task, batch[:_SCOUTED])
        self.baseline_loss = mean_loss(self.judge.base_losses)
        self.empty = self.judge.empty_circuit
        self.attention = mean_attention(model, batch).cpu()
        self.known: dict[Circuit, bool] = {}
        self.seen: dict[Circuit, tuple[float, float]] = {}
        n_layers, n_heads = self.attention.shape[:2]
        self.heads = [Head(layer, head) for layer in range(n_layers) for head in range(n_heads)]
        self.candidates = {head: self._candidates(self.attention[head]) for head in self.heads}

    def run(self, restarts: int, progress: Progress) -> Circuit:
        """The best circuit found from the best starts."""
        starts = sorted(self._starts(), key=lambda circuit: self._order(circuit))
        best, best_rank = self.empty, self._rank(self.empty)
        for start in progress(starts[:restarts], "searching"):
            found = self._revisit(self._simplify(self._enrich(start)), progress)
            rank = self._rank(found)
            if rank < best_rank:
                best, best_rank = found, rank
        if best == self.empty:  # no start held: replace heads one by one
            best = self._simplify(self.empty)
        return best

    def enabling(self, circuit: Circuit, progress: Progress) -> tuple[HeadPath, ...]:
        """Paths that the intact model needs and the circuit does without."""
        present = set(circuit.paths())
        swept = live_sweep(self.scout, self.attention, progress=progress)
        needed = (row.path for row in swept if row.live_loss > self.tolerance)
        return tuple(path for path in needed if path not in present)

    # Judging

    def _holds(self, circuit: Circuit) -> bool:
        """Whether the loss stays below the tolerance; far-off circuits get a quick test only."""
        if circuit not in self.known:
            self.known[circuit] = not self._far_off(circuit) and self._close_look(circuit)
        return self.known[circuit]

    def _far_off(self, circuit: Circuit) -> bool:
        loss, error = self._scouted(circuit)
        return loss - 4 * error > self.tolerance

    def _close_look(self, circuit: Circuit) -> bool:
        losses = self.judge.losses(circuit).mean(dim=1)
        return float(losses.mean()) + 2 * standard_error(losses) < self.tolerance

    def _loss(self, circuit: Circuit) -> float:
        return self._scouted(circuit)[0]

    def _scouted(self, circuit: Circuit) -> tuple[float, float]:
        """The loss on the first examples, and its standard error."""
        if circuit not in self.seen:
            losses = self.scout.losses(circuit)
            self.seen[circuit] = mean_loss(losses), standard_error(losses.mean(dim=1))
        return self.seen[circuit]

    def _go_on_from(self, circuit: Circuit) -> float:
        """Make a circuit the base of the runs to come, which differ little; returns its loss."""
        if self.known.get(circuit):
            self.judge.rebase(circuit)
        return self.scout.rebase(circuit)

    def _cost(self, circuit: Circuit) -> int:
        return circuit_cost(circuit, self.heads)

    def _rank(self, circuit: Circuit) -> tuple[bool, int, float]:
        """Sort key, lower is better: holds, then cost, then loss."""
        return not self._holds(circuit), self._cost(circuit), self.judge.loss(circuit)

    def _order(self, circuit: Circuit) -> tuple[bool, float, int]:
        """Sort key of starts: those that hold, cheapest first, then the others by loss."""
        holds, loss = self._holds(circuit), self._loss(circuit)
        return not holds, (0.0 if holds else loss), self._cost(circuit)

    # Moves

    def _candidates(self, attention: Float[Tensor, "dest src"]) -> list[Mechanism]:
        proposals = [propose(attention, kind, threshold) for kind, threshold in _THRESHOLDS]
        found = [UNIFORM, IDENTITY, *proposals, role_mean(attention), ORIGINAL]
        distinct = [m for m in dict.fromkeys(found) if self.shared or m.kind != "shared"]
        return sorted(distinct, key=lambda mechanism: cost(mechanism, len(attention)))

    def _starts(self) -> list[Circuit]:
        empty = self.empty
        mechanisms = [
            *(
                {h: propose(self.attention[h], kind, threshold) for h in self.heads}
                for kind, threshold in _THRESHOLDS
                if self.shared or kind == "one-hot"
            ),
            {head: role_mean(self.attention[head]) for head in self.heads},
        ]
        circuits = [Circuit(m, empty.n_roles, empty.rest, empty.task) for m in mechanisms]
        return [c for place, c in enumerate(circuits) if c not in circuits[:place]]

    def _enrich(self, circuit: Circuit) -> Circuit:
        """Make heads richer, the one that gains most first, until the circuit holds."""
        loss = self._go_on_from(circuit)
        while not self._holds(circuit):
            trials = [
                (self._loss(circuit.replace(head, richer)), head, richer)
                for head in self.heads
                for richer in (role_mean(self.attention[head]), ORIGINAL)
                if cost(richer, circuit.n_roles) > cost(circuit[head], circuit.n_roles)
            ]
            if not trials:
                return circuit
            best_loss, head, richer = min(trials, key=lambda trial: trial[0])
            if best_loss >= loss:
                return circuit
            circuit = circuit.replace(head, richer)
            loss = self._go_on_from(circuit)
        return circuit

    def _simplify(self, circuit: Circuit) -> Circuit:
        """Make heads cheaper and leave out paths until nothing can go."""
        if not self._holds(circuit):
            return circuit
        while True:
            before = circuit
            circuit = self._cheaper_heads(circuit)
            circuit = self._fewer_paths(circuit)
            if circuit == before:
                return circuit

    def _cheaper_heads(self, circuit: Circuit) -> Circuit:
        self._go_on_from(circuit)
        trials = []
        for head in self.heads:
            own = cost(circuit[head], circuit.n_roles)
            for candidate in self.candidates[head]:
                if cost(candidate, circuit.n_roles) < own:
                    loss = self._loss(circuit.replace(head, candidate))
                    saved = own - cost(candidate, circuit.n_roles)
                    trials.append((loss, -saved, head, candidate))
        changed = set()
        # Lowest losses first, so idle heads are settled before useful ones are touched.
        for _, _, head, candidate in sorted(trials, key=lambda trial: trial[:3]):
            if head in changed:
                continue
            simpler = circuit.replace(head, candidate)
            if self._holds(simpler):
                circuit = self._cheapest(circuit, head)
                changed.add(head)
                self._go_on_from(circuit)
        return circuit

    def _cheapest(self, circuit: Circuit, head: Head) -> Circuit:
        """Give the head its cheapest candidate that holds, the lower loss breaking ties."""
        trials = (circuit.replace(head, candidate) for candidate in self.candidates[head])
        for _, group in itertools.groupby(trials, key=self._cost):
            holding = [trial for trial in group if self._holds(trial)]
            if holding:
                return min(holding, key=self._loss)
        return circuit

    def _fewer_paths(self, circuit: Circuit) -> Circuit:
        self._go_on_from(circuit)
        trials = [(self._loss(circuit.without(path)), path) for path in circuit.paths()]
        for _, path in sorted(trials):
            simpler = self._without(circuit, path)
            if self._holds(simpler):
                circuit = simpler
                self._go_on_from(circuit)
        return circuit

    @staticmethod
    def _without(circuit: Circuit, path: HeadPath) -> Circuit:
        smaller = circuit.without(path)
        return smaller.replace(path.head, tidy(smaller[path.head]))

    def _with(self, circuit: Circuit, path: HeadPath) -> Circuit:
        old = circuit[path.head]
        kept = old.paths if old.kind in ("one-hot", "shared") else ()
        if not self.shared:
            kept = tuple(other for other in kept if other.dest != path.path.dest)
        return circuit.replace(path.head, tidy(Mechanism("shared", (*kept, path.path))))

    def _worth_revisiting(self, circuit: Circuit) -> list[HeadPath]:
        """Paths with some attention that the circuit lacks; if many, those that help most."""
        present = set(circuit.paths())
        paths = (
            HeadPath(head, RolePath(dest, src))
            for head in self.heads
            for dest, src in (self.attention[head] >= _REVISITED).nonzero().tolist()
        )
        absent = [path for path in paths if path not in present]
        if len(absent) > _MOST_REVISITED:
            self._go_on_from(circuit)
            absent.sort(key=lambda path: self._loss(self._with(circuit, path)))
            absent = sorted(absent[:_MOST_REVISITED])
        return absent

    def _revisit(self, circuit: Circuit, progress: Progress) -> Circuit:
        """Undo some decisions, which depend on each other, simplify again and keep the cheaper."""
        if not self._holds(circuit):
            return circuit
        for path in progress(self._worth_revisiting(circuit), "revisiting"):
            if path in set(circuit.paths()) or circuit[path.head].kind in ("role-mean", "original"):
                continue
            self._go_on_from(circuit)
            richer = self._with(circuit, path)
            if self._loss(richer) >= self._loss(circuit):
                continue
            found = self._simplify(richer)
            if self._rank(found) < self._rank(circuit):
                circuit = found
        self._go_on_from(circuit)
        for first, second in itertools.combinations(list(circuit.paths()), 2):
            smaller = self._without(self._without(circuit, first), second)
            if self._holds(smaller):
                return self._simplify(smaller)
        return circuit
