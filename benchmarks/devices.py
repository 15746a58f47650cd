"""Every public call on the CPU and on a GPU: whether the numbers are equal, and the seconds.

    python benchmarks/devices.py --json benchmarks/results/devices.json [--only why --models small]

A row a call and model, written as soon as it is there; what fails has its error in the row.
`difference` is the largest of all numbers of the result, relative above 1, and `other` the first
word that differs. Seconds are without loading and compiling, `MB` is the peak of the GPU's
memory. `llama` has random weights and SmolLM2's sizes.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import cache, lru_cache, partial
from itertools import pairwise, zip_longest
from tempfile import mkdtemp
from typing import Any, NamedTuple

import torch
from measure import ROOT, benchmark, timed
from training_step import stepper

import retrieval_interp as ri
from retrieval_interp.storage.checkpoint import read_circuit
from retrieval_interp.tasks.words.template_task import NAMES, TEMPLATES
from retrieval_interp.views.scan_view import scan_to_dict
from retrieval_interp.views.score_text import score_to_dict
from retrieval_interp.views.why_view import why_to_dict
from tests.tiny_tokenizers import byte_pairs

TEXTS = [t.format(IO=a, S1=b, S2=b) + f" {a}" for t in TEMPLATES for a, b in pairwise(NAMES[:30])]
SIZES = {
    "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3,
}  # fmt: skip
TINY = {
    "vocab_size": 2000, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


class On(NamedTuple):
    """A model on a device, its task, a circuit, and the examples to measure it on."""

    name: str
    model: Any
    task: Any
    circuit: ri.Circuit
    batch: ri.Batch
    device: str
    seconds: float  # of a search ...
    heads: list[str] | None  # ... among these


@cache
def llama(small: bool) -> str:
    """The folder of a language model of random weights with a tokenizer of its own."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = mkdtemp()
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**(TINY if small else SIZES)))
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=1.5 * weight.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    byte_pairs(TEXTS, vocab_size=2000).save_pretrained(folder)
    return folder


@lru_cache(2)
def opened(name: str, device: str, examples: int, seconds: float, quick: bool) -> On:
    """A shipped checkpoint with its circuit, or `llama` with some lines."""
    if name == "llama":
        from transformer_lens.model_bridge import TransformerBridge

        model = TransformerBridge.boot_transformers(llama(quick), device=device).eval()
        task: Any = ri.IndirectObjectTask(model.tokenizer)
        lines = ["L0.H0 first", "L0.H1 uniform", "L1.H0 one-hot END<-S2", "L1.H1 cut END<-IO"]
        circuit = ri.parse_circuit(lines, task)
    else:
        checkpoint = ri.load_checkpoint(name, device)
        model, task, config = checkpoint.model, checkpoint.task, checkpoint.config
        file = ROOT / f"retrieval_interp/results/{name}.circuit.json"
        circuit = read_circuit(file, task, config.layers, config.heads, name)
    batch = task.sample(examples, 0, device, split="test")
    heads = ["L1.H0"] if quick else None
    return On(name, model, task, circuit, batch, device, seconds, heads)


# What is measured: a function that takes the model, or one that prepares it and gives another.


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


def score(on: On) -> Any:
    scored = ri.score_circuit(on.model, on.task, on.circuit, on.batch, controls=5)
    return score_to_dict(scored, on.name, on.task, 0)


def ablations(on: On) -> Any:
    return ri.ablations(on.model, on.task, on.batch)


def workbench(on: On) -> Any:
    bench = ri.open(on.model, on.task, examples=len(on.batch), progress=lambda items, what: items)
    losses = bench.suppose(on.circuit).data, bench.loss_with("L0.H0 identity"), bench.undo().data
    scored = bench.suppose("L0.H0 uniform") and bench.score(2).data
    kept = bench.suppose(ri.Circuit.empty(on.task)) and bench.keep("L1.H0").data
    return (
        losses,
        kept,
        bench.roles(with_circuit=True).data,
        score_to_dict(scored, on.name, on.task, 0),
    )


def scan(on: On) -> Any:
    what: Any = " ".join(TEXTS[:20]) if on.name == "llama" else on.task
    examples = min(64, len(on.batch))
    return scan_to_dict(ri.scan(on.model, what, examples=examples, time=on.seconds))


def why(on: On) -> Any:
    if on.name == "llama":
        prompt, answers = TEXTS[0].rpartition(" ")[0], (f" {NAMES[0]}", f" {NAMES[1]}")
        how: Any = {"upto": "rows" if on.heads else "paths", "time": on.seconds, "controls": 3}
        return why_to_dict(ri.why(on.model, prompt, *answers, **how))
    return why_to_dict(ri.why(on.model, on.task, examples=min(32, len(on.batch)), controls=3))


def needed_paths(on: On) -> Any:
    return ri.needed_paths(on.model, on.task, examples=len(on.batch))


def discover(on: On) -> Any:
    how: Any = {"examples": len(on.batch), "time": on.seconds, "heads": on.heads}
    found = ri.discover(on.model, on.task, **how)
    return found, on.task.example_losses(on.model(on.batch.inputs), on.batch)


def alternatives(on: On) -> Any:
    return ri.alternatives(
        on.model, on.task, on.circuit, examples=len(on.batch), time=on.seconds
    ).circuits


@cache
def run() -> str:
    """The folder of a run of a few steps, on the CPU."""
    recipe = replace(ri.PRESETS["small"], steps=4, log_every=2, checkpoint_every=2)
    ri.train_model(recipe, folder := mkdtemp(), "cpu", compile=False)
    return folder


def emergence(on: On) -> Any:
    return ri.follow_run(run(), on.circuit, device=on.device).snapshots


def recipe_of(on: On) -> ri.Recipe:
    """The preset, with batches of as many examples as are measured."""
    n = len(on.batch)
    return replace(ri.PRESETS[on.name], batch=n, validation_examples=n)


def train(on: On) -> Any:
    """A few steps, stopped and gone on with."""

    def stop(step: int, _: Any) -> None:
        if step == 2:
            raise KeyboardInterrupt

    recipe, folder = (
        replace(ri.PRESETS[on.name], steps=4, log_every=2, checkpoint_every=2),
        mkdtemp(),
    )
    with suppress(KeyboardInterrupt):
        ri.train_model(recipe, folder, on.device, False, stop)
    return [
        row["partial_losses"] for row in ri.train_model(recipe, folder, on.device, False).metrics
    ]


def steps(on: On, compile: bool = False) -> Callable[[], Any]:
    """Twenty training steps."""
    recipe = recipe_of(on)
    batch = recipe.task.sample(recipe.batch, 0, on.device)
    model = ri.build_model(recipe.model, recipe.task, 0, on.device)
    step = stepper(recipe, model, batch, None if compile else model)
    step()

    def twenty() -> Any:
        for _ in range(20):
            step()
        return recipe.task.loss(model(batch.inputs), batch)

    return twenty


def compiled_steps(on: On) -> Callable[[], Any]:
    return steps(on, compile=True)


ALL = ["small", "k-hop-7", "transformer-a", "llama", "transformer-d"]
CALLS: dict[str, list[str]] = {
    **dict.fromkeys(["tasks", "ablated", "attribute", "check_hook", "score"], ALL),
    **dict.fromkeys(["workbench", "scan", "why"], ALL),
    "discover": [name for name in ALL if name != "llama"],
    "ablations": ALL[:3],
    "needed_paths": ALL[:2],
    **dict.fromkeys(["alternatives", "emergence", "train"], ALL[:1]),
    **dict.fromkeys(["steps", "compiled_steps"], ALL[:3:2]),
}


def leaves(value: Any) -> Iterator[float | str]:
    """All numbers and words of a result; those that texts round are left out."""
    if isinstance(value, torch.Tensor):
        yield from value.detach().double().cpu().flatten().tolist()
    elif is_dataclass(value) and not isinstance(value, type):
        yield from leaves([getattr(value, field.name) for field in fields(value)])
    elif isinstance(value, Mapping):
        yield from leaves([*value.items()])
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from leaves(part)
    elif isinstance(value, (int, float)):
        yield float(value)
    else:
        yield re.sub(r"[0-9]+\.[0-9]+(e-?[0-9]+)?|[0-9]+%", "#", str(value))


def difference(one: Any, other: Any) -> tuple[float, str]:
    """The largest of two results' numbers, relative above 1; and the first words that differ."""
    largest, words = 0.0, ""
    for a, b in zip_longest(leaves(one), leaves(other)):
        if isinstance(a, float) and isinstance(b, float):
            both_none = a == b or (a != a and b != b)
            largest = max(largest, 0.0 if both_none else abs(a - b) / max(1.0, abs(a)))
        elif a != b and not words:
            words = f"{a!s:.60} / {b!s:.60}"
    return largest, words


def finished(function: Callable[[], Any], on_gpu: bool) -> Any:
    result = function()
    if on_gpu:
        torch.cuda.synchronize()
    return result


def measured(call: str, name: str, device: str, options: argparse.Namespace) -> dict[str, Any]:
    """Result, seconds and MB of a call, or its error."""
    on_gpu = device != "cpu"
    try:
        on = opened(name, device, options.examples, options.seconds, options.quick)
        function = partial(globals()[call], on)
        if "steps" in call:
            function = function()
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        seconds, result = timed(partial(finished, function, on_gpu))
        if seconds < 2:  # again, warm
            seconds, result = timed(partial(finished, function, on_gpu))
        peak = torch.cuda.max_memory_allocated() // 2**20 if on_gpu else None
        return {"result": result, "seconds": seconds, "MB": peak}
    except Exception as error:
        return {"error": f"{device}: {type(error).__name__}: {error!s:.300}"}


QUICK = {"examples": 4, "models": ["small", "llama"], "seconds": 2.0}


@benchmark(
    devices=["cpu", "cuda"], models=ALL, only=list(CALLS), skip_cpu=[], examples=128, seconds=60.0,
    quick=QUICK,
)  # fmt: skip
def main(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name in options.models:
        for call in [call for call in options.only if name in CALLS[call]]:
            devices = [d for d in options.devices if d != "cpu" or name not in options.skip_cpu]
            found = {device: measured(call, name, device, options) for device in devices}
            row: dict[str, Any] = {"model": name, "call": call}
            for device in options.devices:
                row[f"{device}, s"] = found.get(device, {}).get("seconds")
            results = [of["result"] for of in found.values() if "result" in of]
            apart = difference(*results) if len(results) > 1 else (None, "")
            peak = next((of["MB"] for of in found.values() if of.get("MB")), None)
            errors = [of["error"] for of in found.values() if "error" in of]
            row |= {"difference": apart[0], "MB": peak, "other": "; ".join([*errors, apart[1]])}
            print(row, file=sys.stderr, flush=True)
            yield row


if __name__ == "__main__":
    main()
