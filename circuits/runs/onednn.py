"""Products with weights on CPUs by oneDNN, which on AMD's is twice as fast as MKL."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_LEAST = 4096  # numbers of an input for which it pays
_ARGUMENTS: dict[Any, Callable[..., tuple[Tensor, Tensor, Tensor | None]]] = {
    F.linear: lambda x, weight, bias=None: (x, weight, bias),
    torch.addmm: lambda bias, x, weight: (x, weight.mT, bias),
    Tensor.matmul: lambda x, weight: (x, weight.mT if weight.ndim == 2 else weight, None),
}
_ARGUMENTS[torch.matmul] = _ARGUMENTS[Tensor.__matmul__] = _ARGUMENTS[Tensor.matmul]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, act: str = "") -> Tensor:
    """act(x Wᵀ + b) for a weight [out in]; `act` is `gelu`, with tanh, `relu` or nothing."""
    if x.is_cpu and torch.backends.mkldnn.is_available():  # as compiled models do
        by_onednn = torch.ops.mkldnn._linear_pointwise
        product: Tensor = by_onednn(x, weight, bias, act or "none", [], "tanh")
        return product
    x = F.linear(x, weight, bias)
    return F.gelu(x, approximate="tanh") if act == "gelu" else F.relu(x) if act else x


class FrozenWeights(TorchFunctionMode):
    """While it lasts, large float32 products with weights, which get no gradient, are `linear`."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in _ARGUMENTS and not kwargs:
            x, weight, bias = _ARGUMENTS[function](*args)
            flat = x.numel() >= _LEAST and weight.ndim == 2 and (bias is None or bias.ndim == 1)
            if flat and x.is_cpu and x.dtype == weight.dtype == torch.float32:
                return _Frozen.apply(x, weight, bias)
        return function(*args, **(kwargs or {}))


class _Frozen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return linear(gradients[0], ctx.saved_tensors[0].mT), None, None
