"""Floating-point operations of a training step, from the sizes, and what a device can do.

A product of [m, k] and [k, n] matrices counts 2 m k n. Of a model of width d with heads of width e,
L layers of H heads, on B examples of P positions, the forward pass takes

    2 B P (d_in d + L (4 d H e + 2 P H e + m) + d d_out)

with m = 8 d^2 for the MLP, if there is one: queries, keys, values and output (4 d H e), scores and
mixing over all P positions, as the causal mask spares none of the products (2 P H e), and the two
ends. The backward pass takes twice as many, for inputs and for weights, less the read-in's
inputs, which nobody asks for. Norms, softmax, losses and the optimizer do not count.
"""

import torch
from measure import seconds

from retrieval_interp.config.recipe import Recipe
from retrieval_interp.training.model import ModelConfig


def step_flops(recipe: Recipe) -> int:
    """Of forward and backward pass of one step of a task of vectors; see the module's docstring."""
    task, model = recipe.task, recipe.model
    rows = 2 * recipe.batch * task.n_positions
    forward = rows * (task.d_in * model.d_model + _blocks(model, task.n_positions))
    forward += rows * model.d_model * task.d_out
    return 3 * forward - rows * task.d_in * model.d_model


def _blocks(model: ModelConfig, positions: int) -> int:
    width = model.heads * model.head_width
    mlp = 8 * model.d_model**2 if model.mlp else 0
    return model.layers * (4 * model.d_model * width + 2 * positions * width + mlp)


def matmul_rate(device: torch.device, precision: str) -> float:
    """FLOPs a second of a large square product, the best of ten, in a recipe's precision.

    In float32 on CUDA it is TensorFloat-32 where training asks for that.
    """
    size = 8192 if device.type == "cuda" else 1024
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    torch.mm(left, right)
    return 2 * size**3 / min(seconds(lambda: torch.mm(left, right), 3, device) for _ in range(10))
