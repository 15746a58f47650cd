"""A control: the losses of random circuits of the same size and mechanisms.

A random circuit has the same number of uniform, identity, one-hot and shared heads as the given
one, and those with paths have as many paths and as many sharing roles, but on heads and paths drawn
at random among those that the mask allows.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.attention import path_sources
from retrieval_interp.circuits.circuit import Circuit, Head
from retrieval_interp.circuits.mechanisms import Mechanism, along
from retrieval_interp.circuits.paths import RolePath
from retrieval_interp.circuits.runs.losses import mean_loss, standard_error
from retrieval_interp.circuits.scores.scorer import Progress, Scorer, no_progress
from retrieval_interp.tasks import Batch

_QUICK = 32  # examples that tell most random circuits from the given one
_REDRAWS = 20  # in a tiny model a random circuit may equal the given one, which is no control


def allowed_paths(batch: Batch, causal: bool) -> list[RolePath]:
    """The role paths that the mask allows in every example of a batch and that have a source."""
    n_roles, n_positions = batch.roles.shape[-1], batch.inputs.shape[1]
    position = torch.arange(n_positions, device=batch.roles.device)
    found = []
    for path in (RolePath(dest, src) for dest in range(n_roles) for src in range(n_roles)):
        sources = path_sources(path, batch.roles, n_positions)
        later = sources & (position > batch.roles[:, :, path.dest, None])
        if bool(sources.any()) and not (causal and bool(later.any())):
            found.append(path)
    return found


def allowed_attention(
    attention: Float[Tensor, "layer head dest src"], batch: Batch, causal: bool
) -> Float[Tensor, "layer head dest src"]:
    """Mean attention by role, with zeros for paths that are not in `allowed_paths`.

    Such a path has attention where both roles share a position in some examples.
    """
    allowed = torch.zeros_like(attention[0, 0])
    for path in allowed_paths(batch, causal):
        allowed[path] = 1
    return attention * allowed


def random_circuit(
    circuit: Circuit, heads: Sequence[Head], paths: Sequence[RolePath], draw: random.Random
) -> Circuit:
    """A circuit with the same mechanisms and numbers of paths, elsewhere.

    Args:
        circuit: the one to imitate; `original`, `cut`, role-mean and mean heads keep their place.
        heads: all heads of the model.
        paths: the paths to draw from.
        draw: the random number generator.
    """
    moved = {
        head: mechanism
        for head, mechanism in circuit.mechanisms.items()
        if not (mechanism.is_measured or mechanism.keeps_own)
    }
    free = [head for head in heads if head in moved]
    places = draw.sample(free, len(free))
    mechanisms = {head: m for head, m in circuit.mechanisms.items() if head not in moved}
    for place, mechanism in zip(places, moved.values()):
        mechanisms[place] = _redrawn(mechanism, paths, draw)
    return replace(circuit, mechanisms=mechanisms, enabling=(), redundant=())


def _redrawn(mechanism: Mechanism, paths: Sequence[RolePath], draw: random.Random) -> Mechanism:
    """The same mechanism with as many other paths."""
    if not mechanism.paths:
        return mechanism
    paths = list(dict.fromkeys([*paths, *mechanism.paths]))  # its own need not have a source here
    return along(_drawn(mechanism.paths, paths, draw))


def _drawn(
    own: Sequence[RolePath], paths: Sequence[RolePath], draw: random.Random
) -> list[RolePath]:
    """As many paths, with as many sources for a role, among others."""
    sources = [list[RolePath]() for _ in range(max((path.dest for path in paths), default=-1) + 1)]
    for path in paths:
        sources[path.dest].append(path)
    wanted = sorted(Counter(path.dest for path in own).values(), reverse=True)
    chosen: list[RolePath] = []
    free = list(range(len(sources)))
    for count in wanted:
        able = [dest for dest in free if len(sources[dest]) >= count]
        dest = draw.choice(able)
        free.remove(dest)
        chosen += draw.sample(sources[dest], count)
    return chosen


def random_control(
    scorer: Scorer,
    circuit: Circuit,
    heads: Sequence[Head],
    paths: Sequence[RolePath],
    count: int = 20,
    seed: int = 0,
    progress: Progress = no_progress,
) -> list[float]:
    """The losses of random circuits of the same size and mechanisms, in ascending order.

    They are measured on the first 32 examples, and on all where four standard errors less would be
    as good as the given circuit.

    Args:
        scorer: of the model and the examples.
        circuit: the circuit to compare with.
        heads: all heads of the model.
        paths: role paths that the mask allows.
        count: number of random circuits.
        seed: of the draws.
        progress: wraps an iterable to show a bar, as `(items, text)`.
    """
    draw = random.Random(seed)
    drawn = []
    for _ in range(count):
        other = random_circuit(circuit, heads, paths, draw)
        for _ in range(_REDRAWS):
            if other.mechanisms != circuit.mechanisms:
                break
            other = random_circuit(circuit, heads, paths, draw)
        drawn.append(other)
    quick = Scorer(scorer.model, scorer.task, scorer.batch[:_QUICK])
    goal = scorer.loss(circuit)
    losses = []
    for other in progress(drawn, "random circuits"):
        few = quick.losses(other)
        loss = mean_loss(few)
        if loss - 4 * standard_error(few.mean(dim=1)) <= goal:
            loss = scorer.loss(other)
        losses.append(loss)
    return sorted(losses)
