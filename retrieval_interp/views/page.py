"""What is looked at: HTML in notebooks and pages, text in terminals."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval_interp.storage.files import check_writable, write_whole
from retrieval_interp.views.render import render, unescaped


@dataclass(frozen=True, repr=False)
class View:
    """Something to look at: HTML in a notebook, text in a terminal.

    Attributes:
        title: what it shows.
        html: a fragment; a notebook displays it, `save_html` makes a page of it.
        text: the same for a terminal, which `repr` gives.
        data: what is shown, to go on computing with.
    """

    title: str
    html: str
    text: str
    data: Any = None

    def __post_init__(self) -> None:
        # Plain text, so that adding to it escapes nothing.
        object.__setattr__(self, "html", str(self.html))

    def _repr_html_(self) -> str:
        return str(render("fragment.html", html=unescaped(self.html)))

    def __repr__(self) -> str:
        return self.text

    def save_html(self, path: str | Path) -> Path:
        """Write the view as a page that needs no network.

        Raises:
            InputError: the file cannot be written.
        """
        path = Path(path)
        check_writable(path)
        page = render("page.html", title=self.title, body=unescaped(self.html))
        write_whole(path, page)
        return path
