from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pytest

from retrieval_interp.tasks import GRAPHS, InputError, RetrievalGraph
from retrieval_interp.tasks.structured import check_fields, from_data, from_json, number, to_data


class Shape:
    name: ClassVar[str]

    @classmethod
    def named(cls, name):
        return {None: Circle, "circle": Circle, "square": Square}[name]


@dataclass(frozen=True)
class Circle(Shape):
    radius: float = 1.0
    name: ClassVar[str] = "circle"


@dataclass(frozen=True)
class Square(Shape):
    side: int = number(1, least=0)
    name: ClassVar[str] = "square"

    def __post_init__(self) -> None:
        check_fields(self, "square")


@dataclass(frozen=True)
class Drawing:
    shape: Shape
    points: tuple[tuple[int, str], ...] = ()
    color: Literal["red", "blue"] = "red"
    graph: RetrievalGraph = GRAPHS["triple"]
    note: str | None = None
    more: dict[str, Any] | None = None


def test_what_is_written_is_read_back():
    points, more = ((1, "a"), (2, "b")), {"y": [1]}
    square = Drawing(Square(3), points, "blue", GRAPHS["functions"], "x", more)
    for drawing in (Drawing(Circle(2.5)), square):
        assert from_data(Drawing, to_data(drawing), "drawing") == drawing
    assert to_data(square)["shape"] == {"name": "square", "side": 3}
    assert from_data(Drawing, {"shape": {"radius": 2}}, "d").shape == Circle(2.0)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([], r"d: expected an object, found \[\]"),
        ({}, "d: expected the key 'shape', which is missing"),
        ({"shape": {"name": "square", "side": -1}}, "d: shape: square: expected side .* found -1"),
        (
            {"shape": {"name": "square", "side": 1.0}},
            "d: shape: side: expected an integer, found 1",
        ),
        ({"shape": {}, "size": 1}, "d: expected the keys shape, .*, more, found 'size'"),
        ({"shape": {}, "points": 3}, "d: points: expected a list, found 3"),
        ({"shape": {}, "points": [[1]]}, r"d: points\[0\]"),
        (
            {"shape": {}, "points": [["1", "a"]]},
            r"points\[0\]\[0\]: expected an integer, found '1'",
        ),
        ({"shape": {}, "color": "green"}, "d: color: expected 'red' or 'blue', found 'green'"),
        ({"shape": {}, "graph": "a <- a"}, "d: graph: graph: expected"),
        ({"shape": {}, "note": 1}, "d: note: expected text, found 1"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line_that_says_where(data, text):
    with pytest.raises(InputError, match=text):
        from_data(Drawing, data, "d")


@pytest.mark.parametrize("text", ["", "{", "nul"])
def test_what_is_not_json_is_refused(text):
    with pytest.raises(InputError, match="d: expected JSON, found"):
        from_json(Drawing, text, "d")
