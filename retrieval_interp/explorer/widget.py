"""The explorer as a widget; it needs the `notebook` extra (anywidget)."""

import asyncio

import anywidget
import traitlets

from retrieval_interp import Workbench
from retrieval_interp.explorer.state import Exploring
from retrieval_interp.views.page import asset


class Explorer(anywidget.AnyWidget):
    """The widget of one workbench: `Exploring`, whose page is a synchronized trait."""

    _esm = f"{asset('explorer.js')}\n{asset('paths.js')}"
    _css = f"{asset('style.css')}\n{asset('explorer.css')}"
    page = traitlets.Unicode().tag(sync=True)

    def __init__(self, bench: Workbench):
        later = asyncio.get_running_loop().call_soon_threadsafe
        self.exploring = Exploring(bench, lambda html: None, later)
        super().__init__(page=self.exploring.html)
        self.exploring.publish = lambda html: self.set_trait("page", html)
        self.on_msg(lambda widget, asked, buffers: self.exploring.answer(asked))

    def __repr__(self) -> str:
        return f"explorer of {self.exploring.bench!r}"
