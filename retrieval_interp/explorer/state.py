"""What the explorer's page shows and asks, in a notebook (`widget.py`) or a browser (`server.py`).

The page (`explorer.js`) only displays and asks; the circuit and its numbers belong to the
workbench. It knows three dictionaries: `model_info` never changes, `state` is the circuit so far
and its loss, `shown` the selected head and path. It asks by messages such as
`{"do": "toggle", "path": "L2.H0 s0<-s2"}`.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from retrieval_interp.circuits import Circuit, Head, HeadPath, Mechanism
from retrieval_interp.circuits.discovery.candidates import propose
from retrieval_interp.circuits.discovery.watch import SearchState
from retrieval_interp.circuits.mechanisms import IDENTITY, ORIGINAL, UNIFORM
from retrieval_interp.circuits.notation import parse_head_path
from retrieval_interp.circuits.runs.means import role_mean
from retrieval_interp.circuits.scores.enabling import enabled_by
from retrieval_interp.circuits.scores.scorer import no_progress
from retrieval_interp.tasks import InputError
from retrieval_interp.views.attention import patterns_on, position_labels, thousandths
from retrieval_interp.views.explorer_data import heads_data, model_info, path_row, scored_rows
from retrieval_interp.views.score_text import Row, enabled_row, enables_text, finite

if TYPE_CHECKING:
    from retrieval_interp import Workbench

_STRONG = 0.4  # attention of a proposed path
_ENABLING = 128  # examples on which enabled paths are found
_TELLING = 0.3  # seconds between two texts on where a search is


@dataclass(frozen=True)
class Selection:
    """What a reader looks at."""

    head: Head
    example: int = 0
    with_circuit: bool = False
    path: HeadPath | None = None


def page_state(bench: "Workbench", known: Mapping[Any, Any]) -> dict[str, Any]:
    """The circuit so far; of its paths, what was scored, or what is known of single ones."""
    circuit = bench.circuit
    paths = dict.fromkeys(circuit.every_path())
    rows = [known.get((circuit, path)) or _unmeasured(bench, path) for path in paths]
    return {
        "loss": finite(bench.loss),
        "intact": finite(bench.intact_loss),
        "replaced": len(circuit.mechanisms),
        "heads": heads_data(circuit, bench.heads),
        "drawing": bench.drawing(),
        "rows": scored_rows(bench.scored, bench.task) if bench.scored else rows,
        "json": circuit.to_json(),
        "undoable": bench.undoable,
    }


def shown_state(bench: "Workbench", selected: Selection) -> dict[str, Any]:
    """The selected head on an example."""
    one = bench.batch[selected.example : selected.example + 1]
    circuit = bench.circuit if selected.with_circuit else None
    pattern = patterns_on(bench.model, one, circuit)[selected.head.layer][0, selected.head.head]
    return {
        **selected.head._asdict(),
        "example": selected.example,
        "with_circuit": selected.with_circuit,
        "tokens": position_labels(bench.model, bench.task, one, 0),
        "chains": one.roles[0].tolist(),
        "pattern": thousandths(pattern),
        "by_role": thousandths(bench.mean_attention(selected.with_circuit)),
    }


def choices(bench: "Workbench", head: Head) -> list[Row]:
    """Plausible mechanisms for a head, each with the loss it would give."""
    circuit, names = bench.circuit, bench.circuit.role_names
    attention = bench.intact_attention[head]
    found: dict[Mechanism, str] = {
        ORIGINAL: "original",
        UNIFORM: "uniform",
        IDENTITY: "identity",
        propose(attention, "one-hot", _STRONG): "one-hot",
        propose(attention, "shared", _STRONG / 2): "shared",
        role_mean(attention): "role-mean",
    }
    found.setdefault(circuit[head], f"{circuit[head].kind}, now")
    return [
        {
            "name": name,
            "line": f"{head} {name if name == 'role-mean' else mechanism.text(names)}",
            "chosen": circuit[head] == mechanism,
            "paths": " ".join(
                path.text(names) for path in mechanism.paths if mechanism.follows_paths
            ),
            "loss": finite(bench.loss_with(circuit.replace(head, mechanism))),
        }
        for mechanism, name in found.items()
    ]


def measure(bench: "Workbench", path: HeadPath) -> Row:
    """What one path is worth, in the circuit and in the intact model."""
    circuit, row = bench.circuit, _unmeasured(bench, path)
    try:
        if path in set(circuit.paths()):
            row["ablated_loss"] = bench.loss_with(circuit.without(path))
        else:
            row["added_loss"] = bench.loss_with(str(path))
    except InputError as error:  # a source that the mask hides
        return row | {"note": str(error)}
    row["live_loss"] = bench.loss_with(bench.scorer.empty_circuit.cut(path))
    later = list(dict.fromkeys(circuit.every_path()))
    try:
        enabled = enabled_by(bench.model, bench.batch[:_ENABLING], [path], later)[path]
    except InputError:  # queries and keys of this model cannot be told apart
        enabled = ()
    rows = [enabled_row(later, bench.task.role_names) for later in enabled]
    data: Row = finite(row | {"does": "; ".join(enables_text(rows))})
    return data


def _unmeasured(bench: "Workbench", path: HeadPath) -> Row:
    attention = bench.intact_attention[path.head][path.path]
    return path_row(path, bench.task, float(attention))


class SearchJob:
    """A search for a circuit, here or in another thread, that can be cancelled from any thread.

    Attributes:
        text: where the search is.

    Args:
        bench: what is searched.
        options: of `Workbench.search`.
        tell: called when `text` changes.
    """

    def __init__(self, bench: "Workbench", options: dict[str, Any], tell: Callable[[], None]):
        self.bench, self.options, self.tell = bench, options, tell
        self.text, self._told, self.cancelled = "searching", 0.0, threading.Event()

    def run(self, model: Any) -> Circuit | None:
        """What is found; None if the search was cancelled before any circuit held."""
        try:
            return self.bench.search(model, self._watch, **self.options)
        except KeyboardInterrupt:
            if not self.cancelled.is_set():
                raise
            return None

    def _watch(self, where: SearchState) -> bool:
        if time.monotonic() - self._told > _TELLING:
            self.text, self._told = str(where), time.monotonic()
            self.tell()
        return self.cancelled.is_set()


class Exploring:
    """One page's view of a workbench.

    Args:
        bench: what is explored.
        publish: told the name and the new value of every dictionary that changes.
    """

    def __init__(self, bench: "Workbench", publish: Callable[[str, dict[str, Any]], None]):
        self.bench, self.publish = bench, publish
        self.selected = Selection(bench.heads[0])
        self.job: SearchJob | None = None
        self._answering = False
        self._known: dict[tuple[Circuit, Head | HeadPath], Any] = {}
        self.model_info = model_info(bench.name, bench.model, bench.task, bench.order)
        self.model_info |= {"examples": len(bench.batch), "tolerance": bench.tolerance}
        self.requests: dict[str, Callable[[dict[str, Any]], Any]] = {
            "show": self._select,
            "toggle": self._toggle,
            "suppose": lambda asked: bench.suppose(field(asked, "line", str)),
            "undo": lambda asked: bench.undo(),
            "clear": lambda asked: bench.suppose(bench.scorer.empty_circuit),
            "score": self._score,
            "discover": lambda asked: self.take(self.search(asked, bench.model)),
            "save": lambda asked: f"saved to {bench.save(field(asked, 'path', str))}",
        }
        self._show()
        bench.listeners.add(self)

    def answer(self, asked: dict[str, Any]) -> None:
        """Do what a message asks, and show the result or what went wrong."""
        self.carry_out(lambda: self._request(asked)(asked))

    def _request(self, asked: dict[str, Any]) -> Callable[[dict[str, Any]], Any]:
        known = self.requests.get(str(asked.get("do")))
        if known is None:
            raise InputError(f"explorer: expected a known request, found {asked.get('do')!r:.40}")
        return known

    def carry_out(self, act: Callable[[], Any]) -> None:
        """Do something, and show the result or what went wrong."""
        start, said, failed = time.perf_counter(), None, False
        self._answering = True
        try:
            said = act()
        except Exception as error:  # a message has no cell to show a traceback in
            known = isinstance(error, InputError)
            said, failed = f"{'' if known else f'{type(error).__name__}: '}{error}", True
        finally:
            self._answering = False
            took = f"{1000 * (time.perf_counter() - start):.0f} ms"
            self._show(said if isinstance(said, str) else took, failed)

    def refresh(self) -> None:
        """Show what the workbench's own methods changed; the workbench calls this."""
        if not self._answering:
            self._show()

    def _show(self, said: str = "", failed: bool = False) -> None:
        bench, head, path = self.bench, self.selected.head, self.selected.path
        self._set("state", self._page() | {"said": said, "failed": failed})  # the loss first
        if failed:
            return
        row = None
        if path is not None:
            fresh = (bench.circuit, path) not in self._known
            row = self._once(measure, path)
            if fresh:
                self._set("state", self._page() | {"said": said})
            if bench.scored:
                row = {
                    **row,
                    **next((r for r in self.state["rows"] if r["name"] == row["name"]), {}),
                }
        shown = shown_state(bench, self.selected)
        self._set("shown", shown | {"choices": self._once(choices, head), "path": row})

    def _page(self) -> dict[str, Any]:
        busy = self.job.text if self.job else ""
        told = {"said": "", "failed": False, "busy": busy, "searching": bool(busy)}
        return page_state(self.bench, self._known) | told

    def _once(self, measured: Callable[["Workbench", Any], Any], what: Head | HeadPath) -> Any:
        """What is measured of a head or path, once for each circuit."""
        key = (self.bench.circuit, what)
        if key not in self._known:
            self._known[key] = measured(self.bench, what)
        return self._known[key]

    def _set(self, name: str, value: dict[str, Any]) -> None:
        setattr(self, name, value)
        self.publish(name, value)

    # What a page can ask

    def _select(self, asked: dict[str, Any]) -> str:
        bench, name, path = self.bench, asked.get("path"), None
        head = bench.check_head(Head(field(asked, "layer", int), field(asked, "head", int)))
        example = field(asked, "example", int)
        if not 0 <= example < len(bench.batch):
            raise InputError(f"example: expected 0 to {len(bench.batch) - 1}, found {example}")
        if name is not None:
            path = parse_head_path(str(name), bench.task)
            if path.head != head:
                raise InputError(f"path: expected one of the shown head {head}, found {name!r:.60}")
        self.selected = Selection(head, example, field(asked, "with_circuit", bool), path)
        return ""

    def _toggle(self, asked: dict[str, Any]) -> None:
        path = field(asked, "path", str)
        present = parse_head_path(path, self.bench.task) in self.bench.circuit.paths()
        (self.bench.remove if present else self.bench.suppose)(path)

    def _score(self, asked: dict[str, Any]) -> None:
        self._set("state", self.state | {"busy": "scoring"})
        controls = field({"controls": 20} | asked, "controls", int)
        self.bench.score(controls, progress=no_progress)

    def search(self, asked: dict[str, Any], model: Any) -> Circuit | None:
        """Search as a message asks, with the model or a copy of it, perhaps in another thread."""
        if self.job is not None:
            raise InputError("discover: expected no other search, found one under way; cancel it")
        kinds = {"time": float, "heads": list, "examples": int, "restarts": int, "one_hot": bool}
        options = {name: field(asked, name, kind) for name, kind in kinds.items()
                   if asked.get(name) is not None}  # fmt: skip
        self.job = SearchJob(self.bench, options, lambda: self._set("state", self._page()))
        self.job.tell()
        try:
            return self.job.run(model)
        finally:
            self.job = None

    def cancel(self) -> None:
        """End the search that is under way, if there is one; from any thread."""
        if self.job is not None:
            self.job.cancelled.set()

    def take(self, found: Circuit | None) -> str | None:
        """Take what a search gave."""
        if found is None:
            return "cancelled before any circuit held; nothing changed"
        self.bench.take(found)
        return f"unfinished: {found.unfinished}" if found.unfinished else None


def field(asked: dict[str, Any], name: str, kind: type) -> Any:
    """One value of a message."""
    value: Any = asked.get(name)
    if not (type(value) is kind or (kind is float and type(value) is int)):
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        expected = words.get(kind, f"a {kind.__name__}")
        raise InputError(f"explorer: {name}: expected {expected}, found {value!r:.40}")
    return value
