import pytest

from retrieval_interp.circuits import Circuit, Head, RolePath, parse_circuit
from retrieval_interp.circuits.mechanisms import IDENTITY, UNIFORM, OneHot
from retrieval_interp.circuits.notation import suppose
from retrieval_interp.tasks import InputError, RetrievalTask

TASK = RetrievalTask()
EMPTY = Circuit({}, 7)
CIRCUIT = Circuit(
    {
        Head(2, 1): OneHot((RolePath(0, 2), RolePath(4, 3))),
        Head(0, 0): UNIFORM,
        Head(1, 0): IDENTITY,
    },
    n_roles=7,
)


def test_circuits_are_read_from_the_lines_that_tables_print():
    lines = [f"{head} {mechanism}" for head, mechanism in CIRCUIT.mechanisms.items()]
    read = parse_circuit(lines, TASK)
    assert read.mechanisms == CIRCUIT.mechanisms
    assert parse_circuit([], TASK).mechanisms == {}
    assert parse_circuit(repr(CIRCUIT).splitlines(), TASK).mechanisms == CIRCUIT.mechanisms


def test_paths_are_added_one_by_one():
    one = suppose(EMPTY, "L1.H0 s0<-s2")
    assert one[1, 0] == OneHot((RolePath(0, 2),))
    two = suppose(one, "L1.H0 s4<-s6")
    assert two[1, 0] == OneHot((RolePath(0, 2), RolePath(4, 6)))
    shared = suppose(two, "L1.H0 s0<-s4")
    assert shared[1, 0].kind == "shared" and len(shared[1, 0].paths) == 3
    assert suppose(shared, "L1.H0 s0<-s4") == shared
    assert suppose(shared, "L1.H0 uniform")[1, 0] == UNIFORM
    assert suppose(suppose(EMPTY, "L1.H0 uniform"), "L1.H0 s0<-s2") == one
    assert suppose(shared, "L1.H0 original").mechanisms == {}


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("L0.H0", "expected a line such as L1.H0 s0<-s2, L0.H0 one-hot s2<-s1"),
        ("", "expected a line such as"),
        ("L0.H0 hot s2<-s1", "found 'L0.H0 hot s2<-s1'"),
        ("L0.H0 role-mean", "mechanisms: original, cut, uniform, identity, one-hot, shared"),
        ("0.0 uniform", "expected a head such as L1.H0"),
        ("L0.H0 one-hot s2<-s9", "expected a role from s0 to s6"),
        ("L0.H0 s2<-s9", "expected a role from s0 to s6"),
        ("L0.H0 s2<-s1 s2", "expected a path such as s0<-s2, found 's2'"),
        ("L0.H0 uniform s2<-s1", "expected no paths for a uniform head"),
    ],
)
def test_other_lines_are_refused(line, text):
    with pytest.raises(InputError, match=text):
        suppose(EMPTY, line)


def test_a_circuit_names_every_head_once():
    with pytest.raises(InputError, match="expected every head once, found L0.H0 twice"):
        parse_circuit(["L0.H0 uniform", "L0.H0 identity"], TASK)
