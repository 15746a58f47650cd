"""What a drawing of a circuit has: roles in their order, and layers with labels and arrows."""

import itertools
import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from retrieval_interp.circuits.circuit import Circuit, interchangeable
from retrieval_interp.circuits.head_kinds import head_kind
from retrieval_interp.circuits.paths import Head, HeadPath
from retrieval_interp.circuits.scores.enabling import Enabled
from retrieval_interp.tasks import Batch, Task, role_name

Enabling = Mapping[HeadPath | Head, Sequence[Enabled]]  # the later paths that a path or head serves
COLORS = ("#4c78a8", "#e45756", "#54a24b", "#b279a2", "#f58518", "#72b7b2", "#9d755d", "#bab0ac")
_LABEL = 22  # characters at most of a faint line below a label
_SHALLOW = 12  # layers at most of a model of which each layer has its own row


@dataclass(frozen=True)
class Arrow:
    """How to draw a path."""

    worth: float = 0.0  # its width, from 0 to 1: the share of what was learned that it carries
    note: str = ""  # short text next to it
    about: str = ""  # text of its tooltip, after the path
    color: str = ""  # in CSS; by default one per head of a layer
    dashed: bool = False  # for a path that only enables


class Label(NamedTuple):
    """A line of text next to a layer, in an arrow's colour, or faint below another line."""

    text: str
    color: str | None = None
    faint: bool = False


class LayerRow(NamedTuple):
    """A layer, or several alike; `bands` name heads that are needed as such."""

    labels: list[Label]
    arrows: dict[HeadPath, Arrow]
    bands: list[str]


def worth_of_paths(
    losses: Mapping[HeadPath, float],
    intact: float = 0.0,
    uninformed: float = 1.0,
    loss_name: str = "loss",
    when: str = "removed from the circuit",
) -> dict[HeadPath, Arrow]:
    """Return an arrow for each path, as wide as (loss - intact) / (uninformed - intact).

    `losses` are those without each path, as `when` says in the tooltip; `intact` is the loss of the
    intact model, `uninformed_model` that of one that knows nothing.
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


def carrying_paths(circuit: Circuit) -> list[HeadPath]:
    """Return the paths that mechanisms follow, and those that patched heads keep."""
    kept = {h: m for h, m in circuit.mechanisms.items() if m.is_patched}
    return [*circuit.paths(), *(HeadPath(h, path) for h, m in kept.items() for path in m.paths)]


def drawn_paths(circuit: Circuit) -> list[HeadPath]:
    """Return the carrying paths, and all others that the intact model needs."""
    return list(dict.fromkeys([*carrying_paths(circuit), *circuit.every_path()]))


def styled_arrows(
    circuit: Circuit, words: Sequence[str], enables: Enabling, arrows: Mapping[HeadPath, Arrow]
) -> Iterator[tuple[HeadPath, Arrow]]:
    """Complete the arrow of every path: tooltip, colour, whether it is dashed."""
    colors, several = head_colors(circuit), interchangeable(circuit.redundant, circuit.role_names)
    carrying = set(carrying_paths(circuit))
    for path in drawn_paths(circuit):
        arrow, (dest, src) = arrows.get(path, Arrow()), path.path
        enables_only = path not in carrying and path.head not in enables
        dashed = enables_only and path.head in circuit.mechanisms
        about = [f"{words[dest]} from {words[src]}", *filter(None, [arrow.about])]
        if dashed and (path in enables or circuit[path.head].follows_paths):
            about.append("only enables")
        about += [text for text, paths in several.items() if path in paths]
        color = arrow.color or colors[path.head]
        yield path, replace(arrow, about=", ".join(about), color=color, dashed=dashed)


def role_words(circuit: Circuit, task: Task | None) -> tuple[Sequence[str], Sequence[str]]:
    """Return the roles' labels and symbols: the task's, or s0, s1, ..."""
    if task is None:
        names = [role_name(role, circuit.role_names) for role in range(circuit.n_roles)]
        return names, names
    has_symbols = tuple(task.role_symbols) != tuple(task.role_names)
    return task.role_labels, task.role_symbols if has_symbols else task.role_labels


def row_labels(
    circuit: Circuit,
    layers: range,
    arrows: Mapping[HeadPath, Arrow],
    batch: Batch | None,
    enables: Enabling,
) -> Iterator[Label]:
    """Yield the lines next to a row: heads with arrows by name, others counted.

    Heads that are needed as such (in `enables`) are named as well.
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
    idle = {head: kind for head, kind in replaced.items() if (layers[0], head) not in by_head}
    if len(idle) == 1:
        yield from (Label(f"{span}.H{head} {kind}") for head, kind in idle.items())
    elif idle:
        counts = ", ".join(f"{n} {kind}" for kind, n in Counter(idle.values()).items())
        yield Label(f"{span}: {counts}{' each' if len(layers) > 1 else ''}")
    elif not by_head:
        yield Label(f"{span} original")


def as_such(enables: Enabling, layers: range) -> list[Head]:
    """Return the heads of these layers whose fixed pattern is needed as such."""
    return sorted(head for head in enables if isinstance(head, Head) and head.layer in layers)


def replaced_heads(circuit: Circuit, layer: int) -> dict[int, str]:
    """Return the kind of mechanism that replaces each head of a layer."""
    return {h.head: m.kind for h, m in circuit.mechanisms.items() if h.layer == layer}


def _head_lines(
    circuit: Circuit,
    head: Head,
    paths: Sequence[HeadPath],
    batch: Batch | None,
    enables: Enabling,
) -> list[str]:
    """Describe a head in a line, and below it what it enables and what replaces it."""
    mechanism, served = circuit[head], dict[str, set[Head]]()
    servers: list[HeadPath | Head] = [head, *paths]
    for later in itertools.chain(*(enables.get(server, ()) for server in servers)):
        served.setdefault(later.side, set()).add(later.path.head)
    names = {side: ", ".join(map(str, sorted(heads))) for side, heads in served.items()}
    carried = names.pop("value", "")
    sides = [f"({side}) {names[side]}" for side in sorted(names)]
    kind = head_kind(paths, batch) if batch is not None else ""
    if mechanism.paths:
        role = "keeps" if mechanism.is_patched else mechanism.kind
    elif head in enables:
        role = mechanism.kind
    elif any(path in circuit.enabling for path in paths):
        role = "" if served else "needed"
    else:
        role = "one of several"
    below = ["needed as such"] if head in enables and not mechanism.paths else []
    below += [f"enables {', '.join(sides)}"] if sides else []
    below += [f"passed on by {carried}"] if carried else []
    if not mechanism.paths and mechanism.kind != "original" and head not in enables:
        below.append(f"replaced by {mechanism}")
    first, *rest = [word for word in (kind, role) if word] or [""]
    below = textwrap.wrap("; ".join([*rest, *below]), _LABEL, break_on_hyphens=False)
    return [f"{head} {first}".strip(), *below]


def head_colors(circuit: Circuit) -> dict[Head, str]:
    """Choose a colour for each head with arrows; the first eight heads of a layer differ."""
    heads = sorted({path.head for path in drawn_paths(circuit)})
    return {
        head: COLORS[number % len(COLORS)]
        for _, of_layer in itertools.groupby(heads, lambda head: head.layer)
        for number, head in enumerate(of_layer)
    }


def layer_rows(circuit: Circuit, n_layers: int, enables: Enabling) -> list[range]:
    """Return each row's layers, from the bottom; idle ones may share a row."""
    busy = {path.head.layer for path in drawn_paths(circuit)}
    busy |= {head.layer for head in as_such(enables, range(n_layers))}

    def alike(layer: int) -> object:
        has_own_row = n_layers <= _SHALLOW or layer in busy
        return layer if has_own_row else replaced_heads(circuit, layer)

    groups = [list(layers) for _, layers in itertools.groupby(range(n_layers), alike)]
    return [range(layers[0], layers[-1] + 1) for layers in groups]


def role_order(batch: Batch) -> list[int]:
    """Return the roles by mean position, earliest first, absent ones last."""
    present = batch.roles.double().masked_fill(batch.roles < 0, math.nan)
    means = present.nanmean(dim=(0, 1)).nan_to_num(math.inf).tolist()
    return sorted(range(len(means)), key=lambda role: means[role])
