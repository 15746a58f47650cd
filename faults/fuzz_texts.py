"""Parameters of tasks, graphs and circuits as people write them."""

import itertools
import json
import warnings
from dataclasses import fields
from typing import Any, get_args

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from circuits import Head, RolePath, parse_circuit, parse_head_path
from faults.fuzz_inputs import (
    NASTY,
    integers,
    scalars,
    texts,
    values,
)
from faults.fuzz_run import TASKS
from retrieval_interp.config.recipe import Recipe
from retrieval_interp.notebook.display import circuit_html
from retrieval_interp.storage import checkpoint as files
from retrieval_interp.training.model import ModelConfig
from retrieval_interp.training.word_tokenizer import word_tokenizer
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
from tasks.structured import from_data
from tasks.words.prompts import (
    EquationsPrompt,
    FunctionsPrompt,
    KingdomsPrompt,
    LivesWithPrompt,
    RelativesPrompt,
)

PROMPTS = (EquationsPrompt, LivesWithPrompt, KingdomsPrompt, FunctionsPrompt, RelativesPrompt)


def task_data() -> list[Any]:
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
    repr(circuit), circuit_html(circuit), circuit.to_json()


def parse_each(given: list[str]) -> None:
    refused = None
    for text in given:
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
