"""Products with weights by oneDNN, which on some of AMD's CPUs is twice as fast as MKL.

MKL leaves their AVX-512 units idle (docs/speed.md). Elsewhere the two are alike.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_WORTH_IT = 4096  # numbers of an input
_ARGUMENTS: dict[Any, Callable[..., tuple[Tensor, Tensor, Tensor | None]]] = {
    F.linear: lambda x, weight, bias=None: (x, weight, bias),
    torch.addmm: lambda bias, x, weight: (x, weight.mT, bias),
    Tensor.matmul: lambda x, weight: (x, weight.mT if weight.ndim == 2 else weight, None),
}
_ARGUMENTS[torch.matmul] = _ARGUMENTS[Tensor.__matmul__] = _ARGUMENTS[Tensor.matmul]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b for a weight [out in]."""
    if x.is_cpu and torch.backends.mkldnn.is_available():  # as compiled models do
        by_onednn = torch.ops.mkldnn._linear_pointwise
        return cast(Tensor, by_onednn(x, weight, bias, "none", [], ""))
    return F.linear(x, weight, bias)


class FrozenWeights(TorchFunctionMode):
    """While it lasts, large float32 products with weights, which get no gradient, are `linear`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _ARGUMENTS and not kwargs:
            x, weight, bias = _ARGUMENTS[func](*args)
            flat = x.ndim > 1 and weight.ndim == 2 and (bias is None or bias.ndim == 1)
            same = x.is_cpu and x.dtype == weight.dtype == torch.float32
            if flat and same and x.numel() >= _WORTH_IT and _is_frozen(weight) and _is_frozen(bias):
                return _Frozen.apply(x, weight, bias)
        return func(*args, **(kwargs or {}))


def _is_frozen(weight: Tensor | None) -> bool:
    """Whether it is a parameter or a view of one, or has no gradient: nobody asks for that here."""
    base = weight if weight is None or weight._base is None else weight._base
    return weight is None or not weight.requires_grad or isinstance(base, torch.nn.Parameter)


class _Frozen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return linear(gradients[0], ctx.saved_tensors[0].mT), None, None
