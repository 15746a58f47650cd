"""Heat maps of mean attention by role, one per head (paper, section 9.1)."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits import Head, HeadPath, RolePath
from retrieval_interp.tasks import Task
from retrieval_interp.views.page import View, render

if TYPE_CHECKING:
    from markupsafe import Markup

_STRONG = 0.25


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
        first_layer: the number of the first layer.
        caption: a sentence above the tables.
    """

    def cell(head: Head, dest: int, src: int) -> dict[str, Any]:
        weight = float(attention[head.layer - first_layer, head.head, dest, src])
        path = HeadPath(head, RolePath(dest, src))
        return _cell(
            path.text(task.role_names), weight, task.path_label(dest, src), path in outlined
        )

    n_layers, n_heads = attention.shape[:2]
    layers = [
        [
            {"head": head, "rows": [[cell(head, dest, src) for src in order] for dest in order]}
            for head in (Head(layer, number) for number in range(n_heads))
        ]
        for layer in range(first_layer, first_layer + n_layers)
    ]
    # One row of tables per layer; models with one head per layer fill the width instead.
    return render(
        "role_maps.html",
        groups=layers if n_heads > 1 else [[head for heads in layers for head in heads]],
        roles=[{"name": task.role_names[role], "label": task.role_labels[role]} for role in order],
        caption=caption,
        framed=bool(outlined),
    )


def _cell(path: str, weight: float, label: str, framed: bool) -> dict[str, Any]:
    classes = " ".join(["hot"] * (weight > 0.55) + ["in"] * framed) or None
    if weight < 0.005:
        return {"text": "", "attributes": {"class": classes}}
    text = f"{weight:.2f}"[1:] if 0.05 <= weight < 0.995 else "1" if weight >= 0.995 else ""
    title, style = f"{label}: {weight:.3f}", f"--w:{weight:.2f}"
    attributes = {"class": classes, "title": title, "style": style, "data-path": path}
    return {"text": text, "attributes": attributes}


def role_maps(
    attention: Float[Tensor, "layer head dest src"],
    task: Task,
    order: Sequence[int],
    outlined: Collection[HeadPath] = (),
    caption: str = "",
    first_layer: int = 0,
) -> View:
    """The heat maps as a view; its text lists the strong paths of every head."""
    lines = [f"mean attention by role{caption}; paths of at least {_STRONG}"]
    for layer, heads in enumerate(attention.tolist(), first_layer):
        for number, rows in enumerate(heads):
            strong = sorted(
                (-weight, RolePath(dest, src))
                for dest, row in enumerate(rows)
                for src, weight in enumerate(row)
                if weight >= _STRONG
            )
            paths = "  ".join(
                f"{path.text(task.role_names)} {-weight:.2f}" for weight, path in strong
            )
            lines.append(f"{Head(layer, number)!s:<8} {paths or '-'}")
    title = f"Mean attention by role{caption}"
    html = role_maps_html(attention, task, order, outlined, first_layer, f"{title}.")
    return View(title, html, "\n".join(lines), attention)
