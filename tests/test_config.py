"""Recipes, and dataclasses to and from JSON."""

import json
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest

import retrieval_interp as ri
from retrieval_interp.commands.train import train_options
from retrieval_interp.config import Recipe
from retrieval_interp.presets import PAPER, PRESETS, departures
from retrieval_interp.tasks import InputError, RetrievalTask, TrainingTask
from retrieval_interp.tasks.structured import from_data, from_json, to_data


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"task": {"name": "retrieval", "position": "x"}}, "r: task: position: expected 'pair' or"),
        ({"learning_rate": float("nan")}, "learning_rate to be a number of at least 0, found nan"),
        ({"cooldown": 0.0}, "cooldown to be a number above 0 and at most 1, found 0.0"),
        ({"batch": 100, "examples": 50}, "examples of at least batch = 100, found 50"),
        ({"log_every": 7}, "checkpoint_every to be a multiple of log_every = 7, found 1000"),
    ],
)
def test_bad_recipes_are_refused_by_key(data, text):
    with pytest.raises(InputError, match=text):
        from_data(Recipe, data, "r")


def test_recipes_are_the_papers():
    a, d = PAPER["transformer-a"], PAPER["transformer-d"]
    sizes = (a.model.layers, a.model.heads, a.model.d_model, a.steps, a.batch)
    assert sizes == (12, 1, 128, 24_000, 128)
    sizes = (d.model.layers, d.model.head_width, d.model.mlp, d.steps, d.checkpoint_every)
    assert sizes == (24, 16, False, 6_400, 80)
    assert all(PAPER[f"section7-ic-{n}"].examples == 2**20 for n in range(1, 9))
    assert not PAPER["section7-nonic-3"].task.curriculum


def test_departures_from_the_paper_are_named_with_its_value_where_it_states_one():
    assert departures(PAPER["transformer-a"], PAPER["transformer-a"]) == {}
    assert departures(PAPER["transformer-b"], PAPER["transformer-a"]) == {}  # only the seed
    longer = replace(PAPER["transformer-d"], task=RetrievalTask(steps=5), learning_rate=0.1)
    assert departures(longer, PAPER["transformer-d"]) == {"D": (5, 4), "learning_rate": (0.1, 1e-3)}
    assert departures(PRESETS["conditional"], PAPER["transformer-a"])["tables"] == ("chains", None)


def test_the_learning_rate_warms_up_and_decays():
    recipe = Recipe(steps=100, learning_rate=1.0, warmup=9, schedule="cosine")
    rates = [recipe.learning_rate_at(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1) and max(rates) == rates[9]
    assert rates[-1] < 0.001 and rates == sorted(rates[:9]) + sorted(rates[9:], reverse=True)
    assert Recipe(learning_rate=0.5).learning_rate_at(9_999) == 0.5
    cooling = Recipe(steps=100, learning_rate=0.5, schedule="cooldown", cooldown=0.2)
    assert {cooling.learning_rate_at(step) for step in range(80)} == {0.5}
    falling = [cooling.learning_rate_at(step) for step in (81, 90, 99)]
    assert falling == pytest.approx([0.5 * 0.95, 0.5 * 0.5, 0.5 * 0.05])


def test_the_command_line_takes_the_task_of_the_preset():
    def parsed(*words):
        return train_options(["--preset", *words], "retrieval-interp train")[1].task

    assert parsed("small", "--task.steps", "2").steps == 2
    task = parsed("conditional", "--task.graph", "a; x <- a", "--task.tables", "chains")
    assert (str(task.graph), task.tables, task.base) == ("a; x <- a", "chains", 10.0)
    with pytest.raises(InputError, match="graph: expected one of triple, functions, r"):
        parsed("conditional", "--task.graph", "tripel")
    with pytest.raises(InputError, match="found --task.steps"):
        parsed("conditional", "--task.steps", "3")


PLAIN = {"name": "retrieval"}


@dataclass(frozen=True)
class Drawing:
    task: TrainingTask
    points: tuple[tuple[int, str], ...] = ()
    color: Literal["red", "blue"] = "red"
    graph: ri.RetrievalGraph = ri.GRAPHS["triple"]
    note: str | None = None
    more: dict[str, Any] | None = None


def test_what_is_written_is_read_back():
    points, more = ((1, "a"), (2, "b")), {"y": [1]}
    full = Drawing(ri.ConditionalRetrievalTask(), points, "blue", ri.GRAPHS["functions"], "x", more)
    for drawing in (Drawing(ri.RetrievalTask(base=2.5)), full):
        text = json.dumps(to_data(drawing))
        assert from_json(Drawing, text, "drawing") == drawing
    read = from_data(Drawing, {"task": {**PLAIN, "base": 2}}, "d")
    assert read.task == ri.RetrievalTask(base=2.0)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([], r"d: expected an object, found \[\]"),
        ({}, "d: expected the key 'task', which is missing"),
        ({"task": {"name": []}}, r"d: task: expected the name 'conditional' or .*, found \[\]"),
        ({"task": PLAIN, "size": 1}, "d: expected the keys task, .*, more, found 'size'"),
        ({"task": PLAIN, "points": [["1", "a"]]}, r"points.0..0.: expected an integer, found '1'"),
        ({"task": PLAIN, "color": "green"}, "d: color: expected 'red' or 'blue', found 'green'"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line_that_says_where(data, text):
    with pytest.raises(ri.InputError, match=text):
        from_data(Drawing, data, "d")
