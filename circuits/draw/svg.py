"""A circuit as SVG, in the colours of the page; a file follows the reader's light or dark mode."""

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise, product
from typing import NamedTuple
from xml.etree import ElementTree as ET

from retrieval_interp.circuits.circuit import Circuit
from retrieval_interp.circuits.draw import layout
from retrieval_interp.circuits.draw.layout import Arrow, Enabling, Label, LayerRow
from retrieval_interp.circuits.paths import HeadPath, RolePath
from retrieval_interp.tasks import Batch, Task, role_name

# In pixels: a column, a layer with paths and one without, a line of text, and the margins.
_COLUMN, _ROW, _IDLE_ROW, _LINE = 60, 96, 30, 17
_LEFT, _RIGHT, _TOP, _FOOT = 140, 40, 26, 45
_BESIDE = 9  # between arrows of the same path in two heads
_SYMBOL = 13  # characters at most of a line below a column
_CHARACTER, _TALL = 6.4, 12  # width of a character and height of a line of 11-pixel text


def draw_circuit(
    circuit: Circuit,
    n_layers: int | None = None,
    order: Sequence[int] | None = None,
    *,
    task: Task | None = None,
    batch: Batch | None = None,
    enables: Enabling | None = None,
    arrows: Mapping[HeadPath, Arrow] | None = None,
) -> str:
    """Draw a circuit as `<svg>`: roles across, layers upwards, an arrow for each path.

    An arrow is dashed if the intact model needs its path and the circuit does without it.

    Args:
        circuit: what to draw; heads without paths are written next to their layer.
        n_layers: layers of the model; by default as many as the circuit needs.
        order: roles from left to right; by default as in the examples, or else from last to first.
        task: names the roles, and heads of a common kind.
        batch: examples that tell what heads do; by default a few of the task's.
        enables: the later paths that each path serves, or that a head serves whose fixed pattern is
            needed as such, which is drawn as a band across its layer.
        arrows: the width, colour and note of a path's arrow; `worth_of_paths` makes them of losses.
    """
    Circuit.check(circuit)
    if batch is None and task is not None:
        batch = task.sample(8, 0, "cpu", "train")
    if order is None:
        order = range(circuit.n_roles)[::-1] if batch is None else layout.role_order(batch)
    enables = enables or {}
    words, symbols = layout.role_words(circuit, task)
    columns = {role: [role_name(role, circuit.role_names)] for role in order}
    for role, texts in columns.items():
        if symbols[role] not in texts:
            texts[:0] = textwrap.wrap(symbols[role], _SYMBOL, break_on_hyphens=False)
    styled = dict(layout.styled_arrows(circuit, words, enables, arrows or {}))
    depth = max([n_layers or 1, *(1 + head.layer for head in circuit.heads())])
    rows = []
    for layers in layout.layer_rows(circuit, depth, enables):
        in_row = {path: arrow for path, arrow in styled.items() if path.head.layer in layers}
        as_such = layout.as_such(enables, layers)
        bands = [f"{head} {circuit[head]}: needed as such" for head in as_such]
        labels = list(layout.row_labels(circuit, layers, in_row, batch, enables))
        rows.append(LayerRow(labels, in_row, bands))
    return _to_svg(columns, rows, circuit.role_names)


def _to_svg(
    columns: Mapping[int, Sequence[str]], rows: Sequence[LayerRow], names: Sequence[str]
) -> str:
    """Draw rows, from the bottom, and columns, each with the lines below it, the name last."""
    lines = [label for row in rows for label in row.labels]
    first_x = max(_LEFT, *(48 + (6 if label.faint else 7) * len(label.text) for label in lines))
    widths = [8 * len(line) for texts in columns.values() for line in texts[:-1]]
    step = max(_COLUMN, *widths, *(7 * len(texts[-1]) + 8 for texts in columns.values()))
    xs = {role: first_x + step * place for place, role in enumerate(columns)}
    right = max(xs.values())
    foot = _FOOT + 15 * (max(map(len, columns.values())) - 1)
    heights = [max(_ROW if row.arrows else _IDLE_ROW, 8 + _LINE * len(row.labels)) for row in rows]
    height = _TOP + sum(heights) + foot
    floors = [height - foot - up for up in accumulate(heights, initial=0)]
    svg = _canvas(right + max(_RIGHT, step // 2), height)
    for role, texts in columns.items():
        _add_column(svg, xs[role], floors, texts)
    for row, (bottom, top) in zip(rows, pairwise(floors)):
        for title in row.bands:
            place = {"x": first_x - 12, "y": top + 3, "width": right - first_x + 24}
            look = {"height": bottom - top - 6, "rx": 6, "fill_opacity": 0.08, "class": "band"}
            _add(_add(svg, "rect", **place, **look, fill="currentColor"), "title", title)
        _add_labels(svg, row.labels, (bottom + top) / 2, not (row.arrows or row.bands))
        curves = _curves(list(row.arrows), xs, bottom, top)
        notes = []
        for path, arrow in row.arrows.items():
            group = _add_arrow(svg, path.text(names), arrow, curves[path])
            if arrow.note:
                notes.append((group, arrow.note, curves[path]))
        _add_texts(notes, list(curves.values()))
    for y, x in product(floors, xs.values()):
        _add(svg, "circle", cx=x, cy=y, r=3.5, fill="currentColor", fill_opacity=0.6)
    ET.indent(svg, "")
    return ET.tostring(svg, encoding="unicode")


class _Curve(NamedTuple):
    """A Bezier curve from the bottom of a layer to its top, vertical at both ends."""

    start: float
    end: float
    bottom: float
    top: float

    def at(self, t: float) -> tuple[float, float]:
        """Return the point at t, from 0 at the start to 1 at the tip."""
        across, low, high = t**2 * (3 - 2 * t), (1 - t) ** 3, t**3
        y = low * self.bottom + (1 - low - high) * (self.bottom + self.top) / 2 + high * self.top
        return self.start + across * (self.end - self.start), y

    def __str__(self) -> str:
        """The `d` attribute of a path."""
        start, end, bottom, top = self
        middle = (bottom + top) / 2
        return f"M{start:g} {bottom:g} C{start:g} {middle:g} {end:g} {middle:g} {end:g} {top:g}"


def _curves(
    paths: Sequence[HeadPath], xs: Mapping[int, int], bottom: int, top: int
) -> dict[HeadPath, _Curve]:
    """Return the curve of each arrow of a row; the same path runs in parallel."""
    beside: Counter[RolePath] = Counter()
    curves = {}
    for path in paths:
        start, end = (xs[role] + _BESIDE * beside[path.path] for role in reversed(path.path))
        curves[path] = _Curve(start, end, bottom - 5, top + 5)
        beside[path.path] += 1
    return curves


def _canvas(width: int, height: int) -> ET.Element:
    """Make the `<svg>` element with its title and the tip of its arrows."""
    svg = ET.Element("svg", viewBox=f"0 0 {width} {height}", width=f"{width}", height=f"{height}")
    svg.attrib |= {"role": "img", "xmlns": "http://www.w3.org/2000/svg"}
    svg.attrib["style"] = f"--width: {width}px"  # from which pages tell how small it may be
    svg.attrib |= {"font-family": "system-ui, sans-serif", "font-size": "13"}
    _add(svg, "title", "Circuit: roles across, layers upwards, an arrow for each attention path")
    _add(svg, "style", "svg:root { color-scheme: light dark; color: CanvasText }")  # of a file
    tip = {"viewBox": "0 0 10 10", "refX": 9, "refY": 5, "markerWidth": 11, "markerHeight": 11}
    tip |= {"markerUnits": "userSpaceOnUse", "orient": "auto-start-reverse"}
    marker = _add(_add(svg, "defs"), "marker", id="tip", **tip)
    _add(marker, "path", d="M0 0 L10 5 L0 10 z", fill="context-stroke")
    return svg


def _add(parent: ET.Element, tag: str, text: str = "", /, **attributes: object) -> ET.Element:
    """Add a child, all escaped; `stroke_width=2` is the attribute `stroke-width`."""
    named = {name.replace("_", "-"): str(value) for name, value in attributes.items()}
    child = ET.SubElement(parent, tag, named)
    child.text = text or None
    return child


def _add_column(svg: ET.Element, x: int, floors: list[int], texts: Sequence[str]) -> None:
    line = {"x1": x, "y1": floors[0], "x2": x, "y2": floors[-1]}
    _add(svg, "line", **line, stroke="currentColor", stroke_opacity=0.18)
    text = {"x": x, "text_anchor": "middle", "fill": "currentColor"}
    y = floors[0] + 24
    *symbol, name = texts
    for words in symbol:
        _add(svg, "text", words, **text, y=y, font_weight=600)
        y += 15
    _add(svg, "text", name, **text, y=y + (3 if symbol else 0), font_size=11, fill_opacity=0.65)


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


def _add_arrow(svg: ET.Element, name: str, arrow: Arrow, curve: _Curve) -> ET.Element:
    """Add an arrow, 1.5 to 6 pixels wide."""
    group = _add(svg, "g", data_path=name, **{"class": "arrow"})
    _add(group, "title", f"{name}: {arrow.about}")
    # A wider, invisible line is easier to click.
    _add(group, "path", d=curve, fill="none", stroke="transparent", stroke_width=_BESIDE)
    width = f"{1.5 + 4.5 * arrow.worth:.1f}"
    style = {"fill": "none", "stroke": arrow.color, "stroke_width": width}
    style |= {"stroke_dasharray": "5 4", "stroke_opacity": "0.75"} if arrow.dashed else {}
    _add(group, "path", d=curve, **style, marker_end="url(#tip)")
    return group


def _add_texts(texts: Sequence[tuple[ET.Element, str, _Curve]], curves: Sequence[_Curve]) -> None:
    """Write notes next to arrows, where they cover no other and few arrows."""
    dots = [curve.at(t / 60) for curve in curves for t in range(61)]
    taken: list[tuple[float, float, float]] = []  # left end, middle and width
    for group, text, curve in texts:
        width = _CHARACTER * len(text)

        def cost(spot: tuple[float, float], width: float = width) -> int:
            x, y = spot
            covered = sum(x < a + w and a < x + width and abs(b - y) < _TALL for a, b, w in taken)
            crossed = sum(x - 3 < a < x + width + 3 and abs(b - y) < _TALL / 2 + 3 for a, b in dots)
            return 1000 * covered + crossed

        spots = [
            (x + across, y + down)
            for x, y in map(curve.at, (0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8))
            for across, down in ((7, 0), (-7 - width, 0), (-width / 2, -13), (-width / 2, 13))
        ]
        x, middle = min(spots, key=cost)
        taken.append((x, middle, width))
        place = {"x": f"{x:.0f}", "y": f"{middle + 3:.0f}"}
        _add(group, "text", text, **place, font_size=11, fill="currentColor")
