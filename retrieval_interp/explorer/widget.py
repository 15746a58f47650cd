"""The explorer as a widget, in which circuits are built by clicking.

Needs the `notebook` extra (anywidget).
"""

import asyncio
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from retrieval_interp.circuits import Circuit
from retrieval_interp.explorer.state import Exploring
from retrieval_interp.views.page import asset, explorer_script

if TYPE_CHECKING:
    from retrieval_interp import Workbench


class Explorer(anywidget.AnyWidget):
    """The widget of one workbench: `Exploring`, with its dictionaries as synchronized traits."""

    _esm = str(explorer_script())
    _css = str(asset("explorer.css"))
    model_info = traitlets.Dict().tag(sync=True)
    state = traitlets.Dict().tag(sync=True)
    shown = traitlets.Dict().tag(sync=True)

    def __init__(self, bench: "Workbench"):
        values: dict[str, Any] = {}
        self.exploring = Exploring(bench, values.__setitem__)
        super().__init__(model_info=self.exploring.model_info, **values)
        self.exploring.publish = self.set_trait
        self.on_msg(self._answer)

    @property
    def circuit(self) -> Circuit:
        """The workbench's circuit."""
        return self.exploring.bench.circuit

    def __repr__(self) -> str:
        return f"explorer of {self.exploring.bench!r}"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """The widget, or a static view for frontends without widgets."""
        bundle = super()._repr_mimebundle_(**kwargs)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        if data is not None:
            data["text/plain"] = repr(self)
            data["text/html"] = self.exploring.bench._repr_html_()
        return bundle

    def _answer(self, _: Any, asked: dict[str, Any], buffers: Any = None) -> None:
        explored = self.exploring
        if asked.get("do") == "cancel":
            explored.cancel()
        elif asked.get("do") == "discover" and (loop := _running_loop()) is not None:
            # In a thread, so that messages are answered meanwhile; with a copy of the model, which
            # users and those messages may work with.
            copy = deepcopy(explored.bench.model)
            searching = loop.run_in_executor(None, explored.search, asked, copy)
            searching.add_done_callback(
                lambda done: explored.carry_out(lambda: explored.take(done.result()))
            )
        else:
            explored.answer(asked)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
