"""A workbench for circuit discovery in notebooks: look, suppose, score, discover, draw, save.

>>> import retrieval_interp as ri
>>> bench = ri.open("small")
>>> bench.suppose("L2.H0 s0<-s2")

Every method returns something that a notebook shows well and that reads well in a terminal; nothing
is printed. The state is a `Circuit` and the ones before it.
"""

import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from circuits import CircuitScore, mean_attention, score_circuit
from circuits.hooks.ablated import ablated
from circuits.scores.scorer import Progress
from retrieval_interp.cli.command import progress_bar
from retrieval_interp.notebook.bench import Bench
from retrieval_interp.reproduce.paper import paper_reports
from retrieval_interp.storage.files import check_writable, write_whole
from retrieval_interp.views.attention import attention_view
from retrieval_interp.views.page import View
from retrieval_interp.views.render import render
from retrieval_interp.views.role_maps import role_maps
from retrieval_interp.views.score_text import scale, score_table, verdict
from tasks import InputError, Task


def open(
    what: Any,
    task: Task | None = None,
    *,
    examples: int = 512,
    seed: int = 0,
    tolerance: float | None = None,
    device: str = "auto",
    progress: Progress = progress_bar,
) -> "Workbench":
    """Open a trained model on a workbench.

    Args:
        what: a shipped name (`small`), a checkpoint file, a run folder, a loaded `Checkpoint`, or
            any hooked model, which then needs its task.
        task: what the model is asked; checkpoints bring their own.
        examples: number of examples that every number is measured on, from the `test` split.
        seed: of these examples.
        tolerance: the loss that a working circuit stays below; by default the task's.
        device: `auto`, `cpu` or `cuda`, for checkpoints; a model stays where it is.
        progress: wraps an iterable to show a bar, as `(items, text)`.

    Raises:
        InputError: no such checkpoint, a model without a task, or a number out of range.

    Examples:
        >>> import retrieval_interp as ri
        >>> bench = ri.open("small", examples=64)
        >>> print(f"{bench.intact_loss:.3f}")
        0.009
        >>> bench.suppose("L2.H0 s0<-s2 s4<-s6", "L3.H0 uniform")
        L2.H0: original -> one-hot s0<-s2 s4<-s6
        L3.H0: original -> uniform
        MSE 0.0337 +- 0.0082 with 2 of 5 heads replaced, below 0.05 (was 0.0087)
    """
    name, training = type(what).__name__, {}
    if not hasattr(what, "run_with_hooks"):
        # Checkpoints are HookedTransformers, which TransformerLens 4 lacks; bridges need none.
        from retrieval_interp.storage.checkpoint import Checkpoint, load_checkpoint
        from retrieval_interp.training.device import choose_device

        if isinstance(what, (str, Path)):
            if len(str(what)) > 4000:
                raise InputError(f"expected the name of a checkpoint, found {str(what)!r:.40}...")
            what = load_checkpoint(str(what), choose_device(device))
        if isinstance(what, Checkpoint):
            if task is not None:
                raise InputError("task: expected none for a checkpoint, which has its own")
            name, task, training, what = what.name, what.task, what.training, what.model
    if task is None:
        raise InputError(
            f"expected a task with a model that is no checkpoint ({name}): ri.open(model, task)"
        )
    if not isinstance(task, Task):
        raise InputError(f"expected a task, an instance of ri.Task, found {task!r:.60}")
    if not hasattr(what, "run_with_hooks") or not hasattr(what, "cfg"):
        raise InputError(
            f"expected a hooked model (HookedTransformer, TransformerBridge), found {name}"
        )
    if tolerance is None:
        tolerance = task.tolerance
    return Workbench(what, task, name, training, examples, seed, tolerance, progress)


class Workbench(Bench):
    """A model on the workbench: looked at, scored, reported and clicked together.

    Attributes:
        model: the hooked model, left unchanged by everything here.
        task: what it is asked.
        name: what it is called.
        training: its training record, or nothing.
        batch: the examples that every number is measured on, from the `test` split.
        tolerance: the loss that a working circuit stays below.
        seed: of the examples.
        watchers: what is shown of the workbench; each is told to `refresh` after a change.
    """

    _score: CircuitScore | None = None

    # Looking

    def attention(
        self,
        layer: int | None = None,
        examples: int | Sequence[int] = (0, 1, 2, 3),
        with_circuit: bool = False,
    ) -> View:
        """Attention on some examples: circuitsvis, with roles as tokens.

        Args:
            layer: which layer; default all.
            examples: which examples of the batch to choose from.
            with_circuit: show it with the circuit in place; default the intact model's.

        Returns:
            A view whose `data` is the attention, [example head dest src].

        Raises:
            InputError: no such layer or example.
        """
        return attention_view(
            self.model,
            self.task,
            self.batch,
            list(examples) if isinstance(examples, Iterable) else [examples],
            None if layer is None else [layer],
            self.circuit if with_circuit else None,
        )

    def roles(self, layer: int | None = None, with_circuit: bool = False) -> View:
        """Mean attention by role, one heat map per head, with the circuit's paths framed.

        Args:
            layer: which layer; default all.
            with_circuit: show it with the circuit in place; default the intact model's.

        Returns:
            A view whose `data` is the attention, [layer head dest src].

        Raises:
            InputError: no such layer.
        """
        n_layers = self.model.cfg.n_layers
        if layer is not None and (type(layer) is not int or not 0 <= layer < n_layers):
            raise InputError(f"layer: expected 0 to {n_layers - 1}, found {layer!r:.40}")
        attention, caption = self.intact_attention, ""
        if with_circuit:
            with ablated(self.model, self.circuit, self.batch):
                attention = mean_attention(self.model, self.batch).cpu()
            caption = " with the circuit in place"
        paths = [*self.circuit.paths(), *self.circuit.enabling]
        if layer is not None:
            attention = attention[layer : layer + 1]
        return role_maps(attention, self.task, self.order, paths, caption, layer or 0)

    # Scoring

    def score(self) -> View:
        """Score the circuit so far: each head, each path ablated both ways, and a control.

        Write loss(C) for the mean loss with circuit C in place of the model's attention:

            head h, only this head replaced   loss({h: C[h]})
            combined                          loss(C)
            path p, ablated too               loss(C without p): what p carries
            path p, cut live                  loss(intact model with p's attention set to 0 and all
                                              later attention recomputed): what p carries or enables

        A circuit is sufficient if loss(C) < tolerance, and minimal if also
        loss(C without p) > tolerance for every p. See `ri.score_circuit` for the details.

        Returns:
            A view whose `data` is the `CircuitScore`. With nothing supposed it scores the intact
            model, and says so.

        Examples:
            >>> import retrieval_interp as ri
            >>> bench = ri.open("small", examples=64)
            >>> view = bench.suppose("L2.H0 s0<-s2 s4<-s6", "L3.H0 uniform")
            >>> score = bench.score().data
            >>> score.sufficient, score.minimal
            (True, True)
            >>> for row in score.paths:
            ...     print(row.path, round(row.ablated_loss, 2), round(row.live_loss, 2))
            L2.H0 s0<-s2 1.89 1.82
            L2.H0 s4<-s6 0.4 0.41
        """
        from retrieval_interp.views.report import score_parts

        score, reported = self._scored(), paper_reports(self.task)
        note = ""
        said = [textwrap.fill(verdict(score, self.task, reported), 100)]
        if not self.circuit.mechanisms:
            note, said = "Nothing is supposed yet: these are the intact model's numbers.", []
        html = render(
            "scored.html",
            parts=score_parts(score, self.model, self.task, self.order, reported),
            note=note,
            scale=scale(self.task),
            seed=self.seed,
        )
        lines = [*([note] if note else []), score_table(score, self.task), *said]
        return View(f"Circuit of {self.name}", html, "\n".join(lines), score)

    def _scored(self) -> CircuitScore:
        self._supposed.check_unchanged()
        asked = (self.circuit, self.tolerance)
        if self._score is None or (self._score.circuit, self._score.tolerance) != asked:
            self._score = score_circuit(
                self.model,
                self.task,
                self.circuit,
                self.batch,
                self.tolerance,
                progress=self.progress,
            )
        return self._score

    def report(self, path: str | Path) -> Path:
        """Score the circuit and write the report of `ablate`: one HTML page, no network.

        Raises:
            InputError: the file cannot be written.
        """
        from retrieval_interp.views.report import render_report

        path = Path(path)
        check_writable(path)
        page = render_report(
            self._scored(),
            self.model,
            self.task,
            name=self.name,
            seed=self.seed,
            command=(
                f"ri.open({self.name!r}, examples={len(self.batch)}, seed={self.seed}, "
                f"tolerance={self.tolerance:g}).report({str(path)!r})"
            ),
            training=self.training,
            batch=self.batch,
            reported=paper_reports(self.task),
        )
        write_whole(path, page)
        return path

    def explore(self) -> Any:
        """The explorer: a widget to click circuits together.

        Returns:
            The widget, whose circuit is this workbench's; without anywidget a static view that
            says so.
        """
        try:
            from retrieval_interp.notebook.explorer import Explorer
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] not in ("anywidget", "ipywidgets", "traitlets"):
                raise
            word = (
                "the explorer needs anywidget, which is not installed: pip install "
                "'retrieval-interp[notebook]'; until then suppose() and undo() do the same"
            )
            roles = self.roles()
            return View(
                f"Circuit of {self.name}",
                self.card(word, roles.html),
                f"{word}\n{self!r}\n{roles.text}",
            )
        return Explorer(self)
