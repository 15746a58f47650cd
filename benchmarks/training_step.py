"""Seconds a training step: this project's compiled hooked model against hand-written PyTorch.

    python benchmarks/training_step.py [--presets transformer-a ...] [--rounds 7] [--eager]

Every contender takes a few steps in turn, round after round, so that a drift of the machine's speed
meets all alike; the table gives medians and the median of the ratios round by round. The share of
the sampler is the time of drawing one batch over the time of one step.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).parent))
from plain_transformer import PlainTransformer

from retrieval_interp.model import build_model
from retrieval_interp.presets import PRESETS
from retrieval_interp.recipe import Recipe
from retrieval_interp.training import choose_device

DEFAULT = ("small", "transformer-a", "transformer-d", "section7-ic-1", "section7-ic-4")


def stepper(
    recipe: Recipe, model: nn.Module, device: torch.device, compile: bool
) -> Callable[[], None]:
    """A function that takes one training step."""
    task = recipe.task
    kept = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(kept, lr=1e-3, weight_decay=0.1, fused=True)
    mode = "reduce-overhead" if device.type == "cuda" else "default"
    forward: Callable[[Tensor], Tensor] = torch.compile(model, mode=mode) if compile else model
    batch = task.sample(recipe.batch, 0, device)

    def step() -> None:
        loss = task.loss(forward(batch.inputs), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return step


def seconds(function: Callable[[], object], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        function()
    return (time.perf_counter() - start) / times


def compare(name: str, rounds: int, steps: int, eager: bool, device: torch.device) -> str:
    recipe = PRESETS[name]
    contenders = {
        "hooked": stepper(recipe, build_model(recipe.model, recipe.task, 0, device), device, True),
        "plain": stepper(
            recipe, PlainTransformer(recipe.model, recipe.task).to(device), device, True
        ),
    }
    if eager:
        model = build_model(recipe.model, recipe.task, 0, device)
        contenders["eager"] = stepper(recipe, model, device, False)
    times: dict[str, list[float]] = {key: [] for key in contenders}
    for contender in contenders.values():
        seconds(contender, 2)
    for _ in tqdm(range(rounds), desc=name, leave=False, disable=None):
        for key, contender in contenders.items():
            times[key].append(seconds(contender, steps))
    sampling = seconds(lambda: recipe.task.sample(recipe.batch, 0, device), 20)
    medians = {key: statistics.median(values) for key, values in times.items()}
    ratio = statistics.median(a / b for a, b in zip(times["hooked"], times["plain"]))
    low = min(a / b for a, b in zip(times["hooked"], times["plain"]))
    high = max(a / b for a, b in zip(times["hooked"], times["plain"]))
    speedup = medians["eager"] / medians["hooked"] if eager else float("nan")
    return (
        f"{name:<16} {medians['hooked']:>9.4f} {medians['plain']:>9.4f} "
        f"{ratio:>7.3f} ({low:.3f} to {high:.3f}) {speedup:>8.2f} "
        f"{100 * sampling / medians['hooked']:>8.2f} {recipe.batch / sampling:>11.0f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--presets", nargs="+", default=DEFAULT, choices=sorted(PRESETS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--eager", action="store_true", help="time the uncompiled model too")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device = choose_device(options.device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    print(f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads")
    print(
        f"{'preset':<16} {'hooked s':>9} {'plain s':>9} {'ratio':>7} {'(least to most)':<16} "
        f"{'speed-up':>8} {'sampler %':>9} {'examples/s':>11}"
    )
    for name in options.presets:
        print(compare(name, options.rounds, options.steps, options.eager, device), flush=True)


if __name__ == "__main__":
    main()
