"""Seconds per training step: a compiled HookedTransformer against the same without hook points.

    python benchmarks/training_step.py [--presets transformer-a ...]

The second (plain) is what is trained with TransformerLens 4, and both are compiled;
TransformerLens's own HookedTransformer (stock) is not (docs/speed.md). A step is what training
does: forward in the preset's precision, loss, backward, AdamW; the process keeps freed memory, as
there. The ratio has quartiles over the rounds.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from measure import benchmark, median_ratio, timed
from torch import Tensor, nn

import retrieval_interp as ri
from retrieval_interp.circuits.models.plain import hooked_model
from retrieval_interp.model import initial_weights
from retrieval_interp.training import compiled, keep_freed_memory, tf32
from tests.models import stock_transformer

Forward = Callable[[Tensor], Tensor]


def stock_like(model: Any) -> Any:
    """TransformerLens's own HookedTransformer, with the weights of one on vectors."""
    stock = stock_transformer(**{**vars(model.cfg), "act_fn": "gelu_new"})
    stock.load_state_dict(model.state_dict())
    stock.pos_embed.W_pos.requires_grad_(False)
    return stock


def stepper(
    recipe: ri.Recipe, model: nn.Module, batch: ri.Batch, forward: Forward | None = None
) -> Callable[[], None]:
    """A function that takes one training step, compiled unless it is told how to run the model."""
    kept, device = [p for p in model.parameters() if p.requires_grad], batch.inputs.device
    optimizer = torch.optim.AdamW(kept, lr=1e-3, weight_decay=0.1, fused=True)
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16")
    with tf32(device), autocast:
        forward = forward or compiled(model, batch.inputs)

    def step() -> None:
        with tf32(device):
            with autocast:
                outputs = forward(batch.inputs)
            loss = recipe.task.loss(outputs.float(), batch)
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return step


def in_turns(contenders: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds per call of every contender in every round, taking turns in alternating order."""
    order = list(contenders)
    found: dict[str, list[float]] = {name: [] for name in order}
    for _ in range(rounds):
        for name in order:
            found[name].append(timed(contenders[name])[0])
        order.reverse()
    return found


def compare(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """A row of the table."""
    recipe = ri.PRESETS[name]
    if options.quick:
        recipe = replace(recipe, model=replace(recipe.model, layers=1), batch=8)
    plain = initial_weights(recipe.model, recipe.task, 0, recipe.init).to(options.device)
    hooked = hooked_model(plain)
    batch = recipe.task.sample(recipe.batch, 0, options.device)
    stock, quick = stock_like(hooked), options.quick
    contenders = {
        "hooked": stepper(recipe, hooked, batch, hooked if quick else None),
        "plain": stepper(recipe, plain, batch, plain if quick else None),
        "stock": stepper(recipe, stock, batch, lambda x: stock(x @ stock.W_E, start_at_layer=0)),
    }
    in_turns(contenders, 3)  # compiles
    times = in_turns(contenders, options.rounds)
    ratios = [hooked / plain for hooked, plain in zip(times["hooked"], times["plain"])]
    low, ratio, high = statistics.quantiles(ratios, method="inclusive")
    medians = {f"{key} s": statistics.median(times[key]) for key in ("hooked", "plain")}
    row = {"preset": name, "precision": recipe.precision, **medians, "ratio": ratio}
    times_stock = median_ratio(times["stock"], times["hooked"])
    return {**row, "25%": low, "75%": high, "times stock": times_stock}


PRESETS = ["small", "transformer-a", "transformer-d", *(f"section7-ic-{n}" for n in (1, 4, 8))]


@benchmark(presets=PRESETS, rounds=21, quick={"rounds": 2})
def main(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    keep_freed_memory()
    for name in ri.progress_bar(options.presets, "presets"):
        yield compare(name, options)
