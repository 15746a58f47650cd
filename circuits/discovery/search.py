"""Finding a circuit without being told one (paper, appendix E, made automatic).

1. Measure each head's mean attention by role, and list each head's candidate mechanisms: uniform,
   identity, one-hot and shared on the role paths above several thresholds, role-mean, original.
2. Start from whole circuits: every head one-hot, or shared, above one threshold; or every head
   role-mean. While a start does not hold the loss, raise the head that gains most to role-mean or
   back to its original attention.
3. Simplify: give heads their cheapest candidate that still holds the loss, cheapest replacements
   first; then leave out paths in the same way; repeat until neither changes anything.
4. Revisit: put a path back that was left out, and simplify again; keep what ends up cheaper. Of
   more than 24 such paths those that lower the loss most. Then try to leave out every two at once.
5. Do this from several starts and keep the cheapest circuit, the lower loss where costs are equal.
   Where none holds, start from the intact model, which leaves some heads as they are.
6. Cut every path in the intact model; those that it cannot do without but the circuit can are
   listed as enabling.

What is simple is explicit (`cost`): uniform and identity attention cost nothing, the first source
of a role 1, every further source that shares with it 2, a head that attends nowhere 1, a role-mean
head 3 a role, an original head 10 a role. To hold the loss is to stay two standard errors below the
tolerance on the examples that decide; which trial to look at first is judged on some of them.

Where this departs from the paper: heads are judged with all other replacements in place, not one
head at a time in the intact model, since a soft model makes single heads look indispensable that
nobody misses once the others are sharp, and the reverse.
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
_SCOUTED = 128  # examples on which trials are ordered


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
    """Find which attention paths do the work.

    Args:
        model: a hooked model that reads the task's batches; left unchanged.
        task: draws the examples, from its `discovery` split, and gives the loss.
        tolerance: the loss that the combined circuit stays below; by default the task's (0.05 in
            the paper).
        examples: how many examples decide.
        seed: which ones.
        restarts: from how many starting circuits to search, at least 1.
        shared: whether several sources may share a role's attention; without, paths are one-hot
            alone, as in the paper.
        progress: wraps an iterable to show a bar, as `(items, text)`.

    Returns:
        A circuit with a mechanism for every head that has one; an empty one for a model that has
        not learned the task, which has no circuit to find. It is a proposal: score it on other
        examples with `score_circuit`.

    Raises:
        InputError: the model does not fit the task, or restarts below 1.
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
    """The search for one model, on one set of examples."""

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
        """The best circuit from the best starts."""
        starts = sorted(self._starts(), key=lambda circuit: self._order(circuit))
        best, best_rank = self.empty, self._rank(self.empty)
        for start in progress(starts[:restarts], "searching"):
            found = self._revisit(self._simplify(self._enrich(start)), progress)
            rank = self._rank(found)
            if rank < best_rank:
                best, best_rank = found, rank
        if best == self.empty:  # no start held: replace what can be, head by head
            best = self._simplify(self.empty)
        return best

    def enabling(self, circuit: Circuit, progress: Progress) -> tuple[HeadPath, ...]:
        """Paths that the circuit does without and the living model does not."""
        present = set(circuit.paths())
        swept = live_sweep(self.scout, self.attention, progress=progress)
        needed = (row.path for row in swept if row.live_loss > self.tolerance)
        return tuple(path for path in needed if path not in present)

    # Judging

    def _holds(self, circuit: Circuit) -> bool:
        """Whether the loss stays below the tolerance; hopeless cases are not looked at closely."""
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
        """The loss on some of the examples, and its standard error."""
        if circuit not in self.seen:
            losses = self.scout.losses(circuit)
            self.seen[circuit] = mean_loss(losses), standard_error(losses.mean(dim=1))
        return self.seen[circuit]

    def _go_on_from(self, circuit: Circuit) -> float:
        """Keep a circuit's runs, from which those to come will differ little; returns its loss."""
        if self.known.get(circuit):
            self.judge.rebase(circuit)
        return self.scout.rebase(circuit)

    def _cost(self, circuit: Circuit) -> int:
        return circuit_cost(circuit, self.heads)

    def _rank(self, circuit: Circuit) -> tuple[bool, int, float]:
        """Lower is better: circuits that hold first, then cheap ones, then low losses."""
        return not self._holds(circuit), self._cost(circuit), self.judge.loss(circuit)

    def _order(self, circuit: Circuit) -> tuple[bool, float, int]:
        """Which starts to try first: those that hold, cheap ones; else those nearest to it."""
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
        """Cheaper heads and fewer paths until nothing can go."""
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
        # The cheapest losses first; idle heads are settled before useful ones are touched.
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
        """The head's cheapest candidate that holds; among equally cheap ones the lower loss."""
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
        """Paths with some attention that the circuit lacks; of many those that help most."""
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
        """Decisions depend on each other: undo some, simplify again, keep what is cheaper."""
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
