"""The device on which models run: `auto`, `cpu`, `cuda` or `cuda:1`."""

import re

import torch
from torch import nn

from retrieval_interp.tasks.messages import InputError


def choose_device(name: str | torch.device) -> torch.device:
    """Return the device of a name; `auto` is CUDA if available, else the CPU."""
    name = str(name)
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", name) is None:
        raise InputError(f"device: expected auto, cpu or cuda, found {name!r:.40}")
    device, count = torch.device(name), torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise InputError(f"device: expected one of {count} CUDA devices, found {name!r}; use cpu")
    return device


def check_device(model: nn.Module, name: str) -> None:
    """Refuse a device where a model is not, which is left where it is."""
    device, current = choose_device(name), next(model.parameters()).device
    if name != "auto" and str(device) not in (str(current), current.type):
        raise InputError(
            f"device: expected the model's, {current}, found {name!r}; use model.to({name!r})"
        )
