"""Where roles and layers are in a picture of a circuit (paper, figures 5 and 7)."""

import itertools
import math

from retrieval_interp.circuits.circuit import Circuit, Head
from retrieval_interp.circuits.draw.names import replaced_heads
from retrieval_interp.tasks import Batch

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


def layer_rows(circuit: Circuit, n_layers: int) -> list[range]:
    """The layers of each row, from the bottom; in deep models idle ones that are alike share it."""
    busy = {path.head.layer for path in circuit.every_path()}

    def alike(layer: int) -> object:
        own = n_layers <= _SHALLOW or layer in busy
        return layer if own else replaced_heads(circuit, layer)

    groups = [list(layers) for _, layers in itertools.groupby(range(n_layers), alike)]
    return [range(layers[0], layers[-1] + 1) for layers in groups]


def depth(circuit: Circuit) -> int:
    """How many layers a circuit needs, at least one."""
    heads = [*circuit.mechanisms, *(path.head for path in circuit.every_path())]
    return 1 + max((head.layer for head in heads), default=0)


def role_order(batch: Batch) -> list[int]:
    """Roles in the order in which they are in the sequence, earliest first; absent ones last."""
    present = batch.roles.double().masked_fill(batch.roles < 0, math.nan)
    means = present.nanmean(dim=(0, 1)).nan_to_num(math.inf).tolist()
    return sorted(range(len(means)), key=lambda role: means[role])


def chain_order(n_roles: int) -> list[int]:
    """Roles as in a chain's sequence: the last pair first, the query and any others at the end.

    >>> chain_order(7)
    [5, 6, 3, 4, 1, 2, 0]
    """
    pairs = range(2 * ((n_roles - 1) // 2), 0, -2)
    order = [*(role for last in pairs for role in (last - 1, last)), 0]
    return [*order, *range(len(order), n_roles)]
