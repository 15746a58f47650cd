import re

import plotly.io as pio
import pytest
import torch

from circuits.circuit import IDENTITY, UNIFORM, Circuit, Head, HeadPath, Mechanism, RolePath
from circuits.draw.figure import circuit_figure
from circuits.draw.layout import chain_order, role_order
from circuits.draw.svg import draw_circuit
from circuits.mean_pattern import MeanPattern
from circuits.notation import circuit_diff, circuit_text
from tasks import ConditionalRetrievalTask, EquationsTask, InputError, RetrievalTask

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


def test_without_a_task_the_order_is_a_chains():
    for steps in (1, 2, 3, 9):
        task = RetrievalTask(steps=steps)
        assert chain_order(2 * steps + 1) == role_order(task.sample(8))
    assert chain_order(6) == [3, 4, 1, 2, 0, 5]  # with a role that no chain has


def test_depth_and_order_need_not_be_given():
    given = circuit_figure(CIRCUIT, 3, [3, 4, 1, 2, 0], NECESSITY)
    assert circuit_figure(CIRCUIT, necessity=NECESSITY) == given
    assert circuit_figure(CIRCUIT, task=RetrievalTask(steps=2)).data[0].x == given.data[0].x
    assert draw_circuit(CIRCUIT) == draw_circuit(CIRCUIT, 3, [3, 4, 1, 2, 0])
    assert circuit_figure(CIRCUIT, 7).layout.yaxis.range[1] > 7  # deeper than the circuit
    graph = ConditionalRetrievalTask()
    shown = circuit_figure(Circuit({}, 8, task=graph.to_dict()), task=graph).layout.xaxis.ticktext
    assert [name.split("<br>")[1] for name in shown] == [
        f"s{role}" for role in role_order(graph.sample(8))
    ]


@pytest.mark.parametrize("draw", [circuit_figure, draw_circuit])
def test_what_has_no_place_in_the_picture_is_refused(draw):
    with pytest.raises(InputError, match="circuit of the model's 2 layers, found a head in L2"):
        draw(CIRCUIT, 2)
    with pytest.raises(InputError, match="the roles of every path, found L0.H0 s4<-s3, and the or"):
        draw(CIRCUIT, 3, [0, 1, 2])


@pytest.mark.parametrize(
    ("task", "name"), [(EquationsTask(), "cross entropy"), (None, "loss"), (RetrievalTask(), "MSE")]
)
def test_a_loss_has_its_own_name(task, name):
    path = HeadPath(Head(0, 0), RolePath(2, 1))
    n_roles = 5 if task is None else len(task.role_names)
    circuit = Circuit({path.head: Mechanism("one-hot", (path.path,))}, n_roles)
    expected = f"{name} 0.250 when ablated"
    figure = circuit_figure(circuit, necessity={path: 0.25}, task=task)
    assert figure.data[0].text.split("<br>")[-1] == expected
    assert expected in draw_circuit(circuit, necessity={path: 0.25}, task=task)


def test_equal_paths_of_two_heads_run_side_by_side():
    same = Mechanism("one-hot", (RolePath(0, 2),))
    circuit = Circuit({Head(0, 0): same, Head(0, 1): same}, 5)
    first, second = circuit_figure(circuit).data
    assert first.x != second.x and first.line.color != second.line.color
    arrows = re.findall(r' d="(M\d.*?)"', draw_circuit(circuit))[1:]
    assert len(set(arrows)) == len(arrows) == 2


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
    one, two = (Mechanism("mean", mean=MeanPattern(torch.eye(3) * half)) for half in (0.5, 1))
    assert circuit_diff(CIRCUIT.replace((1, 0), one), CIRCUIT.replace((1, 0), two)) == [
        "L1.H0: mean -> another mean"
    ]
    without = Circuit(CIRCUIT.mechanisms, 5, "identity")
    assert circuit_diff(CIRCUIT, without) == [
        "rest: zero -> identity",
        "enabling: - L0.H0 s2<-s1",
    ]
    with pytest.raises(AttributeError):
        CIRCUIT.rest = "identity"
