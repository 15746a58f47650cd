"""What the explorer's page shows and asks, in a notebook (`widget.py`) or a browser (`server.py`).

`page_state` says what there is to see of a workbench, and `explorer.html` makes HTML of it.
`explorer.js` sends what is clicked as a message: `{"do": "toggle", "path": "L2.H0 s0<-s2"}`.
`Exploring` does what it asks of the workbench, and publishes the page again.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from retrieval_interp.circuits import Circuit, Head, HeadPath, Mechanism, RolePath, Search
from retrieval_interp.circuits.attention import attention_by_role
from retrieval_interp.circuits.circuit import parse_head_path
from retrieval_interp.circuits.counterfactual.mechanism import Counterfactual, keeps_some
from retrieval_interp.circuits.discovery.space import propose
from retrieval_interp.circuits.mechanisms import IDENTITY, ORIGINAL, UNIFORM
from retrieval_interp.circuits.runs.means import role_mean
from retrieval_interp.circuits.scores.scorer import no_progress
from retrieval_interp.tasks import InputError
from retrieval_interp.tasks.training_task import counted
from retrieval_interp.views.attention import patterns_on, position_labels, role_map, role_names
from retrieval_interp.views.page import render, unescaped
from retrieval_interp.views.score_text import Row, describe, shown_paths

if TYPE_CHECKING:
    from retrieval_interp import Workbench

_STRONG = 0.4  # attention of a proposed path
_TELLING = 0.3  # seconds between two texts on where a search is


@dataclass(frozen=True)
class Selection:
    """What a reader looks at."""

    head: Head
    path: HeadPath | None = None
    example: int = 0
    with_circuit: bool = False


def page_state(bench: "Workbench", selected: Selection, known: Mapping[Any, Any]) -> dict[str, Any]:
    """What there is to see: the circuit so far, and the selected head and path.

    What takes longer to measure is taken from `known`, by circuit and head or path.
    """
    circuit, task, path = bench.circuit, bench.task, selected.path
    attention = bench.mean_attention(selected.with_circuit)
    framed = {path for path in circuit.every_path() if circuit[path.head].follows_paths}
    framed |= kept_paths(circuit)
    maps = [
        role_map(head, attention[head], task, bench.order, framed) | {"kind": circuit[head].kind}
        for head in bench.heads
    ]
    return {
        "description": describe(bench.model, task),
        "heads": counted(len(bench.heads), "head"),
        "maps": maps,
        "map": maps[bench.heads.index(selected.head)],
        "roles": role_names(task, bench.order),
        "drawing": unescaped(bench.drawing()),
        "rows": shown_paths(bench.scored, task) if bench.scored else [],
        "path": path and path.text(task.role_names),
        "inside": path in framed,
        "row": known.get((circuit, path)),
        "choices": known.get((circuit, selected.head)),
        "look": example_map(bench, selected, framed),
    }


def kept_paths(circuit: Circuit) -> set[HeadPath]:
    """The circuit's own paths, and those that heads keep from a counterfactual."""
    kept = {h: m for h, m in circuit.mechanisms.items() if isinstance(m, Counterfactual)}
    return {*circuit.paths(), *(HeadPath(h, path) for h, m in kept.items() for path in m.paths)}


def example_map(bench: "Workbench", selected: Selection, framed: set[HeadPath]) -> dict[str, Any]:
    """The selected head's attention on one example, as rows of cells like those of a role map."""
    one, head = bench.batch[selected.example : selected.example + 1], selected.head
    circuit = bench.circuit if selected.with_circuit else None
    pattern = patterns_on(bench.model, one, circuit)[head.layer][0, head.head].tolist()
    tokens, paths = position_labels(bench.model, bench.task, one, 0), dict[Any, HeadPath]()
    for positions in one.roles[0].tolist():
        for dest, at in enumerate(positions):
            for src, source in enumerate(positions):
                paths.setdefault((at, source), HeadPath(head, RolePath(dest, src)))

    def cell(at: int, source: int, weight: float) -> dict[str, Any]:
        path = paths.get((at, source))
        return {
            "weight": weight,
            "title": f"{tokens[at]} attends to {tokens[source]}: {weight:.3f}",
            "path": path and path.text(bench.task.role_names),
            "framed": path in framed,
        }

    rows = [[cell(at, *pair) for pair in enumerate(row)] for at, row in enumerate(pattern)]
    return {"tokens": [{"name": token, "label": token} for token in tokens], "rows": rows}


def choices(bench: "Workbench", head: Head) -> list[Row]:
    """Plausible mechanisms for a head, each with the loss it would give."""
    circuit, names = bench.circuit, bench.circuit.role_names
    attention = bench.intact_attention[head]
    found: dict[Mechanism, str] = {each: each.kind for each in (ORIGINAL, UNIFORM, IDENTITY)}
    for kind, least in (("one-hot", _STRONG), ("shared", _STRONG / 2)):
        found[propose(attention, kind, least)] = kind
    found[role_mean(attention)] = "role-mean"
    if keeps_some(circuit):  # then a head keeps all, its row that differs most, or nothing
        there: Any = bench.batch.counterfactual
        there = attention_by_role(there[:, head.layer], bench.batch.roles)[0].cpu()
        change = attention - there[head.head]
        row = int(change.abs().sum(-1).argmax())
        kept = Counterfactual(rows=(row,))
        found = {ORIGINAL: "original", kept: kept.text(names), Counterfactual(): "counterfactual"}
    found.setdefault(circuit[head], f"{circuit[head].kind}, now")
    return [
        {
            "name": name,
            "line": f"{head} {name if mechanism.is_measured else mechanism.text(names)}",
            "chosen": circuit[head] == mechanism,
            "loss": bench.loss_with(circuit.replace(head, mechanism)),
            "paths": [path.text(names) for path in mechanism.paths if mechanism.follows_paths],
        }
        for mechanism, name in found.items()
    ]


def path_row(bench: "Workbench", path: HeadPath) -> Row:
    """A path in words, its mean attention, and what it is worth, in the circuit and without it."""
    circuit = bench.circuit
    row: Row = {
        "meaning": bench.task.path_label(*path.path),
        "attention": float(bench.intact_attention[path.head][path.path]),
    }
    try:
        if path in kept_paths(circuit):
            row["ablated_loss"] = bench.loss_with(circuit.without(path))
        else:
            row["added_loss"] = bench.loss_with(path.text(circuit.role_names))
    except InputError as error:  # a source that the mask hides
        return row | {"hidden": str(error)}
    return row | {"live_loss": bench.loss_with(bench.scorer.empty_circuit.cut(path))}


class Exploring:
    """One page's view of a workbench; `publish` is told its HTML after every change."""

    def __init__(self, bench: "Workbench", publish: Callable[[str], None]):
        self.bench, self.publish = bench, publish
        self.selected = Selection(bench.heads[0])
        self.searching = self.cancelled = False
        self._known: dict[tuple[Circuit, Head | HeadPath], Any] = {}
        self.page: dict[str, Any] = {}
        self.html = ""
        self.refresh()
        bench.listeners.add(self)

    def answer(self, asked: dict[str, Any]) -> None:
        """Do what a message asks, and show the result or what went wrong."""
        bench = self.bench
        requests: dict[str, Callable[[], Any]] = {
            "show": lambda: self._select(asked),
            "toggle": lambda: self._toggle(asked["path"]),
            "suppose": lambda: bench.suppose(asked["line"]),
            "undo": bench.undo,
            "keep": bench.keep,
            "clear": lambda: bench.suppose(bench.scorer.empty_circuit),
            "score": self._score,
            "discover": lambda: self.take(self.search(bench.model)),
        }
        self.carry_out(lambda: requests[asked["do"]]())

    def carry_out(self, act: Callable[[], Any]) -> None:
        """Do something, and show the result or what went wrong."""
        failed = False
        try:
            said = act()
        except Exception as error:  # a message has no cell to show a traceback in
            known = isinstance(error, InputError)
            said, failed = f"{'' if known else f'{type(error).__name__}: '}{error}", True
        state = self.bench.state() if keeps_some(self.bench.circuit) else ""
        self.refresh(said if isinstance(said, str) else state, failed)

    def refresh(self, said: str = "", failed: bool = False) -> None:
        """Show the workbench as it is; it calls this when its own methods have changed it."""
        told = {"said": said, "failed": failed} | ({} if self.searching else {"busy": ""})
        bench, head, path = self.bench, self.selected.head, self.selected.path
        self._tell(page_state(bench, self.selected, self._known) | told)
        measures: dict[Any, Callable[..., Any]] = {head: choices, path: path_row}
        for what, measure in measures.items():  # what is missing is shown once it is measured
            if what is not None and (bench.circuit, what) not in self._known:
                self._known[bench.circuit, what] = measure(bench, what)
                self._tell(page_state(bench, self.selected, self._known))

    def _tell(self, changes: dict[str, Any]) -> None:
        self.page = self.page | changes
        shown = vars(self) | vars(self.selected) | self.page
        self.html = str(render("explorer.html", **shown))
        self.publish(self.html)

    def _select(self, asked: dict[str, Any]) -> None:
        bench, chosen = self.bench, self.selected
        if "head" in asked:
            chosen = replace(chosen, head=Head.parse(asked["head"]), path=None)
        if "path" in asked:
            path = parse_head_path(asked["path"], bench.task)
            chosen = replace(chosen, head=path.head, path=path)
        looks = {name: asked[name] for name in ("example", "with_circuit") if name in asked}
        chosen = replace(chosen, **looks)
        bench.check_head(chosen.head)
        if chosen.example not in range(len(bench.batch)):
            raise InputError(f"example: expected 0 to {len(bench.batch) - 1}")
        self.selected = chosen

    def _toggle(self, path: str) -> None:
        bench, (head, of_roles) = self.bench, parse_head_path(path, self.bench.task)
        if HeadPath(head, of_roles) in kept_paths(bench.circuit):
            bench.remove(path)
        elif keeps_some(bench.circuit) and bench.circuit[head] == ORIGINAL:
            bench.suppose(path.replace(" ", " counterfactual ", 1))
        else:
            bench.suppose(path)

    def _score(self) -> None:
        self._tell({"busy": "scoring"})
        self.bench.score(progress=no_progress)

    def search(self, model: Any) -> Circuit:
        """Search with the model or a copy of it, perhaps in another thread."""
        if self.searching:
            raise InputError("discover: expected no other search, found one under way; cancel it")
        self.searching, self.cancelled, told = True, False, 0.0
        self._tell({"busy": "searching"})
        try:
            search = Search(model, self.bench.task, self.bench.search_options())
            for state in search:
                if self.cancelled:
                    break
                if time.monotonic() - told > _TELLING:
                    told = time.monotonic()
                    self._tell({"busy": str(state)})
        finally:
            self.searching = False
        return search.circuit

    def take(self, found: Circuit) -> str:
        """Take what a search gave."""
        if found.unfinished and not found.mechanisms:
            return f"nothing was found: {found.unfinished}"
        self.bench.take(found)
        return f"unfinished: {found.unfinished}" if found.unfinished else ""
