"""A workbench for circuit discovery: suppose a circuit, and measure, draw, search and save it.

Every method returns something that a notebook draws and a terminal prints; nothing is printed here.
"""

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from html import escape
from pathlib import Path
from typing import Any

from jaxtyping import Float
from markupsafe import Markup
from torch import Tensor

from retrieval_interp import circuits
from retrieval_interp.bench_losses import BenchLosses, Step
from retrieval_interp.circuits import Circuit, CircuitScore, Head, Scorer, SearchOptions
from retrieval_interp.circuits.circuit import circuit_diff, parse_head_path, suppose
from retrieval_interp.circuits.counterfactual.question import PromptQuestion, ask
from retrieval_interp.circuits.counterfactual.units import Unit, keep_units
from retrieval_interp.circuits.discovery.search import Strategy
from retrieval_interp.circuits.draw.layout import role_order
from retrieval_interp.circuits.draw.svg import draw_circuit
from retrieval_interp.circuits.hooks import HookedModel, heads_of, measuring
from retrieval_interp.circuits.losses import Progress, standard_error
from retrieval_interp.circuits.means import position_means, role_mean
from retrieval_interp.circuits.mechanisms import ORIGINAL, Mechanism
from retrieval_interp.storage.checkpoint import read_circuit
from retrieval_interp.storage.files import as_path, writable, write_whole
from retrieval_interp.tasks import Batch, InputError, Task
from retrieval_interp.tasks.messages import counted
from retrieval_interp.tasks.structured import check_sampling, from_data
from retrieval_interp.tasks.words.given_texts import PairsTask
from retrieval_interp.views.ablations_view import ablations_view
from retrieval_interp.views.attention import attention_view, checked, position_labels, role_maps
from retrieval_interp.views.page import View, register_displays, unbroken
from retrieval_interp.views.report import render_report, score_drawing, score_view
from retrieval_interp.views.score_text import describe
from retrieval_interp.views.tables import terminal_width, with_error, wrapped
from retrieval_interp.views.why_view import why_view


def prompt_task(
    model: HookedModel, prompt: str, answer: str, place: str, seed: int, progress: Progress
) -> tuple[PromptQuestion, PairsTask]:
    """Ask about a prompt; return the question, and its changes as a task, half of them examples."""
    with measuring(model):
        question = ask(model, prompt, answer, place=place, seed=seed, progress=progress)
    task = question.task(model.tokenizer)
    if len(task) < 4:
        raise InputError(
            f"place: expected four changes of {question.place.text!r} after which the model "
            f"answers otherwise, found {len(task)}; ask about another place"
        )
    return question, task


@dataclass(eq=False, repr=False)
class Workbench:
    """A model and the circuit supposed so far, which can be changed, measured, drawn and saved.

    After a change it calls `refresh` of each of its `listeners`.
    """

    model: HookedModel
    task: Task
    name: str
    opened: str  # the first arguments of `open`, as code
    training: Mapping[str, Any]  # a checkpoint's training record
    examples: int
    seed: int
    stated: float | None  # the tolerance that was stated; None if it depends on the examples
    progress: Progress
    question: PromptQuestion | None = None  # of a prompt; its pairs are the task

    def __post_init__(self) -> None:
        check_sampling(self.examples, self.seed, self.stated)
        self.heads = heads_of(self.model)
        self.listeners: weakref.WeakSet[Any] = weakref.WeakSet()
        self._begin(BenchLosses(self.model, self.task, self.examples, self.seed, self.stated))
        register_displays()

    def _begin(self, measured: BenchLosses) -> None:
        """Begin with examples on which no circuit was measured yet."""
        self.measured = measured
        self.order = role_order(measured.plain_batch)
        self._steps = [measured.intact]
        self._undone: list[Step] = []
        self._score: CircuitScore | None = None
        self._controls = 20  # number of random circuits of that score

    @property
    def scorer(self) -> Scorer:
        """The scorer of the current circuit."""
        return self.measured.scorer_for(self.circuit)

    @property
    def batch(self) -> Batch:
        """The examples of the `test` split on which everything is measured.

        They have the attention on counterfactual prompts if the circuit patches heads from it.
        """
        return self.scorer.batch

    @property
    def tolerance(self) -> float:
        """The loss that a working circuit stays below."""
        return self.measured.tolerance

    @property
    def unlearned_text(self) -> str:
        """The sentence that the model has not learned the task; empty if it has."""
        return self.measured.unlearned_text

    @property
    def circuit(self) -> Circuit:
        """The circuit supposed so far; notebooks draw it."""
        return self._steps[-1].circuit

    @property
    def loss(self) -> float:
        """The loss with the current circuit in place."""
        return self._steps[-1].loss

    @property
    def intact_loss(self) -> float:
        """The loss of the intact model."""
        return self.measured.intact.loss

    @property
    def scored(self) -> CircuitScore | None:
        """The score of the current circuit, if it has been taken."""
        score = self._score
        return score if score and score.circuit == self.circuit else None

    @property
    def undoable(self) -> bool:
        """Whether there is a change to undo."""
        return len(self._steps) > 1

    @property
    def redoable(self) -> bool:
        """Whether there is an undone change to make again."""
        return bool(self._undone)

    def mean_attention(self, with_circuit: bool) -> Float[Tensor, "layer head dest src"]:
        """Measure mean attention by role, intact or with the circuit in place; on the CPU."""
        if not with_circuit:
            return self.measured.intact_attention
        return circuits.mean_attention(self.model, self.batch, self.circuit).cpu()

    def loss_with(self, *lines: str | Circuit) -> float:
        """Measure the loss with these lines supposed, or another circuit; nothing changes."""
        self.measured.check_unchanged()
        return self.measured.loss(self.parse(*lines))

    def __repr__(self) -> str:
        return f"{self.name}: {describe(self.model, self.task)}\n{self.state()}\n{self.circuit}"

    def _repr_html_(self) -> str:
        lines = [f"{self.name}: {describe(self.model, self.task)}", self.state()]
        return View(self.name, self._drawn(lines), "")._repr_html_()

    def _drawn(self, lines: Sequence[str]) -> str:
        text = Markup("").join(Markup("<p>{}</p>\n").format(unbroken(line)) for line in lines)
        return f'{text}<div class="scroll">{self.drawing()}</div>'

    def state(self) -> str:
        """Say in a line what the loss is, and how much is replaced or recovered."""
        _, loss, se, better = self._steps[-1]
        text = f"{self.task.loss_name} {with_error(loss, se)}"
        below = f"{'' if loss < self.tolerance else 'not '}below {self.tolerance:.4g}"
        heads = f"{len(self.circuit.mechanisms)} of {counted(len(self.heads), 'head')}"
        if not self.circuit.mechanisms:
            text = f"no head is replaced; intact {text}"
        elif self.circuit.is_patched:
            text = f"{text}, {below}; {self._recovered()}"
        else:
            beats = ", better than the intact model" if better else ""
            text = f"{text} with {heads} replaced, {below}{beats}"
        return f"{text}. {self.unlearned_text}" if self.unlearned_text else text

    def _recovered(self) -> str:
        """Say which share of the loss due to the counterfactual the circuit recovers."""
        lost = self.measured.lost_with_none_kept
        gap, shown = float(lost.mean()), self.counterfactual_of(0)
        none_kept = self.intact_loss + gap
        if gap > 2 * standard_error(lost) and none_kept >= self.tolerance:
            share = 1 - (self.loss - self.intact_loss) / gap
            return f"{round(share, 2) + 0.0:.0%} of what the counterfactual takes away is recovered"
        return (
            f"with nothing kept it is {none_kept:.4f}, intact {self.intact_loss:.4f}: the "
            "counterfactual takes nothing away that matters"
            f"{shown and f'; of example 0 it is {shown!r}'}"
        )

    @property
    def counterfactual_words(self) -> str:
        """What the counterfactual prompts are."""
        if self.question is not None:
            return f"the prompt with other words in place of {self.question.place.text.strip()!r}"
        return self.task.counterfactual_words

    def counterfactual_of(self, example: int) -> str:
        """Return an example's counterfactual in words, if the circuit patches heads from it."""
        if not self.circuit.is_patched:
            return ""
        prompt, counterfactual = (
            " ".join(position_labels(self.model, self.task, batch[[example]], 0))
            for batch in (self.batch, self.measured.counterfactual)
        )
        return counterfactual if counterfactual != prompt else ""

    def drawing(self) -> str:
        """Draw the current circuit as SVG, with its scores if they have been taken."""
        n_layers, task, batch = self.model.cfg.n_layers, self.task, self.batch
        if self.scored is not None:
            return score_drawing(self.scored, n_layers, task, batch)
        return draw_circuit(self.circuit, n_layers, task=task, batch=batch)

    def suppose(self, *lines: str | Circuit) -> View:
        """Change what some heads do, and measure the mean loss with the whole circuit in place.

        Args:
            lines: one line per head, or a whole circuit. `L3.H0 uniform` (or identity, mean,
                role-mean, original) replaces a head; `L1.H0 one-hot s0<-s2 s4<-s6` gives it exactly
                these paths, and `L1.H0 one-hot` none, so that it attends nowhere; `L1.H0 s0<-s2`
                adds a path; a role with several sources then shares its attention.

        Returns:
            A view of what changed; its `data` is the loss. After an error nothing has changed.
        """
        return self._change(self.parse(*lines))

    def parse(self, *lines: str | Circuit) -> Circuit:
        """Return what lines as in `suppose` would make of the current circuit."""
        items: Any = lines[0] if len(lines) == 1 and isinstance(lines[0], list) else lines
        circuit = self.circuit
        for given in items:
            circuit = given if isinstance(given, Circuit) else circuit
            text = "" if isinstance(given, Circuit) else str(given).strip() or "''"
            for line in text.splitlines():
                name, _, kind = line.partition(" ")
                if kind.strip() in ("mean", "role-mean"):
                    head = self.check_head(Head.parse(name))
                    circuit = circuit.replace(head, self._mean_of(head, kind.strip()))
                else:
                    circuit = suppose(circuit, line)
        return circuit

    def _mean_of(self, head: Head, kind: str) -> Mechanism:
        """Return a head's mean attention by position or by role in the intact model."""
        if kind == "role-mean":
            return role_mean(self.measured.intact_attention[head])
        return position_means(self.model, self.batch)[head]

    def remove(self, path: str) -> View:
        """Remove a path such as `L1.H0 s0<-s2`; a head without paths becomes original again."""
        head, role_path = parse_head_path(path, self.task)
        mechanism = self.circuit[head]
        if role_path not in mechanism.paths:
            raise InputError(f"expected a path of the circuit, found {path!r:.60}")
        reduced = mechanism.without(role_path)
        stays = reduced.paths or not mechanism.follows_paths
        return self._change(self.circuit.replace(head, reduced if stays else ORIGINAL))

    def keep(self, *units: str) -> View:
        """Patch all heads from counterfactual prompts, except for these units, which are kept.

        Args:
            units: heads, rows or paths as `ri.why` finds them: `L2.H0`, `L2.H0 s0`, `L2.H0 s0<-s2`.
        """
        empty = self.scorer.empty_circuit
        kept = [Unit.parse(unit, empty.roles) for unit in units]
        for unit in kept:
            self.check_head(unit.head)
        return self.suppose(keep_units(empty, self.heads, kept))

    def ask(self, place: str) -> View:
        """Ask about another place of the prompt, and start again with nothing kept."""
        if self.question is None:
            raise InputError("ask: expected a prompt, as in ri.open(model, prompt), found a task")
        prompt, answer = self.question.prompt, self.question.answer
        question, task = prompt_task(self.model, prompt, answer, place, self.seed, self.progress)
        examples = min(512, len(task) // 2)
        measured = BenchLosses(self.model, task, examples, self.seed, self.stated)
        self.question = replace(question, places=self.question.places)  # all that were tried
        self.task, self.examples = task, examples
        self._begin(measured)
        return self.keep()

    def undo(self) -> View:
        """Go back to the circuit before the last change."""
        if not self.undoable:
            raise InputError("undo: expected a change to take back, found none")
        self.measured.measure(self._steps[-2].circuit)
        self._undone.append(self._steps.pop())
        return self._changed_from(self._undone[-1])

    def redo(self) -> View:
        """Make the change again that was last undone."""
        if not self.redoable:
            raise InputError("redo: expected an undone change, found none")
        before, again = self._steps[-1], self._undone.pop()
        self._steps.append(self.measured.measure(again.circuit))
        return self._changed_from(before)

    def check_head(self, head: Head) -> Head:
        """Check that the model has a head, and return it."""
        if head not in self.heads:
            expected = f"{self.heads[0]} to {self.heads[-1]}"
            raise InputError(f"expected a head from {expected}, found {head}")
        return head

    def _change(self, circuit: Circuit, note: str = "") -> View:
        self.measured.check_unchanged()
        before = self._steps[-1]
        if circuit != before.circuit:
            self._steps.append(self.measured.measure(circuit))
            self._undone.clear()
        return self._changed_from(before, note)

    def _changed_from(self, before: Step, note: str = "") -> View:
        self._tell_listeners()
        changes = circuit_diff(before.circuit, self.circuit) or ["nothing changed"]
        lines = [*changes, f"{self.state()} (was {before.loss:.4f})"]
        if note:
            lines = [note, *lines]
        text = "\n".join(wrapped("\n".join(lines), terminal_width(piped=80)))
        return View("What was supposed", self._drawn(lines), text, self.loss)

    def _tell_listeners(self) -> None:
        for listener in list(self.listeners):
            listener.refresh()

    def discover(self, *, strategy: Strategy | None = None, **choices: Any) -> View:
        """Search for a circuit, on as many examples of another split, and make it the current one.

        Ctrl-C, or the notebook's stop button, ends the search with the best circuit so far.

        Args:
            strategy: as in `ri.discover`.
            choices: options of `ri.discover`, such as `time=60`, `heads=["L0.H0", "L2.H0"]`, or
                `shared=False` for one-hot paths only.
        """
        search = circuits.Search(self.model, self.task, self.search_options(**choices), strategy)
        return self.take(search.run(self.progress))

    def search_options(self, **choices: Any) -> SearchOptions:
        """Return the options of a search by `discover`."""
        self.measured.check_unchanged()
        from_data(SearchOptions, {n: c for n, c in choices.items() if n != "heads"}, "discover")
        defaults = {"tolerance": self.stated, "examples": self.examples, "seed": self.seed}
        return SearchOptions(**{**defaults, **choices})

    def take(self, circuit: Circuit) -> View:
        """Make a circuit that a search found the current one."""
        note = f"Unfinished: {circuit.unfinished}." if circuit.unfinished else ""
        if self.unlearned_text:
            note = "No circuit to find."
        elif not circuit.mechanisms and not note:
            lost = self.intact_loss >= self.tolerance
            why = "the intact model itself is not" if lost else "no head can be replaced at a loss"
            note = f"The search has ended: {why} below {self.tolerance:.4g}."
        return self._change(circuit, note)

    def attention(
        self,
        layer: int | None = None,
        examples: int | Sequence[int] = (0, 1, 2, 3),
        with_circuit: bool = False,
    ) -> View:
        """Show the attention on some examples of the batch in circuitsvis, with roles as tokens.

        In one layer or all, of the intact model or with the circuit in place. The view's `data` is
        the attention, [example head dest src].
        """
        chosen = list(examples) if isinstance(examples, Iterable) else [examples]
        layers = None if layer is None else [layer]
        circuit = self.circuit if with_circuit else None
        return attention_view(self.model, self.task, self.batch, chosen, layers, circuit)

    def roles(self, layer: int | None = None, with_circuit: bool = False) -> View:
        """Show mean attention by role, one heat map per head, with the circuit's paths framed.

        The view's `data` is the attention, [layer head dest src]; arguments as in `attention`.
        """
        attention = self.mean_attention(with_circuit)
        if layer is not None:
            checked([layer], len(attention), "layer")
            attention = attention[layer : layer + 1]
        caption = " with the circuit in place" if with_circuit else ""
        paths = list(self.circuit.every_path())
        return role_maps(attention, self.task, self.order, paths, caption, layer or 0)

    def ablations(self, least_attention: float = 0.05) -> View:
        """Replace each head, and cut each path, one at a time, in the intact model.

        Paths with less mean attention than `least_attention` are not cut. The view's `data` is the
        `Ablations`.
        """
        self.measured.check_unchanged()
        least = from_data(float, least_attention, "least_attention")
        scores = circuits.ablations(self.model, self.task, self.batch, least, self.progress)
        return ablations_view(scores, self.task)

    def why(self, **choices: Any) -> View:
        """Find the heads and paths that the answers come from, by patching from counterfactuals.

        `choices` are options of `ri.why`, such as `keep=0.9` or `upto="heads"`. The view's `data`
        is an `Explanation`.
        """
        self.measured.check_unchanged()
        options = {"seed": self.seed, "progress": self.progress, **choices}
        explanation = circuits.why(self.model, self.task, **options)
        return why_view(explanation, self.model)

    def score(self, controls: int = 20, *, progress: Progress | None = None) -> View:
        """Score the current circuit as `ri.score_circuit` does, compared with random circuits.

        `controls` is their number. The view's `data` is the `CircuitScore`. If no circuit is
        supposed, the view says so and shows the scores of the intact model.
        """
        self.measured.check_unchanged()
        if type(controls) is not int or controls < 0:
            raise InputError(f"controls: expected 0 or more, found {controls!r:.40}")
        score = self.scored
        if score is None or controls != self._controls:
            bar = progress or self.progress
            score = circuits.score_circuit(
                self.model, self.task, self.circuit, self.batch, self.stated, controls, bar
            )
            self.take_score(score, controls)
        note = ""
        if not self.circuit.mechanisms:
            note = "Nothing is supposed yet: these are the intact model's numbers."
        title = f"Circuit of {self.name}"
        return score_view(score, self.model, self.task, self.batch, title, note)

    def take_score(self, score: CircuitScore, controls: int = 20) -> None:
        """Store a score, which is shown as long as its circuit is the current one."""
        self._score, self._controls = score, controls
        self._tell_listeners()

    def alternatives(self, **choices: Any) -> View:
        """Find other circuits of the same cost below the tolerance; see `ri.alternatives`."""
        self.measured.check_unchanged()
        sampling = {"examples": self.examples, "seed": self.seed}
        options = {"tolerance": self.stated, "progress": self.progress, **sampling, **choices}
        alike = circuits.alternatives(self.model, self.task, self.circuit, **options)
        text = alike.text(self.task)
        return View(f"Others as simple, {self.name}", f"<pre>{escape(text)}</pre>", text, alike)

    def report(self, path: str | Path) -> Path:
        """Score the circuit, and write the HTML report of `ablate --report`."""
        path = writable(path)
        stated = "" if self.stated is None else f", tolerance={self.stated!r}"
        opened = f"ri.open({self.opened}, examples={self.examples}, seed={self.seed}{stated})"
        command = f"bench = {opened}; {self._supposed()}bench.report({str(path)!r})"
        page = render_report(
            self.scored or self.score().data,
            self.model,
            self.task,
            self.batch,
            self.training,
            name=self.name,
            seed=self.seed,
            command=command,
        )
        write_whole(path, page)
        return path

    def _supposed(self) -> str:
        """Write the call that makes the current circuit, from text if that says all of it."""
        lines = repr(self.circuit).splitlines()
        try:
            if not self.circuit.heads():
                return ""
            if reduce(suppose, lines, self.scorer.empty_circuit) == self.circuit:
                return f"bench.suppose({', '.join(map(repr, lines))}); "
        except InputError:  # measured patterns and sets of paths are in files alone
            pass
        return "bench.load('circuit.json'); "

    def explore(self) -> Any:
        """Open the explorer: a widget in a notebook (needs anywidget), else a page until Ctrl-C."""
        from retrieval_interp.explorer.server import open_explorer

        return open_explorer(self)

    def save(self, path: str | Path) -> Path:
        """Write the circuit as JSON, which `ablate --circuit` and `load` read."""
        path = writable(path)
        write_whole(path, self.circuit.to_json())
        return path

    def load(self, path: str | Path) -> View:
        """Read a circuit file and make its circuit the current one."""
        trained = f"{self.name} is asked"
        return self.suppose(read_circuit(as_path(path), self.task, self.model, trained))
