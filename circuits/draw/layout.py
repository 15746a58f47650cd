"""Where everything stands in a picture of a circuit, whoever draws it (paper, figures 5 and 7).

Roles are columns in the order of the sequence, layers are rows from the bottom up, and every path
is an arrow from its source to its destination: wider where it is needed more, dashed where it only
enables. In deep models neighbouring layers without arrows share a row if all is alike in them.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from retrieval_interp.circuits.circuit import Circuit, HeadPath, RolePath, one_suffices
from retrieval_interp.circuits.draw.labels import (
    Enabling,
    Label,
    head_colors,
    idle_heads,
    row_labels,
)
from retrieval_interp.circuits.draw.names import names_for
from retrieval_interp.tasks import Batch, InputError, Task, role_name

_SHALLOW = 12  # most layers of a model that has a row for each


class Column(NamedTuple):
    """A role.

    Attributes:
        role: its number.
        name: as paths are written.
        symbol: for people, in short; empty if that is the name.
    """

    role: int
    name: str
    symbol: str


@dataclass(frozen=True)
class Arrow:
    """A path.

    Attributes:
        path: which one.
        row: where its layer is, counted from the bottom.
        start: the column of its source.
        end: the column of its destination.
        beside: how many heads before it have the same path in the same layer.
        color: CSS colour, one per head of a layer unless others are given.
        width: of the line, in pixels.
        dashed: whether it only enables.
        loss: with the path ablated, or None.
        about: lines that say all of this in words.
    """

    path: HeadPath
    row: int
    start: int
    end: int
    beside: int
    color: str
    width: float
    dashed: bool
    loss: float | None
    about: tuple[str, ...]


@dataclass(frozen=True)
class Bundle:
    """The arrows of one layer that belong to a set of which any one suffices.

    Attributes:
        arrows: all of one role path, side by side.
        label: says so in short, with the size of the whole set.
        about: says so in words.
    """

    arrows: tuple[Arrow, ...]
    label: str
    about: str


@dataclass(frozen=True)
class Layout:
    """A picture of a circuit, but for its coordinates.

    Attributes:
        columns: roles from left to right.
        labels: the lines beside each row, the lowest row first.
        arrows: the paths that carry, then the others.
        bundles: those of them of which any one suffices.
    """

    columns: tuple[Column, ...]
    labels: tuple[tuple[Label, ...], ...]
    arrows: tuple[Arrow, ...]
    bundles: tuple[Bundle, ...]


def lay_out(
    circuit: Circuit,
    n_layers: int | None = None,
    order: Sequence[int] | None = None,
    necessity: Mapping[HeadPath, float] | None = None,
    colors: Mapping[HeadPath, str] | None = None,
    task: Task | None = None,
    enables: Enabling | None = None,
    batch: Batch | None = None,
) -> Layout:
    """Lay a circuit out.

    Args:
        circuit: what to draw.
        n_layers: layers of the model; by default as many as the circuit needs.
        order: roles from left to right; by default as they stand in the task's sequence, without a
            task as in a chain's.
        necessity: loss when each path is ablated, which makes its arrow wider.
        colors: CSS colour of an arrow; by default one per head of a layer.
        task: names the roles, the loss and heads of a common kind; without it
            `circuits.draw.names` names the roles.
        enables: what is known to need each path, to be said beside its head.
        batch: examples that tell the order of the roles and what heads do; by default a few of
            the task's.

    Raises:
        InputError: a head above the layers, or a path whose role is not in the order.
    """
    necessity, colors, names = necessity or {}, colors or {}, names_for(circuit, task)
    n_layers = depth(circuit) if n_layers is None else n_layers
    if depth(circuit) > max(n_layers, 1):
        raise InputError(
            f"drawing: expected a circuit of the model's {n_layers} layers, found a head in "
            f"L{depth(circuit) - 1}"
        )
    if batch is None and task is not None:
        batch = task.sample(8)
    if order is None:
        order = chain_order(circuit.n_roles) if batch is None else role_order(batch)
    place = {role: column for column, role in enumerate(order)}
    loss_name = task.loss_name if task else "loss"
    carrying = set(circuit.paths())
    own_color = head_colors(circuit)
    arrows = []
    rows = list(_rows(circuit, n_layers))
    row_of = {layer: row for row, layers in enumerate(rows) for layer in layers}
    seen: Counter[tuple[int, RolePath]] = Counter()
    for path in dict.fromkeys(circuit.every_path()):
        head, (dest, src) = path
        if dest not in place or src not in place:
            raise InputError(
                f"drawing: expected an order with the roles of every path, found {path}, and the "
                f"order {', '.join(map(role_name, order))}"
            )
        loss = necessity.get(path)
        label = f"{names.labels[dest]} from {names.labels[src]}"
        about = [path.text(circuit.role_names), label]
        about += [] if loss is None else [f"{loss_name} {loss:.3f} when ablated"]
        about += [] if path in carrying else ["only enables"]
        about += [
            one_suffices(paths, circuit.role_names) for paths in circuit.redundant if path in paths
        ]
        arrows.append(
            Arrow(
                path,
                row_of[head.layer],
                place[src],
                place[dest],
                seen[head.layer, path.path],
                colors.get(path, own_color[head]),
                1.5 if loss is None else 1.5 + 4.5 * min(1.0, loss),
                path not in carrying,
                loss,
                tuple(about),
            )
        )
        seen[head.layer, path.path] += 1
    drawn = {arrow.path: arrow.color for arrow in arrows}
    return Layout(
        tuple(
            Column(role, name, "" if names.symbols[role] == name else names.symbols[role])
            for role, name in ((role, role_name(role, circuit.role_names)) for role in order)
        ),
        tuple(row_labels(circuit, layers, drawn, batch, enables or {}) for layers in rows),
        tuple(arrows),
        tuple(_bundles(circuit, arrows)),
    )


def _bundles(circuit: Circuit, arrows: Sequence[Arrow]) -> Iterator[Bundle]:
    for paths in circuit.redundant:
        for row in sorted({arrow.row for arrow in arrows}):
            beside = [a for a in arrows if a.path in paths and a.row == row]
            if beside:
                yield Bundle(
                    tuple(beside), f"1 of {len(paths)}", one_suffices(paths, circuit.role_names)
                )


def _rows(circuit: Circuit, n_layers: int) -> Iterator[range]:
    """The layers of each row, from the bottom."""
    busy = {path.head.layer for path in circuit.every_path()}

    def alike(layer: int) -> object:
        own = n_layers <= _SHALLOW or layer in busy
        return layer if own else idle_heads(circuit, layer)

    for _, layers in itertools.groupby(range(n_layers), alike):
        first, *rest = layers
        yield range(first, first + 1 + len(rest))


def depth(circuit: Circuit) -> int:
    """How many layers a circuit needs, at least one."""
    heads = [*circuit.mechanisms, *(path.head for path in circuit.every_path())]
    return 1 + max((head.layer for head in heads), default=0)


def role_order(batch: Batch) -> list[int]:
    """Roles in the order in which they stand in the sequence, earliest first; absent ones last."""
    present = batch.roles.double().masked_fill(batch.roles < 0, math.nan)
    means = present.nanmean(dim=(0, 1)).nan_to_num(math.inf).tolist()
    return sorted(range(len(means)), key=lambda role: means[role])


def chain_order(n_roles: int) -> list[int]:
    """Roles as a chain's sequence has them: the last pair first, the query and others at the end.

    >>> chain_order(7)
    [5, 6, 3, 4, 1, 2, 0]
    """
    pairs = range(2 * ((n_roles - 1) // 2), 0, -2)
    order = [*(role for last in pairs for role in (last - 1, last)), 0]
    return [*order, *range(len(order), n_roles)]
