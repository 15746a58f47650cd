"""The explorer as a widget; it needs the `notebook` extra (anywidget)."""

import asyncio
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from retrieval_interp.explorer.state import Exploring
from retrieval_interp.views.page import asset, explorer_script

if TYPE_CHECKING:
    from retrieval_interp import Workbench


class Explorer(anywidget.AnyWidget):
    """The widget of one workbench: `Exploring`, whose page is a synchronized trait."""

    _esm = str(explorer_script())
    _css = f"{asset('style.css')}\n{asset('explorer.css')}"
    page = traitlets.Unicode().tag(sync=True)

    def __init__(self, bench: "Workbench"):
        self.exploring = Exploring(bench, lambda html: None)
        super().__init__(page=self.exploring.html)
        self.exploring.publish = lambda html: self.set_trait("page", html)
        self.on_msg(self._answer)

    def __repr__(self) -> str:
        return f"explorer of {self.exploring.bench!r}"

    def _answer(self, _: Any, asked: dict[str, Any], buffers: Any = None) -> None:
        explored = self.exploring
        if asked["do"] == "cancel":
            explored.cancelled = True
        elif asked["do"] == "discover":
            # In a thread, so that messages are answered meanwhile; with a copy of the model, which
            # users and those messages may work with.
            copy = deepcopy(explored.bench.model)
            searching = asyncio.get_running_loop().run_in_executor(None, explored.search, copy)
            searching.add_done_callback(
                lambda done: explored.carry_out(lambda: explored.take(done.result()))
            )
        else:
            explored.answer(asked)
