"""How notebooks show a circuit: drawn.

Circuits are data and do not draw themselves; IPython looks their display up here, by type.
"""

import sys
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from circuits.circuit import Circuit

_MOST_DRAWN = 200  # layers


def register_displays() -> None:
    """Tell IPython, where it runs, how circuits are shown; elsewhere nothing happens."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is not None:
        html = shell.display_formatter.formatters["text/html"]
        html.for_type_by_name("circuits.circuit", "Circuit", circuit_html)


def circuit_html(circuit: "Circuit") -> str:
    """A circuit as HTML: drawn, or as text if it is too deep to draw."""
    from circuits.draw.svg import draw_circuit

    heads = [*circuit.mechanisms, *(path.head for path in circuit.enabling)]
    n_layers = 1 + max((head.layer for head in heads), default=-1)
    if not 0 < n_layers <= _MOST_DRAWN:
        return f"<pre>{escape(repr(circuit))}</pre>"
    # As a chain's sequence runs: the last pair first, the query at the end.
    pairs = range(2 * ((circuit.n_roles - 1) // 2), 0, -2)
    order = [*(role for last in pairs for role in (last - 1, last)), 0]
    order += range(len(order), circuit.n_roles)
    return draw_circuit(circuit, n_layers, order)
