"""A model through `torch.compile`, ready for training."""

import warnings
from collections.abc import Callable

import torch
from einops import rearrange
from torch import Tensor, nn


def compiled(model: nn.Module, inputs: Tensor) -> Callable[[Tensor], Tensor]:
    """The model compiled for inputs of one shape, or itself with a warning where that fails.

    What this process compiled before is forgotten. Otherwise torch counts all models of a class
    together, and from the ninth on (other depths, other sizes) runs them uncompiled.

    Args:
        model: any module from one tensor to another; its gradients are set to zero.
        inputs: like those to come; a forward and a backward pass are taken with them.
    """
    # einops learns a type when it first meets it: in compiled code, that makes torch compile twice.
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
