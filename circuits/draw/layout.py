"""What the roles, heads and layers of a circuit are called in pictures."""

import itertools
import math
import textwrap
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from retrieval_interp.circuits.circuit import Circuit, Head, HeadPath, RolePath
from retrieval_interp.circuits.scores.enabling import Enabled
from retrieval_interp.tasks import Batch, Task, role_name

Enabling = Mapping[HeadPath | Head, Sequence[Enabled]]  # later paths that a path or head serves
_LONG = 30  # most characters of a line that adds to a label


class Label(NamedTuple):
    """A line of text next to a layer, in an arrow's colour, or faint below another line."""

    text: str
    color: str | None = None
    faint: bool = False


def role_words(circuit: Circuit, task: Task | None) -> tuple[Sequence[str], Sequence[str]]:
    """Every role in words, and shorter: the task's, or s0, s1, ..."""
    if task is None:
        names = [role_name(role, circuit.role_names) for role in range(circuit.n_roles)]
        return names, names
    own = tuple(task.role_symbols) != tuple(task.role_names)
    return task.role_labels, task.role_symbols if own else task.role_labels


def head_kind(paths: Collection[HeadPath], batch: Batch) -> str:
    """What a head is commonly called whose paths do the same on every chain, or nothing.

    They lead to the position before (`previous-token head`), to an earlier position with the same
    token (`duplicate-token head`), or to the one after such a position (`induction head`).
    """
    kinds = {path_kind(path.path, batch) for path in paths}
    return kinds.pop() if len(kinds) == 1 else ""


def path_kind(path: RolePath, batch: Batch) -> str:
    both = batch.roles[:, :, path.dest], batch.roles[:, :, path.src]
    there = (both[0] >= 0) & (both[1] >= 0)
    example, (dest, src) = there.nonzero()[:, 0], (place[there] for place in both)
    if not len(dest) or bool((src >= dest).any()):
        return ""
    if bool((dest - src == 1).all()):
        return "previous-token head"
    if batch.tokens is None:
        return ""
    asked, found, before = (batch.tokens[example, place] for place in (dest, src, src - 1))
    if bool((asked == found).all()):
        return "duplicate-token head"
    return "induction head" if bool(((src > 0) & (asked == before)).all()) else ""


def row_labels(
    circuit: Circuit,
    layers: range,
    colors: Mapping[HeadPath, str],
    batch: Batch | None,
    enables: Enabling,
) -> Iterator[Label]:
    """The lines next to a row: heads with arrows by name, in their colours, others counted.

    Heads that are needed as such, which `enables` has, are named as well.
    """
    by_head: dict[Head, list[HeadPath]] = {head: [] for head in as_such(enables, layers)}
    for path in sorted(colors):
        if path.head.layer in layers:
            by_head.setdefault(path.head, []).append(path)
    for head, paths in sorted(by_head.items()):
        own = {colors[path] for path in paths}
        first, *more = _head_lines(circuit, head, paths, batch, enables)
        yield Label(first, own.pop() if len(own) == 1 else None)
        yield from (Label(text, faint=True) for text in more)
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
        role = mechanism.kind
    elif head in enables:
        role = f"{mechanism.kind}, needed as such"
    elif any(path in circuit.enabling for path in paths):
        role = "" if served else "needed"
    else:
        role = "one of several"
    below = [f"enables {', '.join(sides)}"] if sides else []
    below += [f"carried on by {carried}"] if carried else []
    if not mechanism.paths and mechanism.kind != "original" and head not in enables:
        below.append(f"replaced by {mechanism}")
    first = f"{head} {', '.join(filter(None, (kind, role)))}".strip()
    return [first, *textwrap.wrap("; ".join(below), _LONG)]


COLORS = ("#4c78a8", "#e45756", "#54a24b", "#b279a2", "#f58518", "#72b7b2", "#9d755d", "#bab0ac")
_SHALLOW = 12  # most layers of a model that has a row for each


def head_colors(circuit: Circuit) -> dict[Head, str]:
    """A colour for each head with arrows, different within a layer of up to eight."""
    heads = sorted({path.head for path in circuit.every_path()})
    return {
        head: COLORS[number % len(COLORS)]
        for _, of_layer in itertools.groupby(heads, lambda head: head.layer)
        for number, head in enumerate(of_layer)
    }


def layer_rows(circuit: Circuit, n_layers: int, enables: Enabling) -> list[range]:
    """The layers of each row, from the bottom; in deep models idle ones that are alike share it."""
    busy = {path.head.layer for path in circuit.every_path()}
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
