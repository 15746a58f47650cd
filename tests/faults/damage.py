"""Inputs that somebody may give: what this project writes, damaged, and what is made up.

JSON is damaged as data (values replaced, removed, doubled, moved) and then as text (cut off, with
other characters); files are damaged as bytes.
"""

import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

_DEEP = "\x00deep"  # stands for lists in lists, which json.dumps itself would not write
NASTY = (
    *("", " ", "\n", "\r\n", "\x00", "\x1b[2J", "\u2028", "\ud800", "²", "é" * 300, "a" * 5000),
    *("<script>alert(1)</script>", "../../etc/passwd", "%s%n", "{0}", "__class__", "nan", "1e999"),
    *("s0", "s99", "L0.H0 s0<-s2", "retrieval", "conditional", "original", "one-hot", "zero"),
)
texts: SearchStrategy[str] = st.one_of(st.sampled_from(NASTY), st.text(max_size=12))
integers: SearchStrategy[int] = st.one_of(
    st.integers(-3, 12),
    st.sampled_from((255, 1000, 65536, 10**6, 2**31, 2**53, 2**63, 2**64, 10**30, 10**400)),
    st.sampled_from((-(2**63), -(10**400), 10**4000)),
)
floats: SearchStrategy[float] = st.one_of(
    st.sampled_from((0.0, -0.0, 1e-320, 0.5, 1.5, 1e30, 1e300, 1.7e308)),
    st.floats(allow_nan=True, allow_infinity=True),
)
scalars: SearchStrategy[Any] = st.one_of(st.none(), st.booleans(), integers, floats, texts)
deep: SearchStrategy[str] = st.sampled_from((50, 300, 900, 960, 980, 990, 995, 5000)).map(
    lambda depth: f"{_DEEP}{depth}"
)
values: SearchStrategy[Any] = st.recursive(
    st.one_of(scalars, deep),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)


def _places(data: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in JSON data."""
    found: list[tuple[Any, Any]] = []
    todo = [data]
    while todo:
        node = todo.pop()
        keys = range(len(node)) if isinstance(node, list) else node
        for key in keys if isinstance(node, (list, dict)) else ():
            found.append((node, key))
            todo.append(node[key])
    return found


def _damage(draw: DrawFn, data: Any) -> Any:
    places = _places(data)
    if not places:
        return draw(values)
    node, key = draw(st.sampled_from(places))
    how = draw(st.sampled_from(("replace", "replace", "scalar", "remove", "double", "move", "add")))
    if how == "replace":
        node[key] = draw(values)
    elif how == "scalar":
        node[key] = draw(scalars)
    elif how == "remove":
        del node[key]
    elif how == "double" and isinstance(node, list):
        node.extend([node[key]] * draw(st.integers(1, 3)))
    elif how == "add" and isinstance(node, dict):
        node[draw(texts)] = draw(values)
    else:
        other, place = draw(st.sampled_from(places))
        node[key] = json.loads(json.dumps(other[place]))  # a copy: no circles
    return data


def dumps(data: Any) -> str:
    """JSON text, deep lists included."""
    text = json.dumps(data)
    escaped = json.dumps(_DEEP)[1:-1]
    while (start := text.find(f'"{escaped}')) >= 0:
        end = text.index('"', start + 1)
        depth = int(text[start + 1 + len(escaped) : end])
        text = text[:start] + "[" * depth + "]" * depth + text[end + 1 :]
    return text


@st.composite
def damaged_data(draw: DrawFn, originals: Callable[[], list[Any]]) -> Any:
    """One of some JSON data, with up to three things changed; see `dumps`."""
    data = json.loads(json.dumps(draw(st.sampled_from(originals()))))
    for _ in range(draw(st.integers(0, 3))):
        data = _damage(draw, data)
    return data


@st.composite
def damaged_json(draw: DrawFn, originals: Callable[[], list[Any]]) -> bytes:
    """The same as a file's bytes, which now and then are damaged as well."""
    content = dumps(draw(damaged_data(originals))).encode("utf-8", "surrogatepass")
    return draw(damaged_bytes(content)) if draw(st.integers(0, 3)) == 0 else content


@st.composite
def damaged_lines(draw: DrawFn, originals: Callable[[], list[list[Any]]]) -> bytes:
    """JSON lines, some of them damaged."""
    rows = draw(damaged_data(originals))
    lines = rows if isinstance(rows, list) else [rows]
    ends = draw(st.sampled_from(("\n", "\n", "\n", "", "\r", "\x85", "\n\n")))
    content = "".join(dumps(line) + ends for line in lines).encode("utf-8", "surrogatepass")
    return draw(damaged_bytes(content)) if draw(st.integers(0, 3)) == 0 else content


@st.composite
def damaged_bytes(draw: DrawFn, content: bytes) -> bytes:
    """A file cut off, lengthened, with other bytes, or of bytes alone."""
    how = draw(st.sampled_from(("flip", "flip", "cut", "insert", "other")))
    if how == "other":
        return draw(st.binary(max_size=64))
    place = draw(st.integers(0, max(0, len(content) - 1)))
    if how == "cut":
        return content[:place]
    if how == "insert":
        return content[:place] + draw(st.binary(max_size=16)) + content[place:]
    changed = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        if changed:
            changed[draw(st.integers(0, len(changed) - 1))] = draw(st.integers(0, 255))
    return bytes(changed)
