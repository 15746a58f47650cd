"""Build transformers of the least depth, measure them: python examples/reach_the_bound.py [D ...]

One head a layer, floor(log2 D) + 2 layers, no training. One layer fewer is refused.
"""

import sys

import retrieval_interp as ri
import torch
from retrieval_interp.circuits.flow import causal_depth
from retrieval_interp.circuits.known import doubling_heads

print("  D  layers  d_model  examples      MSE  one layer fewer")
for steps in map(int, sys.argv[1:] or [1, 2, 3, 4, 7, 8, 15, 16]):
    task = ri.RetrievalTask(steps=steps, dim=8, tokens="unit")
    built = ri.compile_circuit(doubling_heads(task), task)
    batch = task.sample(256 if steps < 32 else 32, split="test")
    with torch.no_grad():
        mse = float(task.loss(built.model(batch.inputs), batch))
    assert built.model.cfg.n_layers == causal_depth(steps)
    try:
        ri.compile_circuit(doubling_heads(task), task, n_layers=causal_depth(steps) - 1)
        fewer = "works"
    except ri.InputError:
        fewer = "refused"
    sizes = f"{steps:>3}  {causal_depth(steps):>6}  {built.model.cfg.d_model:>7}  {len(batch):>8}"
    print(f"{sizes}  {mse:>7.1e}  {fewer}")
