"""A pretended GPU on machines without one: it finds code that mixes devices.

Within `PretendedGpu()` there is a device `cuda`. What is made there, moved there, or computed from
what is there, says that it is there. The CPU computes it, so that all numbers stay the same, but
where CUDA would refuse tensors of two devices, `MixedDevices` is raised. What is not pretended
ends in PyTorch's own error that it has no CUDA.
"""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

DEVICE = torch.device("cuda", 0)
_INDEXED = {"__getitem__", "__setitem__", "index_put", "index_put_"}
_JOINED = {"cat", "stack", "concat", "hstack", "vstack"}  # here even a number has to be there
_IN_PLACE = re.compile("__i(add|sub|mul|truediv|pow|and|or|xor)__|__setitem__|.*[^_]_")
_MOVES = {"to", "type_as", "cpu", "cuda"}
_MAY_MIX = {*_MOVES, "copy_", "tensor", "__deepcopy__", "_has_compatible_shallow_copy_type"}


class MixedDevices(RuntimeError):
    """An operation on tensors of two devices."""


def is_there(tensor: Tensor) -> bool:
    """Whether a tensor is on the pretended GPU, as its views and parameters then are."""
    return hasattr(tensor.untyped_storage(), "there")


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _means_gpu(device: Any) -> bool:
    return str(device).partition(":")[0] == "cuda"


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


class PretendedGpu(TorchFunctionMode):
    """While it lasts, there is a GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), dict(kwargs or {})
        if name == "__set__" or func is torch.device:
            return func(*args, **kwargs)
        if name == "__get__" and getattr(func.__self__, "__name__", "") in _ATTRIBUTES:
            return _ATTRIBUTES[func.__self__.__name__](func(*args), is_there(args[0]))
        given = _tensors((args, kwargs))
        there = any(map(is_there, given))
        changes = _IN_PLACE.fullmatch(name) is not None
        if there and name not in _MAY_MIX:
            _check_together(name, args, given, changes)
        if name == "tensor":  # numbers in a list are read, wherever they are
            there = there and isinstance(args[0], Tensor)
        elif name in _INDEXED:
            there = is_there(args[0])
        elif name in _MOVES:
            target = [x for x in args[1:] if isinstance(x, (Tensor, str, torch.device))]
            target = [*target, torch.device(name) if name in ("cpu", "cuda") else args[0]]
            there = is_there(target[0]) if isinstance(target[0], Tensor) else _means_gpu(target[0])
            args = [args[0], *("cpu" if _means_gpu(word) else word for word in args[1:])]
            func = Tensor.cpu if name == "cuda" else func
        if kwargs.get("device") is not None:
            there = _means_gpu(kwargs["device"])
            kwargs["device"] = "cpu" if there else kwargs["device"]
        if there and (name in ("numpy", "__array__") or kwargs.get("generator") is not None):
            raise MixedDevices(f"{name}: an array or generator of the CPU, a tensor elsewhere")
        result = func(*args, **kwargs)
        if changes:
            return result
        foreign = {_storage(x) for x in given if is_there(x) != there}

        def placed(tensor: Tensor) -> Tensor:
            tensor = tensor.clone() if _storage(tensor) in foreign else tensor
            if there:
                tensor.untyped_storage().there = True  # type: ignore[attr-defined]
            return tensor

        return tree_map_only(Tensor, placed, result)


_ATTRIBUTES: dict[str, Callable[[Any, bool], Any]] = {
    "device": lambda device, there: DEVICE if there else device,
    "is_cuda": lambda _, there: there,
    "is_cpu": lambda is_cpu, there: is_cpu and not there,
}


def _check_together(name: str, args: Any, given: list[Tensor], changes: bool) -> None:
    """Refuse tensors of both devices, where one at least is on the GPU, as CUDA does."""
    near = [x for x in given if not is_there(x) and (x.ndim or name in _JOINED)]
    if changes:
        near += [x for x in _tensors(args[:1]) if not is_there(x)]
    if name in _INDEXED:  # by numbers of the CPU, too; without any, a copy from anywhere
        indices = [x for x in _tensors(args[1]) if x.ndim]
        values = [x for x in _tensors(args[2:]) if x.ndim]
        together = [args[0], *values] + ([] if is_there(args[0]) else indices)
        near = [x for x in together if indices and is_there(x) != is_there(args[0])]
    if near:
        shapes = ", ".join(f"{list(x.shape)} {'elsewhere' * is_there(x)}".strip() for x in given)
        raise MixedDevices(f"{name}: expected tensors on one device, found {shapes}")
