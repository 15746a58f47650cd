"""Whether models walk along the chain or double: what is left if they may only walk.

    python benchmarks/walk_or_double.py --models k-hop small runs/NAME ... [--json FILE]

A *hop* of length d is attention from a role that holds x_i to one that holds x_{i+d} (s_{2i} and
s_{2i+1} both hold x_i). A head makes a hop if it gives it a fifth of the role's attention. Hops of
a kind are cut: their attention is set to zero in all heads that make them.
What that tells is in docs/depth.md. `kept` is the share of what is learned of x_D.
"""

import argparse
import itertools
from typing import Any

import torch
from measure import Rows, benchmark, load_model

import retrieval_interp as ri
from retrieval_interp.circuits import Scorer
from retrieval_interp.circuits.flow import causal_depth
from retrieval_interp.circuits.hooks import heads_of
from retrieval_interp.circuits.mechanisms import Cut

MADE = 0.2  # of the role's attention
KINDS = {  # which hops are cut
    "query alone": lambda pair: pair.dest > 0 and length(pair) > 0,
    "single hops": lambda pair: length(pair) > 1,
}


def length(pair: ri.RolePath) -> int:
    return pair.src // 2 - pair.dest // 2


def row(name: str, examples: int, device: torch.device) -> dict[str, Any]:
    """One model's losses of x_D, whole and with kinds of hops cut."""
    model, task = load_model(name, str(device))
    batch = task.sample(examples, device=device, split="test")
    scorer, empty = Scorer(model, task, batch), ri.parse_circuit([], task)
    n_roles = len(task.role_names)
    made = ri.mean_attention(model, batch).cpu() >= MADE
    looks_back = (batch.roles[..., None, :] <= batch.roles[..., None]).all(dim=(0, 1)).tolist()
    pairs = [ri.RolePath(*pair) for pair in itertools.product(range(n_roles), repeat=2)]
    whole, steps = float(scorer.losses(empty)[:, -1].mean()), (n_roles - 1) // 2
    found: dict[str, Any] = {"model": name, "D": steps, "least": causal_depth(steps)}
    found |= {"layers": model.cfg.n_layers, "heads": model.cfg.n_heads, "x_D": whole}
    for kind, cut in KINDS.items():
        hops = [pair for pair in pairs if looks_back[pair.dest][pair.src] and cut(pair)]
        circuit = empty
        for head in heads_of(model):
            circuit = circuit.replace(head, Cut(tuple(hop for hop in hops if made[head][hop])))
        found[kind] = loss = float(scorer.losses(circuit)[:, -1].mean())
        found[f"{kind}, kept"] = (task.plateau - loss) / (task.plateau - whole)
    return found


@benchmark(models=["small", "k-hop"], examples=512, quick={"examples": 16})
def main(options: argparse.Namespace) -> Rows:
    return [row(name, options.examples, options.device) for name in options.models]
