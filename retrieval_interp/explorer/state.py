"""What the explorer's page shows and asks, in a notebook (`widget.py`) or a browser (`server.py`).

`page_state` says what there is to see of a workbench, and `explorer.html` makes HTML of it.
`explorer.js` sends what is clicked as a message: `{"do": "toggle", "path": "L2.H0 s0<-s2"}`.
`Exploring` does what the message asks and publishes the page again. Between two losses it answers
messages that came in the meantime; searches and scores have their own thread and copy of the model.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypeVar

from markupsafe import Markup
from torch import Tensor

from retrieval_interp import Workbench
from retrieval_interp.circuits import Circuit, CircuitScore, Mechanism, Search, score_circuit
from retrieval_interp.circuits.circuit import parse_head_path, suppose
from retrieval_interp.circuits.draw.layout import carrying_paths, drawn_paths
from retrieval_interp.circuits.hooks import HookedModel
from retrieval_interp.circuits.means import propose, role_mean
from retrieval_interp.circuits.mechanisms import IDENTITY, ORIGINAL, UNIFORM
from retrieval_interp.circuits.patched_heads import Counterfactual
from retrieval_interp.circuits.paths import Head, HeadPath, RolePath, attention_by_role
from retrieval_interp.tasks import InputError
from retrieval_interp.tasks.messages import counted
from retrieval_interp.views.attention import patterns_on, position_labels, role_map, role_names
from retrieval_interp.views.page import render
from retrieval_interp.views.report import score_parts, task_words
from retrieval_interp.views.score_text import describe, mechanism_words, shown_paths
from retrieval_interp.views.why_view import question_tokens

T = TypeVar("T")
Later = Callable[[Callable[[], Any]], Any]
_STRONG = 0.4  # attention of a proposed path
_TELLING = 0.3  # seconds between two texts on where a search or a score is


@dataclass(frozen=True)
class Selection:
    """What a reader looks at."""

    head: Head
    path: HeadPath | None = None
    example: int = 0
    with_circuit: bool = False


def page_state(bench: Workbench, selected: Selection) -> dict[str, Any]:
    """Collect what there is to see: the circuit so far, and the selected head and path."""
    circuit, task, path = bench.circuit, bench.task, selected.path
    attention = bench.mean_attention(selected.with_circuit)
    framed, keeping = set(drawn_paths(circuit)), circuit.is_patched
    maps = [
        {
            "head": str(head),
            "kind": _kind(circuit[head], keeping),
            "cells": _telling_cells(head, attention[head], bench.order, framed),
        }
        for head in bench.heads
    ]
    scored = None
    if bench.scored is not None:
        scored = score_parts(bench.scored, bench.model, task, bench.batch)
    return {
        "description": describe(bench.model, task)
        if bench.question
        else task_words(bench.model, task, bench.batch),
        "heads": counted(len(bench.heads), "head"),
        "maps": maps,
        "map": role_map(selected.head, attention[selected.head], task, bench.order, framed),
        "roles": role_names(task, bench.order),
        "drawing": scored["drawing"] if scored else Markup(bench.drawing()),
        "scored": scored,
        "rows": shown_paths(bench.scored, task) if bench.scored else [],
        "path": path and path.text(task.role_names),
        "inside": path in carrying_paths(circuit),
        "details": path and path_details(bench, path),
        "choices": choices(bench, selected.head),
        "look": example_map(bench, selected, framed),
        "keeping": keeping,
        "counterfactual": bench.counterfactual_of(selected.example),
        "strip": question_tokens(bench.question, bench.model.tokenizer) if bench.question else [],
    }


def _telling_cells(
    head: Head, weights: Tensor, order: Sequence[int], framed: set[HeadPath]
) -> list[tuple[int, int, float, bool]]:
    """Return column, row and weight of what the picture of a head shows, and if it is framed."""
    rows, place = weights[order][:, order].tolist(), {role: n for n, role in enumerate(order)}
    inside = {(place[path.src], place[path.dest]) for owner, path in framed if owner == head}
    strong = [
        (x, y) for y, row in enumerate(rows) for x, weight in enumerate(row) if weight >= 0.02
    ]
    cells = dict.fromkeys([*strong, *inside])
    return [(x, y, round(rows[y][x], 2), (x, y) in inside) for x, y in cells]


def _kind(mechanism: Mechanism, keeping: bool) -> str:
    """Name a mechanism in a word or two, for the picture of a head."""
    if isinstance(mechanism, Counterfactual):
        return f"keeps {len(mechanism.paths) + len(mechanism.rows) or 'nothing'}"
    return "keeps all" if keeping and mechanism == ORIGINAL else mechanism.kind


def example_map(bench: Workbench, selected: Selection, framed: set[HeadPath]) -> dict[str, Any]:
    """Return the selected head's attention on one example, as cells like those of a role map."""
    example, head = bench.batch[[selected.example]], selected.head
    circuit = bench.circuit if selected.with_circuit else None
    pattern = patterns_on(bench.model, example, circuit)[head.layer][0, head.head].tolist()
    tokens, paths = position_labels(bench.model, bench.task, example, 0), dict[Any, HeadPath]()
    for positions in example.roles[0].tolist():
        for (dest, reader), (src, source) in product(enumerate(positions), repeat=2):
            paths.setdefault((reader, source), HeadPath(head, RolePath(dest, src)))

    def cell(reader: int, source: int, weight: float) -> dict[str, Any]:
        path = paths.get((reader, source))
        return {
            "weight": weight,
            "title": f"{tokens[reader]} attends to {tokens[source]}: {weight:.3f}",
            "path": path and path.text(bench.task.role_names),
            "framed": path in framed,
        }

    rows = [
        [cell(reader, source, weight) for source, weight in enumerate(row)]
        for reader, row in enumerate(pattern)
    ]
    return {"tokens": [{"name": token, "label": token} for token in tokens], "rows": rows}


def choices(bench: Workbench, head: Head) -> list[dict[str, Any]]:
    """List plausible mechanisms for a head, with the line that supposes each, and the circuit."""
    circuit, names = bench.circuit, bench.circuit.role_names
    attention = bench.measured.intact_attention[head]
    names_of: dict[Mechanism, str] = {rule: rule.kind for rule in (ORIGINAL, UNIFORM, IDENTITY)}
    for kind, least in (("one-hot", _STRONG), ("shared", _STRONG / 2)):
        names_of.setdefault(propose(attention, kind, least), kind)
    names_of[role_mean(attention)] = "role-mean"
    if circuit.is_patched:  # then a head keeps all, its row that differs most, or nothing
        layers: Any = bench.batch.counterfactual_activations
        there = attention_by_role(layers[head.layer].pattern, bench.batch.roles)[0].cpu()
        change = attention - there[head.head]
        kept = Counterfactual(rows=(int(change.abs().sum(-1).argmax()),))
        names_of = {ORIGINAL: "keeps all", kept: "keeps a row", Counterfactual(): "keeps nothing"}
    names_of.setdefault(circuit[head], "as it is")
    return [
        {
            "name": name,
            "line": f"{head} {mechanism.kind if mechanism.is_measured else mechanism.text(names)}",
            "about": mechanism_words([mechanism]),
            "chosen": circuit[head] == mechanism,
            "circuit": circuit.replace(head, mechanism),
            "paths": [] if mechanism.is_measured else mechanism.text(names).split()[1:],
        }
        for mechanism, name in names_of.items()
    ]


def path_details(bench: Workbench, path: HeadPath) -> dict[str, Any]:
    """Describe a path, and what a click on it would do: `act`, which gives the circuit `changed`.

    `how` says in what that circuit differs, and `cut` is the intact model without the path.
    """
    circuit, keeping = bench.circuit, bench.circuit.is_patched
    inside = path in carrying_paths(circuit)
    changed = circuit.without(path) if inside else suppose(circuit, _adding(circuit, path))
    how, act = ("removed from the circuit", "Take it out") if inside else ("with it", "Add it")
    if keeping:
        how, act = ("if not kept", "Do not keep it") if inside else ("if kept", "Keep it")
    elif changed[path.head].paths == (path.path,) and not inside:
        how = f"with {path.head} {changed[path.head].kind} along this path alone"
    return {
        "meaning": bench.task.path_label(*path.path),
        "attention": float(bench.measured.intact_attention[path.head][path.path]),
        "how": how,
        "act": act,
        "changed": changed,
        "cut": bench.scorer.empty_circuit.cut(path),
    }


def _adding(circuit: Circuit, path: HeadPath) -> str:
    """Write the line that adds a path; a head that is kept whole then keeps it alone."""
    name, whole = path.text(circuit.role_names), circuit[path.head] == ORIGINAL
    return name.replace(" ", " counterfactual ", 1) if whole and circuit.is_patched else name


class Exploring:
    """One page's view of a workbench.

    `publish` receives its HTML after every change, and `later(f)` queues f for the thread that
    answers messages.
    """

    def __init__(self, bench: Workbench, publish: Callable[[str], Any], later: Later):
        self.bench, self.publish, self.later = bench, publish, later
        self.selected = Selection(bench.heads[0], with_circuit=bench.circuit.is_patched)
        self.busy, self.cancelled, self._last_told = "", False, 0.0
        self.losses: dict[Circuit, float | InputError] = {}  # an error where there can be none
        self.page: dict[str, Any] = {}
        self.html = ""
        self._worker = ThreadPoolExecutor(1)
        self.refresh()
        bench.listeners.add(self)

    def answer(self, asked: dict[str, Any]) -> None:
        """Do what a message asks, and show the result or what went wrong."""
        bench = self.bench
        requests: dict[str, Callable[[], Any]] = {
            "show": lambda: self._select(asked),
            "cancel": self._cancel,
            "toggle": lambda: self._toggle(asked["path"]),
            "suppose": lambda: bench.suppose(asked["line"]),
            "undo": bench.undo,
            "redo": bench.redo,
            "keep": self._keep,
            "ask": lambda: self._ask(asked["place"]),
            "clear": lambda: bench.suppose(bench.scorer.empty_circuit),
            "score": self._score,
            "discover": self._discover,
        }
        if self.busy and asked["do"] not in ("show", "cancel"):
            self.refresh(f"{asked['do']}: expected to wait; cancel ends it", failed=True)
        else:
            self._carry_out(lambda: requests[asked["do"]]())

    def _carry_out(self, act: Callable[[], Any]) -> None:
        """Do something, and show the text that it returns or what went wrong."""
        try:
            result = act()
        except Exception as error:  # a message has no cell to show a traceback in
            kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
            return self.refresh(f"{kind}{error}", failed=True)
        text = result if isinstance(result, str) else ""
        if not text and self.bench.circuit.is_patched:
            words = self.bench.counterfactual_words
            text = f"{self.bench.state()}. Counterfactual prompts: {words}"
        self.refresh(text)

    def refresh(self, said: str = "", failed: bool = False) -> None:
        """Show the workbench as it is; it calls this when its own methods have changed it."""
        self.losses[self.bench.circuit] = self.bench.loss
        self.page = page_state(self.bench, self.selected) | {"said": said, "failed": failed}
        self._show()
        self.later(self._measure)

    def _measure(self) -> None:
        """Measure the next loss that the page lacks, show it, and go on."""
        details = self.page["details"]
        shown = [details["changed"], details["cut"]] if details else []
        shown += [choice["circuit"] for choice in self.page["choices"]]
        if missing := [circuit for circuit in shown if circuit not in self.losses]:
            try:
                self.losses[missing[0]] = self.bench.loss_with(missing[0])
            except InputError as error:  # a source that the mask hides
                self.losses[missing[0]] = error
            self._show()
            self.later(self._measure)

    def _show(self) -> None:
        self.html = render("explorer.html", explorer=self, bench=self.bench, page=self.page)
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

    def _toggle(self, name: str) -> None:
        bench, path = self.bench, parse_head_path(name, self.bench.task)
        if path in carrying_paths(bench.circuit):
            bench.remove(name)
        else:
            bench.suppose(_adding(bench.circuit, path))

    def _keep(self) -> None:
        self.selected = replace(self.selected, with_circuit=True)  # what is put in place
        self.bench.keep()

    def _ask(self, place: str) -> None:
        """Ask about another place of the prompt, of which nothing is known yet."""
        self.busy = f"asking what depends on {place!r}"
        self._show()
        self.busy = ""
        self.losses.clear()
        self.selected = Selection(self.bench.heads[0], with_circuit=True)
        self.bench.ask(place)

    # Work that takes long

    def _discover(self) -> None:
        task, options = self.bench.task, self.bench.search_options()

        def search(model: HookedModel) -> Circuit:
            return Search(model, task, options).run(self._watched)

        self._start("searching", search, self.bench.take)

    def _score(self) -> None:
        bench, progress = self.bench, self._watched
        task, circuit, batch = bench.task, bench.circuit, bench.batch  # as they are now

        def score(model: HookedModel) -> CircuitScore:
            return score_circuit(model, task, circuit, batch, bench.stated, progress=progress)

        self._start("scoring", score, self.bench.take_score)

    def _start(self, action: str, work: Callable[[Any], T], take: Callable[[T], Any]) -> None:
        """Work with a copy of the model in a thread, and take what it gives in this one."""

        def end(done: "Future[T]") -> str:
            self.busy = ""
            try:
                take(done.result())
            except KeyboardInterrupt as stop:
                raise InputError(str(stop) or f"{action}: cancelled") from None
            reason = self.bench.circuit.unfinished
            return f"unfinished: {reason}" if reason else ""

        self.busy, self.cancelled, self._last_told = action, False, 0.0
        done = self._worker.submit(work, deepcopy(self.bench.model))
        done.add_done_callback(lambda done: self.later(lambda: self._carry_out(lambda: end(done))))

    def _watched(self, items: Iterable[T], what: str) -> Iterator[T]:
        """Pass items on until it is cancelled, and say now and then where the work is."""
        total = len(items) if isinstance(items, Sized) else 0
        for number, item in enumerate(items, 1):
            if self.cancelled:
                raise KeyboardInterrupt
            if time.monotonic() - self._last_told > _TELLING:
                self._last_told = time.monotonic()
                self.busy = f"{what}, {number} of {total}" if total else str(item)
                self.later(self._show)
            yield item

    def _cancel(self) -> None:
        self.cancelled, self.busy = True, self.busy and "cancelling"
