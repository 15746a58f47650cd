"""HTML from the templates beside this file: all that they are given is escaped.

Markup goes through unescaped only as a `Markup`, which is what `render` returns: so templates nest.
"""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_FOLDER = Path(__file__).parent / "templates"


def render(template: str, **values: Any) -> "Markup":
    """A template of this folder, filled in."""
    from markupsafe import Markup

    return Markup(_environment().get_template(template).render(values))


def unescaped(markup: str) -> "Markup":
    """Markup that others have made: a library's script, a drawing, the HTML of a `View`."""
    from markupsafe import Markup

    return Markup(markup)


@cache
def asset(name: str) -> "Markup":
    """A style sheet or script as it stands in its file."""
    return unescaped((_FOLDER / name).read_text(encoding="utf-8"))


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["asset"] = asset
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment
