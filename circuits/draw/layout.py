"""What a drawing of a circuit shows: columns of roles, rows of layers with labels and arrows."""

import itertools
import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from retrieval_interp.circuits.circuit import Circuit, Head, HeadPath, interchangeable
from retrieval_interp.circuits.counterfactual.mechanism import Counterfactual
from retrieval_interp.circuits.head_kinds import head_kind
from retrieval_interp.circuits.scores.enabling import Enabled
from retrieval_interp.tasks import Batch, Task, role_name

Enabling = Mapping[HeadPath | Head, Sequence[Enabled]]  # later paths that a path or head serves
COLORS = ("#4c78a8", "#e45756", "#54a24b", "#b279a2", "#f58518", "#72b7b2", "#9d755d", "#bab0ac")
_LABEL = 22  # most characters of a line that adds to a label
_SYMBOL = 13  # most characters of a line below a column
_SHALLOW = 12  # most layers of a model that has a row for each


@dataclass(frozen=True)
class Arrow:
    """How to draw a path."""

    worth: float = 0.0  # its width, from 0 to 1: the share of what was learned that it carries
    note: str = ""  # short text next to it
    about: str = ""  # what is shown where the pointer rests on it, besides the path
    color: str = ""  # in CSS; by default one per head of a layer
    dashed: bool = False  # only enables


class Label(NamedTuple):
    """A line of text next to a layer, in an arrow's colour, or faint below another line."""

    text: str
    color: str | None = None
    faint: bool = False


class Row(NamedTuple):
    """A layer, or several that are alike; `bands` tell of heads that are needed as such."""

    labels: list[Label]
    arrows: dict[HeadPath, Arrow]
    bands: list[str]


class Drawing(NamedTuple):
    """A circuit as it is drawn: roles from left to right, layers from the bottom."""

    columns: dict[int, list[str]]  # for each role what stands below it, its name at last
    rows: list[Row]
    names: Sequence[str]  # of the roles


def worth_of_paths(
    losses: Mapping[HeadPath, float],
    intact: float = 0.0,
    uninformed: float = 1.0,
    loss_name: str = "loss",
    when: str = "removed from the circuit",
) -> dict[HeadPath, Arrow]:
    """An arrow for each path, as wide as it is worth: (loss - intact) / (uninformed - intact).

    Of a path are given the loss without it, and in words `when` that is; besides them the losses
    of the intact model and of one that knows nothing.
    """
    learned = uninformed - intact
    return {
        path: Arrow(
            worth=max(0.0, min(1.0, (loss - intact) / learned)) if learned > 0 else 0.0,
            note=f"{loss:.2f}",
            about=f"{loss_name} {loss:.3f} when {when}",
        )
        for path, loss in losses.items()
    }


def arrange(
    circuit: Circuit,
    n_layers: int | None,
    order: Sequence[int] | None,
    task: Task | None,
    batch: Batch | None,
    enables: Enabling,
    arrows: Mapping[HeadPath, Arrow],
) -> Drawing:
    """What a drawing of a circuit shows; arguments are those of `draw_circuit`."""
    if batch is None and task is not None:
        batch = task.sample(8)
    if order is None:
        order = range(circuit.n_roles)[::-1] if batch is None else role_order(batch)
    names = [role_name(role, circuit.role_names) for role in range(circuit.n_roles)]
    words, symbols = role_words(circuit, task)
    columns = {role: [names[role]] for role in order}
    for role, lines in columns.items():
        if symbols[role] != names[role]:
            lines[:0] = textwrap.wrap(symbols[role], _SYMBOL, break_on_hyphens=False)
    styled = dict(_styled(circuit, words, enables, arrows))
    depth = max([n_layers or 1, *(1 + head.layer for head in circuit.heads())])
    rows = []
    for layers in layer_rows(circuit, depth, enables):
        in_row = {path: arrow for path, arrow in styled.items() if path.head.layer in layers}
        bands = [f"{head} {circuit[head]}: needed as such" for head in as_such(enables, layers)]
        labels = list(row_labels(circuit, layers, in_row, batch, enables))
        rows.append(Row(labels, in_row, bands))
    return Drawing(columns, rows, circuit.role_names)


def carrying_paths(circuit: Circuit) -> list[HeadPath]:
    """The circuit's own paths, and those that heads keep from a counterfactual."""
    kept = {h: m for h, m in circuit.mechanisms.items() if isinstance(m, Counterfactual)}
    return [*circuit.paths(), *(HeadPath(h, path) for h, m in kept.items() for path in m.paths)]


def drawn_paths(circuit: Circuit) -> list[HeadPath]:
    """Those, and all others that the intact model needs."""
    return list(dict.fromkeys([*carrying_paths(circuit), *circuit.every_path()]))


def _styled(
    circuit: Circuit, words: Sequence[str], enables: Enabling, arrows: Mapping[HeadPath, Arrow]
) -> Iterator[tuple[HeadPath, Arrow]]:
    """The arrow of every path, with all that there is to say about it."""
    colors, several = head_colors(circuit), interchangeable(circuit.redundant, circuit.role_names)
    carrying = set(carrying_paths(circuit))
    for path in drawn_paths(circuit):
        arrow, (dest, src) = arrows.get(path, Arrow()), path.path
        apart = path not in carrying and path.head not in enables
        dashed = apart and path.head in circuit.mechanisms
        about = [f"{words[dest]} from {words[src]}", *filter(None, [arrow.about])]
        if dashed and (path in enables or circuit[path.head].follows_paths):
            about.append("only enables")
        about += [text for text, paths in several.items() if path in paths]
        color = arrow.color or colors[path.head]
        yield path, replace(arrow, about=", ".join(about), color=color, dashed=dashed)


def role_words(circuit: Circuit, task: Task | None) -> tuple[Sequence[str], Sequence[str]]:
    """Every role in words, and shorter: the task's, or s0, s1, ..."""
    if task is None:
        names = [role_name(role, circuit.role_names) for role in range(circuit.n_roles)]
        return names, names
    own = tuple(task.role_symbols) != tuple(task.role_names)
    return task.role_labels, task.role_symbols if own else task.role_labels


def row_labels(
    circuit: Circuit,
    layers: range,
    arrows: Mapping[HeadPath, Arrow],
    batch: Batch | None,
    enables: Enabling,
) -> Iterator[Label]:
    """The lines next to a row: heads with arrows by name, in their colours, others counted.

    Heads that are needed as such, which `enables` has, are named as well.
    """
    by_head: dict[Head, list[HeadPath]] = {head: [] for head in as_such(enables, layers)}
    for path in sorted(arrows):
        by_head.setdefault(path.head, []).append(path)
    for head, paths in sorted(by_head.items()):
        colors = {arrows[path].color for path in paths}
        first, *below = _head_lines(circuit, head, paths, batch, enables)
        yield Label(first, colors.pop() if len(colors) == 1 else None)
        yield from (Label(text, faint=True) for text in below)
    span = "-".join(dict.fromkeys(f"L{layer}" for layer in (layers[0], layers[-1])))
    replaced = replaced_heads(circuit, layers[0])
    idle = {head: what for head, what in replaced.items() if (layers[0], head) not in by_head}
    if len(idle) == 1:
        yield from (Label(f"{span}.H{head} {what}") for head, what in idle.items())
    elif idle:
        counts = ", ".join(f"{n} {what}" for what, n in Counter(idle.values()).items())
        yield Label(f"{span}: {counts}{' each' if len(layers) > 1 else ''}")
    elif not by_head:
        yield Label(f"{span} original")


def as_such(enables: Enabling, layers: range) -> list[Head]:
    """The heads of these layers that are needed as such."""
    return sorted(head for head in enables if isinstance(head, Head) and head.layer in layers)


def replaced_heads(circuit: Circuit, layer: int) -> dict[int, str]:
    """What replaces the heads of a layer, by head and without their paths."""
    return {h.head: m.kind for h, m in circuit.mechanisms.items() if h.layer == layer}


def _head_lines(
    circuit: Circuit,
    head: Head,
    paths: Sequence[HeadPath],
    batch: Batch | None,
    enables: Enabling,
) -> list[str]:
    """What a head is, and below it which heads it enables and what replaces it."""
    mechanism, served = circuit[head], dict[str, set[Head]]()
    own: list[HeadPath | Head] = [head, *paths]
    for later in itertools.chain(*(enables.get(each, ()) for each in own)):
        served.setdefault(later.side, set()).add(later.path.head)
    names = {side: ", ".join(map(str, sorted(heads))) for side, heads in served.items()}
    carried = names.pop("value", "")
    sides = [f"({side}) {names[side]}" for side in sorted(names)]
    kind = head_kind(paths, batch) if batch is not None else ""
    if mechanism.paths:
        role = "keeps" if isinstance(mechanism, Counterfactual) else mechanism.kind
    elif head in enables:
        role = mechanism.kind
    elif any(path in circuit.enabling for path in paths):
        role = "" if served else "needed"
    else:
        role = "one of several"
    below = ["needed as such"] if head in enables and not mechanism.paths else []
    below += [f"enables {', '.join(sides)}"] if sides else []
    below += [f"carried on by {carried}"] if carried else []
    if not mechanism.paths and mechanism.kind != "original" and head not in enables:
        below.append(f"replaced by {mechanism}")
    first, *rest = [word for word in (kind, role) if word] or [""]
    below = textwrap.wrap("; ".join([*rest, *below]), _LABEL, break_on_hyphens=False)
    return [f"{head} {first}".strip(), *below]


def head_colors(circuit: Circuit) -> dict[Head, str]:
    """A colour for each head with arrows, different within a layer of up to eight."""
    heads = sorted({path.head for path in drawn_paths(circuit)})
    return {
        head: COLORS[number % len(COLORS)]
        for _, of_layer in itertools.groupby(heads, lambda head: head.layer)
        for number, head in enumerate(of_layer)
    }


def layer_rows(circuit: Circuit, n_layers: int, enables: Enabling) -> list[range]:
    """The layers of each row, from the bottom; in deep models idle ones that are alike share it."""
    busy = {path.head.layer for path in drawn_paths(circuit)}
    busy |= {head.layer for head in as_such(enables, range(n_layers))}

    def alike(layer: int) -> object:
        own = n_layers <= _SHALLOW or layer in busy
        return layer if own else replaced_heads(circuit, layer)

    groups = [list(layers) for _, layers in itertools.groupby(range(n_layers), alike)]
    return [range(layers[0], layers[-1] + 1) for layers in groups]


def role_order(batch: Batch) -> list[int]:
    """Roles in the order in which they are in the sequence, earliest first; absent ones last."""
    present = batch.roles.double().masked_fill(batch.roles < 0, math.nan)
    means = present.nanmean(dim=(0, 1)).nan_to_num(math.inf).tolist()
    return sorted(range(len(means)), key=lambda role: means[role])
