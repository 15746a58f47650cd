import itertools
import re
from xml.etree import ElementTree as ET

import plotly.io as pio
import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.circuits.circuit import Circuit, Head, HeadPath, RolePath
from retrieval_interp.circuits.draw.figure import circuit_figure
from retrieval_interp.circuits.draw.layout import chain_order, role_order
from retrieval_interp.circuits.draw.names import head_kind
from retrieval_interp.circuits.draw.svg import draw_circuit
from retrieval_interp.circuits.mechanisms import IDENTITY, UNIFORM, Mean, OneHot, Shared
from retrieval_interp.circuits.notation import circuit_diff, circuit_text
from retrieval_interp.circuits.scores.enabling import Enabled
from retrieval_interp.tasks import (
    Batch,
    ConditionalRetrievalTask,
    EquationsTask,
    InputError,
    RetrievalTask,
)

ENABLING = HeadPath(Head(0, 0), RolePath(2, 1))
CIRCUIT = Circuit(
    {
        Head(0, 0): OneHot((RolePath(4, 3),)),
        Head(1, 0): UNIFORM,
        Head(2, 1): Shared((RolePath(0, 2), RolePath(0, 4))),
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


def test_idle_layers_of_a_deep_model_share_a_row():
    path = HeadPath(Head(20, 1), RolePath(0, 2))
    replaced = dict.fromkeys(
        [Head(layer, head) for layer in range(15, 18) for head in (0, 1)], UNIFORM
    )
    alone = dict.fromkeys([Head(layer, 1) for layer in (26, 27)], IDENTITY)
    circuit = Circuit(replaced | alone | {path.head: OneHot((path.path,))}, 5)
    figure = circuit_figure(circuit, 30)
    assert [re.sub("<[^>]*>", "", text) for text in figure.layout.yaxis.ticktext] == [
        "L0-L14 original",
        "L15-L17: 2 uniform each",
        "L18-L19 original",
        "L20.H1 one-hot",
        "L21-L25 original",
        "L26.H1-L27.H1 identity",
        "L28-L29 original",
    ]
    assert figure.data[0].y == (3, 3.5, 4)  # its row
    texts = [text for text, _ in texts_and_boxes(draw_circuit(circuit, 30))]
    assert set(texts) >= {"L0-L14 original", "L20.H1 one-hot", "L28-L29 original"}
    assert len(circuit_figure(Circuit({}, 5), 12).layout.yaxis.ticktext) == 12  # not deep
    assert len(circuit_figure(Circuit({}, 5), 13).layout.yaxis.ticktext) == 1


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
    circuit = Circuit({path.head: OneHot((path.path,))}, n_roles)
    expected = f"{name} 0.250 when ablated"
    figure = circuit_figure(circuit, necessity={path: 0.25}, task=task)
    assert figure.data[0].text.split("<br>")[-1] == expected
    assert expected in draw_circuit(circuit, necessity={path: 0.25}, task=task)


def test_equal_paths_of_two_heads_run_side_by_side():
    same = OneHot((RolePath(0, 2),))
    circuit = Circuit({Head(0, 0): same, Head(0, 1): same}, 5)
    first, second = circuit_figure(circuit).data
    assert first.x != second.x and first.line.color != second.line.color
    arrows = re.findall(r' d="(M\d[^"]*)" [^>]*marker-end', draw_circuit(circuit))
    assert len(set(arrows)) == len(arrows) == 2


def texts_and_boxes(svg):
    """Every text of a drawing with the rectangle that it covers at most."""
    found = []
    for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):
        x, y, size = (float(text.get(key, 13)) for key in ("x", "y", "font-size"))
        width = 0.55 * size * len(text.text)
        left = x - width / 2 if text.get("text-anchor") == "middle" else x
        found.append((text.text, (left, y - 0.75 * size, left + width, y + 0.2 * size)))
    return found


@pytest.mark.parametrize("beside", range(1, 8))
def test_no_two_texts_overlap_however_many_heads_share_a_path(beside):
    """As seen with two heads: their numbers stood on top of each other."""
    task = ri.RepeatedTokensTask()
    heads = [Head(1, number) for number in range(beside)]
    same = OneHot((RolePath(0, 2),))
    sets = (tuple(HeadPath(Head(0, h), RolePath(2, 1)) for h in range(beside)),)
    circuit = Circuit(dict.fromkeys(heads, same), 3, redundant=sets if beside > 1 else ())
    necessity = {path: 0.3 + 0.01 * number for number, path in enumerate(circuit.paths())}
    found = texts_and_boxes(draw_circuit(circuit, 2, necessity=necessity, task=task))
    assert {f"{loss:.2f}" for loss in necessity.values()} <= {text for text, _ in found}
    for (one, a), (other, b) in itertools.combinations(found, 2):
        apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
        assert apart, (one, other)


def test_every_colour_of_a_layer_with_several_heads_has_its_head_beside_it():
    heads = [Head(0, 0), Head(0, 8), Head(0, 9)]  # 0 and 8 would share one of eight colours
    circuit = Circuit(
        {head: OneHot((RolePath(dest, 1),)) for dest, head in zip((2, 3, 4), heads)},
        5,
    )
    svg = ET.fromstring(draw_circuit(circuit))
    name = "{http://www.w3.org/2000/svg}"
    legend, arrows = {}, {}
    swatch = None
    for child in svg:
        if child.tag == f"{name}line" and child.get("stroke", "").startswith("#"):
            swatch = child.get("stroke")
        elif child.tag == f"{name}text" and swatch:
            legend[child.text.split()[0]], swatch = swatch, None
        elif child.get("data-path"):
            arrows[child.get("data-path").split()[0]] = child[-1].get("stroke")
    assert legend == arrows and len(set(legend.values())) == 3
    ticks = circuit_figure(circuit).layout.yaxis.ticktext[0]
    assert all(f'color: {color}">{head}' in ticks for head, color in legend.items())


def induction(task):
    """An induction head, found as the search finds it: what enables it is replaced by uniform."""
    key, answer = HeadPath(Head(0, 1), RolePath(2, 1)), HeadPath(Head(1, 0), RolePath(0, 2))
    mechanisms = {key.head: UNIFORM, answer.head: OneHot((answer.path,))}
    return Circuit(mechanisms, 3, task=task.to_dict(), enabling=(key,)), {
        key: (Enabled(answer, 0.98, 0.03, 0.9, 0.1),)
    }


def test_an_induction_heads_circuit_reads_as_one():
    task = ri.RepeatedTokensTask()
    circuit, enables = induction(task)
    texts = [text for text, _ in texts_and_boxes(draw_circuit(circuit, task=task, enables=enables))]
    assert "L1.H0 induction head, one-hot" in texts
    below = texts.index("L0.H1 previous-token head") + 1
    assert " ".join(texts[below : below + 2]) == "enables (key) L1.H0; replaced by uniform"
    unmeasured = draw_circuit(circuit, task=task)
    assert "L0.H1 previous-token head, only enables" in unmeasured
    assert "L0.H1 only enables" in draw_circuit(circuit)  # without a task nothing is known
    by_key = circuit_figure(circuit, task=task, enables=enables).layout.yaxis.ticktext
    assert "induction head" in by_key[1] and "enables (key) L1.H0" in by_key[0]


def test_heads_are_called_by_what_their_paths_do_on_every_chain():
    task = ri.RepeatedTokensTask(length=6, alphabet=8)
    batch = task.sample(32)

    def kind(*paths):
        return head_kind([HeadPath(Head(0, 0), RolePath(*path)) for path in paths], batch)

    assert kind((2, 1)) == "previous-token head"
    assert kind((0, 1)) == "duplicate-token head"
    assert kind((0, 2)) == "induction head"
    assert kind((0, 2), (2, 1)) == kind((0, 0)) == kind((1, 1)) == ""
    vectors = RetrievalTask(steps=1).sample(8)
    assert head_kind([HeadPath(Head(0, 0), RolePath(0, 2))], vectors) == ""
    absent = Batch(batch.inputs, batch.targets, batch.roles.clone())
    absent.roles[:, :, 1] = -1
    assert head_kind([HeadPath(Head(0, 0), RolePath(2, 1))], absent) == ""


class Labelled(ri.RepeatedTokensTask):
    """As a user's own task is: labels for people, and no symbols."""

    role_names = ("s0", "s1", "s2")
    role_labels = ("query", "same word before", "what followed it")
    role_symbols = role_names


def test_a_role_is_never_named_twice_and_by_its_label_if_it_has_one():
    circuit, _ = induction(Labelled())
    names = [text for text, _ in texts_and_boxes(draw_circuit(circuit, task=Labelled()))]
    for name in ("s0", "s1", "s2", "query", "same word", "before"):
        assert names.count(name) == 1, name
    ticks = circuit_figure(circuit, task=Labelled()).layout.xaxis.ticktext
    assert set(ticks) == {"query<br>s0", "same word<br>before<br>s1", "what<br>followed it<br>s2"}
    plain = Circuit(circuit.mechanisms, 3, task={"name": "other"})
    bare = [text for text, _ in texts_and_boxes(draw_circuit(plain))]
    assert bare.count("s1") == 1


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
    paths = {Head(layer, 0): OneHot((RolePath(0, 2),)) for layer in range(24)}
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
    one, two = (Mean(torch.eye(3) * half) for half in (0.5, 1))
    assert circuit_diff(CIRCUIT.replace((1, 0), one), CIRCUIT.replace((1, 0), two)) == [
        "L1.H0: mean -> another mean"
    ]
    without = Circuit(CIRCUIT.mechanisms, 5)
    assert circuit_diff(CIRCUIT, without) == [
        "enabling: - L0.H0 s2<-s1",
    ]
    with pytest.raises(AttributeError):
        CIRCUIT.n_roles = 7


def test_long_names_of_roles_do_not_overlap_below_a_drawing():
    names = ("earlier_occurrence", "answer_of_that_one", "q")
    circuit = Circuit({}, 3, task={"name": "own"}, role_names=names)
    drawing = ET.fromstring(draw_circuit(circuit, 1))
    texts = [one for one in drawing.iter() if one.tag.endswith("text") and one.text in names]
    edges = sorted((float(t.get("x")), 3.3 * len(t.text)) for t in texts if t.get("font-size"))
    assert len(edges) == 3
    for (x, half), (right, other) in itertools.pairwise(edges):
        assert x + half < right - other
    assert edges[-1][0] + edges[-1][1] <= float(drawing.get("width"))
