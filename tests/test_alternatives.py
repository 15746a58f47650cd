"""All circuits that do as well, against every exchange of one path for another, tried by hand."""

import pytest

import retrieval_interp as ri
from retrieval_interp.circuits.discovery.search import _CONFIRMING, Search, SearchOptions
from retrieval_interp.circuits.losses import Scorer, standard_error


@pytest.mark.slow
def test_every_path_that_can_be_exchanged_for_another_is_found(small):
    model, task = small.model, small.task
    lines = ["L0.H0 one-hot s0<-s0 s2<-s2 s4<-s3 s6<-s6", "L1.H0 identity"]
    lines += ["L2.H0 one-hot s0<-s2 s4<-s6", "L3.H0 uniform", "L4.H0 one-hot s0<-s4"]
    given = ri.parse_circuit(lines, task)
    several = ri.alternatives(model, task, given, examples=64, time=3600.0)
    batches = [task.sample(64, seed, split="discovery") for seed in (0, _CONFIRMING)]
    scorers = [Scorer(model, task, batch) for batch in batches]

    def holds(circuit):
        each = [scorer.each(circuit) for scorer in scorers]
        return all(float(e.mean()) + 2 * standard_error(e) < task.tolerance for e in each)

    space = Search(model, task, SearchOptions(examples=64, shared=False)).space
    cost = space.cost(given)
    exchanged = [
        given.without(path).replace(head, given.without(path)[head].adding(new))
        for path in given.paths()
        for head, attended in space.attended.items()
        for new in attended
    ]
    right = {c for c in exchanged if c != given and space.cost(c) == cost and holds(c)}
    found = {frozenset(circuit.paths()) for circuit in several.circuits}
    assert several.complete and right and {frozenset(c.paths()) for c in right} <= found
    assert len(found) == len(several.circuits) and all(map(holds, several.circuits))
    assert {space.cost(circuit) for circuit in several.circuits} == {cost}
    one, other = several.exchanges[0]
    assert any({one} == a - b and {other} == b - a for a in found for b in found)
    assert several.text(task).startswith(f"{len(found)} circuits of this cost hold. All of them")
