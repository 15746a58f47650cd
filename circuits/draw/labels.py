"""What stands beside the layers of a picture: every head with arrows, in their colour.

L2-L11 original
L1.H0 induction head, one-hot
L0.H0 previous-token head
   enables (key) L1.H0; replaced by uniform
"""

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from retrieval_interp.circuits.circuit import Circuit, Head, HeadPath
from retrieval_interp.circuits.draw.names import head_kind
from retrieval_interp.circuits.scores.enabling import Enabled
from retrieval_interp.tasks import Batch

COLORS = ("#4c78a8", "#e45756", "#54a24b", "#b279a2", "#f58518", "#72b7b2", "#9d755d", "#bab0ac")
Enabling = Mapping[HeadPath, Sequence[Enabled]]
"""The later paths that lose attention when a path is cut."""

_LONG = 30  # most characters of a line that adds to a label


class Label(NamedTuple):
    """A line of text beside a layer.

    Attributes:
        text: what it says.
        color: of the head's arrows; None for a line without arrows of one colour.
        faint: whether it only adds to the line above.
    """

    text: str
    color: str | None = None
    faint: bool = False


def head_colors(circuit: Circuit) -> dict[Head, str]:
    """A colour for each head with arrows, different within a layer of up to eight."""
    count: Counter[int] = Counter()
    colors = {}
    for head in sorted({path.head for path in circuit.every_path()}):
        colors[head] = COLORS[count[head.layer] % len(COLORS)]
        count[head.layer] += 1
    return colors


def row_labels(
    circuit: Circuit,
    layers: range,
    drawn: Mapping[HeadPath, str],
    batch: Batch | None = None,
    enables: Enabling | None = None,
) -> tuple[Label, ...]:
    """The lines beside a row: heads with arrows by name, others counted.

    Args:
        circuit: what is drawn.
        layers: one layer, or several of equal `idle_heads` without arrows.
        drawn: the colour of every arrow.
        batch: examples, by which heads of a common kind are known.
        enables: what is known to need each path.
    """
    labels = []
    by_head: dict[Head, list[HeadPath]] = {}
    for path in sorted(drawn):
        if path.head.layer in layers:
            by_head.setdefault(path.head, []).append(path)
    for head, paths in by_head.items():
        colors = {drawn[path] for path in paths}
        first, *more = _head_lines(circuit, head, paths, batch, enables or {})
        labels.append(Label(first, colors.pop() if len(colors) == 1 else None))
        labels += [Label(text, faint=True) for text in more]
    bottom, top = layers[0], layers[-1]
    idle = {
        number: what
        for number, what in idle_heads(circuit, bottom).items()
        if Head(bottom, number) not in by_head
    }
    if len(idle) == 1:
        ((number, what),) = idle.items()
        labels.append(Label(f"{_span(Head(bottom, number), Head(top, number))} {what}"))
    elif idle:
        counts = ", ".join(f"{n} {what}" for what, n in Counter(idle.values()).items())
        each = " each" if top > bottom else ""
        labels.append(Label(f"{_span(f'L{bottom}', f'L{top}')}: {counts}{each}"))
    return tuple(labels) or (Label(f"{_span(f'L{bottom}', f'L{top}')} original"),)


def idle_heads(circuit: Circuit, layer: int) -> dict[int, str]:
    """What replaces the heads of a layer, by head and without their paths."""
    replaced = sorted(item for item in circuit.mechanisms.items() if item[0].layer == layer)
    return {head.head: mechanism.label for head, mechanism in replaced}


def _span(first: Head | str, last: Head | str) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _head_lines(
    circuit: Circuit,
    head: Head,
    paths: Sequence[HeadPath],
    batch: Batch | None,
    enables: Enabling,
) -> list[str]:
    """What a head is, and below it which heads it enables and what stands in for it."""
    mechanism, needed = circuit[head], _needed_by(paths, enables)
    names = [head_kind(paths, batch) if batch is not None else ""]
    if mechanism.paths:
        names.append(mechanism.kind)
    elif any(path in circuit.enabling for path in paths):
        names.append("" if needed else "only enables")
    else:
        names.append("one of several")
    below = [f"enables {needed}" if needed else ""]
    if not mechanism.paths and not mechanism.keeps_own:
        below.append(f"replaced by {mechanism}")
    lines = textwrap.wrap("; ".join(filter(None, below)), _LONG)
    return [" ".join([str(head), ", ".join(filter(None, names))]).strip(), *lines]


def _needed_by(paths: Iterable[HeadPath], enables: Enabling) -> str:
    """`(key) L1.H0, (query) L2.H1`: the heads that need these paths, and on which side."""
    sides: dict[str, set[Head]] = {"key": set(), "query": set()}
    for path in paths:
        for later in enables.get(path, ()):
            sides[later.side].add(later.path.head)
    return ", ".join(
        f"({side}) {', '.join(map(str, sorted(heads)))}" for side, heads in sides.items() if heads
    )
