from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pytest

from retrieval_interp.tasks import GRAPHS, InputError, RetrievalGraph
from retrieval_interp.tasks.structured import from_data, from_json, is_number, to_data


@dataclass(frozen=True)
class Circle:
    radius: float = 1.0
    name: ClassVar[str] = "circle"


@dataclass(frozen=True)
class Square:
    side: int
    name: ClassVar[str] = "square"

    def __post_init__(self) -> None:
        if self.side < 0:
            raise InputError(f"expected a side from 0 up, found {self.side}")


@dataclass(frozen=True)
class Drawing:
    shape: Circle | Square
    points: tuple[tuple[int, str], ...] = ()
    color: Literal["red", "blue"] = "red"
    graph: RetrievalGraph = GRAPHS["triple"]
    note: str | None = None
    more: dict[str, Any] | None = None


@pytest.mark.parametrize(
    "drawing",
    [
        Drawing(Circle(2.5)),
        Drawing(Square(3), ((1, "a"), (2, "b")), "blue", GRAPHS["functions"], "x", {"y": [1]}),
    ],
)
def test_what_is_written_is_read_back(drawing):
    assert from_data(Drawing, to_data(drawing), "drawing") == drawing


def test_the_first_of_several_classes_needs_no_name():
    assert to_data(Drawing(Circle()))["shape"] == {"radius": 1.0}
    assert to_data(Drawing(Square(1)))["shape"] == {"name": "square", "side": 1}
    assert from_data(Drawing, {"shape": {}}, "d").shape == Circle()
    assert from_data(Drawing, {"shape": {"radius": 2}}, "d").shape == Circle(2.0)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([], "d: expected an object, found list"),
        ({}, "d: expected the key 'shape', which is missing"),
        ({"shape": 3}, "d: shape: expected an object, found int"),
        ({"shape": {"name": "disc"}}, "d: shape: expected the name 'circle' or 'square', found 'd"),
        ({"shape": {"name": "square"}}, "d: shape: expected the key 'side', which is missing"),
        (
            {"shape": {"name": "square", "side": -1}},
            "d: shape: expected a side from 0 up, found -1",
        ),
        (
            {"shape": {"name": "square", "side": 1.0}},
            "d: shape.side: expected an integer, found 1.0",
        ),
        ({"shape": {"radius": True}}, "d: shape.radius: expected a number, found True"),
        ({"shape": {"radius": 10**400}}, "d: shape.radius: expected a number, found 1000"),
        ({"shape": {}, "size": 1}, "d: expected the keys shape, .*, more, found 'size'"),
        ({"shape": {}, "points": 3}, "d: points: expected a list, found 3"),
        ({"shape": {}, "points": [[1]]}, r"d: points\[0\]: expected a list of 2, found \[1\]"),
        (
            {"shape": {}, "points": [["1", "a"]]},
            r"d: points\[0\].*: expected an integer, found '1'",
        ),
        ({"shape": {}, "color": "green"}, "d: color: expected 'red' or 'blue', found 'green'"),
        ({"shape": {}, "graph": "a <- a"}, "d: graph: graph: expected"),
        ({"shape": {}, "graph": {}}, "d: graph: expected text, found {}"),
        ({"shape": {}, "note": 1}, "d: note: expected text, found 1"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line_that_says_where(data, text):
    with pytest.raises(InputError, match=text):
        from_data(Drawing, data, "d")


@pytest.mark.parametrize("text", ["", "{", "nul", "[" * 100_000])
def test_what_is_not_json_is_refused(text):
    with pytest.raises(InputError, match="d: expected JSON, found"):
        from_json(Drawing, text, "d")


def test_numbers():
    assert is_number(3) and is_number(-0.5) and is_number(float("nan"))
    assert not any(map(is_number, (True, "3", None, 1e300, float("inf"))))
