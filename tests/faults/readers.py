"""Everything that reads a file or text from outside, with what makes its inputs.

What was read is also used as the commands do: what a reader lets through has to print.
"""

import itertools
import json
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, get_args

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from retrieval_interp.circuits import Circuit, Head, RolePath, parse_circuit, parse_head_path
from retrieval_interp.circuits.notation import circuit_text
from retrieval_interp.config.recipe import Recipe
from retrieval_interp.emergence.follow import _losses
from retrieval_interp.emergence.series import read_series
from retrieval_interp.emergence.text import emergence_csv, emergence_table
from retrieval_interp.emergence.watch import read_watch
from retrieval_interp.reproduce.evidence import _read, _record
from retrieval_interp.storage import checkpoint as files
from retrieval_interp.storage.circuit_file import read_circuit
from retrieval_interp.storage.run_folder import checkpoint_files, read_metrics, read_recipe
from retrieval_interp.sweep.findings import summarize, summary_text
from retrieval_interp.sweep.folder import read_grid, read_results
from retrieval_interp.sweep.grid import make_grid
from retrieval_interp.tasks import (
    GRAPHS,
    ConditionalRetrievalTask,
    EquationsTask,
    InputError,
    PromptTask,
    RetrievalGraph,
    RetrievalTask,
    parse_role,
    path_graph,
)
from retrieval_interp.tasks.structured import from_data, to_data
from retrieval_interp.tasks.words.prompts import (
    EquationsPrompt,
    FunctionsPrompt,
    KingdomsPrompt,
    LivesWithPrompt,
    RelativesPrompt,
)
from retrieval_interp.training.model import ModelConfig
from retrieval_interp.training.word_tokenizer import word_tokenizer
from retrieval_interp.views.display import circuit_html
from retrieval_interp.views.score_text import describe
from tests.faults.checkpoints import checkpoints
from tests.faults.damage import (
    NASTY,
    damaged_data,
    damaged_json,
    damaged_lines,
    dumps,
    integers,
    scalars,
    texts,
    values,
)
from tests.faults.guard import judge
from tests.tiny_run import SIZES, TASKS, log_data, run

PROMPTS = (EquationsPrompt, LivesWithPrompt, KingdomsPrompt, FunctionsPrompt, RelativesPrompt)
GRID = make_grid("section7-ic", "smoke")


@dataclass(frozen=True)
class Reader:
    """One reader.

    Attributes:
        inputs: what it is given.
        file: where an input is written first; without one it is given as it is.
        folder: whether a folder is read: that of the file, or one of files with the given names.
        read: reads and uses it.
    """

    inputs: SearchStrategy[Any]
    file: str
    folder: bool
    read: Callable[[Any], object]

    def judge(self, value: Any, folder: Path) -> str | None:
        """Give it one input; see `tests.faults.guard.judge`."""
        if self.file:
            path = folder / self.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(value)
            value = folder if self.folder else path
        elif self.folder:
            for old in folder.glob("checkpoints/*"):
                old.unlink()
            (folder / "checkpoints").mkdir(exist_ok=True)
            for name in value:
                kept = "".join(letter for letter in name if letter not in "/\0\ud800")[:60]
                (folder / "checkpoints" / f"step-{kept}.safetensors").touch()
            value = folder
        return judge(self.read, value)


READERS: dict[str, Reader] = {}


def reader(name: str, inputs: SearchStrategy[Any], file: str = "", folder: bool = False) -> Any:
    """Register a function that reads and uses an input."""

    def register(read: Callable[[Any], object]) -> Callable[[Any], object]:
        READERS[name] = Reader(inputs, file, folder, read)
        return read

    return register


def use_task(task: Any) -> None:
    repr(task), task.description, task.plateau, task.tolerance, json.dumps(task.to_dict())
    if task.n_positions <= 300:
        roles = len(task.role_names)
        assert len(task.role_labels) == len(task.role_symbols) == roles
        task.path_label(0, roles - 1)
        batch = task.sample(2)
        assert batch.roles.shape[-1] == roles
        assert bool(torch.isfinite(batch.inputs.float()).all())
        task.position_labels(batch, 0)


# Files


@reader("checkpoint", checkpoints(), "step-000020.safetensors")
def use_checkpoint(path: Path) -> None:
    loaded = files.load_checkpoint(path)
    describe(loaded.model, loaded.task)
    with torch.no_grad():
        if loaded.task.n_positions <= 300:
            loaded.model(loaded.task.sample(2).inputs)
    from_data(Recipe, loaded.training.get("recipe"), "recipe")


def circuit_data() -> list[Any]:
    own = run().circuit.to_dict()
    weighted = {"layer": 0, "head": 0, "mechanism": "role-mean", "paths": [["s0", "s0"]]}
    many = [f"L{layer}.H{head} s0<-s1" for layer in range(30) for head in range(50)]
    return [
        own,
        {"heads": [{**weighted, "weights": [0.5]}], "record": {"command": "x"}},
        {"heads": own["heads"], "enabling": many},
    ]


@reader("circuit", damaged_json(circuit_data), "circuit.json")
def use_circuit(path: Path) -> None:
    circuit = read_circuit(path, TASKS[0], SIZES.layers, SIZES.heads, "x was trained on")
    assert Circuit.from_json(circuit.to_json(), 3) == circuit
    repr(circuit), circuit_html(circuit), circuit_text(circuit, SIZES.layers)


@reader("bare-circuit", damaged_json(circuit_data), "circuit.json")
def use_bare_circuit(path: Path) -> None:
    """Without a model that says which heads there are."""
    circuit = Circuit.from_json(path.read_text("utf-8", "replace"), 3)
    repr(circuit), circuit_html(circuit)


@reader("config", damaged_json(lambda: [to_data(run().recipe)]), "config.json", folder=True)
def use_recipe(folder: Path) -> None:
    recipe = read_recipe(folder)
    assert from_data(Recipe, json.loads(json.dumps(to_data(recipe))), "again") == recipe
    use_task(recipe.task)
    recipe.learning_rate_at(0)


def metrics_data() -> list[list[Any]]:
    losses = {"train_loss": 1.0, "validation_loss": 0.5, "partial_losses": [0.5], "seconds": 1.5}
    return [[{"step": step, **losses} for step in (10, 20)]]


@reader("metrics", damaged_lines(metrics_data), "metrics.jsonl", folder=True)
def use_metrics(folder: Path) -> None:
    read_metrics(folder)
    _losses(folder, run().recipe, run().snapshots, [])


def watch_data() -> list[list[Any]]:
    return [[{"circuit": run().circuit.to_dict()}, *(row.to_dict() for row in run().snapshots)]]


@reader("watch", damaged_lines(watch_data), "watch.jsonl")
def use_watch(path: Path) -> None:
    found = read_watch(path, 3)
    for snapshot in found[1] if found is not None else ():
        json.dumps(snapshot.to_dict())
        assert snapshot.baseline_loss < float("inf")


@reader("series", damaged_json(lambda: [run().to_dict()]), "series.json")
def use_series(path: Path) -> None:
    series = read_series(path)
    emergence_table(series), emergence_csv(series), json.dumps(series.to_dict())


@cache
def result_data() -> list[Any]:
    cell = GRID.cells[0]
    losses = {"validation_loss": 0.5, "partial_losses": [0.5, 0.5], "below_half": [3.5, None]}
    times = {"steps": 240, "seconds": 2.0, "seconds_per_step": 0.01, "date": "2026-01-01"}
    where = {"device": "cpu", "versions": {"torch": "2"}, "recipe": to_data(GRID.cell_recipe(cell))}
    of = {"format": 1, "status": "done", "cell": cell.name, **cell._asdict(), "order_held": None}
    return [{**of, **losses, **times, **where}]


@reader(
    "sweep-result", damaged_json(result_data), f"results/{GRID.cells[0].name}.json", folder=True
)
def use_result(folder: Path) -> None:
    summary = summarize(GRID, read_results(folder, GRID), {}, "x")
    summary_text(summary), json.dumps(summary)


@reader("sweep-grid", damaged_json(lambda: [GRID.to_dict()]), "grid.json", folder=True)
def use_grid(folder: Path) -> None:
    grid = read_grid(folder)
    assert grid is not None and [grid.cell_recipe(cell) for cell in grid.cells]
    json.dumps(grid.to_dict())


RECORD = {"command": "x", "versions": {"torch": "2"}, "date": "2026-01-01"}


@reader("result-record", damaged_json(lambda: [{**RECORD, "record": RECORD}]), "summary.json")
def use_record(path: Path) -> None:
    data = _read(path)
    _record(data, str(path)), _record(data.get("record"), str(path))


@reader("inspect-log", damaged_json(log_data), "log.json")
def use_log(path: Path) -> None:
    from retrieval_interp.llm.results import accuracy_figure, read_results, results_table

    rows = read_results([path])
    results_table(rows), json.dumps([asdict(row) for row in rows]), accuracy_figure(rows)


# Texts and arguments


def task_data() -> list[Any]:
    defaults = (*TASKS, RetrievalTask(), ConditionalRetrievalTask(), EquationsTask())
    return [task.to_dict() for task in defaults]


@reader("task-data", damaged_data(task_data).map(dumps))
def use_parameters(text: str) -> None:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return  # is the files' own readers' concern
    use_task(from_data(files.TASKS, data, "task"))


_graphs = st.one_of(st.sampled_from(sorted(GRAPHS.values(), key=str)), st.just(path_graph(3)))
_words = st.sampled_from(("pair", "token", "gaussian", "unit", "full", "chains", "short"))
_arguments = st.one_of(integers, scalars, _graphs, _words, values)


@st.composite
def constructions(draw: DrawFn) -> tuple[type, dict[str, Any]]:
    """A class with some of its arguments."""
    cls = draw(st.sampled_from((*get_args(files.TASKS), *PROMPTS, ModelConfig, Recipe)))
    names = [field.name for field in fields(cls)]
    chosen = draw(st.lists(st.sampled_from(names), unique=True, max_size=3))
    return cls, {name: draw(_arguments) for name in chosen}


@reader("constructors", constructions())
def construct(made: tuple[type, dict[str, Any]]) -> None:
    cls, arguments = made
    built = cls(**arguments)
    if isinstance(built, PROMPTS):
        built.sample(0)
        if built.chains <= 4 and getattr(built, "steps", 1) <= 5:
            questions = [built.sample(index) for index in range(25)]  # none is tried beyond
            words = {word for each in questions for word in each.prompt.split()}
            words |= {word for each in questions for word in each.acceptable}
            task = PromptTask(built, word_tokenizer([*sorted(words), "<s>"], "<s>"))
            with warnings.catch_warnings(record=True):  # of examples that are left out
                task.sample(1)
    elif isinstance(built, files.TASKS):
        use_task(built)


_GRAPH = ("a", "b", "x", "<-", " <- ", ";", "; ", ",", ", ", " ", "\n", "a; x <- a", "é", "path-")


@st.composite
def graphs(draw: DrawFn) -> str:
    """Graphs as people write them, damaged, large, or made of pieces."""
    how = draw(st.sampled_from(("pieces", "pieces", "damaged", "large", "any")))
    if how == "any":
        return draw(texts)
    if how == "pieces":
        return "".join(draw(st.lists(st.sampled_from((*_GRAPH, "3")), max_size=14)))
    if how == "damaged":
        text = str(draw(st.sampled_from(sorted(GRAPHS.values(), key=str))))
        place = draw(st.integers(0, len(text)))
        return text[:place] + draw(texts) + text[place + draw(st.integers(0, 4)) :]
    count = draw(st.sampled_from((3, 30, 300, 3000, 20_000, 50_001)))
    names = [f"n{i}" for i in range(count)]
    shape = draw(st.sampled_from(("chain", "circle", "wide", "reversed", "one key", "name")))
    if shape == "name":
        return f"path-{count}"
    if shape == "one key":
        return f"{'; '.join(names)}; z <- {', '.join(names)}"
    rows = [names[0], *(f"{name} <- {before}" for before, name in itertools.pairwise(names))]
    if shape == "circle":
        rows[0] += f" <- {names[-1]}"
    elif shape == "wide":
        rows = [names[0], *(f"{name} <- {names[0]}" for name in names[1:])]
    return "; ".join(reversed(rows) if shape == "reversed" else rows)


@reader("graph", graphs())
def use_graph(text: str) -> None:
    graph = RetrievalGraph.parse(text)
    assert RetrievalGraph.parse(str(graph)) == graph
    assert len(graph.roles) > 2
    use_task(ConditionalRetrievalTask(chains=2, graph=graph, dim=2))


_PATH = (
    *("L0.H0", "L1.H0", "L", ".H", "H0", "s0", "s2", "s1", "<-", "s0<-s2", "s2<-s1 s2<-s2", " "),
    *("one-hot", "shared", "cut", "uniform", "identity", "original", "role-mean", "\n", "9999999"),
)
lines = st.one_of(
    texts,
    st.lists(st.sampled_from((*_PATH, *NASTY[:9])), max_size=8).map("".join),
    st.lists(st.sampled_from(_PATH), max_size=6).map(" ".join),
)


@reader("circuit-lines", st.lists(lines, max_size=4))
def use_lines(given: list[str]) -> None:
    circuit = parse_circuit(given, TASKS[0])
    repr(circuit), circuit_html(circuit), circuit.to_json()


@reader("paths", lines)
def parse_each(text: str) -> None:
    refused = None
    for parse in (
        Head.parse,
        lambda text: parse_head_path(text, 3),
        lambda text: RolePath.parse(text, 3),
        lambda text: parse_role(text, 3),
    ):
        try:
            parse(text)
        except InputError as error:
            refused = error
    if refused is not None:
        raise refused


@reader("file-names", st.lists(texts, max_size=4), folder=True)
def use_file_names(folder: Path) -> None:
    checkpoint_files(folder)
