"""How the cost of all ablations and of discovery grows with the problem.

    python benchmarks/growth.py [--quick] [--json FILE]

One size varies at a time: layers, steps D, chains N or examples; the others stay 5, 3, 4 and 128.
(ablations) `ri.ablations` on an untrained GPT-2 of width 64 with one head per layer;
(discovery) `ri.discover` on a model compiled from doubling rules, so the true circuit is known.
Layers without a rule are idle, and the width follows from D.
A cost is the minimum over several runs, all sizes in turn. `exponent` is the slope of a line
through the logarithms: 1 is linear, 2 quadratic. A larger problem has more hypotheses; `each` is
the exponent of the cost of one. `exact` says whether discovery found the true paths.
"""

import argparse
import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from measure import Rows, benchmark, timed

import retrieval_interp as ri
from examples.reach_the_bound import compile_circuit, doubling_heads

START = {"layers": 5, "steps": 3, "chains": 4, "examples": 128}
VARIED = {
    "layers": (3, 5, 8, 12),
    "steps": (1, 2, 4, 8),
    "chains": (2, 4, 8, 16),
    "examples": (64, 128, 256, 512),
}
QUICK_START = {"layers": 3, "steps": 2, "chains": 2, "examples": 16}
QUICK = {"layers": (3, 4), "steps": (1, 2), "chains": (2, 3), "examples": (8, 16)}
Run = Callable[[], dict[str, Any]]


def ablations(device: torch.device, layers: int, steps: int, chains: int, examples: int) -> Run:
    """All ablations at a size, ready to run; gives the number of hypotheses."""
    task = ri.RetrievalTask(steps=steps, chains=chains)
    config = ri.ModelConfig(layers=layers, heads=1, d_model=64)
    model = ri.build_model(config, task, 0, device).eval()
    batch = task.sample(examples, 0, device, split="test")

    def run() -> dict[str, Any]:
        found = ri.ablations(model, task, batch)
        return {"questions": len(found.heads) + len(found.paths)}

    return run


def discovery(device: torch.device, layers: int, steps: int, chains: int, examples: int) -> Run:
    """Discovery at a size, ready to run; says whether it has found the true paths."""
    task = ri.RetrievalTask(steps=steps, chains=chains, dim=6, tokens="unit", base=100.0)
    built = compile_circuit(doubling_heads(task), task, layers)
    model = built.model.to(device, print_details=False)
    # Unit tokens have variance 1 / dim per component; the paper's 0.05 is for variance 1.
    search = partial(ri.discover, model, task, 0.05 / task.dim, examples)
    return lambda: {"exact": set(search().paths()) == set(built.carrying)}


def rows(options: argparse.Namespace) -> Rows:
    """One row per kind of work and size, with the cost in seconds."""
    start, varied = (QUICK_START, QUICK) if options.quick else (START, VARIED)
    made: Rows = []
    for kind in (ablations, discovery):
        sizes = [(name, value) for name, values in varied.items() for value in values]
        runs = [kind(options.device, **{**start, name: value}) for name, value in sizes]
        rounds = [list(map(timed, runs)) for _ in range(options.rounds)]
        for (name, value), times in zip(sizes, zip(*rounds)):
            row = {"cost of": kind.__name__, "varied": name, "size": value}
            made.append({**row, "seconds": min(took for took, _ in times), **times[0][1]})
    return made


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The power of the size with which a cost grows: the slope of a line through the logarithms."""
    x, y = ([math.log(value) for value in values] for values in (sizes, costs))
    return statistics.linear_regression(x, y).slope


def shown(rows: Rows) -> Rows:
    """One row per kind of work and varied size: the sizes, the costs and their exponents."""
    lines = []
    for kind, name in dict.fromkeys((row["cost of"], row["varied"]) for row in rows):
        group = [row for row in rows if (row["cost of"], row["varied"]) == (kind, name)]
        sizes, costs = [row["size"] for row in group], [row["seconds"] for row in group]
        each = [row["seconds"] / row["questions"] for row in group if "questions" in row]
        exact = [row["exact"] for row in group if "exact" in row]
        lines.append(
            {
                "cost of": kind,
                "against": name,
                "sizes": " ".join(map(str, sizes)),
                "seconds": " ".join(f"{cost:.2g}" for cost in costs),
                "exponent": exponent(sizes, costs),
                "each": exponent(sizes, each) if each else None,
                "exact": f"{sum(exact)} of {len(exact)}" if exact else None,
            }
        )
    return lines


main = benchmark(__doc__, rows, {"rounds": 2}, quick={"rounds": 1}, shown=shown)

if __name__ == "__main__":
    main()
