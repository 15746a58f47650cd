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
    """Tell IPython, if a shell of it runs, how circuits are shown.

    Costs microseconds and may be repeated: a shell may start later than this package.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    html = getattr(getattr(shell, "display_formatter", None), "formatters", {}).get("text/html")
    if html is not None:
        html.for_type_by_name("circuits.circuit", "Circuit", circuit_html)


def circuit_html(circuit: "Circuit") -> str:
    """A circuit as HTML: drawn, or as text if there is nothing to draw or too much."""
    from circuits.draw.layout import depth
    from circuits.draw.svg import draw_circuit

    if not (circuit.mechanisms or circuit.enabling) or depth(circuit) > _MOST_DRAWN:
        return f"<pre>{escape(repr(circuit))}</pre>"
    return draw_circuit(circuit)
