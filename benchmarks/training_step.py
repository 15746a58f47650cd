"""Seconds per training step: this project's compiled hooked model against hand-written PyTorch.

    python benchmarks/training_step.py [--presets transformer-a ...] [--precision ...] [--stock]

Both are compiled and take steps in turn, round after round, so that changes of the machine's speed
affect both alike. A step is what training does: forward in the preset's precision, loss, backward,
AdamW. The table gives median times; the ratio, with quartiles over the rounds; the speedup over
TransformerLens's own HookedTransformer (--stock), which runs uncompiled; and the share of the
device's limit: the FLOPs per second of a step, as torch counts them, over those of a large matrix
product measured in the same call. The process keeps freed memory, as training does.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from contenders import PlainTransformer, StockTransformer
from measure import Rows, benchmark, in_turns, ratios, seconds
from torch.utils.flop_counter import FlopCounterMode

import retrieval_interp as ri
from retrieval_interp.training import compiled, keep_freed_memory


def recipes(options: argparse.Namespace) -> Iterator[tuple[str, ri.Recipe]]:
    """Every preset in every precision asked for, by default its own; tiny if quick."""
    for name in ri.progress_bar(options.presets, "presets"):
        preset = ri.PRESETS[name]
        for precision in options.precision or [preset.precision]:
            recipe = replace(preset, precision=precision)
            if options.quick:
                recipe = replace(recipe, model=replace(recipe.model, layers=1), batch=8)
            yield name, recipe


def stepper(
    recipe: ri.Recipe, model: torch.nn.Module, device: torch.device, compile: bool
) -> Callable[[], None]:
    """A function that takes one training step."""
    task = recipe.task
    kept = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(kept, lr=1e-3, weight_decay=0.1, fused=True)
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16")
    batch = task.sample(recipe.batch, 0, device)
    with autocast:
        forward = compiled(model, batch.inputs) if compile else model

    def step() -> None:
        with autocast:
            outputs = forward(batch.inputs)
        loss = task.loss(outputs.float(), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def step_flops(recipe: ri.Recipe, device: torch.device) -> int:
    """FLOPs of the forward and backward pass of one uncompiled step."""
    model = ri.build_model(recipe.model, recipe.task, 0, device)
    batch = recipe.task.sample(1, 0, device)
    with FlopCounterMode(display=False) as counter:
        recipe.task.loss(model(batch.inputs), batch).backward()
    return recipe.batch * int(counter.get_total_flops())


def matmul_rate(device: torch.device, precision: str) -> float:
    """FLOPs per second of a large square matrix product, the best of ten, as in training.

    On CUDA, float32 means TensorFloat-32.
    """
    size = 8192 if device.type == "cuda" else 1024
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    torch.mm(left, right)
    return 2 * size**3 / min(seconds(lambda: torch.mm(left, right), 3, device) for _ in range(10))


def compare(name: str, recipe: ri.Recipe, options: argparse.Namespace) -> dict[str, Any]:
    """A row of the table."""
    task, device, compile = recipe.task, options.device, not options.no_compile
    models: dict[str, Any] = {
        "hooked": ri.build_model(recipe.model, task, 0, device),
        "plain": PlainTransformer(recipe.model, task).to(device),
    }
    contenders = {key: stepper(recipe, model, device, compile) for key, model in models.items()}
    if options.stock:
        model = StockTransformer(ri.build_model(recipe.model, task, 0, device))
        contenders["stock"] = stepper(recipe, model, device, False)
    for contender in contenders.values():
        seconds(contender, 3, device)  # compiles, and records CUDA graphs
    times = in_turns(contenders, options.rounds, options.steps, device)
    hooked = statistics.median(times["hooked"])
    ratio, low, high = ratios(times["hooked"], times["plain"])
    speed = step_flops(recipe, device) / hooked
    return {
        "preset": name,
        "precision": recipe.precision,
        "hooked s": hooked,
        "plain s": statistics.median(times["plain"]),
        "ratio": ratio,
        "25%": low,
        "75%": high,
        "times stock": ratios(times["stock"], times["hooked"])[0] if options.stock else None,
        "GFLOP/s": speed / 1e9,
        "limit %": 100 * speed / matmul_rate(device, recipe.precision),
    }


def rows(options: argparse.Namespace) -> Rows:
    keep_freed_memory()
    return [compare(name, recipe, options) for name, recipe in recipes(options)]


main = benchmark(
    __doc__,
    rows,
    {
        "presets": [
            *("small", "transformer-a", "transformer-d"),
            *("section7-ic-1", "section7-ic-4", "section7-ic-8"),
        ],
        "precision": [],
        "rounds": 21,
        "steps": 1,  # in turn
        "stock": False,
        "no_compile": False,
    },
    quick={},
)

if __name__ == "__main__":
    main()
