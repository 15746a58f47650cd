"""circuitsvis views of attention patterns, with roles as token labels (paper, appendix C).

The view is circuitsvis's own component from the script that its package carries, put into the page
once for any number of examples, so that nothing is asked of the network.
"""

import uuid
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from circuits import Circuit, ablated
from circuits.hooks.points import is_causal, pattern_hook_name
from circuits.scores.scorer import check_devices
from retrieval_interp.views.page import View
from retrieval_interp.views.render import render, unescaped
from tasks import Batch, InputError, Task

if TYPE_CHECKING:
    from markupsafe import Markup


@torch.no_grad()
def attention_view(
    model: Any,
    task: Task,
    batch: Batch,
    examples: Sequence[int] = (0,),
    layers: Sequence[int] | None = None,
    circuit: Circuit | None = None,
) -> View:
    """Every head's attention on some examples, to be picked from a list.

    Args:
        model: a hooked model that reads the batch.
        task: names the positions.
        batch: the examples to choose from.
        examples: which ones.
        layers: which layers; default all.
        circuit: show the attention with this circuit in place; default the intact model's.

    Returns:
        A view whose `data` is the attention, [example head dest src] on the CPU, heads in order of
        layer and number.

    Raises:
        InputError: no such example or layer, or the model is on another device than the batch.
    """
    check_devices(model, batch)
    chosen = _checked(examples, len(batch), "example")
    layers = _checked(range(model.cfg.n_layers) if layers is None else layers, model.cfg.n_layers,
                      "layer")  # fmt: skip
    some = batch.take(chosen)
    names = [pattern_hook_name(layer) for layer in layers]
    with ablated(model, circuit, some) if circuit is not None else nullcontext():
        _, cache = model.run_with_cache(some.inputs, names_filter=names)
    patterns = torch.cat([cache[name] for name in names], dim=1).float().cpu()
    heads = [f"L{layer}.H{head}" for layer in layers for head in range(model.cfg.n_heads)]
    labels = [task.position_labels(some, place) for place in range(len(chosen))]
    of = "with the circuit in place" if circuit is not None else "of the intact model"
    return View(
        f"Attention {of}",
        _heads_html(patterns, labels, heads, chosen, is_causal(model)),
        _heads_text(patterns, labels, heads, some, chosen, of),
        patterns,
    )


def _checked(chosen: Sequence[int], count: int, what: str) -> list[int]:
    for number in chosen:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < count:
            raise InputError(f"{what}: expected 0 to {count - 1}, found {number!r:.40}")
    if not chosen:
        raise InputError(f"{what}: expected at least one, found none")
    return list(chosen)


def _circuitsvis() -> "Markup":
    script = files("circuitsvis").joinpath("dist/cdn/iife.js").read_text(encoding="utf-8")
    return unescaped(script.replace("</script", "<\\/script"))


def _heads_html(
    patterns: Float[Tensor, "example head dest src"],
    labels: list[list[str]],
    heads: list[str],
    examples: list[int],
    causal: bool,
) -> "Markup":
    return render(
        "attention.html",
        name=f"attention-{uuid.uuid4().hex[:12]}",
        examples=examples,
        circuitsvis=_circuitsvis(),
        data={
            "tokens": labels,
            # In thousandths, as whole numbers: a quarter of the weight.
            "attention": patterns.mul(1000).round().int().tolist(),
            "props": {
                "attentionHeadNames": heads,
                "maxValue": 1,
                "minValue": 0,
                "maskUpperTri": causal,
            },
        },
    )


def _heads_text(
    patterns: Float[Tensor, "example head dest src"],
    labels: list[list[str]],
    heads: list[str],
    batch: Batch,
    examples: list[int],
    of: str,
) -> str:
    """Where the queries of the first example look."""
    lines = [f"attention {of}, example {examples[0]}: where each s0 looks most"]
    for head, pattern in zip(heads, patterns[0]):
        looks = []
        for position in batch.roles[0, :, 0].tolist():
            weight, source = pattern[position].max(dim=0)
            looks.append(f"{labels[0][position]} -> {labels[0][int(source)]} {float(weight):.2f}")
        lines.append(f"{head:<8} " + "   ".join(looks))
    lines.append("in a notebook this is circuitsvis; .save_html(path) writes it as a page")
    return "\n".join(lines)
