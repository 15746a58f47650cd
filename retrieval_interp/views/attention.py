"""Attention to look at: on examples in circuitsvis, and by role as heat maps."""

import uuid
from collections.abc import Collection, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits import Circuit, Head, HeadPath, RolePath
from retrieval_interp.circuits.fits import check_devices
from retrieval_interp.circuits.hooks import HookedModel, is_causal
from retrieval_interp.circuits.means import read_patterns
from retrieval_interp.tasks import Batch, InputError, Task
from retrieval_interp.tasks.task import named_positions
from retrieval_interp.views.page import View, render

_STRONG = 0.25  # mean attention of the paths that the text lists


def attention_view(
    model: HookedModel,
    task: Task,
    batch: Batch,
    examples: Sequence[int] = (0,),
    layers: Sequence[int] | None = None,
    circuit: Circuit | None = None,
) -> View:
    """Show every head's attention on some examples; the reader picks one from a list.

    Args:
        model: a hooked model that reads the batch.
        task: names the positions.
        batch: holds the examples.
        examples: which examples of the batch.
        layers: which layers; by default all.
        circuit: show the attention with this circuit in place; by default the intact model's.

    Returns:
        A view whose `data` is the attention, [example head dest src], heads by layer and number.
    """
    check_devices(model, batch)
    n_layers = model.cfg.n_layers
    chosen = checked(examples, len(batch), "example")
    layers = checked(range(n_layers) if layers is None else layers, n_layers, "layer")
    examples_shown = batch[chosen]
    every = patterns_on(model, examples_shown, circuit)
    patterns = torch.cat([every[layer] for layer in layers], dim=1)
    heads = [str(Head(layer, head)) for layer in layers for head in range(model.cfg.n_heads)]
    labels = [position_labels(model, task, examples_shown, place) for place in range(len(chosen))]
    html = render(
        "attention.html",
        name=f"attention-{uuid.uuid4().hex[:12]}",
        examples=chosen,
        data={
            "tokens": labels,
            "attention": thousandths(patterns),
            "props": {"attentionHeadNames": heads, "maskUpperTri": is_causal(model, batch)},
        },
    )
    of = "with the circuit in place" if circuit is not None else "of the intact model"
    title = f"Attention {of}"
    text = f"{title}: drawn in notebooks, and as a page by .save_html(path)"
    return View(title, html, text, patterns)


def patterns_on(
    model: HookedModel, batch: Batch, circuit: Circuit | None = None
) -> list[Float[Tensor, "example head dest src"]]:
    """Read each layer's attention, intact or with a circuit in place, to the CPU."""
    return read_patterns(model, batch, lambda pattern: pattern.float().cpu(), circuit)


def thousandths(attention: Tensor) -> Any:
    """Return nested lists of whole thousandths, which take a quarter of the space in a page."""
    return attention.mul(1000).round().int().tolist()


def position_labels(model: HookedModel, task: Task, batch: Batch, example: int) -> list[str]:
    """Label positions as the task does, or with tokens where it has no words for them."""
    tokenizer = getattr(model, "tokenizer", None)
    own = type(task).position_labels is not Task.position_labels or task.vocabulary
    if own or tokenizer is None:
        return task.position_labels(batch, example)
    return named_positions(task, batch, example, lambda token: tokenizer.decode([token]).strip())


def checked(chosen: Sequence[int], count: int, name: str) -> list[int]:
    """Check numbers of layers or examples, of which there are `count`, and return them."""
    for number in chosen:
        if type(number) is not int or not 0 <= number < count:
            raise InputError(f"{name}: expected 0 to {count - 1}, found {number!r:.40}")
    if not chosen:
        raise InputError(f"{name}: expected at least one, found none")
    return list(chosen)


def role_maps(
    attention: Float[Tensor, "layer head dest src"],
    task: Task,
    order: Sequence[int],
    framed: Collection[HeadPath] = (),
    caption: str = "",
    first_layer: int = 0,
) -> View:
    """Show each head's mean attention by role as a heat map; the text lists strong paths.

    Rows attend to columns; cells of framed paths have a frame.
    """
    title = f"Mean attention by role{caption}"
    lines, maps = [f"{title}; paths of at least {_STRONG}"], []
    for layer, heads in enumerate(attention, first_layer):
        for number, weights in enumerate(heads):
            head = Head(layer, number)
            strong = [RolePath(*pair) for pair in (weights >= _STRONG).nonzero().tolist()]
            strong.sort(key=lambda path: -float(weights[path]))
            paths = [f"{path.text(task.role_names)} {float(weights[path]):.2f}" for path in strong]
            lines.append(f"{head!s:<8} {'  '.join(paths) or '-'}")
            maps.append(role_map(head, weights, task, order, framed))
    # One row of tables per layer; models with one head per layer fill the width instead.
    across = attention.shape[1] if attention.shape[1] > 1 else len(maps)
    html = render(
        "role_maps.html",
        groups=[maps[at : at + across] for at in range(0, len(maps), across)],
        roles=role_names(task, order),
        caption=f"{title}.",
        framed=bool(framed),
    )
    return View(title, html, "\n".join(lines), attention)


def role_map(
    head: Head,
    weights: Float[Tensor, "dest src"],
    task: Task,
    order: Sequence[int],
    framed: Collection[HeadPath],
) -> dict[str, Any]:
    """Return a head's mean attention by role as cells; those that the mask hides have no path."""

    values = weights.tolist()

    def cell(row: int, column: int) -> dict[str, Any]:
        path = HeadPath(head, RolePath(order[row], order[column]))
        weight = values[path.path.dest][path.path.src]
        hidden = column > row and weight == 0
        return {
            "weight": weight,
            "title": f"{task.path_label(*path.path)}: {weight:.3f}",
            "path": None if hidden else path.text(task.role_names),
            "framed": path in framed,
        }

    places = range(len(order))
    return {"head": str(head), "rows": [[cell(row, at) for at in places] for row in places]}


def role_names(task: Task, order: Sequence[int]) -> list[dict[str, str]]:
    """Name the rows and columns of a role map."""
    return [{"name": task.role_names[role], "label": task.role_labels[role]} for role in order]
