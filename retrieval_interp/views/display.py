"""Drawings of circuits in notebooks: circuits are data, so IPython is told how to draw them."""

import sys
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retrieval_interp.circuits.circuit import Circuit

_MOST_DRAWN = 200  # layers


def register_displays() -> None:
    """Tell a running IPython shell, if there is one, how to show circuits; may be repeated."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    html = getattr(getattr(shell, "display_formatter", None), "formatters", {}).get("text/html")
    if html is not None:
        html.for_type_by_name("retrieval_interp.circuits.circuit", "Circuit", circuit_html)


def circuit_html(circuit: "Circuit") -> str:
    """A circuit as HTML: a drawing, or text if there is nothing or too much to draw."""
    from retrieval_interp.circuits.draw.layout import depth
    from retrieval_interp.circuits.draw.svg import draw_circuit

    if not (circuit.mechanisms or any(circuit.every_path())) or depth(circuit) > _MOST_DRAWN:
        return f"<pre>{escape(repr(circuit))}</pre>"
    return draw_circuit(circuit)
