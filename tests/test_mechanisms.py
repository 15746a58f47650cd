"""Patterns of mechanisms written by hand, and what is refused."""

import pytest
import torch

from retrieval_interp.circuits.attention import Mask
from retrieval_interp.circuits.circuit import Circuit, RolePath, parse_circuit
from retrieval_interp.circuits.discovery.space import cost_of
from retrieval_interp.circuits.mechanisms import (
    ORIGINAL,
    RULES,
    SAME,
    UNIFORM,
    Mean,
    OneHot,
    Where,
)
from retrieval_interp.tasks import InputError, RetrievalTask

TASK = RetrievalTask(chains=3, steps=2, dim=2)


@pytest.mark.parametrize("text", ["s0->s2", "s0<-", "<-s2", "s0<-s9", "", "s0<-s2<-s4", "s0 s2"])
def test_other_texts_are_no_path(text):
    with pytest.raises(InputError, match="expected a (path|role)"):
        RolePath.parse(text, 5)


def test_paths_against_the_mask_and_unknown_roles_are_refused():
    roles = TASK.sample(2).roles
    with pytest.raises(InputError, match=r"found s1<-s2: s2 comes later in the sequence"):
        OneHot((RolePath(1, 2),)).pattern(Where(roles, 15))
    with pytest.raises(InputError, match=r"expected roles from s0 to s4, found the path s0<-s5"):
        OneHot((RolePath(0, 5),)).pattern(Where(roles, 15))
    bidirectional = OneHot((RolePath(1, 2),)).pattern(Where(roles, 15, mask=Mask(causal=False)))
    assert bidirectional.sum() == 6


# Rules by position and by token


def test_a_mean_goes_on_by_offset_where_sequences_are_longer():
    """Half of the attention on the sink, the rest two back; and the mean of two unequal rows."""
    rows = [{0: 1.0}] * 2 + [{0: 1.0}] + [{0: 0.5, at - 2: 0.5} for at in range(3, 7)]
    weights = torch.zeros(5, 5)
    for dest, row in enumerate(rows[:5]):
        weights[dest, list(row)] = torch.tensor(list(row.values()))
    longer = torch.zeros(7, 7)
    for dest, row in enumerate(rows):
        longer[dest, list(row)] = torch.tensor(list(row.values()))
    longer[5:, 0] = (1.0 + 0.5 + 0.5) / 3  # the rows 2, 3 and 4
    longer[5, 3] = longer[6, 4] = 1 / 3
    torch.testing.assert_close(Mean(weights).of_length(7), longer, atol=1e-4, rtol=0)
    where = Where(torch.zeros(1, 1, 1, dtype=torch.long), 7, Mask(window=3))
    pattern = Mean(weights).pattern(where)  # of a head that sees no further
    torch.testing.assert_close(pattern[0], longer.triu(-2), atol=1e-4, rtol=0)


def test_rules_that_compare_tokens_need_tokens_and_means_their_length():
    task = RetrievalTask(chains=2, steps=1)
    batch = task.sample(2)
    with pytest.raises(InputError, match="same: expected token ids, .* found vectors"):
        SAME.pattern(Where(batch.roles, 6, tokens=batch.tokens))
    mean = Mean(torch.eye(4).roll(1, 1))
    with pytest.raises(InputError, match="expected sequences of at most 4 positions, .* found 6"):
        mean.of_length(6)
    with pytest.raises(InputError, match="weights from 0 to 1"):
        Mean(torch.ones(3, 3))


def test_rules_are_written_read_and_ordered_by_cost():
    task = RetrievalTask(chains=2, steps=1)
    lines = [
        "L0.H0 previous", "L1.H0 first", "L1.H1 same", "L2.H0 after-same",
    ]  # fmt: skip
    circuit = parse_circuit(lines, task)
    assert str(circuit).splitlines() == lines
    assert parse_circuit(f"\n{circuit}\n", task) == circuit
    mean = Mean(torch.rand(5, 5).softmax(-1).tril())
    circuit = circuit.replace((3, 0), mean)
    read = Circuit.from_json(circuit.to_json(), circuit.n_roles)
    assert read == circuit and hash(read) == hash(circuit) and read[3, 0] == mean
    costs = [cost_of(rule, 3) for rule in (UNIFORM, *RULES, mean, ORIGINAL)]
    assert costs == sorted(costs) and costs[0] == 0 < costs[1]
    with pytest.raises(InputError, match="expected a path"):
        parse_circuit(["L0.H0 previous 2"], task)
