"""Damaged checkpoints."""

import json
import struct
from functools import cache
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from safetensors.torch import save
from torch import Tensor

from retrieval_interp.model import build_model
from retrieval_interp.storage import checkpoint as files
from retrieval_interp.tasks.structured import to_data
from tests.faults.damage import damaged_bytes, damaged_data, dumps, texts
from tests.tiny_run import SIZES, TASKS, run


@cache
def checkpoint_tensors(kind: int) -> dict[str, Tensor]:
    model = build_model(SIZES, TASKS[kind])
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def checkpoint_content(kind: int) -> dict[str, Any]:
    training = {"step": 3, "recipe": to_data(run().recipe), "validation_loss": 0.5}
    task = TASKS[kind].to_dict()
    return {"format": 1, "model": to_data(SIZES), "task": task, "training": training}


def signed(tensors: dict[str, Tensor], content: dict[str, Any]) -> bytes:
    """A checkpoint whose digest is right, whatever it holds."""
    digest = files._digest(tensors, json.loads(dumps(content)))
    metadata = dumps({**content, "sha256": digest})
    return save(tensors, {files.METADATA_KEY: metadata.encode("utf-8", "replace").decode()})


_LARGE = (1, 2, 3, 7, 100, 4096, 65536, 65537)


@st.composite
def checkpoints(draw: DrawFn) -> bytes:
    """Damaged as bytes, in the header, in the weights, or in what they are said to be."""
    kind = draw(st.integers(0, len(TASKS) - 1))
    tensors, content = dict(checkpoint_tensors(kind)), checkpoint_content(kind)
    how = draw(st.sampled_from(("bytes", "header", "weights", "content", "sizes", "lie")))
    if how == "content":
        content = draw(damaged_data(lambda: [content]))
        content = content if isinstance(content, dict) else {"format": 1, "task": content}
    elif how == "weights":
        for _ in range(draw(st.integers(1, 3))):
            _change_weight(draw, tensors)
    elif how in ("sizes", "lie"):
        for name in ("layers", "heads", "d_model", "d_head"):
            if draw(st.booleans()):
                content["model"][name] = draw(st.sampled_from(_LARGE))
        for name in ("chains", "steps", "dim"):
            if name in content["task"] and draw(st.integers(0, 3)) == 0:
                content["task"][name] = draw(st.sampled_from((1, 2, 4, 50, 2000, 33_000)))
        if how == "lie":  # what is easily made to fit does fit
            sizes = content["model"]
            width = sizes["d_head"] or max(1, sizes["d_model"] // sizes["heads"])
            if sizes["heads"] * sizes["d_model"] * width <= 2**22:
                shape = (sizes["heads"], sizes["d_model"], width)
                tensors["blocks.0.attn.W_Q"] = torch.zeros(shape)
            if sizes["layers"] <= 100:
                kept = {n: w for n, w in tensors.items() if n.split(".")[1:2] in ([], ["0"])}
                extra = {f"blocks.{i}.ln1.w": torch.zeros(4) for i in range(sizes["layers"])}
                tensors = {**extra, **kept, "blocks.0.attn.W_Q": tensors["blocks.0.attn.W_Q"]}
    try:
        whole = signed(tensors, content)
    except (RecursionError, UnicodeEncodeError):
        whole = signed(tensors, checkpoint_content(kind))
    if how == "bytes":
        return draw(damaged_bytes(whole))
    if how == "header":
        length = draw(st.sampled_from((0, 1, 8, len(whole), 10**8, 10**9, 2**63, 2**64 - 1)))
        return struct.pack("<Q", length) + whole[8:]
    return whole


def _change_weight(draw: DrawFn, tensors: dict[str, Tensor]) -> None:
    name = draw(st.sampled_from(sorted(tensors)))
    weight = tensors[name]
    how = draw(st.sampled_from(("drop", "rename", "type", "shape", "nan", "inf", "empty", "one")))
    if how == "drop":
        del tensors[name]
    elif how == "rename":
        other = draw(texts).encode("utf-8", "replace").decode()
        tensors[draw(st.sampled_from((other, f"blocks.{other}", "blocks", "blocks.9.x")))] = (
            tensors.pop(name)
        )
    elif how == "type":
        types = (torch.int64, torch.bool, torch.uint8, torch.float16, torch.bfloat16)
        more = (torch.float64, torch.float8_e4m3fn, torch.complex64, torch.int16)
        tensors[name] = weight.to(draw(st.sampled_from((*types, *more))))
    elif how == "shape":
        tensors[name] = weight.reshape(-1, 1, *([1] * draw(st.integers(0, 3))))
    elif how == "empty":
        tensors[name] = weight.new_zeros(draw(st.sampled_from(((0,), (0, 10**9), (2**31, 0)))))
    elif how == "one":
        tensors[name] = weight.new_zeros(())
    else:
        tensors[name] = torch.full(weight.shape, float(how))
