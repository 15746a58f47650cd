"""What the explorer's page shows and asks, wherever the page is.

The page (`explorer.js`) only displays and asks; the circuit and its numbers belong to the
workbench. The page is a widget in a notebook (`explorer.py`), a tab of a browser (`server.py`), or
frozen in a report (`views/report.py`).
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from retrieval_interp.circuits import Circuit, Head, HeadPath, Mechanism, ablated
from retrieval_interp.circuits.discovery.space import propose
from retrieval_interp.circuits.hooks.points import call_options, pattern_hook_name
from retrieval_interp.circuits.mechanisms import IDENTITY, ORIGINAL, UNIFORM
from retrieval_interp.circuits.notation import parse_head_path
from retrieval_interp.circuits.runs.means import role_mean
from retrieval_interp.circuits.scores.enabling import enabled_by
from retrieval_interp.circuits.scores.scorer import no_progress
from retrieval_interp.tasks import InputError
from retrieval_interp.views.attention import position_labels
from retrieval_interp.views.explorer_data import (
    finite,
    heads_data,
    model_info,
    path_data,
    path_rows_data,
)

if TYPE_CHECKING:
    from retrieval_interp import Workbench

_STRONG = 0.4  # attention of a proposed path
_ENABLING = 128  # examples on which enabled paths are found
_TELLING = 0.3  # seconds between two texts on where a search is


class Exploring:
    """One page's view of a workbench.

    The page knows three dictionaries: `model_info` never changes, `state` is the circuit so far and
    its loss, `shown` the selected head and path. It asks by messages such as
    `{"do": "toggle", "path": "L2.H0 s0<-s2"}`.

    Args:
        bench: what is explored.
        publish: told the name and the new value of every dictionary that changes.
    """

    def __init__(self, bench: "Workbench", publish: Callable[[str, dict[str, Any]], None]):
        self.bench, self.publish = bench, publish
        self.head, self.example, self.with_circuit = bench.heads[0], 0, False
        self.path: HeadPath | None = None
        self._answering = self._searching = False
        self._cancelled, self._told = threading.Event(), 0.0
        self._choices_of: tuple[Circuit, Head, list[dict[str, Any]]] | None = None
        self._numbers: dict[tuple[Circuit, HeadPath], dict[str, Any]] = {}
        self.model_info = model_info(bench.name, bench.model, bench.task, bench.order)
        self.model_info |= {"examples": len(bench.batch), "tolerance": bench.tolerance}
        self.state, self.shown = self._state(), self._shown()
        bench.watchers.add(self)

    @property
    def circuit(self) -> Circuit:
        """The workbench's circuit."""
        return self.bench.circuit

    def _state(self, said: str = "", failed: bool = False, busy: str = "") -> dict[str, Any]:
        bench = self.bench
        return {
            "loss": finite(bench.loss),
            "intact": finite(bench.intact_loss),
            "replaced": len(self.circuit.mechanisms),
            "heads": heads_data(self.circuit, bench.heads),
            "drawing": bench.drawing(),
            "rows": self._rows(),
            "json": self.circuit.to_json(),
            "undoable": bench.undoable,
            "said": said,
            "failed": failed,
            "busy": busy,
        }

    @torch.no_grad()
    def _shown(self) -> dict[str, Any]:
        bench, (layer, head) = self.bench, self.head
        one = bench.batch[self.example : self.example + 1]
        circuit = self.circuit if self.with_circuit else bench.scorer.empty_circuit
        name = pattern_hook_name(layer)
        with ablated(bench.model, circuit, one):
            _, cache = bench.model.run_with_cache(
                one.inputs, names_filter=name, **call_options(one)
            )
        by_role = bench.mean_attention(self.with_circuit)
        return {
            "layer": layer,
            "head": head,
            "example": self.example,
            "with_circuit": self.with_circuit,
            "tokens": position_labels(bench.model, bench.task, one, 0),
            "chains": one.roles[0].tolist(),
            "pattern": cache[name][0, head].float().cpu().mul(1000).round().int().tolist(),
            "by_role": by_role.mul(1000).round().int().tolist(),
            "choices": self._choices(),
            "path": None if self.path is None else self._measured(self.path),
        }

    def _rows(self) -> list[dict[str, Any]]:
        """The circuit's paths, with the numbers that have been measured."""
        bench = self.bench
        if (score := bench.scored) is not None:
            return path_rows_data(score, bench.task)
        paths = list(dict.fromkeys(self.circuit.every_path()))
        attention = self._attention(paths)
        return [
            path_data(path, bench.task, attention[path])
            | self._numbers.get((self.circuit, path), {})
            for path in paths
        ]

    def _attention(self, paths: Sequence[HeadPath]) -> dict[HeadPath, float]:
        """The intact model's mean attention along some paths."""
        bench = self.bench
        return {path: float(bench.intact_attention[path.head][path.path]) for path in paths}

    def _measured(self, path: HeadPath) -> dict[str, Any]:
        """What one path is worth, in the circuit and in the intact model."""
        bench, circuit = self.bench, self.circuit
        if (circuit, path) not in self._numbers:
            present = path in set(circuit.paths())
            empty = bench.scorer.empty_circuit
            numbers: dict[str, Any] = {"present": present, "note": ""}
            if present:
                numbers["ablated"] = finite(bench.loss_with(circuit.without(path)))
            else:
                try:
                    numbers["added"] = finite(bench.loss_with(str(path)))
                except InputError as error:  # a source that the mask hides
                    numbers["note"] = str(error)
            if not numbers["note"]:
                numbers["live"] = finite(bench.loss_with(empty.cut(path)))
                numbers["enables"] = self._enabled(path)
            attention = self._attention([path])[path]
            self._numbers[circuit, path] = path_data(path, bench.task, attention) | numbers
        return self._numbers[circuit, path] | self._scored(path)

    def _scored(self, path: HeadPath) -> dict[str, Any]:
        """What the last score says that a path does, if the circuit is still that one."""
        if (score := self.bench.scored) is None:
            return {}
        does = {row["name"]: row["does"] for row in path_rows_data(score, self.bench.task)}
        return {"does": does.get(path.text(self.bench.task.role_names), "")}

    def _enabled(self, path: HeadPath) -> list[str]:
        """The circuit's later paths that lose attention when a path is cut."""
        bench = self.bench
        later = list(dict.fromkeys(self.circuit.every_path()))
        try:
            found = enabled_by(bench.model, bench.batch[:_ENABLING], [path], later)[path]
        except InputError:  # queries and keys of this model cannot be told apart
            return []
        return [
            f"{row.path.text(bench.task.role_names)} "
            f"({row.side} {row.attention:.2f} to {row.when_cut:.2f})"
            for row in found
        ]

    def _choices(self) -> list[dict[str, Any]]:
        """Plausible mechanisms for the selected head, each with the loss it would give."""
        if self._choices_of is not None and self._choices_of[:2] == (self.circuit, self.head):
            return self._choices_of[2]
        attention, names = self.bench.intact_attention[self.head], self.circuit.role_names
        found: dict[Mechanism, str] = {
            ORIGINAL: "original",
            UNIFORM: "uniform",
            IDENTITY: "identity",
            propose(attention, "one-hot", _STRONG): "one-hot",
            propose(attention, "shared", _STRONG / 2): "shared",
            role_mean(attention): "role-mean",
        }
        found.setdefault(self.circuit[self.head], f"{self.circuit[self.head].kind}, now")
        choices = [
            {
                "name": name,
                "line": f"{self.head} {name if name == 'role-mean' else mechanism.text(names)}",
                "chosen": self.circuit[self.head] == mechanism,
                "paths": " ".join(path.text(names) for path in mechanism.paths)
                if name != "role-mean"
                else "",
                "loss": finite(self.bench.loss_with(self.circuit.replace(self.head, mechanism))),
            }
            for mechanism, name in found.items()
        ]
        self._choices_of = self.circuit, self.head, choices
        return choices

    def _set(self, name: str, value: dict[str, Any]) -> None:
        setattr(self, name, value)
        self.publish(name, value)

    def answer(self, asked: dict[str, Any]) -> None:
        """Do what a message asks; what went wrong is said in the state."""
        self._carry_out(asked.get("do"), lambda: self._do(asked))

    def search(self, asked: dict[str, Any], model: Any) -> Circuit | None:
        """Search as a message asks, with the model or a copy of it; None if nothing was found.

        It may run in another thread, and `cancel` ends it; `found` takes what it gives.
        """
        if self._searching:
            raise InputError("discover: expected no other search, found one under way; cancel it")
        self._searching = True
        self._cancelled.clear()
        try:
            self._set("state", self._state(busy="searching"))
            return self.bench.searched(model, progress=self._told_of, **_search_options(asked))
        except KeyboardInterrupt:
            if not self._cancelled.is_set():
                raise
            return None
        finally:
            self._searching = False

    def cancel(self) -> None:
        """End the search that is under way, if there is one; from any thread."""
        if self._searching:
            self._cancelled.set()

    def found(self, search: Callable[[], Circuit | None]) -> None:
        """Take what a search gives, or say what went wrong."""
        self._carry_out("discover", lambda: self._take(search()))

    def _take(self, circuit: Circuit | None) -> str:
        if circuit is None:
            return "cancelled before any circuit held; nothing changed"
        self.bench.take(circuit)
        return circuit.unfinished and f"unfinished: {circuit.unfinished}"

    def _told_of(self, search: Iterable[Any], what: str) -> Iterator[Any]:
        """Say now and then where a search is, until it is cancelled."""
        for where in search:
            now = time.monotonic()
            if now - self._told > _TELLING:
                self._told = now
                self._set("state", {**self.state, "busy": str(where)})
            if self._cancelled.is_set():
                return
            yield where

    def _carry_out(self, what: Any, act: Callable[[], str]) -> None:
        start, said, failed = time.perf_counter(), "", False
        self._answering = True
        try:
            said = act()
        except Exception as error:  # a message has no cell to show a traceback in
            known = isinstance(error, InputError)
            said, failed = f"{'' if known else f'{type(error).__name__}: '}{error}", True
        finally:
            self._answering = False
            if not said and what != "show":
                seconds = time.perf_counter() - start
                said = f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
            # The loss first: the choices below take longer to measure.
            self._set("state", self._state(said, failed))
        if what != "save" and not failed:
            self._show()

    def _show(self) -> None:
        """Show the selected head and path; numbers that are new appear in the rows as well."""
        fresh = self.path is not None and (self.circuit, self.path) not in self._numbers
        self._set("shown", self._shown())
        if fresh:
            self._set("state", {**self.state, "rows": self._rows()})

    def _do(self, asked: dict[str, Any]) -> str:
        bench, what = self.bench, asked.get("do")
        if what == "show":
            head = bench.check_head(Head(_field(asked, "layer", int), _field(asked, "head", int)))
            example = _field(asked, "example", int)
            if not 0 <= example < len(bench.batch):
                raise InputError(
                    f"example: expected 0 to {len(bench.batch) - 1}, found {example!r:.40}"
                )
            with_circuit = _field(asked, "with_circuit", bool)
            self.path = self._checked_path(asked.get("path"), head)
            self.head, self.example, self.with_circuit = head, example, with_circuit
        elif what == "suppose":
            bench.suppose(_field(asked, "line", str))
        elif what == "toggle":
            path = _field(asked, "path", str)
            present = parse_head_path(path, bench.task) in self.circuit.paths()
            (bench.remove if present else bench.suppose)(path)
        elif what == "undo":
            bench.undo()
        elif what == "clear":
            bench.suppose(bench.scorer.empty_circuit)
        elif what == "discover":
            return self._take(self.search(asked, bench.model))
        elif what == "score":
            self._set("state", self._state(busy="scoring"))
            controls = _field({"controls": 20, **asked}, "controls", int)
            bench.score(controls, progress=no_progress)
        elif what == "save":
            return f"saved to {bench.save(_field(asked, 'path', str))}"
        else:
            raise InputError(f"explorer: expected a known request, found {what!r:.40}")
        return ""

    def _checked_path(self, name: Any, head: Head) -> HeadPath | None:
        """A path of the shown head, from its name."""
        if name is None:
            return None
        path = parse_head_path(str(name), self.bench.task)
        if path.head != head:
            raise InputError(f"path: expected one of the shown head {head}, found {name!r:.60}")
        return path

    def refresh(self) -> None:
        """Show what the workbench's own methods changed; the workbench calls this."""
        if not self._answering:
            self._set("state", self._state())
            self._show()


def _search_options(asked: dict[str, Any]) -> dict[str, Any]:
    """What a message says about a search, as arguments of `bench.discover`."""
    kinds = {"time": float, "heads": list, "examples": int, "restarts": int, "one_hot": bool}
    given = {name: kind for name, kind in kinds.items() if asked.get(name) is not None}
    return {name: _field(asked, name, kind) for name, kind in given.items()}


def _field(asked: dict[str, Any], name: str, kind: type) -> Any:
    """One value of a message."""
    value: Any = asked.get(name)
    fits = type(value) is kind or (kind is float and type(value) is int)
    if not fits:
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        expected = words.get(kind, f"a {kind.__name__}")
        raise InputError(f"explorer: {name}: expected {expected}, found {value!r:.40}")
    return float(value) if kind is float else value
