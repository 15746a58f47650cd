"""A control: the losses of random circuits of the same size and mechanisms."""

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.circuit import Circuit, Head, RolePath
from retrieval_interp.circuits.hooks import where_by_layer
from retrieval_interp.circuits.mechanisms import Mechanism, along
from retrieval_interp.circuits.scores.scorer import Measured, Progress, Scorer, no_progress
from retrieval_interp.tasks import Batch

QUICK = 32  # examples that tell most random circuits from the given one
_REDRAWS = 20  # in a tiny model a random circuit may equal the given one, which is no control


def allowed_attention(
    attention: Float[Tensor, "layer head dest src"], batch: Batch, model: Any
) -> Float[Tensor, "layer head dest src"]:
    """Mean attention by role, with zeros for paths that a layer's mask forbids (`Where.paths`)."""
    allowed = torch.zeros_like(attention)
    for layer, where in enumerate(where_by_layer(model, batch)):
        for dest, src in where.paths:
            allowed[layer, :, dest, src] = 1
    return attention * allowed


def random_circuit(
    circuit: Circuit, heads: Sequence[Head], paths: Sequence[list[RolePath]], draw: random.Random
) -> Circuit:
    """A circuit with the same mechanisms and numbers of paths and sharing roles, elsewhere.

    Heads that keep their own attention or a measured one keep their place, others change places
    within layers that allow the same `paths`, which are given by layer.
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
    # Its own paths need not have a source in these examples.
    sources: dict[int, list[RolePath]] = defaultdict(list)
    for path in dict.fromkeys([*paths, *mechanism.paths]):
        sources[path.dest].append(path)
    free, chosen = sorted(sources), list[RolePath]()
    counts = Counter(path.dest for path in mechanism.paths).values()
    for count in sorted(counts, reverse=True):
        dest = draw.choice([dest for dest in free if len(sources[dest]) >= count])
        free.remove(dest)
        chosen += draw.sample(sources[dest], count)
    return along(chosen) if chosen else mechanism


def random_control(
    scorer: Scorer, circuit: Circuit, count: int, seed: int = 0, progress: Progress = no_progress
) -> list[float]:
    """The losses of random circuits of the same size and mechanisms, in ascending order.

    Those that lose more by four standard errors on the first 32 examples are measured on these
    alone. There are none without paths.
    """
    if not count or not any(circuit.paths()):
        return []
    draw, losses = random.Random(seed), []
    paths = [where.paths for where in scorer.where]
    quick = Scorer(scorer.model, scorer.task, scorer.batch[:QUICK])
    goal = scorer.loss(circuit)
    for _ in progress(range(count), "random circuits"):
        for _ in range(1 + _REDRAWS):
            other = random_circuit(circuit, scorer.heads, paths, draw)
            if other.mechanisms != circuit.mechanisms:
                break
        loss, error = Measured.of(quick.losses(other))
        losses.append(scorer.loss(other) if loss - 4 * error <= goal else loss)
    return sorted(losses)
