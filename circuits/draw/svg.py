"""A picture of a circuit: roles across, layers upwards, arrows for paths (figures 5 and 7)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape

from circuits.circuit import Circuit, HeadPath, RolePath
from circuits.draw.names import names_for
from tasks import Task, role_name

_COLUMN, _ROW, _IDLE_ROW, _LEFT, _TOP = 92, 96, 30, 150, 26
_COLORS = ("#4c78a8", "#e45756", "#54a24b", "#b279a2", "#f58518", "#72b7b2", "#9d755d", "#bab0ac")


def draw_circuit(
    circuit: Circuit,
    n_layers: int,
    order: Sequence[int],
    necessity: Mapping[HeadPath, float] | None = None,
    task: Task | None = None,
) -> str:
    """Draw a circuit as SVG.

    Args:
        circuit: what to draw; heads without paths are written beside their layer, and paths
            that only enable are dashed.
        n_layers: layers of the model.
        order: roles from left to right.
        necessity: loss when each path is ablated; wider arrows are needed more.
        task: names the roles; without it `circuits.draw.names` does.

    Returns:
        An `<svg>` element that takes its text colour from the page and needs nothing else.
    """
    necessity, names = necessity or {}, names_for(circuit, task)
    loss_name = task.loss_name if task else "loss"
    labels = [_layer_labels(circuit, layer) for layer in range(n_layers)]
    widest = max((len(text) for lines in labels for text, _ in lines), default=0)
    left = max(_LEFT, 60 + 7 * widest)
    columns = {role: left + _COLUMN * place for place, role in enumerate(order)}
    by_layer: dict[int, list[HeadPath]] = {layer: [] for layer in range(n_layers)}
    for path in (*circuit.paths(), *circuit.enabling):
        by_layer[path.head.layer].append(path)
    enabling = set(circuit.enabling)
    heights = [
        max(_ROW if by_layer[layer] else _IDLE_ROW, 8 + 17 * len(labels[layer]))
        for layer in range(n_layers)
    ]
    width = left + _COLUMN * len(order)
    height = _TOP + sum(heights) + 60
    bottoms = [height - 60 - sum(heights[:layer]) for layer in range(n_layers + 1)]
    parts = [
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        'xmlns="http://www.w3.org/2000/svg" font-family="system-ui, sans-serif" font-size="13">',
        "<title>Circuit: roles across, layers upwards, an arrow for each attention path</title>",
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="11" '
        'markerHeight="11" markerUnits="userSpaceOnUse" orient="auto-start-reverse">'
        '<path d="M0 0 L10 5 L0 10 z" fill="context-stroke"/></marker></defs>',
    ]
    for role, x in columns.items():
        parts.append(
            f'<line x1="{x}" y1="{bottoms[0]}" x2="{x}" y2="{bottoms[-1]}" stroke="currentColor" '
            'stroke-opacity="0.18"/>'
        )
        letter = names.symbols[role]
        parts.append(
            f'<text x="{x}" y="{height - 36}" text-anchor="middle" fill="currentColor" '
            f'font-weight="600">'
            f"{escape(letter)}</text>"
            f'<text x="{x}" y="{height - 18}" text-anchor="middle" fill="currentColor" '
            f'fill-opacity="0.65" font-size="11">{role_name(role)}</text>'
        )
    for layer in range(n_layers):
        bottom, top = bottoms[layer], bottoms[layer + 1]
        middle = (bottom + top) / 2 + 4 - 17 * (len(labels[layer]) - 1) / 2
        for place, (text, color) in enumerate(labels[layer]):
            faint = "" if by_layer[layer] else ' fill-opacity="0.55"'
            parts.append(
                f'<text x="8" y="{middle + 17 * place:.0f}" fill="{color}"{faint}>'
                f"{escape(text)}</text>"
            )
        seen: dict[RolePath, int] = {}
        for path in by_layer[layer]:
            loss, enables = necessity.get(path), path in enabling
            title = f"{path}: {names.path(*path.path)}"
            title += "" if loss is None else f", {loss_name} {loss:.3f} when ablated"
            title += ", enables only" if enables else ""
            color = _COLORS[path.head.head % len(_COLORS)]
            # Equal paths of several heads run side by side.
            beside = seen[path.path] = seen.get(path.path, -1) + 1
            ends = columns[path.path.src] + 7 * beside, columns[path.path.dest] + 7 * beside
            parts.append(_arrow(ends, bottom, top, loss, enables, color, title, 13 * beside))
        for y in {bottom, top}:
            parts += [
                f'<circle cx="{x}" cy="{y}" r="3.5" fill="currentColor" fill-opacity="0.5"/>'
                for x in columns.values()
            ]
    return "\n".join([*parts, "</svg>"])


def _layer_labels(circuit: Circuit, layer: int) -> list[tuple[str, str]]:
    """The lines beside a layer, each with its colour: heads with paths by name, others counted."""
    heads = {head: m for head, m in circuit.mechanisms.items() if head.layer == layer}
    if not heads:
        return [(f"L{layer} original", "currentColor")]
    if len(heads) == 1:
        return [(f"{head} {m.kind}", "currentColor") for head, m in heads.items()]
    lines = [
        (f"{head} {m.kind}", _COLORS[head.head % len(_COLORS)])
        for head, m in heads.items()
        if m.paths
    ]
    idle = Counter(m.kind for m in heads.values() if not m.paths)
    counts = ", ".join(f"{n} {kind}" for kind, n in idle.items())
    return lines + ([(f"L{layer}: {counts}", "currentColor")] if counts else [])


def _arrow(
    ends: tuple[int, int],
    bottom: int,
    top: int,
    loss: float | None,
    enables: bool,
    color: str,
    title: str,
    lower: int,
) -> str:
    start, end = ends
    stroke = 1.5 if loss is None else 1.5 + 4.5 * min(1.0, loss)
    dashes = ' stroke-dasharray="5 4" stroke-opacity="0.75"' if enables else ""
    middle = (bottom + top) / 2
    text = (
        ""
        if loss is None
        else f'<text x="{(start + end) / 2 + (8 if start == end else 0):.0f}" '
        f'y="{middle - 8 + lower:.0f}" '
        f'text-anchor="{"start" if start == end else "middle"}" font-size="11" '
        f'fill="currentColor">{loss:.2f}</text>'
    )
    return (
        f'<g><title>{escape(title)}</title><path d="M{start} {bottom - 5} C{start} {middle} {end} '
        f'{middle} {end} {top + 5}" fill="none" stroke="{color}" stroke-width="{stroke:.1f}"'
        f'{dashes} marker-end="url(#tip)"/>{text}</g>'
    )
