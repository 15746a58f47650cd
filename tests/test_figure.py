"""Drawings of circuits."""

import itertools
import re
from xml.etree import ElementTree as ET

import pytest

import retrieval_interp as ri
from retrieval_interp.circuits.circuit import Circuit, Head, HeadPath, RolePath
from retrieval_interp.circuits.draw.layout import head_kind, role_order, worth_of_paths
from retrieval_interp.circuits.draw.svg import draw_circuit
from retrieval_interp.circuits.mechanisms import UNIFORM, OneHot, Shared
from retrieval_interp.tasks import RetrievalTask

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
ORDER = [3, 4, 1, 2, 0]  # roles in the sequence
SVG = "{http://www.w3.org/2000/svg}"


def arrows(svg):
    """Every arrow's line, by its path."""
    groups = (group for group in ET.fromstring(svg) if group.get("data-path"))
    return {group.get("data-path"): group[2] for group in groups}


def texts_and_boxes(svg):
    """Every text of a drawing with the rectangle that it covers at most."""
    found = []
    for text in ET.fromstring(svg).iter(f"{SVG}text"):
        x, y, size = (float(text.get(key, 13)) for key in ("x", "y", "font-size"))
        width = 0.55 * size * len(text.text)
        left = x - width / 2 if text.get("text-anchor") == "middle" else x
        found.append((text.text, (left, y - 0.75 * size, left + width, y + 0.2 * size)))
    return found


def texts(svg):
    return [text for text, _ in texts_and_boxes(svg)]


def test_roles_are_in_the_order_of_the_sequence():
    task = RetrievalTask(chains=3, steps=2)
    assert role_order(task.sample(8)) == ORDER
    assert draw_circuit(CIRCUIT, task=task) == draw_circuit(CIRCUIT, 3, ORDER, task=task)


def test_an_arrow_ends_where_its_path_ends():
    svg, paths = draw_circuit(CIRCUIT, 4, ORDER), [*CIRCUIT.paths(), ENABLING]
    found = arrows(svg)
    assert set(found) == set(map(str, paths))
    dots = list(ET.fromstring(svg).iter(f"{SVG}circle"))
    xs, ys = ([float(dot.get(key)) for dot in dots] for key in ("cx", "cy"))
    columns, floors = xs[:5], ys[::5]
    for path in paths:
        numbers = [float(n) for n in re.findall(r"[\d.]+", found[str(path)].get("d"))]
        assert numbers[0] == columns[ORDER.index(path.path.src)]
        assert numbers[-2] == columns[ORDER.index(path.path.dest)]
        assert numbers[1] == floors[path.head.layer] - 5
        assert numbers[-1] == floors[path.head.layer + 1] + 5
    dashed = [name for name, line in found.items() if line.get("stroke-dasharray")]
    assert dashed == [str(ENABLING)]


def test_an_arrow_is_as_wide_as_its_path_is_worth_of_what_was_learned():
    """A cross entropy of 4.2 before anything is learned, not an MSE of 1."""
    losses = dict(zip(CIRCUIT.paths(), (0.2, 2.2, 9.0)))
    svg = draw_circuit(CIRCUIT, arrows=worth_of_paths(losses, 0.2, 4.2))
    widths = [float(line.get("stroke-width")) for line in arrows(svg).values()]
    assert widths == pytest.approx([1.5, 1.5, 3.75, 6.0], abs=0.06)


def test_idle_layers_of_a_deep_model_share_a_row():
    replaced = {Head(layer, head): UNIFORM for layer in range(15, 18) for head in (0, 1)}
    circuit = Circuit(replaced | {Head(20, 1): OneHot((RolePath(0, 2),))}, 5)
    assert [text for text in texts(draw_circuit(circuit, 22)) if text.startswith("L")] == [
        "L0-L14 original",
        "L15-L17: 2 uniform each",
        "L18-L19 original",
        "L20.H1 one-hot",
        "L21 original",
    ]
    assert texts(draw_circuit(Circuit({}, 5), 12)).count("L3 original") == 1


@pytest.mark.parametrize("beside", range(1, 8))
def test_no_two_texts_overlap_however_many_heads_share_a_path(beside):
    """As seen with two heads: their numbers were on top of each other."""
    task = ri.RepeatedTokensTask()
    heads = [Head(1, number) for number in range(beside)]
    sets = (tuple(HeadPath(Head(0, h), RolePath(2, 1)) for h in range(beside)),)
    circuit = Circuit(
        dict.fromkeys(heads, OneHot((RolePath(0, 2),))), 3, redundant=sets if beside > 1 else ()
    )
    losses = {path: 0.3 + 0.01 * number for number, path in enumerate(circuit.paths())}
    svg = draw_circuit(circuit, 2, task=task, arrows=worth_of_paths(losses))
    found = texts_and_boxes(svg)
    assert {f"{loss:.2f}" for loss in losses.values()} <= {text for text, _ in found}
    for (one, a), (other, b) in itertools.combinations(found, 2):
        apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
        assert apart, (one, other)
    assert len({line.get("d") for line in arrows(svg).values()}) == len(arrows(svg))


def test_heads_are_called_by_what_their_paths_do_on_every_chain():
    batch = ri.RepeatedTokensTask(length=6, alphabet=8).sample(32)

    def kind(*paths, batch=batch):
        return head_kind([HeadPath(Head(0, 0), RolePath(*path)) for path in paths], batch)

    assert kind((2, 1)) == "previous-token head"
    assert kind((0, 1)) == "duplicate-token head"
    assert kind((0, 2)) == "induction head"
    assert kind((0, 2), (2, 1)) == kind((0, 0)) == kind((1, 1)) == ""
    assert kind((0, 2), batch=RetrievalTask(steps=1).sample(8)) == ""
