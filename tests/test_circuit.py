"""Circuits as data and as text; patterns of mechanisms, and what is refused."""

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import retrieval_interp as ri
from retrieval_interp.circuits.mechanisms import (
    IDENTITY,
    ORIGINAL,
    RULES,
    SAME,
    UNIFORM,
    Mean,
    OneHot,
    Positions,
    Shared,
)
from retrieval_interp.circuits.paths import Mask
from retrieval_interp.tasks import InputError, RetrievalTask
from retrieval_interp.views.page import circuit_html

ONE_HOT = OneHot((ri.RolePath(0, 2), ri.RolePath(4, 3)))
CIRCUIT = ri.Circuit(
    {ri.Head(2, 1): ONE_HOT, ri.Head(0, 0): UNIFORM, ri.Head(1, 0): IDENTITY},
    n_roles=7,
    task=RetrievalTask().to_dict(),
    enabling=(ri.parse_head_path("L0.H1 s2<-s1", 7),),
)

heads = st.tuples(st.integers(0, 5), st.integers(0, 3))
paths = st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6)))


@given(st.dictionaries(heads, paths))
def test_circuits_survive_json(sources):
    mechanisms = {
        ri.Head(*head): Shared(tuple(ri.RolePath(*path) for path in paths))
        for head, paths in sources.items()
    }
    circuit = ri.Circuit(mechanisms, 7, {}, (ri.HeadPath(ri.Head(9, 0), ri.RolePath(0, 2)),))
    assert ri.Circuit.from_json(circuit.to_json(), 7) == circuit


def test_json_has_a_line_a_head():
    data = json.loads(CIRCUIT.to_json())
    assert list(data) == ["task", "heads", "enabling"]
    assert data["enabling"] == ["L0.H1 s2<-s1"]
    assert data["heads"][2] == {
        "layer": 2,
        "head": 1,
        "mechanism": "one-hot",
        "paths": [["s0", "s2"], ["s4", "s3"]],
    }
    assert sum('"mechanism"' in line for line in CIRCUIT.to_json().splitlines()) == 3


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        *((text, "L1.H0") for text in ("L1H0", "1.0", "L-1.H0", "L1.H0x", "")),
        *[("H0.L1", "L0.H1"), ("l0h3", "L0.H3")],
    ],
)
def test_other_texts_are_no_head(text, meant):
    with pytest.raises(InputError, match=f"expected a head such as {meant}, found"):
        ri.Head.parse(text)


def row(**changes):
    return {"layer": 0, "head": 0, "mechanism": "one-hot", "paths": [["s0", "s2"]], **changes}


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"heads": [], "enabling": [3]}, r"enabling\[0\]: expected text, found 3"),
        (
            {"heads": [row(mechanism="role-mean")]},
            "expected a weight from 0 to 1 for each of 1 paths of a role-mean",
        ),
        ({"heads": [], "redundant": [[]]}, "redundant: expected sets of paths, found an empty"),
        ({"heads": [row(), row()]}, "expected every head once, .* found L0.H0 twice"),
        ({"heads": [row(mechanism="hot")]}, "expected the mechanism one-hot, found 'hot'"),
        ({"heads": [row(paths=[["s0", "s9"]])]}, "expected a role from s0 to s6, found 's9'"),
        ({"heads": [row(paths=[["s0", "s2"], ["s0", "s4"]])]}, "expected one source per role"),
    ],
)
def test_bad_circuits_are_refused_by_name(data, text):
    with pytest.raises(InputError, match=text):
        ri.Circuit.from_json(json.dumps(data), 7)


def test_heads_that_a_model_lacks_are_refused():
    CIRCUIT.check_fits(3, 2)
    with pytest.raises(InputError, match=r"heads from L0\.H0 to L2\.H0, .* found L2\.H1"):
        CIRCUIT.check_fits(3, 1)


def test_a_circuit_reads_well_and_is_drawn():
    assert repr(CIRCUIT).splitlines() == [
        "L0.H0 uniform",
        "L1.H0 identity",
        "L2.H1 one-hot s0<-s2 s4<-s3",
        "L0.H1 ~s2<-s1",
    ]
    assert "every head as it is" in circuit_html(ri.Circuit({}, 7)) + repr(ri.Circuit({}, 7))


def test_an_unfinished_circuit_says_so_in_files_and_text():
    marked = replace(CIRCUIT, unfinished="the search was cancelled")
    again = ri.Circuit.from_json(marked.to_json(), 7)
    assert again == marked == CIRCUIT and again.unfinished == "the search was cancelled"
    assert "unfinished" not in CIRCUIT.to_json() and "unfinished" not in repr(CIRCUIT)
    assert repr(marked).splitlines()[-1] == "unfinished: the search was cancelled"
    assert marked.replace(ri.Head(3, 0), UNIFORM).unfinished == ""


@pytest.mark.parametrize("text", ["s0->s2", "s0<-", "<-s2", "s0<-s9", "", "s0<-s2<-s4", "s0 s2"])
def test_other_texts_are_no_path(text):
    with pytest.raises(InputError, match="expected a (path such as s0<-s2|role)"):
        ri.parse_head_path(f"L0.H0 {text}", 5)


def test_paths_against_the_mask_and_unknown_roles_are_refused():
    roles = RetrievalTask(chains=3, steps=2, dim=2).sample(2).roles
    with pytest.raises(InputError, match=r"found s1<-s2: s2 comes later in the sequence"):
        OneHot((ri.RolePath(1, 2),)).pattern(Positions(roles, 15))
    with pytest.raises(InputError, match=r"expected roles from s0 to s4, found the path s0<-s5"):
        OneHot((ri.RolePath(0, 5),)).pattern(Positions(roles, 15))
    both_ways = Positions(roles, 15, mask=Mask(causal=False))
    assert OneHot((ri.RolePath(1, 2),)).pattern(both_ways).sum() == 6


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
    where = Positions(torch.zeros(1, 1, 1, dtype=torch.long), 7, Mask(window=3))
    pattern = Mean(weights).pattern(where)  # of a head that sees no further
    torch.testing.assert_close(pattern[0], longer.triu(-2), atol=1e-4, rtol=0)


def test_rules_that_compare_tokens_need_tokens_and_means_their_length():
    task = RetrievalTask(chains=2, steps=1)
    batch = task.sample(2)
    with pytest.raises(InputError, match="same: expected token ids, .* found vectors"):
        SAME.pattern(Positions(batch.roles, 6, tokens=batch.tokens))
    mean = Mean(torch.eye(4).roll(1, 1))
    with pytest.raises(InputError, match="expected sequences of at most 4 positions, .* found 6"):
        mean.of_length(6)
    with pytest.raises(InputError, match="weights from 0 to 1"):
        Mean(torch.ones(3, 3))


def test_rules_are_written_and_read():
    task = RetrievalTask(chains=2, steps=1)
    lines = ["L0.H0 previous", "L1.H0 first", "L1.H1 same", "L2.H0 after-same"]
    lines += ["L2.H1 counterfactual s2<-s1 s0", "L3.H1 patched s0<-s2", "L4.H0 counterfactual"]
    circuit = ri.parse_circuit(lines, task)
    assert str(circuit).splitlines() == lines
    assert ri.parse_circuit(f"\n{circuit}\n", task) == circuit and circuit[2, 1].rows == (0,)
    mean = Mean(torch.rand(5, 5).softmax(-1).tril())
    circuit = circuit.replace((3, 0), mean)
    read = ri.Circuit.from_json(circuit.to_json(), circuit.n_roles)
    assert read == circuit and hash(read) == hash(circuit) and read[3, 0] == mean


def test_rules_are_ordered_by_cost():
    stated = [rule.cost for rule in (UNIFORM, *RULES, Mean(torch.eye(3)), ORIGINAL)]
    costs = [of_head + 3 * of_role for of_head, of_role in stated]
    assert costs == sorted(costs) and costs[0] == 0 < costs[1]


def test_only_own_attention_is_cut():
    circuit = ri.parse_circuit("L0.H0 one-hot s0<-s2", RetrievalTask(steps=3))
    with pytest.raises(
        InputError, match="cut: expected L0.H0 to be original or cut, found one-hot"
    ):
        circuit.cut(ri.parse_head_path("L0.H0 s2<-s1", 7))
