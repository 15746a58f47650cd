"""Views, and HTML from the templates in this folder.

Templates escape everything they are given, except for HTML that is a `Markup`.
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from html import escape
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from retrieval_interp.storage.files import writable, write_whole
from retrieval_interp.tasks.messages import SHOWN_BY

if TYPE_CHECKING:
    from jinja2 import Environment

    from retrieval_interp.circuits import Circuit

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, repr=False)
class View:
    """Something to look at: HTML in a notebook, text in a terminal.

    Attributes:
        title: what it shows.
        html: a fragment; a notebook displays it, `save_html` makes a page of it.
        text: the same for a terminal, which `repr` gives.
        data: what is shown, for further computation.
    """

    title: str
    html: str
    text: str
    data: Any = None

    def _repr_html_(self) -> str:
        return f'<style>\n{asset("style.css")}</style>\n<div class="ri">{self.html}</div>'

    def __repr__(self) -> str:
        return self.text

    def save_html(self, path: str | Path) -> Path:
        """Write the view as a page that needs no network."""
        path = writable(path)
        write_whole(path, render("page.html", title=self.title, body=Markup(self.html)))
        return path


def render(template: str, **values: Any) -> str:
    """Fill in a template."""
    return _environment().get_template(template).render(values)


def record_rows(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Say how numbers were computed, one fact per row."""
    versions = ", ".join(" ".join(pair) for pair in record.get("versions", {}).items())
    return [(key, text) for key, text in {**record, "versions": versions}.items() if text]


def unbroken(text: str) -> Markup:
    """Escape text, and keep words with arrows (`s0<-s2`, `A->B`) on one line."""
    words = re.split(r"([\w.]+(?:<-|->)[\w.]+)", text)
    keep = Markup('<span class="nowrap">{}</span>')
    return Markup("").join(keep.format(word) if n % 2 else word for n, word in enumerate(words))


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"asset": asset, "circuitsvis": circuitsvis_script}
    environment.filters["unbroken"] = unbroken
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment


@cache
def asset(name: str) -> Markup:
    """Read a style sheet or script of the templates folder."""
    return Markup((_TEMPLATES / name).read_text(encoding="utf-8"))


@cache
def circuitsvis_script() -> Markup:
    """Read the script that the circuitsvis package carries."""
    script = files("circuitsvis").joinpath("dist/cdn/iife.js").read_text(encoding="utf-8")
    return Markup(script.replace("</script", "<\\/script"))


def register_displays() -> None:
    """Say how results are shown, also to a running IPython shell; may be repeated."""
    SHOWN_BY["CircuitScore"] = partial(_shown_by, "score_text", "score_table")
    SHOWN_BY["Atlas"] = partial(_shown_by, "atlas_view", "atlas_text")
    SHOWN_BY["Scan"] = partial(_shown_by, "scan_view", "scan_text")
    SHOWN_BY["Explanation"] = partial(_shown_by, "why_text", "why_text")
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    html = getattr(getattr(shell, "display_formatter", None), "formatters", {}).get("text/html")
    if html is not None:
        html.for_type_by_name("retrieval_interp.circuits.circuit", "Circuit", circuit_html)


def _shown_by(module: str, function: str, result: Any) -> str:
    """Return a result as text, by a module of this folder that is loaded only now."""
    return str(getattr(import_module(f"{__package__}.{module}"), function)(result)).rstrip()


def circuit_html(circuit: "Circuit") -> str:
    """Draw a circuit as HTML, or write it if there is nothing to draw."""
    from retrieval_interp.circuits.draw.svg import draw_circuit

    if circuit.mechanisms or any(circuit.every_path()):
        return draw_circuit(circuit)
    return f"<pre>{escape(repr(circuit))}</pre>"
