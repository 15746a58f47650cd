"""Every public call on the CPU and on a GPU: whether the numbers are equal, and the seconds.

    python benchmarks/devices.py --json benchmarks/results/devices.json [--only why --models small]

A row a call and model, written as soon as it is there; what fails has its error in the row.
`difference` is the largest of all numbers of the result, relative above 1, and `other` the first
word that differs. Seconds are without loading and compiling, `MB` is the peak of the GPU's
memory. `llama` has random weights and SmolLM2's sizes.
"""

import argparse
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import cache, lru_cache, partial
from itertools import pairwise, product, zip_longest
from tempfile import mkdtemp
from typing import Any, NamedTuple

import torch
from measure import ROOT, benchmark, timed
from training_step import stepper

import retrieval_interp as ri
from retrieval_interp.storage.checkpoint import read_circuit
from retrieval_interp.tasks.words.template_task import NAMES, TEMPLATES
from tests.texts import byte_pairs

TEXTS = [t.format(IO=a, S1=b, S2=b) + f" {a}" for t in TEMPLATES for a, b in pairwise(NAMES[:30])]
SIZES = {  # of the language model, and of a tiny one
    "vocab_size": (49152, 2000), "hidden_size": (576, 32), "intermediate_size": (1536, 64),
    "num_hidden_layers": (30, 2), "num_attention_heads": (9, 4), "num_key_value_heads": (3, 2),
}  # fmt: skip


class On(NamedTuple):
    """A model on a device, its task, a circuit, and examples to measure it on."""

    name: str
    model: Any
    task: Any
    circuit: ri.Circuit
    batch: ri.Batch
    device: str
    seconds: float  # of a search
    quick: bool


@cache
def llama(quick: bool) -> str:
    """The folder of a language model of random weights with a tokenizer of its own."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = mkdtemp()
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{key: of[quick] for key, of in SIZES.items()}))
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=1.5 * weight.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    byte_pairs(TEXTS, vocab_size=2000).save_pretrained(folder)
    return folder


@lru_cache(2)
def opened(name: str, device: str, examples: int, seconds: float, quick: bool) -> On:
    """A shipped checkpoint with its circuit, or the language model with some lines."""
    if name == "llama":
        from transformer_lens.model_bridge import TransformerBridge

        model = TransformerBridge.boot_transformers(llama(quick), device=device).eval()
        task: Any = ri.IndirectObjectTask(model.tokenizer)
        lines = ["L0.H0 first", "L0.H1 uniform", "L1.H0 one-hot END<-S2", "L1.H1 cut END<-IO"]
        circuit = ri.parse_circuit(lines, task)
    else:
        checkpoint = ri.load_checkpoint(name, device)
        model, task = checkpoint.model, checkpoint.task
        file = ROOT / f"retrieval_interp/results/{name}.circuit.json"
        circuit = read_circuit(file, task, model, name)
    batch = task.sample(examples, 0, device, split="test")
    return On(name, model, task, circuit, batch, device, seconds, quick)


def tasks(on: On) -> Any:
    batch = on.task.sample(len(on.batch), 1, on.device)
    other = on.task.counterfactual(batch, 1)
    return batch, other, on.task.example_losses(on.model(batch.inputs), batch)


def ablated(on: On) -> Any:
    with torch.no_grad(), ri.ablated(on.model, on.circuit, on.batch):
        outputs = on.model(on.batch.inputs)
    return ri.mean_attention(on.model, on.batch), on.task.example_losses(outputs, on.batch)


def attribute(on: On) -> Any:
    cuts = [ri.Circuit.empty(on.task).cut(path) for path in on.circuit.every_path()]
    return ri.attribute(on.model, on.task, on.batch).effects(cuts)


def check_hook(on: On) -> Any:
    def first_row(z: torch.Tensor, hook: Any) -> None:
        z[:, 1, 0] = 0.0

    return ri.check_hook(on.model, ("blocks.1.attn.hook_z", first_row), "L1.H0")


def workbench(on: On) -> Any:
    bench = ri.open(on.model, on.task, examples=len(on.batch), progress=lambda items, what: items)
    losses = bench.suppose(on.circuit).data, bench.loss_with("L0.H0 identity"), bench.undo().data
    kept = bench.keep("L1.H0").data, bench.undo().data
    return losses, kept, bench.suppose("L0.H0 uniform").data, bench.score(2).data


def scan(on: On) -> Any:
    what = " ".join(TEXTS[:20]) if on.name == "llama" else on.task
    return ri.scan(on.model, what, examples=min(64, len(on.batch)), joint=True, time=on.seconds)


def why(on: On) -> Any:
    asked = [on.task]
    if on.name == "llama":
        asked = [TEXTS[0].rpartition(" ")[0], NAMES[0], NAMES[1]]
    how = {"examples": min(32, len(on.batch)), "upto": "rows" if on.quick else "paths"}
    found = ri.why(on.model, *asked, controls=3, time=on.seconds, **how)
    return replace(found, runs=0)  # how many there are can depend on ties


def discover(on: On) -> Any:
    heads = ["L1.H0"] if on.quick else None
    how = {"examples": len(on.batch), "time": on.seconds, "heads": heads}
    return ri.discover(on.model, on.task, **how)


def alternatives(on: On) -> Any:
    how = {"examples": len(on.batch), "time": on.seconds}
    return ri.alternatives(on.model, on.task, on.circuit, **how)


def recipe_of(on: On) -> ri.Recipe:
    """The preset, with batches of as many examples as are measured."""
    n = len(on.batch)
    return replace(ri.PRESETS[on.name], batch=n, validation_examples=n)


def train(on: On) -> Any:
    """A few steps, stopped and gone on with."""

    def stop(step: int, _: Any) -> None:
        if step == 2:
            raise KeyboardInterrupt

    recipe = replace(recipe_of(on), steps=4, log_every=2, checkpoint_every=2)
    how = mkdtemp(), on.device, False
    with suppress(KeyboardInterrupt):
        ri.train_model(recipe, *how, stop)
    return [row["partial_losses"] for row in ri.train_model(recipe, *how).metrics]


@cache
def run() -> str:
    """The folder of a run of a few steps, on the CPU."""
    recipe = replace(ri.PRESETS["small"], steps=4, log_every=2, checkpoint_every=2)
    ri.train_model(recipe, folder := mkdtemp(), "cpu", compile=False)
    return folder


def steps(on: On, compile: bool = False) -> Any:
    """Twenty training steps."""
    recipe = recipe_of(on)
    batch = recipe.task.sample(recipe.batch, 0, on.device)
    model = ri.build_model(recipe.model, recipe.task, 0, on.device)
    step = stepper(recipe, model, batch, None if compile else model)

    def twenty() -> Any:
        for _ in range(20):
            step()
        return recipe.task.loss(model(batch.inputs), batch)

    return twenty


ALL = ["small", "k-hop-7", "transformer-a", "llama"]
CALLS: dict[str, tuple[list[str], Callable[[On], Any]]] = {
    "tasks": (ALL, tasks),
    "ablated": (ALL, ablated),
    "attribute": (ALL, attribute),
    "check_hook": (ALL, check_hook),
    "score": (ALL, lambda on: ri.score_circuit(on.model, on.task, on.circuit, on.batch)),
    "workbench": (ALL, workbench),
    "scan": (ALL, scan),
    "why": (ALL, why),
    "discover": (ALL[:3], discover),
    "ablations": (ALL[:3], lambda on: ri.ablations(on.model, on.task, on.batch)),
    "needed_paths": (ALL[:2], lambda on: ri.needed_paths(on.model, on.task, None, len(on.batch))),
    "alternatives": (ALL[:1], alternatives),
    "emergence": (ALL[:1], lambda on: ri.follow_run(run(), on.circuit, device=on.device)),
    "train": (ALL[:1], train),
    "steps": (ALL[:3:2], steps),
    "compiled_steps": (ALL[:3:2], partial(steps, compile=True)),
}


def leaves(value: Any) -> Iterator[torch.Tensor | str]:
    """All numbers of a result, and its words, in which numbers with a point are left out."""
    if isinstance(value, (torch.Tensor, int, float)):
        yield torch.as_tensor(value).detach().double().cpu().flatten()
    elif isinstance(value, str):
        yield re.sub(r"[0-9]+\.[0-9]+(e-?[0-9]+)?|[0-9]+%", "#", value)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from leaves(part)
    elif isinstance(value, Mapping):
        yield from leaves([*value.items()])
    elif is_dataclass(value):
        yield from leaves([getattr(value, field.name) for field in fields(value)])
    else:
        yield type(value).__name__


def difference(one: Any, other: Any) -> tuple[float, str]:
    """The largest of two results' numbers, relative above 1; and the first that is no number."""
    largest, words = 0.0, ""
    for a, b in zip_longest(leaves(one), leaves(other), fillvalue="nothing"):
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.shape == b.shape:
            apart = ((a - b).abs() / a.abs().clamp(min=1)).where(a != b, 0.0)
            apart = apart.where(~(a.isnan() & b.isnan()), 0.0)
            largest = max([largest, *apart.nan_to_num(torch.inf, torch.inf).tolist()])
        elif not words and (isinstance(a, torch.Tensor) or a != b):
            words = f"{a!s:.60} / {b!s:.60}"
    return largest, words


def measured(call: str, name: str, device: str, options: argparse.Namespace) -> dict[str, Any]:
    """Result, seconds and MB of a call, or its error."""

    def done(function: Callable[[], Any]) -> tuple[float, Any]:
        seconds, result = timed(lambda: (function(), device == "cpu" or torch.cuda.synchronize()))
        return seconds, result[0]

    try:
        on = opened(name, device, options.examples, options.seconds, options.quick)
        function = partial(CALLS[call][1], on)
        if device != "cpu":
            torch.cuda.reset_peak_memory_stats()
        seconds, result = done(function)
        function = result if callable(result) else function
        if seconds < 2 or function is result:  # again, warm
            seconds, result = done(function)
        peak = None if device == "cpu" else torch.cuda.max_memory_allocated() // 2**20
        return {"result": result, "seconds": seconds, "MB": peak, "error": ""}
    except Exception as error:
        return {"error": f"{device}: {type(error).__name__}: {error!s:.300}"}


@benchmark(
    devices=["cpu", "cuda"], models=ALL, only=[*CALLS], examples=128, seconds=60.0,
    quick={"examples": 4, "models": ["small", "llama"], "seconds": 2.0},
)  # fmt: skip
def main(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name, call in product(options.models, options.only):
        if name not in CALLS[call][0]:
            continue
        found = [measured(call, name, device, options) for device in options.devices]
        row: dict[str, Any] = {"model": name, "call": call}
        row |= {f"{device}, s": of.get("seconds") for device, of in zip(options.devices, found)}
        whole = [of["result"] for of in found if not of["error"]]
        apart, words = difference(*whole) if len(whole) == 2 else (None, "")
        row |= {"difference": apart, "MB": found[-1].get("MB")}
        yield {**row, "other": "; ".join(filter(None, [*(of["error"] for of in found), words]))}
