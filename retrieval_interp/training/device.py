"""Choosing the device that a model runs on."""

import re

import torch

from retrieval_interp.tasks import InputError


def choose_device(name: str) -> torch.device:
    """The device of that name; `auto` is CUDA if available, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", name) is None:
        raise InputError(f"device: expected auto, cpu or cuda, found {name!r:.40}")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device: expected a CUDA device for {name!r}, found none; use cpu")
    return device
