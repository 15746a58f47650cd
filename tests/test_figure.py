import plotly.io as pio
import pytest

from circuits.circuit import IDENTITY, UNIFORM, Circuit, Head, HeadPath, Mechanism, RolePath
from circuits.draw.figure import circuit_figure
from circuits.draw.layout import role_order
from circuits.draw.svg import draw_circuit
from circuits.notation import circuit_diff, circuit_text
from tasks import RetrievalTask

ENABLING = HeadPath(Head(0, 0), RolePath(2, 1))
CIRCUIT = Circuit(
    {
        Head(0, 0): Mechanism("one-hot", (RolePath(4, 3),)),
        Head(1, 0): UNIFORM,
        Head(2, 1): Mechanism("shared", (RolePath(0, 2), RolePath(0, 4))),
    },
    5,
    enabling=(ENABLING,),
)
NECESSITY = {path: 0.1 * (1 + i) for i, path in enumerate(CIRCUIT.paths())}


def test_roles_are_drawn_in_the_order_of_the_sequence():
    assert role_order(RetrievalTask(steps=2).sample(8)) == [3, 4, 1, 2, 0]


def test_an_arrow_a_path_ends_where_the_path_ends():
    order = [3, 4, 1, 2, 0]
    template = pio.templates.default
    figure = circuit_figure(CIRCUIT, 3, order, NECESSITY)
    assert pio.templates.default == template
    arrows = {trace.text.split("<br>")[0]: trace for trace in figure.data}
    assert set(arrows) == {str(path) for path in (*CIRCUIT.paths(), ENABLING)}
    for path in (*CIRCUIT.paths(), ENABLING):
        trace = arrows[str(path)]
        assert trace.x[0] == order.index(path.path.src)
        assert trace.x[-1] == order.index(path.path.dest)
        assert (trace.y[0], trace.y[-1]) == (path.head.layer, path.head.layer + 1)
    widths = [arrows[str(path)].line.width for path in CIRCUIT.paths()]
    assert widths == sorted(widths) and widths[0] < widths[-1]
    assert arrows[str(ENABLING)].line.dash == "dash"


def test_colours_and_notes_can_be_given_for_single_paths():
    path = next(CIRCUIT.paths())
    plain = circuit_figure(CIRCUIT, 3, [3, 4, 1, 2, 0])
    figure = circuit_figure(
        CIRCUIT, 3, [3, 4, 1, 2, 0], colors={path: "#123456"}, notes={path: "step 80"}
    )
    changed = [new for new, old in zip(figure.data, plain.data) if new.line != old.line]
    assert [trace.text.split("<br>")[0] for trace in changed] == [str(path)]
    assert changed[0].line.color == changed[0].marker.color == "#123456"
    (note,) = figure.layout.annotations
    assert (note.text, note.x, note.y) == ("step 80", 0.5, path.head.layer + 0.5)
    assert not plain.layout.annotations


def test_large_circuits_keep_their_rows_apart():
    task = RetrievalTask(steps=6)
    paths = {Head(layer, 0): Mechanism("one-hot", (RolePath(0, 2),)) for layer in range(24)}
    circuit = Circuit(paths, 13)
    order = role_order(task.sample(4))
    figure = circuit_figure(circuit, 24, order)
    assert figure.layout.height / 24 >= 40 and figure.layout.width / 13 >= 70
    assert draw_circuit(circuit, 24, order).count("marker-end") == 24


def test_the_svg_escapes_and_marks_enabling_paths():
    svg = draw_circuit(CIRCUIT, 3, [3, 4, 1, 2, 0], NECESSITY)
    assert svg.count("marker-end") == 4 and svg.count("stroke-dasharray") == 1
    assert "L0.H0 s2&lt;-s1" in svg and "<-" not in svg


def test_text_has_a_line_a_layer():
    assert circuit_text(CIRCUIT, 4).splitlines() == [
        "L3   original",
        "L2   H1 shared s0<-s2 s0<-s4",
        "L1   H0 uniform",
        "L0   H0 one-hot s4<-s3; H0 ~s2<-s1",
    ]


def test_diffs_name_what_changed():
    other = CIRCUIT.replace((1, 0), IDENTITY).replace((2, 1), UNIFORM)
    assert circuit_diff(CIRCUIT, CIRCUIT) == []
    assert circuit_diff(CIRCUIT, other) == [
        "L1.H0: uniform -> identity",
        "L2.H1: shared s0<-s2 s0<-s4 -> uniform",
    ]
    without = Circuit(CIRCUIT.mechanisms, 5, "identity")
    assert circuit_diff(CIRCUIT, without) == [
        "rest: zero -> identity",
        "enabling: - L0.H0 s2<-s1",
    ]
    with pytest.raises(AttributeError):
        CIRCUIT.rest = "identity"
