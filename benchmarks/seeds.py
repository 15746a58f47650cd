"""Seconds per training step and seed: several seeds in one step against one after the other.

    python benchmarks/seeds.py [--quick] [--device auto] [--groups 2 4 8] [--sizes laptop ...]

A ratio is the time of a common step over (seeds x the time of a single model's step); below 1 it
pays off. Both take turns, round after round, with equally many seeds' steps; the table gives the
medians and quartiles of the ratios. Sizes are those of a sweep's scales and some in between.
Numbers are a step's batch x positions x d_model, which `retrieval_interp.sweep.groups` decides by.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from measure import arguments, in_turns, machine, prepare, ratios, report, seconds
from retrieval_interp.training.seeds import Stack
from tqdm import tqdm
from training_step import stepper

from retrieval_interp.config.recipe import Recipe
from retrieval_interp.model import build_model
from retrieval_interp.sweep.grid import Cell, make_grid
from retrieval_interp.sweep.groups import numbers
from retrieval_interp.training.compiled import compiled


def resized(batch: int, width: int) -> Recipe:
    """The laptop scale's recipe with another batch and d_model."""
    recipe = make_grid("section7-ic", "laptop").cell_recipe(Cell(4, 0))
    return replace(recipe, batch=batch, model=replace(recipe.model, d_model=width))


SIZES = {
    "smoke": make_grid("section7-ic", "smoke").cell_recipe(Cell(2, 0)),
    "batch-8": resized(8, 16),
    "batch-16": resized(16, 16),
    "batch-32": resized(32, 16),
    "width-32": resized(32, 32),
    "width-64": resized(32, 64),
    "laptop": resized(128, 64),
    # One layer of the paper's sizes (gpu-hour and full), as a step takes long on a CPU.
    "full": make_grid("section7-ic", "full").cell_recipe(Cell(1, 0)),
    "full-deep": make_grid("section7-ic", "full").cell_recipe(Cell(8, 0)),
}


def grouped_stepper(
    recipe: Recipe, seeds: int, device: torch.device, compile: bool
) -> Callable[[], None]:
    """A function that takes one training step of several seeds."""
    task = recipe.task
    stack = Stack([build_model(recipe.model, task, seed, device) for seed in range(seeds)])
    optimizer = torch.optim.AdamW(stack.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
    batches = [task.sample(recipe.batch, seed, device) for seed in range(seeds)]
    inputs = torch.stack([batch.inputs for batch in batches])
    forward = compiled(stack, inputs) if compile else stack

    def step() -> None:
        outputs = forward(torch.stack([batch.inputs for batch in batches]))
        losses = [task.loss(own, batch) for own, batch in zip(outputs.unbind(), batches)]
        optimizer.zero_grad()
        torch.stack(losses).sum().backward()
        optimizer.step()

    return step


def compare(
    name: str, seeds: int, compile: bool, rounds: int, steps: int, device: torch.device
) -> dict[str, Any]:
    """A row of the table."""
    recipe = SIZES[name]
    model = build_model(recipe.model, recipe.task, 0, device)
    single = stepper(recipe, model, device, compile)
    contenders = {
        "alone": lambda: [single() for _ in range(seeds)],
        "shared": grouped_stepper(recipe, seeds, device, compile),
    }
    for contender in contenders.values():
        seconds(contender, 3, device)  # compiles
    times = in_turns(contenders, rounds, steps, device)
    middle, low, high = ratios(times["shared"], times["alone"])
    return {
        "size": name,
        "step": "compiled" if compile else "eager",
        "numbers": numbers(recipe),
        "layers": recipe.model.layers,
        "seeds": seeds,
        "alone s": statistics.median(times["alone"]) / seeds,
        "shared s": statistics.median(times["shared"]) / seeds,
        "ratio": middle,
        "25%": low,
        "75%": high,
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--sizes", nargs="+", choices=SIZES)
    parser.add_argument("--groups", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--eager", action="store_true", help="without torch.compile throughout")
    options = parser.parse_args(argv)
    device = prepare(options)
    on_gpu = device.type == "cuda"
    sizes = options.sizes or [name for name in SIZES if on_gpu or name != "full-deep"]
    if options.quick:
        sizes, options.groups, options.eager = ["smoke"], [2], True
        options.rounds, options.steps = 2, 1
    print(machine(device))
    rows = []
    for name in tqdm(sizes, leave=False, disable=None):
        for seeds in options.groups:
            compile = not options.eager and name != "smoke"  # as the sweep does
            rows.append(compare(name, seeds, compile, options.rounds, options.steps, device))
    report(rows, options, argv, machine=machine(device))


if __name__ == "__main__":
    main()
