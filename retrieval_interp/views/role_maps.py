"""Heat maps of mean attention by role, one a head (paper, section 9.1)."""

from collections.abc import Collection, Sequence
from html import escape

from jaxtyping import Float
from torch import Tensor

from circuits import Head, HeadPath, RolePath
from retrieval_interp.views.page import View
from tasks import Task

_STRONG = 0.25


def role_maps_html(
    attention: Float[Tensor, "layer head dest src"],
    task: Task,
    order: Sequence[int],
    outlined: Collection[HeadPath] = (),
    first_layer: int = 0,
) -> str:
    """A table a head, rows attend to columns; cells of outlined paths have a frame.

    Args:
        attention: mean attention by role.
        task: names the roles.
        order: roles from left to right and from top to bottom.
        outlined: paths to frame, such as a circuit's.
        first_layer: which layer the first one is.
    """
    framed = {(path.head, path.path) for path in outlined}
    names, labels = task.role_names, task.role_labels
    columns = "".join(
        f'<th scope="col" title="{escape(labels[src])}">{escape(names[src])}</th>' for src in order
    )
    rows_of_maps = []
    for layer, heads in enumerate(attention.tolist()):
        figures = []
        for number, rows in enumerate(heads):
            head = Head(first_layer + layer, number)
            body = "".join(
                f'<tr><th scope="row" title="{escape(labels[dest])}">{escape(names[dest])}</th>'
                + "".join(
                    _cell(
                        rows[dest][src],
                        task.path_label(dest, src),
                        (head, RolePath(dest, src)) in framed,
                    )
                    for src in order
                )
                + "</tr>"
                for dest in order
            )
            figures.append(
                f"<figure><figcaption>{head}</figcaption><table><tr><th></th>{columns}</tr>{body}"
                "</table></figure>"
            )
        rows_of_maps.append("".join(figures))
    # A layer a row where it has several heads; else as many as fit.
    several = attention.shape[1] > 1
    groups = rows_of_maps if several else ["".join(rows_of_maps)]
    return "".join(f'<div class="maps">{group}</div>' for group in groups)


def _cell(weight: float, label: str, framed: bool) -> str:
    kinds = " ".join(["hot"] * (weight > 0.55) + ["in"] * framed)
    kind = f' class="{kinds}"' if kinds else ""
    if weight < 0.005:
        return f"<td{kind}></td>"
    text = f"{weight:.2f}"[1:] if 0.05 <= weight < 0.995 else "1" if weight >= 0.995 else ""
    title = escape(f"{label}: {weight:.3f}")
    return f'<td{kind} title="{title}" style="--w:{weight:.2f}">{text}</td>'


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
    for layer, heads in enumerate(attention.tolist()):
        for number, rows in enumerate(heads):
            strong = sorted(
                (
                    (-weight, RolePath(dest, src))
                    for dest, row in enumerate(rows)
                    for src, weight in enumerate(row)
                    if weight >= _STRONG
                ),
            )
            paths = "  ".join(f"{path} {-weight:.2f}" for weight, path in strong)
            lines.append(f"{Head(first_layer + layer, number)!s:<8} {paths or '-'}")
    note = "Rows attend to columns."
    note += " Framed: the circuit's paths." if outlined else ""
    return View(
        f"Mean attention by role{caption}",
        f'<p class="soft">Mean attention by role{escape(caption)}. {note}</p>'
        + role_maps_html(attention, task, order, outlined, first_layer),
        "\n".join(lines),
        attention,
    )
