"""Compiling a model for training."""

import warnings
from collections.abc import Callable

import torch
from einops import rearrange
from torch import Tensor, nn


def compiled(model: nn.Module, inputs: Tensor) -> Callable[[Tensor], Tensor]:
    """The model compiled for inputs of one shape, or, with a warning, the model itself on failure.

    Earlier compilations of this process are dropped: torch counts all models of a class together
    and runs the ninth (of other depths or sizes) uncompiled.

    The model's gradients are set to zero. `inputs` are like those to come.
    """
    # einops registers a type on first use, which in compiled code would trigger a recompilation.
    rearrange(nn.Parameter(torch.zeros(1)), "one -> one")
    mode = "reduce-overhead" if inputs.is_cuda else "default"
    try:
        torch.compiler.reset()
        forward = torch.compile(model, mode=mode, dynamic=False)
        forward(inputs).sum().backward()
        return forward
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        warnings.warn(f"torch.compile failed, training goes on uncompiled: {reason}", stacklevel=3)
        return model
    finally:
        model.zero_grad()
