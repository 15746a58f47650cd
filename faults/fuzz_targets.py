"""What is fuzzed: every reader of a file or text from outside, with what makes its inputs.

A target makes an input (`inputs`), lays it out (`prepare`, which may write the file that is read),
and reads it (`read`). What was read is also used as the commands do: what a reader lets through has
to print.
"""

import itertools
import json
import struct
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from safetensors.torch import save
from torch import Tensor

from circuits import Circuit, parse_circuit, parse_head_path
from circuits.circuit import parse_head
from circuits.figure import circuit_text
from circuits.mechanisms import parse_role_path
from faults.fuzz_inputs import (
    NASTY,
    damaged_bytes,
    damaged_data,
    damaged_json,
    damaged_lines,
    dumps,
    integers,
    scalars,
    texts,
    values,
)
from retrieval_interp import checkpoint as files
from retrieval_interp.circuit_file import read_circuit
from retrieval_interp.config import from_dict, named_from_dict, to_dict
from retrieval_interp.emergence.probe import Probe
from retrieval_interp.emergence.series import Losses, Series, read_series
from retrieval_interp.emergence.summary import emergence_csv, emergence_table
from retrieval_interp.emergence.watch import read_watch
from retrieval_interp.model import ModelConfig, build_model
from retrieval_interp.recipe import Recipe
from retrieval_interp.reproduce.evidence import _read as read_record
from retrieval_interp.run_folder import checkpoint_files, read_metrics, read_recipe
from retrieval_interp.summary import describe
from retrieval_interp.sweep.folder import read_grid, read_results
from retrieval_interp.sweep.grid import make_grid
from retrieval_interp.sweep.summary import summarize, summary_text
from retrieval_interp.word_tokenizer import word_tokenizer
from tasks import (
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
from tasks.prompts import (
    EquationsPrompt,
    FunctionsPrompt,
    KingdomsPrompt,
    LivesWithPrompt,
    RelativesPrompt,
)

PROMPTS = (EquationsPrompt, LivesWithPrompt, KingdomsPrompt, FunctionsPrompt, RelativesPrompt)


# A tiny run, of which everything below is a damaged copy

TASKS = (
    RetrievalTask(chains=2, steps=1, dim=2),
    ConditionalRetrievalTask(chains=2, dim=2, tables="chains"),
    EquationsTask(chains=2, steps=1),
)
SIZES = ModelConfig(layers=2, heads=1, d_model=4)


@cache
def run() -> Series:
    """A series of two measured steps of the first task."""
    task, model = TASKS[0], build_model(SIZES, TASKS[0]).eval()
    lines = ["L0.H0 uniform", "L1.H0 one-hot s0<-s2"]
    parsed = parse_circuit(lines, task)
    circuit = Circuit(
        parsed.mechanisms, 3, "zero", parsed.task, (parse_head_path("L0.H0 s2<-s1", 3),)
    )
    probe = Probe(task, circuit, examples=4)
    snapshots = tuple(probe.measure(model, step) for step in (10, 20))
    losses = tuple(
        Losses(row.step, row.baseline_mse, row.partial_losses, 1.0, True) for row in snapshots
    )
    recipe = Recipe(task, SIZES, steps=20, batch=4, examples=16, log_every=10, checkpoint_every=10)
    return Series("run", recipe, circuit, "made up", 0.05, snapshots, losses, ("a note",))


@dataclass(frozen=True)
class Target:
    """One reader.

    Attributes:
        name: in the table and in file names.
        inputs: what it is given.
        prepare: lays an input out in a folder and returns what `read` is given.
        read: reads and uses it.
        warm: makes what inputs are damaged copies of, which may take time and random numbers.
    """

    name: str
    inputs: SearchStrategy[Any]
    prepare: Callable[[Any, Path], Any]
    read: Callable[[Any], object]
    warm: Callable[[], object] = run


def _as_file(name: str, gives_folder: bool = False) -> Callable[[bytes, Path], Path]:
    def write(content: bytes, folder: Path) -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return folder if gives_folder else path

    return write


def _as_it_is(value: Any, folder: Path) -> Any:
    return value


# Checkpoints


@cache
def _tensors(kind: int) -> dict[str, Tensor]:
    model = build_model(SIZES, TASKS[kind])
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def _content(kind: int) -> dict[str, Any]:
    training = {"step": 3, "recipe": to_dict(run().recipe), "validation_loss": 0.5}
    task = TASKS[kind].to_dict()
    return {"format": 1, "model": to_dict(SIZES), "task": task, "training": training}


def _signed(tensors: dict[str, Tensor], content: dict[str, Any]) -> bytes:
    """A checkpoint whose digest is right, whatever it holds."""
    digest = files._digest(tensors, json.loads(dumps(content)))
    metadata = dumps({**content, "sha256": digest})
    return save(tensors, {files.METADATA_KEY: metadata.encode("utf-8", "replace").decode()})


_LARGE = (1, 2, 3, 7, 100, 4096, 65536, 65537)


@st.composite
def checkpoints(draw: DrawFn) -> bytes:
    """Damaged as bytes, in the header, in the weights, or in what they are said to be."""
    kind = draw(st.integers(0, len(TASKS) - 1))
    tensors, content = dict(_tensors(kind)), _content(kind)
    how = draw(st.sampled_from(("bytes", "header", "weights", "content", "sizes", "lie")))
    if how == "content":
        content = draw(damaged_data(lambda: [content]))
        content = content if isinstance(content, dict) else {"format": 1, "task": content}
    elif how == "weights":
        for _ in range(draw(st.integers(1, 3))):
            _change_weight(draw, tensors)
    elif how in ("sizes", "lie"):
        for name in ("layers", "heads", "d_model", "d_head"):
            if draw(st.booleans()):
                content["model"][name] = draw(st.sampled_from(_LARGE))
        for name in ("chains", "steps", "dim"):
            if name in content["task"] and draw(st.integers(0, 3)) == 0:
                content["task"][name] = draw(st.sampled_from((1, 2, 4, 50, 2000, 33_000)))
        if how == "lie":  # what is easily made to fit does fit
            sizes = content["model"]
            width = sizes["d_head"] or max(1, sizes["d_model"] // sizes["heads"])
            if sizes["heads"] * sizes["d_model"] * width <= 2**22:
                shape = (sizes["heads"], sizes["d_model"], width)
                tensors["blocks.0.attn.W_Q"] = torch.zeros(shape)
            if sizes["layers"] <= 100:
                kept = {n: w for n, w in tensors.items() if n.split(".")[1:2] in ([], ["0"])}
                extra = {f"blocks.{i}.ln1.w": torch.zeros(4) for i in range(sizes["layers"])}
                tensors = {**extra, **kept, "blocks.0.attn.W_Q": tensors["blocks.0.attn.W_Q"]}
    try:
        whole = _signed(tensors, content)
    except (RecursionError, UnicodeEncodeError):
        whole = _signed(tensors, _content(kind))
    if how == "bytes":
        return draw(damaged_bytes(whole))
    if how == "header":
        length = draw(st.sampled_from((0, 1, 8, len(whole), 10**8, 10**9, 2**63, 2**64 - 1)))
        return struct.pack("<Q", length) + whole[8:]
    return whole


def _change_weight(draw: DrawFn, tensors: dict[str, Tensor]) -> None:
    name = draw(st.sampled_from(sorted(tensors)))
    weight = tensors[name]
    how = draw(st.sampled_from(("drop", "rename", "type", "shape", "nan", "inf", "empty", "one")))
    if how == "drop":
        del tensors[name]
    elif how == "rename":
        other = draw(texts).encode("utf-8", "replace").decode()
        tensors[draw(st.sampled_from((other, f"blocks.{other}", "blocks", "blocks.9.x")))] = (
            tensors.pop(name)
        )
    elif how == "type":
        types = (torch.int64, torch.bool, torch.uint8, torch.float16, torch.bfloat16)
        more = (torch.float64, torch.float8_e4m3fn, torch.complex64, torch.int16)
        tensors[name] = weight.to(draw(st.sampled_from((*types, *more))))
    elif how == "shape":
        tensors[name] = weight.reshape(-1, 1, *([1] * draw(st.integers(0, 3))))
    elif how == "empty":
        tensors[name] = weight.new_zeros(draw(st.sampled_from(((0,), (0, 10**9), (2**31, 0)))))
    elif how == "one":
        tensors[name] = weight.new_zeros(())
    else:
        tensors[name] = torch.full(weight.shape, float(how))


def use_checkpoint(path: Path) -> None:
    loaded = files.load_checkpoint(path)
    describe(loaded.model, loaded.task)
    with torch.no_grad():
        if loaded.task.n_positions <= 300:
            loaded.model(loaded.task.sample(2).inputs)
    from_dict(Recipe, loaded.training.get("recipe"), "recipe")


# Files of JSON


@cache
def _circuits() -> list[Any]:
    own = run().circuit.to_dict()
    weighted = {"layer": 0, "head": 0, "mechanism": "role-mean", "paths": [["s0", "s0"]]}
    many = [f"L{layer}.H{head} s0<-s1" for layer in range(30) for head in range(50)]
    return [
        own,
        {"heads": [{**weighted, "weights": [0.5]}], "record": {"command": "x"}},
        {"heads": own["heads"], "enabling": many},
    ]


def use_circuit(path: Path) -> None:
    circuit = read_circuit(path, TASKS[0], SIZES.layers, SIZES.heads, "x was trained on")
    assert Circuit.from_json(circuit.to_json(), 3) == circuit
    repr(circuit), circuit._repr_html_(), circuit_text(circuit, SIZES.layers)


def use_bare_circuit(path: Path) -> None:
    """Without a model that says which heads there are."""
    circuit = Circuit.from_json(path.read_text("utf-8", "replace"), 3)
    repr(circuit), circuit._repr_html_()


def use_recipe(folder: Path) -> None:
    recipe = read_recipe(folder)
    assert from_dict(Recipe, json.loads(json.dumps(to_dict(recipe))), "again") == recipe
    use_task(recipe.task)
    recipe.learning_rate_at(0)


def _metrics() -> list[list[Any]]:
    losses = {"train_loss": 1.0, "validation_loss": 0.5, "partial_losses": [0.5], "seconds": 1.5}
    return [[{"step": step, **losses} for step in (10, 20)]]


def use_metrics(folder: Path) -> None:
    from retrieval_interp.emergence.run import _losses

    read_metrics(folder)
    _losses(folder, run().recipe, run().snapshots, [])


def _watch() -> list[list[Any]]:
    return [[{"circuit": run().circuit.to_dict()}, *(row.to_dict() for row in run().snapshots)]]


def use_watch(path: Path) -> None:
    found = read_watch(path, 3)
    for snapshot in found[1] if found is not None else ():
        json.dumps(snapshot.to_dict())
        assert snapshot.baseline_mse < float("inf")


def use_series(path: Path) -> None:
    series = read_series(path)
    emergence_table(series), emergence_csv(series), json.dumps(series.to_dict())


@cache
def _results() -> list[Any]:
    grid = make_grid("section7-ic", "smoke")
    cell = grid.cells[0]
    return [
        {
            "format": 1,
            "status": "done",
            "cell": cell.name,
            "layers": cell.layers,
            "seed": cell.seed,
            "validation_loss": 0.5,
            "partial_losses": [0.5, 0.5],
            "below_half": [3.5, None],
            "order_held": None,
            "steps": 240,
            "seconds": 2.0,
            "seconds_per_step": 0.01,
            "device": "cpu",
            "versions": {"torch": "2"},
            "date": "2026-01-01",
            "recipe": to_dict(grid.cell_recipe(cell)),
        }
    ]


def use_result(folder: Path) -> None:
    grid = make_grid("section7-ic", "smoke")
    results = read_results(folder, grid)
    summary = summarize(grid, results, {}, "x")
    summary_text(summary), json.dumps(summary)


def use_grid(folder: Path) -> None:
    grid = read_grid(folder)
    assert grid is not None and [grid.cell_recipe(cell) for cell in grid.cells]
    json.dumps(grid.to_dict())


_RECORD = {"command": "x", "versions": {"torch": "2"}, "date": "2026-01-01"}


# Inspect's logs


@cache
def _logs() -> list[Any]:
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalSample, EvalSpec
    from inspect_ai.scorer import Score

    spec = {"created": "2026-01-01T00:00:00+00:00", "task": "retrieval_interp/equations"}
    score = Score(value="C", answer="1", metadata={"attempts": 1, "unanswered": False})
    metadata = {"steps": 1, "chance": 0.25, "acceptable": ["0", "1"]}
    samples = [
        EvalSample(id=i, epoch=1, input="x", target="1", scores={"exact_answer": score},
                   metadata=metadata) for i in (1, 2)
    ]  # fmt: skip
    named = {"model": "mockllm/model", "metadata": {"formulation": "equations"}}
    log = EvalLog(
        status="success",
        eval=EvalSpec(**spec, **named, dataset=EvalDataset(), config=EvalConfig()),
        samples=samples,
    )
    return [json.loads(log.model_dump_json(exclude_none=True))]


def use_log(path: Path) -> None:
    from retrieval_interp.llm.figure import accuracy_figure
    from retrieval_interp.llm.results import read_results, results_table

    rows = read_results([path])
    results_table(rows), json.dumps([asdict(row) for row in rows]), accuracy_figure(rows)


# Parameters of tasks


def _parameters() -> list[Any]:
    defaults = (*TASKS, RetrievalTask(), ConditionalRetrievalTask(), EquationsTask())
    return [task.to_dict() for task in defaults]


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


def use_parameters(text: str) -> None:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return  # is the files' own readers' concern
    use_task(named_from_dict(files.TASKS, data, "task"))


_graphs = st.one_of(st.sampled_from(sorted(GRAPHS.values(), key=str)), st.just(path_graph(3)))
_words = st.sampled_from(("pair", "token", "gaussian", "unit", "full", "chains", "short"))
_arguments = st.one_of(integers, scalars, _graphs, _words, values)


@st.composite
def constructions(draw: DrawFn) -> tuple[type, dict[str, Any]]:
    """A class with some of its arguments."""
    cls = draw(st.sampled_from((*files.TASKS, *PROMPTS, ModelConfig, Recipe)))
    names = [field.name for field in fields(cls)]
    chosen = draw(st.lists(st.sampled_from(names), unique=True, max_size=3))
    return cls, {name: draw(_arguments) for name in chosen}


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


# Text


@st.composite
def graphs(draw: DrawFn) -> str:
    """Graphs as people write them, damaged, large, or made of pieces."""
    how = draw(st.sampled_from(("pieces", "pieces", "damaged", "large", "any")))
    if how == "any":
        return draw(texts)
    if how == "large":
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
    if how == "damaged":
        text = str(draw(st.sampled_from(sorted(GRAPHS.values(), key=str))))
        place = draw(st.integers(0, len(text)))
        return text[:place] + draw(texts) + text[place + draw(st.integers(0, 4)) :]
    return "".join(draw(st.lists(st.sampled_from(_GRAPH), max_size=14)))


_GRAPH = (
    "a",
    "b",
    "x",
    " <- ",
    "<-",
    ";",
    "; ",
    ", ",
    ",",
    " ",
    "\n",
    "a; x <- a",
    "é",
    "path-",
    "3",
)


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


def use_lines(given: list[str]) -> None:
    circuit = parse_circuit(given, TASKS[0])
    repr(circuit), circuit._repr_html_(), circuit.to_json()


def parse_each(given: list[str]) -> None:
    refused = None
    for text in given:
        for parse in (
            parse_head,
            lambda text: parse_head_path(text, 3),
            lambda text: parse_role_path(text, 3),
            lambda text: parse_role(text, 3),
        ):
            try:
                parse(text)
            except InputError as error:
                refused = error
    if refused is not None:
        raise refused


def _file_names(names: list[str], folder: Path) -> Path:
    for old in folder.glob("checkpoints/*"):
        old.unlink()
    for name in names:
        kept = "".join(letter for letter in name if letter not in "/\0\ud800")[:60]
        path = folder / "checkpoints" / f"step-{kept}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


def _json_target(name: str, file: str, originals: Any, read: Any, folder: bool = False) -> Target:
    return Target(name, damaged_json(originals), _as_file(file, folder), read, originals)


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        Target("checkpoint", checkpoints(), _as_file("step-000020.safetensors"), use_checkpoint),
        _json_target("circuit", "circuit.json", _circuits, use_circuit),
        _json_target("bare-circuit", "circuit.json", _circuits, use_bare_circuit),
        _json_target(
            "config", "config.json", lambda: [to_dict(run().recipe)], use_recipe, folder=True
        ),
        Target(
            "metrics", damaged_lines(_metrics), _as_file("metrics.jsonl", True), use_metrics
        ),
        Target("watch", damaged_lines(_watch), _as_file("watch.jsonl"), use_watch),
        _json_target("series", "series.json", lambda: [run().to_dict()], use_series),
        _json_target(
            "sweep-result",
            f"results/{make_grid('section7-ic', 'smoke').cells[0].name}.json",
            _results,
            use_result,
            folder=True,
        ),
        _json_target(
            "sweep-grid",
            "grid.json",
            lambda: [make_grid("section7-ic", "smoke").to_dict()],
            use_grid,
            folder=True,
        ),
        _json_target(
            "result-record",
            "summary.json",
            lambda: [{**_RECORD, "record": dict(_RECORD)}],
            lambda path: (read_record(path), read_record(path, "record")),
        ),
        Target("task-data", damaged_data(_parameters).map(dumps), _as_it_is, use_parameters),
        Target("constructors", constructions(), _as_it_is, construct),
        Target("graph", graphs(), _as_it_is, use_graph),
        Target("circuit-lines", st.lists(lines, max_size=4), _as_it_is, use_lines),
        Target("paths", st.lists(lines, min_size=1, max_size=4), _as_it_is, parse_each),
        Target("file-names", st.lists(texts, max_size=4), _file_names, checkpoint_files),
        _json_target("inspect-log", "log.json", _logs, use_log),
    )
}  # fmt: skip
