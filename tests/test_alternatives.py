"""All circuits that do as well: found, different, of one cost, and holding."""

import itertools

import pytest

import retrieval_interp as ri
from examples.reach_the_bound import compile_circuit, doubling_heads, split
from retrieval_interp.circuits.runs.means import standard_error
from retrieval_interp.circuits.scores.scorer import Scorer


def test_copies_of_a_head_stand_in_for_each_other():
    """Three heads share a rule by which pairs are joined; each of its paths may be in any."""
    task = ri.RetrievalTask(steps=2, dim=8, tokens="unit")
    first, *others = doubling_heads(task, "point")
    built = compile_circuit([*split(first, [1]), *others], task)
    tolerance = 0.05 / 8
    found = ri.discover(built.model, task, tolerance, examples=64, shared=False)
    several = ri.alternatives(built.model, task, found, tolerance, examples=64)
    assert several.complete and set(several.core) == set.intersection(
        *({*circuit.paths()} for circuit in several.circuits)
    )
    scorer = Scorer(built.model, task, task.sample(64, split="discovery"))
    paths = [frozenset(circuit.paths()) for circuit in several.circuits]
    assert len(set(paths)) == len(paths) and paths[0] == frozenset(found.paths())
    for circuit in several.circuits:
        losses = scorer.each(circuit)
        assert float(losses.mean()) + 2 * standard_error(losses) < tolerance
        assert len(list(circuit.paths())) == len(list(found.paths()))
    for one, other in several.exchanges:
        assert any(a - b == {one} and b - a == {other} for a, b in itertools.permutations(paths, 2))


@pytest.mark.slow
def test_alternatives_of_a_trained_model():
    small = ri.load_checkpoint("small")
    found = ri.discover(small.model, small.task, examples=128, shared=False)
    several = ri.alternatives(small.model, small.task, found, examples=128, time=30.0)
    assert len(several.circuits) > 1 and several.core
    assert several.text(small.task).startswith(f"{len(several.circuits)} circuits of this cost")
