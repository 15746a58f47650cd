"""A circuit as SVG, for pages: in the page's own colours, and in need of nothing else."""

import textwrap
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree as ET

from retrieval_interp.circuits.circuit import Circuit, HeadPath
from retrieval_interp.circuits.draw.labels import Enabling, Label
from retrieval_interp.circuits.draw.layout import Arrow, Bundle, Column, lay_out
from retrieval_interp.circuits.draw.placing import Box, Curve, place_text
from retrieval_interp.tasks import Batch, Task

# In pixels: a column, a layer with paths and one without, a line of text, and the margins.
_COLUMN, _ROW, _IDLE_ROW, _LINE = 74, 96, 30, 17
_LEFT, _RIGHT, _TOP, _FOOT = 150, 56, 26, 45
_BESIDE = 9  # between equal paths of two heads
_SYMBOL = 13  # characters of a line below a column


def draw_circuit(
    circuit: Circuit,
    n_layers: int | None = None,
    order: Sequence[int] | None = None,
    necessity: Mapping[HeadPath, float] | None = None,
    task: Task | None = None,
    enables: Enabling | None = None,
    batch: Batch | None = None,
) -> str:
    """Draw a circuit as SVG: roles across, layers upwards, an arrow for each path.

    Args:
        circuit: what to draw; heads without paths are written beside their layer, and paths
            that only enable are dashed; a band joins those of which any one suffices.
        n_layers: layers of the model; by default as many as the circuit needs.
        order: roles from left to right; by default as they stand in the task's sequence, without a
            task as in a chain's.
        necessity: loss when each path is ablated; wider arrows are needed more.
        task: names the roles, the loss and heads of a common kind; without it
            `circuits.draw.names` names the roles.
        enables: what is known to need each path, to be said beside its head.
        batch: examples that tell the order of the roles and what heads do; by default a few of
            the task's.

    Returns:
        An `<svg>` element that takes its text colour from the page and needs nothing else.

    Raises:
        InputError: a head above the layers, or a path whose role is not in the order.
    """
    layout = lay_out(circuit, n_layers, order, necessity, task=task, enables=enables, batch=batch)
    labels = [label for lines in layout.labels for label in lines]
    left = max(
        _LEFT, 60 + max(round((6 if label.faint else 7) * len(label.text)) for label in labels)
    )
    widest = max((len(line) for column in layout.columns for line in _lines(column)), default=0)
    step = max(_COLUMN, 8 * widest, *(7 * len(column.name) + 8 for column in layout.columns))
    xs = [left + step * place for place in range(len(layout.columns))]
    busy = {arrow.row for arrow in layout.arrows}
    heights = [
        max(_ROW if row in busy else _IDLE_ROW, 8 + _LINE * len(lines))
        for row, lines in enumerate(layout.labels)
    ]
    foot = _FOOT + 15 * max(len(_lines(column)) for column in layout.columns)
    width, height = xs[-1] + max(_RIGHT, step // 2), _TOP + sum(heights) + foot
    floors = [height - foot - sum(heights[:row]) for row in range(len(heights) + 1)]
    svg = _canvas(width, height)
    for x, column in zip(xs, layout.columns):
        line = {"x1": x, "y1": floors[0], "x2": x, "y2": floors[-1]}
        _add(svg, "line", **line, stroke="currentColor", stroke_opacity=0.18)
        _add_column(svg, column, x, floors[0])
    for row, lines in enumerate(layout.labels):
        bottom, top = floors[row], floors[row + 1]
        _add_labels(svg, lines, (bottom + top) / 2, faint=row not in busy)
        arrows = [arrow for arrow in layout.arrows if arrow.row == row]
        bundles = [bundle for bundle in layout.bundles if bundle.arrows[0].row == row]
        _add_row(svg, arrows, bundles, xs, bottom, top)
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
        y = round(first + _LINE * place)
        if label.color:
            swatch = {"x1": 8, "y1": y - 4, "x2": 20, "y2": y - 4}
            _add(svg, "line", **swatch, stroke=label.color, stroke_width=4)
        style = {"fill_opacity": 0.65} if faint or label.faint else {}
        style |= {"font_size": 11} if label.faint else {}
        _add(svg, "text", label.text, x=26, y=y, fill="currentColor", **style)


def _add_column(svg: ET.Element, column: Column, x: int, floor: int) -> None:
    """A role below the drawing: its symbol on one or more lines, then its name."""
    text = {"x": x, "text_anchor": "middle", "fill": "currentColor"}
    lines = _lines(column)
    for place, line in enumerate(lines):
        _add(svg, "text", line, **text, y=floor + 24 + 15 * place, font_weight=600)
    below = floor + 24 + 15 * len(lines) + (3 if lines else 0)
    _add(svg, "text", column.name, **text, y=below, font_size=11, fill_opacity=0.65)


def _lines(column: Column) -> list[str]:
    return textwrap.wrap(column.symbol, _SYMBOL, break_on_hyphens=False)


def _curve(arrow: Arrow, beside: int | float, xs: Sequence[int], bottom: int, top: int) -> Curve:
    # Equal paths of several heads run side by side.
    start, end = (xs[place] + _BESIDE * beside for place in (arrow.start, arrow.end))
    return Curve(start, end, bottom - 5, top + 5)


def _add_row(
    svg: ET.Element,
    arrows: Sequence[Arrow],
    bundles: Sequence[Bundle],
    xs: Sequence[int],
    bottom: int,
    top: int,
) -> None:
    """Bands, arrows before them, and texts where they cover least."""
    curves = {arrow.path: _curve(arrow, arrow.beside, xs, bottom, top) for arrow in arrows}
    texts = []
    for bundle in bundles:
        beside = [arrow.beside for arrow in bundle.arrows]
        band = _curve(bundle.arrows[0], (min(beside) + max(beside)) / 2, xs, bottom, top)
        width = _BESIDE * (max(beside) - min(beside)) + bundle.arrows[0].width + 8
        style = {"stroke": "currentColor", "stroke_opacity": 0.14, "fill": "none"}
        group = _add(svg, "g")
        _add(group, "title", bundle.about)
        _add(group, "path", d=band.svg(), stroke_width=f"{width:.1f}", **style)
        texts.append((group, bundle.label, curves[bundle.arrows[-1].path]))
    for arrow in arrows:
        name, *about = arrow.about
        group = _add(svg, "g", data_path=name, **{"class": "arrow"})
        _add(group, "title", f"{name}: {', '.join(about)}")
        dashes = {"stroke_dasharray": "5 4", "stroke_opacity": 0.75} if arrow.dashed else {}
        line = {"d": curves[arrow.path].svg(), "fill": "none"}
        # A wider, invisible line is easier to click.
        _add(group, "path", **line, stroke="transparent", stroke_width=_BESIDE)
        style = {"stroke": arrow.color, "stroke_width": f"{arrow.width:.1f}"}
        _add(group, "path", **line, **style, **dashes, marker_end="url(#tip)")
        if arrow.loss is not None:
            texts.append((group, f"{arrow.loss:.2f}", curves[arrow.path]))
    taken: list[Box] = []
    for group, text, curve in texts:
        box = place_text(text, curve, taken, list(curves.values()))
        taken.append(box)
        where = {"x": f"{box.left:.0f}", "y": f"{box.bottom - 3:.0f}"}
        _add(group, "text", text, **where, font_size=11, fill="currentColor")
