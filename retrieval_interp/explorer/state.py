"""What the explorer's page shows and asks, in a notebook (`widget.py`) or a browser (`server.py`).

`page_state` says what there is to see of a workbench, and `explorer.html` makes HTML of it.
`explorer.js` sends what is clicked as a message: `{"do": "toggle", "path": "L2.H0 s0<-s2"}`.
`Exploring` does what it asks of the workbench, and publishes the page again.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from retrieval_interp.circuits import Circuit, Head, HeadPath, Mechanism, RolePath, discover
from retrieval_interp.circuits.circuit import parse_head_path
from retrieval_interp.circuits.discovery.space import propose
from retrieval_interp.circuits.mechanisms import IDENTITY, ORIGINAL, UNIFORM
from retrieval_interp.circuits.runs.means import role_mean
from retrieval_interp.circuits.scores.enabling import enabled_by
from retrieval_interp.circuits.scores.scorer import no_progress
from retrieval_interp.tasks import InputError
from retrieval_interp.tasks.training_task import counted
from retrieval_interp.views.attention import patterns_on, position_labels, role_map, role_names
from retrieval_interp.views.page import render, unescaped
from retrieval_interp.views.score_text import (
    Row,
    describe,
    enabled_row,
    enables_text,
    finite,
    shown_paths,
)

if TYPE_CHECKING:
    from retrieval_interp import Workbench

_STRONG = 0.4  # attention of a proposed path
_ENABLING = 128  # examples on which enabled paths are found
_TELLING = 0.3  # seconds between two texts on where a search is
_FAINT = 0.02  # attention that is not drawn


@dataclass(frozen=True)
class Selection:
    """What a reader looks at; chain -1 is all of them."""

    head: Head
    example: int = 0
    chain: int = 0
    with_circuit: bool = False
    path: HeadPath | None = None


def page_state(bench: "Workbench", selected: Selection, known: Mapping[Any, Any]) -> dict[str, Any]:
    """What there is to see: the circuit so far, and the selected head and path.

    What takes longer to measure is taken from `known`, by circuit and head or path.
    """
    circuit, task, head = bench.circuit, bench.task, selected.head
    attention = bench.mean_attention(selected.with_circuit)
    framed = {path for path in circuit.every_path() if circuit[path.head].follows_paths}
    maps = [role_map(each, attention[each], task, bench.order, framed) for each in bench.heads]
    path, names = selected.path, task.role_names
    rows = [known.get((circuit, each)) or attention_row(bench, each)
            for each in dict.fromkeys(circuit.every_path())]  # fmt: skip
    if bench.scored is not None:
        rows = shown_paths(bench.scored, task)
    row = known.get((circuit, path))
    if row and bench.scored:
        row = row | next((each for each in rows if each["name"] == row["name"]), {})
    return {
        "description": describe(bench.model, task),
        "loss": finite(bench.loss),
        "replaced": len(circuit.mechanisms),
        "heads": counted(len(bench.heads), "head"),
        "maps": [one | {"kind": circuit[each].kind} for one, each in zip(maps, bench.heads)],
        "map": maps[bench.heads.index(head)],
        "roles": role_names(task, bench.order),
        "drawing": unescaped(bench.drawing()),
        "rows": finite(rows),
        "json": circuit.to_json(),
        "undoable": bench.undoable,
        "selected": path and path.text(names),
        "inside": path in framed,
        "row": row,
        "choices": known.get((circuit, head)),
        "look": example_state(bench, selected, framed),
        **vars(selected),
    }


def example_state(bench: "Workbench", selected: Selection, framed: set[HeadPath]) -> dict[str, Any]:
    """The selected head's attention on one example, with the positions of one chain marked."""
    one, head = bench.batch[selected.example : selected.example + 1], selected.head
    circuit = bench.circuit if selected.with_circuit else None
    pattern = patterns_on(bench.model, one, circuit)[head.layer][0, head.head]
    tokens = position_labels(bench.model, bench.task, one, 0)
    chains, names = one.roles[0].tolist(), bench.task.role_names
    chosen = chains[selected.chain] if selected.chain >= 0 else []
    paths: dict[tuple[int, int], RolePath] = {}  # of two positions, by the chosen chain if it can
    for positions in [chosen, *chains]:
        for dest, at in enumerate(positions):
            for src, source in enumerate(positions):
                paths.setdefault((at, source), RolePath(dest, src))
    cells = []
    for at, source in (pattern >= _FAINT).nonzero().tolist():
        weight, path = float(pattern[at, source]), paths.get((at, source))
        title = f"{tokens[at]} attends to {tokens[source]}: {weight:.3f}"
        name = path and HeadPath(head, path).text(names)
        cells.append({"at": at, "source": source, "weight": weight, "title": title, "path": name})
    frames = [
        {"at": positions[dest], "source": positions[src], "selected": path == selected.path}
        for path in {*framed, selected.path} if path is not None and path.head == head
        for dest, src in [path.path]
        for positions in (chains if path == selected.path or not chosen else [chosen])
        if positions[dest] >= 0 and positions[src] >= 0
    ]  # fmt: skip
    first = [next((at for at in positions if at >= 0), 0) for positions in chains]
    return {
        "tokens": tokens,
        "chains": [tokens[at] for at in first],
        "chosen": {at for at in chosen if at >= 0},
        "cells": cells,
        "frames": frames,
        "size": max(5, min(16, 440 // len(tokens))),  # of a position, in pixels
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
    rows = []
    for mechanism, name in found.items():
        loss = bench.loss_with(circuit.replace(head, mechanism))
        line = f"{head} {name if mechanism.is_measured else mechanism.text(names)}"
        paths = mechanism.paths if mechanism.follows_paths else ()
        row = {"name": name, "line": line, "chosen": circuit[head] == mechanism}
        rows.append(row | {"loss": finite(loss), "paths": [path.text(names) for path in paths]})
    return rows


def attention_row(bench: "Workbench", path: HeadPath) -> Row:
    """A path by name and in words, and its mean attention in the intact model."""
    return {
        "name": path.text(bench.task.role_names),
        "meaning": bench.task.path_label(*path.path),
        "attention": float(bench.intact_attention[path.head][path.path]),
    }


def path_row(bench: "Workbench", path: HeadPath) -> Row:
    """What one path is worth, in the circuit and in the intact model."""
    circuit, row = bench.circuit, attention_row(bench, path)
    try:
        if path in set(circuit.paths()):
            row["ablated_loss"] = bench.loss_with(circuit.without(path))
        else:
            row["added_loss"] = bench.loss_with(row["name"])
    except InputError as error:  # a source that the mask hides
        return row | {"does": str(error)}
    row["live_loss"] = bench.loss_with(bench.scorer.empty_circuit.cut(path))
    later = list(dict.fromkeys(circuit.every_path()))
    try:
        enabled = enabled_by(bench.model, bench.batch[:_ENABLING], [path], later)[path]
    except InputError:  # queries and keys of this model cannot be told apart
        enabled = ()
    rows = [enabled_row(later, bench.task.role_names) for later in enabled]
    data: Row = finite(row | {"does": "; ".join(enables_text(rows))})
    return data


class Exploring:
    """One page's view of a workbench; `publish` is told the page's HTML after every change."""

    def __init__(self, bench: "Workbench", publish: Callable[[str], None]):
        self.bench, self.publish = bench, publish
        self.selected = Selection(bench.heads[0])
        self._cancelled: threading.Event | None = None  # while a search is under way
        self._answering = False
        self._known: dict[tuple[Circuit, Head | HeadPath], Any] = {}
        self.page: dict[str, Any] = {}
        self.requests: dict[str, Callable[[dict[str, Any]], Any]] = {
            "show": self._select,
            "toggle": self._toggle,
            "suppose": lambda asked: bench.suppose(field(asked, "line", str)),
            "undo": lambda asked: bench.undo(),
            "clear": lambda asked: bench.suppose(bench.scorer.empty_circuit),
            "score": self._score,
            "discover": lambda asked: self.take(self.search(asked, bench.model)),
            "save": lambda asked: f"saved to {bench.save(field(asked, 'file', str))}",
        }
        self._show()
        bench.listeners.add(self)

    @property
    def html(self) -> str:
        """The page as it is."""
        return str(render("explorer.html", bench=self.bench, **self.page))

    def answer(self, asked: dict[str, Any]) -> None:
        """Do what a message asks, and show the result or what went wrong."""
        request = self.requests.get(str(asked.get("do")), self._unknown)
        self.carry_out(lambda: request(asked))

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
        told = {"said": said, "failed": failed, "busy": "", "searching": False}
        if self._cancelled is not None:
            told |= {"busy": self.page["busy"], "searching": True}
        self._tell(page_state(self.bench, self.selected, self._known) | told)
        circuit, head, path = self.bench.circuit, self.selected.head, self.selected.path
        known = len(self._known)  # what is missing is shown once it has been measured
        if (circuit, head) not in self._known:
            self._known[circuit, head] = choices(self.bench, head)
        if path is not None and (circuit, path) not in self._known:
            self._known[circuit, path] = path_row(self.bench, path)
        if len(self._known) > known:
            self._tell(page_state(self.bench, self.selected, self._known) | told)

    def _tell(self, changes: dict[str, Any]) -> None:
        self.page = self.page | changes
        self.publish(self.html)

    # What a page can ask

    def _unknown(self, asked: dict[str, Any]) -> None:
        raise InputError(f"explorer: expected a known request, found {asked.get('do')!r:.40}")

    def _select(self, asked: dict[str, Any]) -> str:
        bench, chosen = self.bench, self.selected
        if "head" in asked:
            chosen = Selection(Head.parse(field(asked, "head", str)), chosen.example, chosen.chain)
        if "path" in asked:
            path = parse_head_path(field(asked, "path", str), bench.task)
            chosen = replace(chosen, head=path.head, path=path)
        for name, first, end in (
            ("example", 0, len(bench.batch)),
            ("chain", -1, bench.batch.roles.shape[1]),
        ):
            if name in asked:
                number = field(asked, name, int)
                if not first <= number < end:
                    raise InputError(f"{name}: expected {first} to {end - 1}, found {number}")
                chosen = replace(chosen, **{name: number})
        if "with_circuit" in asked:
            chosen = replace(chosen, with_circuit=field(asked, "with_circuit", bool))
        bench.check_head(chosen.head)
        self.selected = chosen
        return ""

    def _toggle(self, asked: dict[str, Any]) -> None:
        path = field(asked, "path", str)
        present = parse_head_path(path, self.bench.task) in self.bench.circuit.paths()
        (self.bench.remove if present else self.bench.suppose)(path)

    def _score(self, asked: dict[str, Any]) -> None:
        self._tell({"busy": "scoring"})
        controls = field({"controls": 20} | asked, "controls", int)
        self.bench.score(controls, progress=no_progress)

    def search(self, asked: dict[str, Any], model: Any) -> Circuit | None:
        """Search as a message asks, with the model or a copy of it, perhaps in another thread.

        None if the search was cancelled before any circuit held.
        """
        if self._cancelled is not None:
            raise InputError("discover: expected no other search, found one under way; cancel it")
        kinds = {"time": float, "heads": list, "examples": int, "restarts": int, "one_hot": bool}
        options = {name: field(asked, name, kind) for name, kind in kinds.items() if name in asked}
        chosen, cancelled = self.bench.search_options(**options), threading.Event()

        def followed(search: Iterable[Any], text: str) -> Iterator[Any]:
            self._tell({"busy": text, "searching": True})
            told = 0.0
            for where in search:
                if cancelled.is_set():
                    return
                if time.monotonic() - told > _TELLING:
                    told = time.monotonic()
                    self._tell({"busy": str(where), "searching": True})
                yield where

        self._cancelled = cancelled
        try:
            return discover(model, self.bench.task, options=chosen, progress=followed)
        except KeyboardInterrupt:
            if not cancelled.is_set():
                raise
            return None
        finally:
            self._cancelled = None

    def cancel(self) -> None:
        """End the search that is under way, if there is one; from any thread."""
        if (cancelled := self._cancelled) is not None:
            cancelled.set()

    def take(self, found: Circuit | None) -> str | None:
        """Take what a search gave."""
        if found is None:
            return "cancelled before any circuit held; nothing changed"
        self.bench.take(found)
        return f"unfinished: {found.unfinished}" if found.unfinished else None


def field(asked: dict[str, Any], name: str, kind: type) -> Any:
    """One value of a message."""
    value: Any = asked.get(name)
    if type(value) is int and kind is float:
        return float(value)
    if type(value) is not kind:
        raise InputError(f"explorer: {name}: expected {kind.__name__}, found {value!r:.40}")
    return value
