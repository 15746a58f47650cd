import json
from dataclasses import dataclass
from typing import Any, Literal

import pytest

import retrieval_interp as ri
from retrieval_interp.tasks import TrainingTask
from retrieval_interp.tasks.structured import from_data, from_json, to_data

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
    assert from_data(Drawing, {"task": {**PLAIN, "base": 2}}, "d").task == ri.RetrievalTask(
        base=2.0
    )


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([], r"d: expected an object, found \[\]"),
        ({}, "d: expected the key 'task', which is missing"),
        ({"task": {"name": []}}, r"d: task: expected the name 'conditional' or .*, found \[\]"),
        ({"task": {**PLAIN, "chains": 0}}, "d: task: task: expected chains .* found 0"),
        ({"task": {**PLAIN, "base": True}}, "d: task: base: expected a number, found True"),
        ({"task": PLAIN, "size": 1}, "d: expected the keys task, .*, more, found 'size'"),
        ({"task": PLAIN, "points": [[1]]}, r"d: points\[0\]: expected a list"),
        (
            {"task": PLAIN, "points": [["1", "a"]]},
            r"points.0..0.: expected an integer, found '1'",
        ),
        ({"task": PLAIN, "color": "green"}, "d: color: expected 'red' or 'blue', found 'green'"),
        ({"task": PLAIN, "graph": "a <- a"}, "d: graph: graph: expected"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line_that_says_where(data, text):
    with pytest.raises(ri.InputError, match=text):
        from_data(Drawing, data, "d")
