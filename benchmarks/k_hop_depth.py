"""How many hops models of different depth make, beside the causal bound floor(log2 k) + 2.

    python benchmarks/k_hop_depth.py --models runs/khop7-2 runs/khop7-3 k-hop-7 [--json FILE]

The share of right answers for every k, on fresh examples. Guessing is right once in as many times
as there are tokens. The bound assumes that heads find positions by what they hold, not by where
they stand.
"""

from collections.abc import Sequence
from typing import Any

import torch
from measure import arguments, machine, prepare, report

import retrieval_interp as ri
from retrieval_interp.circuits.flow.bounds import causal_depth
from retrieval_interp.tasks import InputError


def row(name: str, examples: int, device: torch.device) -> dict[str, Any]:
    """One model's share of right answers by k, and where it was trained to answer them."""
    checkpoint = ri.load_checkpoint(name, device)
    model, task = checkpoint.model, checkpoint.task
    if not isinstance(task, ri.KHopTask):
        raise InputError(f"{name}: expected a model of k hops, found {task.description}")
    parts = list(task.sample(examples, device=device, split="test").parts(256))
    with torch.no_grad():
        right = torch.stack([task.accuracies(model(part.inputs), part) for part in parts]).mean(0)
    layers = model.cfg.n_layers
    most = max((k for k in task.asked_hops if causal_depth(k) <= layers), default=0)
    return {
        "model": name,
        "layers": layers,
        "heads": model.cfg.n_heads,
        "seed": checkpoint.training["recipe"]["seed"],
        "steps": checkpoint.training["step"],
        "hops by bound": most,
        **{f"k={k}": float(share) for k, share in zip(task.asked_hops, right)},
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--models", nargs="+", default=["k-hop-7"])
    parser.add_argument("--examples", type=int, default=2048)
    options = parser.parse_args(argv)
    device = prepare(options)
    examples = 32 if options.quick else options.examples
    rows = [row(name, examples, device) for name in options.models]
    report(rows, options, argv, machine=machine(device), examples=examples)


if __name__ == "__main__":
    main()
