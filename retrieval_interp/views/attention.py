"""Attention patterns in circuitsvis, with roles as token labels (paper, appendix C).

The script that the circuitsvis package carries is put into the page once, for any number of
examples, so that nothing is fetched from the network.
"""

import uuid
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.resources import files
from typing import Any

import torch

from retrieval_interp.circuits import Circuit, ablated
from retrieval_interp.circuits.hooks.hooked import call_options, is_causal, pattern_hook_name
from retrieval_interp.circuits.runs.fits import check_devices
from retrieval_interp.tasks import Batch, InputError, Task
from retrieval_interp.tasks.task import named_positions
from retrieval_interp.views.page import View, render, unescaped


@torch.no_grad()
def attention_view(
    model: Any,
    task: Task,
    batch: Batch,
    examples: Sequence[int] = (0,),
    layers: Sequence[int] | None = None,
    circuit: Circuit | None = None,
    name: str | None = None,
) -> View:
    """Every head's attention on some examples; the reader picks the example from a list.

    Args:
        model: a hooked model that reads the batch.
        task: names the positions.
        batch: holds the examples.
        examples: which examples of the batch.
        layers: which layers; by default all.
        circuit: show the attention with this circuit in place; by default the intact model's.
        name: of the view's element on its page; by default a random one.

    Returns:
        A view whose `data` is the attention, [example head dest src] on the CPU, heads in order of
        layer and number.

    Raises:
        InputError: no such example or layer, or the model is on another device than the batch.
    """
    check_devices(model, batch)
    chosen = _checked(examples, len(batch), "example")
    n_layers = model.cfg.n_layers
    layers = _checked(range(n_layers) if layers is None else layers, n_layers, "layer")
    some = batch.take(chosen)
    names = [pattern_hook_name(layer) for layer in layers]
    with ablated(model, circuit, some) if circuit is not None else nullcontext():
        _, cache = model.run_with_cache(some.inputs, names_filter=names, **call_options(some))
    patterns = torch.cat([cache[name] for name in names], dim=1).float().cpu()
    heads = [f"L{layer}.H{head}" for layer in layers for head in range(model.cfg.n_heads)]
    labels = [position_labels(model, task, some, place) for place in range(len(chosen))]
    of = "with the circuit in place" if circuit is not None else "of the intact model"
    script = files("circuitsvis").joinpath("dist/cdn/iife.js").read_text(encoding="utf-8")
    html = render(
        "attention.html",
        name=name or f"attention-{uuid.uuid4().hex[:12]}",
        examples=chosen,
        circuitsvis=unescaped(script.replace("</script", "<\\/script")),
        data={
            "tokens": labels,
            # Whole thousandths take a quarter of the space.
            "attention": patterns.mul(1000).round().int().tolist(),
            "props": {
                "attentionHeadNames": heads,
                "maxValue": 1,
                "minValue": 0,
                "maskUpperTri": is_causal(model),
            },
        },
    )
    lines = [f"attention {of}, example {chosen[0]}: where each {task.role_names[0]} looks most"]
    for head, pattern in zip(heads, patterns[0]):
        looks = []
        for position in some.roles[0, :, 0].tolist():
            if position < 0:
                continue
            weight, source = pattern[position].max(dim=0)
            looks.append(f"{labels[0][position]} -> {labels[0][int(source)]} {float(weight):.2f}")
        lines.append(f"{head:<8} " + "   ".join(looks))
    lines.append("notebooks draw this with circuitsvis; .save_html(path) writes it as a page")
    return View(f"Attention {of}", html, "\n".join(lines), patterns)


def position_labels(model: Any, task: Task, batch: Batch, example: int) -> list[str]:
    """As the task says; where it has no words for tokens, those of the model's tokenizer."""
    tokenizer = getattr(model, "tokenizer", None)
    own = type(task).position_labels is not Task.position_labels or task.vocabulary
    if own or tokenizer is None:
        return task.position_labels(batch, example)
    return named_positions(task, batch, example, lambda token: tokenizer.decode([token]).strip())


def _checked(chosen: Sequence[int], count: int, what: str) -> list[int]:
    for number in chosen:
        if type(number) is not int or not 0 <= number < count:
            raise InputError(f"{what}: expected 0 to {count - 1}, found {number!r:.40}")
    if not chosen:
        raise InputError(f"{what}: expected at least one, found none")
    return list(chosen)
