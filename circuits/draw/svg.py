"""A circuit as SVG, in the colours of the page that shows it."""

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise, product
from typing import NamedTuple
from xml.etree import ElementTree as ET

from retrieval_interp.circuits.circuit import Circuit, HeadPath, RolePath, interchangeable
from retrieval_interp.circuits.draw import layout
from retrieval_interp.circuits.draw.layout import Enabling, Label, role_words, row_labels
from retrieval_interp.tasks import Batch, Task, role_name

# In pixels: a column, a layer with paths and one without, a line of text, and the margins.
_COLUMN, _ROW, _IDLE_ROW, _LINE = 74, 96, 30, 17
_LEFT, _RIGHT, _TOP, _FOOT = 150, 56, 26, 45
_BESIDE = 9  # between equal paths of two heads
_SYMBOL = 13  # characters of a line below a column
_CHARACTER, _TALL = 6.4, 12  # of 11-pixel text


def draw_circuit(
    circuit: Circuit,
    n_layers: int | None = None,
    order: Sequence[int] | None = None,
    losses: Mapping[HeadPath, float] | None = None,
    task: Task | None = None,
    enables: Enabling | None = None,
    batch: Batch | None = None,
    intact: float = 0.0,
    uninformed: float = 1.0,
    when: str = "removed from the circuit",
    colors: Mapping[HeadPath, str] | None = None,
    notes: Mapping[HeadPath, str] | None = None,
) -> str:
    """A circuit as an `<svg>` element: roles across, layers upwards, an arrow for each path.

    Arrows are dashed where the intact model needs a path that the circuit does without. They are
    1.5 to 6 pixels wide, by the share of what the model has learned that is lost without the path,
    (loss - intact) / (uninformed - intact).

    Args:
        circuit: what to draw; heads without paths are written next to their layer.
        n_layers: layers of the model; by default as many as the circuit needs.
        order: roles from left to right; by default as in the examples, or else from last to first.
        losses: the loss without each path.
        task: names the roles, the loss and heads of a common kind.
        enables: which later heads are known to need each path, or each head with a fixed pattern
            that is needed as such: a band across its layer.
        batch: examples that tell what heads do; by default a few of the task's.
        intact: the loss of the intact model.
        uninformed: the loss of a model that knows nothing.
        when: what was done to a path, in words: "removed from the circuit", "cut in the model".
        colors: CSS colour of an arrow; by default one per head of a layer.
        notes: short text next to an arrow; by default its loss.
    """
    if batch is None and task is not None:
        batch = task.sample(8)
    if order is None:
        order = range(circuit.n_roles)[::-1] if batch is None else layout.role_order(batch)
    names = [role_name(role, circuit.role_names) for role in range(circuit.n_roles)]
    words, symbols = role_words(circuit, task)
    below = [
        [] if symbol == name else textwrap.wrap(symbol, _SYMBOL, break_on_hyphens=False)
        for symbol, name in zip(symbols, names)
    ]
    given, own = colors or {}, layout.head_colors(circuit)
    colors = {path: given.get(path, own[path.head]) for path in circuit.every_path()}
    depth = max([n_layers or 1, *(1 + head.layer for head in circuit.heads())])
    enables = enables or {}
    rows = layout.layer_rows(circuit, depth, enables)
    labels = [list(row_labels(circuit, layers, colors, batch, enables)) for layers in rows]
    in_row = [[path for path in colors if path.head.layer in layers] for layers in rows]

    lengths = (60 + (6 if label.faint else 7) * len(label.text) for of in labels for label in of)
    left = max(_LEFT, *lengths)
    widths = [8 * len(line) for symbol in below for line in symbol]
    step = max(_COLUMN, *widths, *(7 * len(name) + 8 for name in names))
    xs = {role: left + step * place for place, role in enumerate(order)}
    foot = _FOOT + 15 * max(map(len, below))
    least = [_ROW if paths else _IDLE_ROW for paths in in_row]
    heights = [max(low, 8 + _LINE * len(lines)) for low, lines in zip(least, labels)]
    height = _TOP + sum(heights) + foot
    floors = [height - foot - up for up in accumulate(heights, initial=0)]
    svg = _canvas(xs[order[-1]] + max(_RIGHT, step // 2), height)
    for role, x in xs.items():
        _add_column(svg, x, floors, names[role], below[role])
    losses, notes, learned = losses or {}, notes or {}, uninformed - intact
    loss_name = task.loss_name if task else "loss"
    for layers, paths, lines, (bottom, top) in zip(rows, in_row, labels, pairwise(floors)):
        for head in layout.as_such(enables, layers):
            place = {"x": left - 12, "y": top + 3, "width": xs[order[-1]] - left + 24}
            look = {"height": bottom - top - 6, "rx": 6, "fill_opacity": 0.08, "class": "band"}
            band = _add(svg, "rect", **place, **look, fill="currentColor")
            _add(band, "title", f"{head} {circuit[head]}: needed as such")
        idle = not paths and not layout.as_such(enables, layers)
        _add_labels(svg, lines, (bottom + top) / 2, faint=idle)
        curves = _curves(paths, xs, bottom, top)
        texts = []
        for path, curve in curves.items():
            dest, src = path.path
            about, note, share = [f"{words[dest]} from {words[src]}"], "", 0.0
            if path in losses:
                about.append(f"{loss_name} {losses[path]:.3f} when {when}")
                note = f"{losses[path]:.2f}"
                share = (losses[path] - intact) / learned if learned > 0 else 0.0
            width = 1.5 + 4.5 * max(0.0, min(1.0, share))
            apart = path not in circuit.paths() and path.head not in enables
            dashed = apart and path.head in circuit.mechanisms
            known = path in enables or circuit[path.head].follows_paths
            about += ["only enables"] if dashed and known else []
            group = _add_arrow(svg, circuit, path, curve, colors[path], width, about, dashed)
            if note := notes.get(path, note):
                texts.append((group, note, curve))
        _add_texts(texts, list(curves.values()))
    for y, x in product(floors, xs.values()):
        _add(svg, "circle", cx=x, cy=y, r=3.5, fill="currentColor", fill_opacity=0.6)
    ET.indent(svg, "")
    return ET.tostring(svg, encoding="unicode")


class _Curve(NamedTuple):
    """From the bottom of a layer to the top: a Bezier curve that ends upright."""

    start: float
    end: float
    bottom: float
    top: float

    def at(self, t: float) -> tuple[float, float]:
        """The point at t, from 0 at the start to 1 at the tip."""
        late, low, high = t**2 * (3 - 2 * t), (1 - t) ** 3, t**3
        y = low * self.bottom + (1 - low - high) * (self.bottom + self.top) / 2 + high * self.top
        return self.start + late * (self.end - self.start), y

    def __str__(self) -> str:
        """As the `d` of a path."""
        start, end, bottom, top = self
        middle = (bottom + top) / 2
        return f"M{start:g} {bottom:g} C{start:g} {middle:g} {end:g} {middle:g} {end:g} {top:g}"


def _curves(
    paths: Sequence[HeadPath], xs: Mapping[int, int], bottom: int, top: int
) -> dict[HeadPath, _Curve]:
    """The arrows of a row; equal paths of several heads run side by side."""
    beside: Counter[RolePath] = Counter()
    curves = {}
    for path in paths:
        start, end = (xs[role] + _BESIDE * beside[path.path] for role in reversed(path.path))
        curves[path] = _Curve(start, end, bottom - 5, top + 5)
        beside[path.path] += 1
    return curves


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


def _add_column(svg: ET.Element, x: int, floors: list[int], name: str, symbol: list[str]) -> None:
    line = {"x1": x, "y1": floors[0], "x2": x, "y2": floors[-1]}
    _add(svg, "line", **line, stroke="currentColor", stroke_opacity=0.18)
    text = {"x": x, "text_anchor": "middle", "fill": "currentColor"}
    for place, word in enumerate(symbol):
        _add(svg, "text", word, **text, y=floors[0] + 24 + 15 * place, font_weight=600)
    below = floors[0] + 24 + 15 * len(symbol) + (3 if symbol else 0)
    _add(svg, "text", name, **text, y=below, font_size=11, fill_opacity=0.65)


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


def _add_arrow(
    svg: ET.Element,
    circuit: Circuit,
    path: HeadPath,
    curve: _Curve,
    color: str,
    width: float,
    about: list[str],
    dashed: bool,
) -> ET.Element:
    name = path.text(circuit.role_names)
    several = interchangeable(circuit.redundant, circuit.role_names)
    about += [text for text, paths in several.items() if path in paths]
    group = _add(svg, "g", data_path=name, **{"class": "arrow"})
    _add(group, "title", f"{name}: {', '.join(about)}")
    # A wider, invisible line is easier to click.
    _add(group, "path", d=curve, fill="none", stroke="transparent", stroke_width=_BESIDE)
    style = {"fill": "none", "stroke": color, "stroke_width": f"{width:.1f}"}
    style |= {"stroke_dasharray": "5 4", "stroke_opacity": "0.75"} if dashed else {}
    _add(group, "path", d=curve, **style, marker_end="url(#tip)")
    return group


def _add_texts(texts: Sequence[tuple[ET.Element, str, _Curve]], curves: Sequence[_Curve]) -> None:
    """Write next to arrows, where texts cover no other and fewest dots of arrows."""
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
        left, middle = min(spots, key=cost)
        taken.append((left, middle, width))
        where = {"x": f"{left:.0f}", "y": f"{middle + 3:.0f}"}
        _add(group, "text", text, **where, font_size=11, fill="currentColor")
