"""How many hops models of different depth make, and the causal bound floor(log2 k) + 2.

    python benchmarks/k_hop_depth.py --models runs/khop7-2 runs/khop7-3 k-hop-7 [--json FILE]

The share of right answers for every k, on fresh examples. Guessing is right with one over the
number of tokens. The bound assumes that heads find positions by what they hold, not by where they
are.
"""

import argparse
from typing import Any

import torch
from measure import Rows, benchmark

import retrieval_interp as ri
from retrieval_interp.circuits.flow import causal_depth


def row(name: str, examples: int, device: torch.device) -> dict[str, Any]:
    """One model's share of right answers by k, and how it was trained."""
    checkpoint = ri.load_checkpoint(name, device)
    model, task = checkpoint.model, checkpoint.task
    parts = list(task.sample(examples, device=device, split="test").parts(256))
    with torch.no_grad():
        right = torch.stack([task.accuracies(model(part.inputs), part) for part in parts]).mean(0)
    layers, hops = model.cfg.n_layers, range(1, len(right) + 1)
    return {
        "model": name,
        "layers": layers,
        "heads": model.cfg.n_heads,
        "seed": checkpoint.training["recipe"]["seed"],
        "steps": checkpoint.training["step"],
        "hops by bound": max((k for k in hops if causal_depth(k) <= layers), default=0),
        **{f"k={k}": float(share) for k, share in zip(hops, right)},
    }


def rows(options: argparse.Namespace) -> Rows:
    return [row(name, options.examples, options.device) for name in options.models]


main = benchmark(__doc__, rows, {"models": ["k-hop-7"], "examples": 2048}, quick={"examples": 32})

if __name__ == "__main__":
    main()
