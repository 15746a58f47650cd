import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval_interp.circuits.circuit import Circuit, Head, HeadPath, RolePath, parse_head_path
from retrieval_interp.circuits.mechanisms import IDENTITY, UNIFORM, OneHot, Shared
from retrieval_interp.tasks import InputError, RetrievalTask
from retrieval_interp.views.page import circuit_html

ONE_HOT = OneHot((RolePath(0, 2), RolePath(4, 3)))
CIRCUIT = Circuit(
    {Head(2, 1): ONE_HOT, Head(0, 0): UNIFORM, Head(1, 0): IDENTITY},
    n_roles=7,
    task=RetrievalTask().to_dict(),
    enabling=(parse_head_path("L0.H0 s2<-s1", 7),),
)

heads = st.tuples(st.integers(0, 5), st.integers(0, 3))
paths = st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6)))


@given(st.dictionaries(heads, paths))
def test_circuits_survive_json(sources):
    mechanisms = {
        Head(*head): Shared(tuple(RolePath(*path) for path in paths))
        for head, paths in sources.items()
    }
    circuit = Circuit(mechanisms, 7, {}, (HeadPath(Head(9, 0), RolePath(0, 2)),))
    assert Circuit.from_json(circuit.to_json(), 7) == circuit


def test_json_has_the_documented_keys_and_a_line_a_head():
    data = json.loads(CIRCUIT.to_json())
    assert list(data) == ["task", "heads", "enabling"]
    assert data["enabling"] == ["L0.H0 s2<-s1"]
    assert data["heads"][2] == {
        "layer": 2,
        "head": 1,
        "mechanism": "one-hot",
        "paths": [["s0", "s2"], ["s4", "s3"]],
    }
    assert sum('"mechanism"' in line for line in CIRCUIT.to_json().splitlines()) == 3


@pytest.mark.parametrize("text", ["L1H0", "1.0", "L-1.H0", "L1.H0x", "", "H0.L1"])
def test_other_texts_are_no_head(text):
    with pytest.raises(InputError, match="expected a head such as L1.H0, found"):
        Head.parse(text)


def row(**changes):
    return {"layer": 0, "head": 0, "mechanism": "one-hot", "paths": [["s0", "s2"]], **changes}


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([], r"circuit: expected an object, found \[\]"),
        ({}, "expected the key 'heads', which is missing"),
        ({"heads": [], "extra": 1}, "expected the keys .* found 'extra'"),
        ({"heads": [], "enabling": [3]}, r"enabling\[0\]: expected text, found 3"),
        ({"heads": [row(mechanism="role-mean")]}, "expected the key 'weights' for a role-mean"),
        ({"heads": [row(), row()]}, "expected every head once, .* found L0.H0 twice"),
        ({"heads": [row(mechanism="hot")]}, "expected a mechanism of original, .* found 'hot'"),
        ({"heads": [row(paths=[["s0", "s9"]])]}, "expected a role from s0 to s6, found 's9'"),
        ({"heads": [row(paths=[["s0", "s2"], ["s0", "s4"]])]}, "expected one source per role"),
    ],
)
def test_bad_circuits_are_refused_by_name(data, text):
    with pytest.raises(InputError, match=text):
        Circuit.from_json(json.dumps(data), 7)


def test_heads_that_a_model_lacks_are_refused():
    CIRCUIT.check_fits(3, 2)
    with pytest.raises(InputError, match=r"heads from L0\.H0 to L2\.H0, .* found L2\.H1"):
        CIRCUIT.check_fits(3, 1)


def test_a_circuit_reads_well_and_is_drawn():
    lines = repr(Circuit(CIRCUIT.mechanisms, 7, enabling=(HeadPath(Head(0, 1), RolePath(2, 1)),)))
    assert lines.splitlines() == [
        "L0.H0 uniform",
        "L1.H0 identity",
        "L2.H1 one-hot s0<-s2 s4<-s3",
        "L0.H1 ~s2<-s1",
    ]
    assert circuit_html(CIRCUIT).count("marker-end") == 3  # one of them enables
    assert "every head as it is" in circuit_html(Circuit({}, 7)) + repr(Circuit({}, 7))
