"""Where texts beside arrows go, so that they cover neither each other nor the arrows."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

Point = tuple[float, float]
_WIDE, _TALL = 6.4, 12.0  # pixels of a character of 11-pixel text, and of its line
_ALONG = (0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8)  # where along an arrow a text is tried, in this order
_AWAY = 7.0  # pixels from the arrow
_NEAR = 3.0


class Box(NamedTuple):
    """A rectangle, in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: "Box") -> bool:
        """Whether the two share an area."""
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom

    def holds(self, point: Point) -> bool:
        """Whether a point lies inside, or as near as half an arrow is wide."""
        x, y = point
        return self.left - _NEAR < x < self.right + _NEAR and (
            self.top - _NEAR < y < self.bottom + _NEAR
        )


class Curve(NamedTuple):
    """An arrow from the bottom of its layer to the top: a Bezier curve that ends upright."""

    start: float
    end: float
    bottom: float
    top: float

    def at(self, t: float) -> Point:
        """The point at t, from 0 at the start to 1 at the tip."""
        early, late = (1 - t) ** 2 * (1 + 2 * t), t**2 * (3 - 2 * t)
        middle = (self.bottom + self.top) / 2
        low, high = (1 - t) ** 3, t**3
        y = low * self.bottom + (1 - low - high) * middle + high * self.top
        return early * self.start + late * self.end, y

    def svg(self) -> str:
        """As the `d` of a path."""
        start, end, bottom, top = self
        middle = (bottom + top) / 2
        return f"M{start:g} {bottom:g} C{start:g} {middle:g} {end:g} {middle:g} {end:g} {top:g}"


def place_text(text: str, curve: Curve, taken: Sequence[Box], curves: Sequence[Curve]) -> Box:
    """Where a text beside a curve covers least.

    Args:
        text: in one line of 11 pixels.
        curve: the arrow it belongs to.
        taken: where texts stand already; the place found overlaps none if there is one.
        curves: arrows that are better not covered.
    """
    dots = [other.at(t / 60) for other in curves for t in range(61)]

    def cost(box: Box) -> int:
        return 1000 * sum(map(box.overlaps, taken)) + sum(map(box.holds, dots))

    return min(_places(text, curve), key=cost)


def _places(text: str, curve: Curve) -> Iterator[Box]:
    width = _WIDE * len(text)
    for t in _ALONG:
        x, y = curve.at(t)
        for left, middle in (
            (x + _AWAY, y),
            (x - _AWAY - width, y),
            (x - width / 2, y - _AWAY - _TALL / 2),
            (x - width / 2, y + _AWAY + _TALL / 2),
        ):
            yield Box(left, middle - _TALL / 2, left + width, middle + _TALL / 2)
