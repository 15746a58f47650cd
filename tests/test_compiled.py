"""How often models are compiled, in a process of its own.

The run-time type checks of these tests cannot be compiled.
"""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json
import torch
from retrieval_interp.training.compiled import compiled
from retrieval_interp.model import ModelConfig, build_model
from retrieval_interp.tasks import RetrievalTask

graphs = []

def backend(graph, inputs):
    graphs.append([list(x.shape) for x in inputs])
    return graph.forward

compile = torch.compile
torch.compile = lambda model, mode, dynamic: compile(model, backend=backend, dynamic=dynamic)
torch._dynamo.config.cache_size_limit = 2  # recompile_limit, by its older name
task = RetrievalTask(steps=1, chains=2)
found = []
for layers, examples in ((1, 4), (2, 4), (3, 4), (4, 8)):
    graphs.clear()
    model = build_model(ModelConfig(layers=layers, heads=1, d_model=8, mlp=False), task)
    inputs = task.sample(examples, 0).inputs
    forward = compiled(model, inputs)
    first = len(graphs)
    clean = all(p.grad is None for p in model.parameters())
    difference = float((forward(inputs) - model(inputs)).abs().max())
    known = all(isinstance(size, int) for shape in sum(graphs, []) for size in shape)
    found.append([first, len(graphs) - first, clean, known, difference])
print(json.dumps(found))
"""


@pytest.mark.slow
def test_every_model_of_a_process_is_compiled_once():
    """Also beyond torch's limit of recompilations; no size is left open, no gradient stays."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for first, later, clean, known, difference in json.loads(done.stdout):
        assert first >= 1  # more than one where an old torch cannot trace all
        assert (later, clean, known) == (0, True, True)
        assert difference < 1e-5
