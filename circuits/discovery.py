"""Finding a circuit without being told one (paper, appendix E, steps 3 to 6, made automatic).

1. Measure each head's mean attention by role.
2. Propose circuits in which every head is one-hot, or shared, on the role paths above a threshold
   of attention; start from the first whose combined MSE is below the tolerance, in the order of
   `_PROPOSALS`, or else from the best. While that is not below the tolerance, give back its
   original attention to the head that gains most by it.
3. Replace heads by uniform or identity attention where the combined MSE stays below the tolerance,
   the cheapest first.
4. Leave out paths in the same way; shared heads left with one source a role become one-hot.
5. Repeat 3 and 4 until neither changes anything.

Where this departs from the paper: heads are judged with all other replacements in place, not one
head at a time in the intact model, since a soft model makes single heads look indispensable that
nobody misses once the others are sharp.
"""

from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

from circuits.attention import mean_attention
from circuits.circuit import Circuit, Head
from circuits.mechanisms import IDENTITY, ORIGINAL, UNIFORM, Mechanism, RolePath
from circuits.scoring import Progress, Scorer, no_progress
from tasks import RetrievalTask

_PROPOSALS: tuple[tuple[Literal["one-hot", "shared"], float], ...] = (
    ("one-hot", 0.5),
    ("one-hot", 0.4),
    ("one-hot", 0.3),
    ("shared", 0.4),
    ("shared", 0.3),
    ("shared", 0.2),
)


def discover(
    model: Any,
    task: RetrievalTask,
    tolerance: float = 0.05,
    examples: int = 512,
    seed: int = 0,
    progress: Progress = no_progress,
) -> Circuit:
    """Find which attention paths do the work.

    Args:
        model: a hooked model that reads the task's batches; left unchanged.
        task: draws the examples, from its `discovery` split, and gives the loss.
        tolerance: the MSE that the combined circuit stays below (paper: 0.05).
        examples: how many examples decide.
        seed: which ones.
        progress: wraps an iterable to show a bar, as `(items, text)`.

    Returns:
        A circuit with a mechanism for every head that has one; an empty one for a model that has
        not learned the task, which has no circuit to find. It is a proposal: score it on other
        examples with `score_circuit`.
    """
    device = next(model.parameters()).device
    batch = task.sample(examples, seed, device, split="discovery")
    scorer = Scorer(model, task, batch)
    if is_unlearned(float(scorer.base_losses.mean()), task):
        return scorer.empty_circuit
    circuit = _start(scorer, mean_attention(model, batch).cpu(), tolerance, progress)
    while True:
        before = circuit
        circuit = _simplify_heads(scorer, circuit, tolerance, progress)
        circuit = _prune_paths(scorer, circuit, tolerance, progress)
        if circuit == before:
            return circuit


def is_unlearned(mse: float, task: RetrievalTask) -> bool:
    """Whether a model does no better than answering with the mean of the candidates.

    The paper calls a run unlearned above 0.7, where that answer gives 0.75 (section 7.2).
    """
    return mse > task.plateau * 0.7 / 0.75


def propose(
    attention: Float[Tensor, "dest src"], kind: Literal["one-hot", "shared"], threshold: float
) -> Mechanism:
    """The mechanism that a head's mean attention by role suggests.

    Args:
        attention: mean attention, [dest src].
        kind: `one-hot` takes the strongest source of a role, `shared` all sources.
        threshold: in (0, 1); weaker paths are left out.
    """
    paths = []
    for dest, row in enumerate(attention.tolist()):
        sources = [src for src, weight in enumerate(row) if weight >= threshold]
        if kind == "one-hot" and sources:
            sources = [max(sources, key=lambda src: row[src])]
        paths += [RolePath(dest, src) for src in sources]
    return tidy(Mechanism("shared", tuple(paths)))


def tidy(mechanism: Mechanism) -> Mechanism:
    """Call a shared mechanism one-hot where every role has one source."""
    if mechanism.kind != "shared":
        return mechanism
    dests = [path.dest for path in mechanism.paths]
    return Mechanism("one-hot" if len(set(dests)) == len(dests) else "shared", mechanism.paths)


def _start(scorer: Scorer, attention: Tensor, tolerance: float, progress: Progress) -> Circuit:
    n_layers, n_heads = attention.shape[:2]
    heads = [Head(layer, head) for layer in range(n_layers) for head in range(n_heads)]
    best, best_mse = scorer.empty_circuit, float("inf")
    for kind, threshold in progress(_PROPOSALS, "proposing"):
        circuit = scorer.empty_circuit
        for head in heads:
            circuit = circuit.replace(head, propose(attention[head], kind, threshold))
        mse = scorer.mse(circuit)
        if mse < best_mse:
            best, best_mse = circuit, mse
        if mse < tolerance:
            break
    while best_mse >= tolerance and best.mechanisms:
        scorer.rebase(best)
        trials = [
            (scorer.mse(best.replace(head, ORIGINAL)), head)
            for head in progress(list(best.mechanisms), "restoring heads")
        ]
        mse, head = min(trials)
        if mse >= best_mse:
            break
        best, best_mse = best.replace(head, ORIGINAL), mse
    return best


def _simplify_heads(
    scorer: Scorer, circuit: Circuit, tolerance: float, progress: Progress
) -> Circuit:
    limit = max(tolerance, scorer.rebase(circuit))
    idle = (UNIFORM, IDENTITY)
    trials = []
    for head in progress([h for h in _all_heads(scorer) if circuit[h] not in idle], "idle heads"):
        trials.append(min((scorer.mse(circuit.replace(head, m)), head, m.kind) for m in idle))
    for mse, head, _ in progress(sorted(trials), "simplifying heads"):
        if mse >= limit:
            break
        for mechanism in idle:
            simpler = circuit.replace(head, mechanism)
            if scorer.mse(simpler) < limit:
                circuit = simpler
                scorer.rebase(circuit)
                break
    return circuit


def _prune_paths(scorer: Scorer, circuit: Circuit, tolerance: float, progress: Progress) -> Circuit:
    limit = max(tolerance, scorer.rebase(circuit))
    trials = [
        (scorer.mse(circuit.without(path)), path)
        for path in progress(list(circuit.paths()), "weighing paths")
    ]
    for mse, path in progress(sorted(trials), "pruning paths"):
        if mse >= limit:
            break
        simpler = circuit.without(path)
        simpler = simpler.replace(path.head, tidy(simpler[path.head]))
        if scorer.mse(simpler) < limit:
            circuit = simpler
            scorer.rebase(circuit)
    return circuit


def _all_heads(scorer: Scorer) -> list[Head]:
    cfg = scorer.model.cfg
    return [Head(layer, head) for layer in range(cfg.n_layers) for head in range(cfg.n_heads)]
