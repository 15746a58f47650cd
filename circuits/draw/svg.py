"""A circuit as SVG, for pages: in the page's own colours, and in need of nothing else."""

from collections.abc import Mapping, Sequence
from xml.etree import ElementTree as ET

from circuits.circuit import Circuit, HeadPath
from circuits.draw.layout import Arrow, Bundle, Label, lay_out
from tasks import Task

# In pixels: a column, a layer with paths and one without, a line of text, and the margins.
_COLUMN, _ROW, _IDLE_ROW, _LINE, _LEFT, _TOP, _FOOT = 92, 96, 30, 17, 150, 26, 60
_BESIDE = 7  # between equal paths of two heads


def draw_circuit(
    circuit: Circuit,
    n_layers: int | None = None,
    order: Sequence[int] | None = None,
    necessity: Mapping[HeadPath, float] | None = None,
    task: Task | None = None,
) -> str:
    """Draw a circuit as SVG: roles across, layers upwards, an arrow for each path.

    Args:
        circuit: what to draw; heads without paths are written beside their layer, and paths
            that only enable are dashed; a band joins those of which any one suffices.
        n_layers: layers of the model; by default as many as the circuit needs.
        order: roles from left to right; by default as they stand in the task's sequence, without a
            task as in a chain's.
        necessity: loss when each path is ablated; wider arrows are needed more.
        task: names the roles and the loss; without it `circuits.draw.names` does.

    Returns:
        An `<svg>` element that takes its text colour from the page and needs nothing else.

    Raises:
        InputError: a head above the layers, or a path whose role is not in the order.
    """
    layout = lay_out(circuit, n_layers, order, necessity, task=task)
    widest = max((len(label.text) for row in layout.labels for label in row), default=0)
    left = max(_LEFT, 60 + 7 * widest)
    xs = [left + _COLUMN * place for place in range(len(layout.columns))]
    busy = {arrow.path.head.layer for arrow in layout.arrows}
    heights = [
        max(_ROW if layer in busy else _IDLE_ROW, 8 + _LINE * len(labels))
        for layer, labels in enumerate(layout.labels)
    ]
    width, height = left + _COLUMN * len(xs), _TOP + sum(heights) + _FOOT
    floors = [height - _FOOT - sum(heights[:layer]) for layer in range(len(heights) + 1)]
    svg = _canvas(width, height)
    for x, column in zip(xs, layout.columns):
        line = {"x1": x, "y1": floors[0], "x2": x, "y2": floors[-1]}
        _add(svg, "line", **line, stroke="currentColor", stroke_opacity=0.18)
        text = {"x": x, "text_anchor": "middle", "fill": "currentColor"}
        _add(svg, "text", column.symbol, **text, y=height - 36, font_weight=600)
        _add(svg, "text", column.name, **text, y=height - 18, font_size=11, fill_opacity=0.65)
    for layer, labels in enumerate(layout.labels):
        _add_labels(svg, labels, (floors[layer] + floors[layer + 1]) / 2, faint=layer not in busy)
    for bundle in layout.bundles:
        layer = bundle.arrows[0].path.head.layer
        _add_bundle(svg, bundle, xs, floors[layer], floors[layer + 1])
    for arrow in layout.arrows:
        layer = arrow.path.head.layer
        _add_arrow(svg, arrow, xs, floors[layer], floors[layer + 1])
    for y in floors:
        for x in xs:
            _add(svg, "circle", cx=x, cy=y, r=3.5, fill="currentColor", fill_opacity=0.6)
    ET.indent(svg, "")
    return ET.tostring(svg, encoding="unicode")


def _canvas(width: int, height: int) -> ET.Element:
    """The `<svg>` with what it is, and the tip that its arrows have."""
    svg = ET.Element("svg", viewBox=f"0 0 {width} {height}", width=f"{width}", height=f"{height}")
    svg.attrib |= {"role": "img", "xmlns": "http://www.w3.org/2000/svg"}
    svg.attrib |= {"font-family": "system-ui, sans-serif", "font-size": "13"}
    _add(svg, "title", "Circuit: roles across, layers upwards, an arrow for each attention path")
    tip = {"viewBox": "0 0 10 10", "refX": 9, "refY": 5, "markerWidth": 11, "markerHeight": 11}
    tip |= {"markerUnits": "userSpaceOnUse", "orient": "auto-start-reverse"}
    marker = _add(_add(svg, "defs"), "marker", id="tip", **tip)
    _add(marker, "path", d="M0 0 L10 5 L0 10 z", fill="context-stroke")
    return svg


def _add(parent: ET.Element, tag: str, text: str = "", /, **attributes: object) -> ET.Element:
    """A child, everything in it escaped; `stroke_width=2` is the attribute `stroke-width`."""
    named = {name.replace("_", "-"): str(value) for name, value in attributes.items()}
    child = ET.SubElement(parent, tag, named)
    child.text = text or None
    return child


def _add_labels(svg: ET.Element, labels: Sequence[Label], middle: float, faint: bool) -> None:
    first = middle + 4 - _LINE * (len(labels) - 1) / 2
    for place, label in enumerate(labels):
        opacity = {"fill_opacity": 0.55} if faint else {}
        color, y = label.color or "currentColor", f"{first + _LINE * place:.0f}"
        _add(svg, "text", label.text, x=8, y=y, fill=color, **opacity)


def _add_bundle(svg: ET.Element, bundle: Bundle, xs: Sequence[int], bottom: int, top: int) -> None:
    """A band behind arrows."""
    first = bundle.arrows[0]
    beside = [arrow.beside for arrow in bundle.arrows]
    middle = (min(beside) + max(beside)) / 2
    width = _BESIDE * (max(beside) - min(beside)) + first.width + 8
    band = {"stroke": "currentColor", "stroke_opacity": 0.14, "stroke_width": f"{width:.1f}"}
    group = _add(svg, "g")
    _add(group, "title", bundle.about)
    _add(group, "path", d=_curve(first, middle, xs, bottom, top), **band, fill="none")
    start, end = (xs[place] + _BESIDE * middle for place in (first.start, first.end))
    where = {"x": f"{(start + end + width) / 2 + 4:.0f}", "y": (bottom + top) // 2 + 18}
    _add(group, "text", bundle.label, **where, font_size=11, fill="currentColor", fill_opacity=0.8)


def _curve(arrow: Arrow, beside: int | float, xs: Sequence[int], bottom: int, top: int) -> str:
    # Equal paths of several heads run side by side.
    start, end = (xs[place] + _BESIDE * beside for place in (arrow.start, arrow.end))
    middle = (bottom + top) / 2
    return f"M{start:g} {bottom - 5} C{start:g} {middle} {end:g} {middle} {end:g} {top + 5}"


def _add_arrow(svg: ET.Element, arrow: Arrow, xs: Sequence[int], bottom: int, top: int) -> None:
    dashes = {"stroke_dasharray": "5 4", "stroke_opacity": 0.75} if arrow.dashed else {}
    group = _add(svg, "g")
    _add(group, "title", f"{arrow.about[0]}: {', '.join(arrow.about[1:])}")
    line = {"stroke": arrow.color, "stroke_width": f"{arrow.width:.1f}", "fill": "none"}
    curve = _curve(arrow, arrow.beside, xs, bottom, top)
    _add(group, "path", d=curve, **line, **dashes, marker_end="url(#tip)")
    if arrow.loss is not None:
        start, end = (xs[place] + _BESIDE * arrow.beside for place in (arrow.start, arrow.end))
        straight = start == end
        where = {
            "x": f"{(start + end) / 2 + (8 if straight else 0):.0f}",
            "y": f"{(bottom + top) / 2 - 8 + 13 * arrow.beside:.0f}",
            "text_anchor": "start" if straight else "middle",
        }
        _add(group, "text", f"{arrow.loss:.2f}", **where, font_size=11, fill="currentColor")
