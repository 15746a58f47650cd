"""Heat maps of mean attention by role, one per head (paper, section 9.1)."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxtyping import Float
from torch import Tensor

from circuits import Head, HeadPath, RolePath
from retrieval_interp.views.page import View
from retrieval_interp.views.render import render
from tasks import Task

if TYPE_CHECKING:
    from markupsafe import Markup

_STRONG = 0.25


class _Cell(NamedTuple):
    """How much of its attention one role gives another, and how that looks."""

    text: str
    attributes: dict[str, Any]


def role_maps_html(
    attention: Float[Tensor, "layer head dest src"],
    task: Task,
    order: Sequence[int],
    outlined: Collection[HeadPath] = (),
    first_layer: int = 0,
    caption: str = "",
) -> "Markup":
    """One table per head, rows attend to columns; cells of outlined paths have a frame.

    Args:
        attention: mean attention by role.
        task: names the roles.
        order: roles from left to right and from top to bottom.
        outlined: paths to frame, such as a circuit's.
        first_layer: which layer the first one is.
        caption: a sentence to stand above.
    """
    layers = [
        [
            _map(Head(layer, number), rows, task, order, set(outlined))
            for number, rows in enumerate(heads)
        ]
        for layer, heads in enumerate(attention.tolist(), first_layer)
    ]
    # A layer per row if it has several heads, else as many as fit.
    several = attention.shape[1] > 1
    return render(
        "role_maps.html",
        groups=layers if several else [[head for heads in layers for head in heads]],
        roles=[{"name": task.role_names[role], "label": task.role_labels[role]} for role in order],
        caption=caption,
        framed=bool(outlined),
    )


def _map(
    head: Head,
    rows: list[list[float]],
    task: Task,
    order: Sequence[int],
    outlined: Collection[HeadPath],
) -> dict[str, Any]:
    def cell(dest: int, src: int) -> _Cell:
        framed = HeadPath(head, RolePath(dest, src)) in outlined
        return _cell(rows[dest][src], task.path_label(dest, src), framed)

    return {"head": head, "rows": [[cell(dest, src) for src in order] for dest in order]}


def _cell(weight: float, label: str, framed: bool) -> _Cell:
    kinds = " ".join(["hot"] * (weight > 0.55) + ["in"] * framed) or None
    if weight < 0.005:
        return _Cell("", {"class": kinds})
    text = f"{weight:.2f}"[1:] if 0.05 <= weight < 0.995 else "1" if weight >= 0.995 else ""
    about = f"{label}: {weight:.3f}"
    return _Cell(text, {"class": kinds, "title": about, "style": f"--w:{weight:.2f}"})


def role_maps(
    attention: Float[Tensor, "layer head dest src"],
    task: Task,
    order: Sequence[int],
    outlined: Collection[HeadPath] = (),
    caption: str = "",
    first_layer: int = 0,
) -> View:
    """The heat maps as a view; its text lists the strong paths of every head."""
    lines = [f"mean attention by role{caption}; paths of {_STRONG} and more"]
    for layer, heads in enumerate(attention.tolist(), first_layer):
        for number, rows in enumerate(heads):
            strong = sorted(
                (-weight, RolePath(dest, src))
                for dest, row in enumerate(rows)
                for src, weight in enumerate(row)
                if weight >= _STRONG
            )
            paths = "  ".join(f"{path} {-weight:.2f}" for weight, path in strong)
            lines.append(f"{Head(layer, number)!s:<8} {paths or '-'}")
    title = f"Mean attention by role{caption}"
    html = role_maps_html(attention, task, order, outlined, first_layer, f"{title}.")
    return View(title, html, "\n".join(lines), attention)
