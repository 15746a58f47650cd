"""Peak memory of training, discovery and scoring, each in its own process.

    python benchmarks/memory.py [--cases train discover score] [--examples 4096]

(train) a few steps of `train_model` with a preset of the depth experiment, compiled, with 512
examples per step; (discover) `circuits.discover`; (score) `score_circuit` on the circuit of a
shipped checkpoint, with as many examples as asked. `peak` is the peak resident memory of the
process, including compiler and libraries, `loaded` that before the work starts, including model and
libraries, and `device` the peak memory of tensors on CUDA.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from measure import arguments, peak_bytes, prepare, report, run_process

ROOT = Path(__file__).parent.parent
GIGABYTE = 1e9
Case = tuple[str, Callable[[], object]]  # what is measured, in words, and the work, all loaded


def train(options: argparse.Namespace, device: Any) -> Case:
    from retrieval_interp.config.presets import PRESETS
    from retrieval_interp.training.loop import train_model

    recipe = replace(PRESETS[options.preset], steps=options.steps)
    if options.quick:
        recipe = replace(recipe, model=replace(recipe.model, layers=1), batch=16)
    size = f"{options.preset}, {recipe.batch} examples a step, {recipe.precision}"
    return size, lambda: train_model(recipe, None, str(device), compile=not options.no_compile)


def discover(options: argparse.Namespace, device: Any) -> Case:
    from retrieval_interp.circuits import discover
    from retrieval_interp.storage.checkpoint import load_checkpoint

    checkpoint = load_checkpoint(options.ckpt, device)
    size = f"{options.ckpt}, {options.examples} examples"
    return size, lambda: discover(checkpoint.model, checkpoint.task, examples=options.examples)


def score(options: argparse.Namespace, device: Any) -> Case:
    from retrieval_interp.circuits import score_circuit
    from retrieval_interp.storage.checkpoint import load_checkpoint
    from retrieval_interp.storage.circuit_file import read_circuit

    checkpoint = load_checkpoint(options.ckpt, device)
    model, task = checkpoint.model, checkpoint.task
    file = ROOT / "retrieval_interp" / "results" / f"{options.ckpt}.circuit.json"
    circuit = read_circuit(file, task, model.cfg.n_layers, model.cfg.n_heads, "it is for")
    size = f"{options.ckpt}, {options.examples} examples"
    return size, lambda: score_circuit(
        model, task, circuit, task.sample(options.examples, 0, device, split="test")
    )


CASES = {"train": train, "discover": discover, "score": score}


def run_case(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """What a case takes in this process; the peak is seen from outside."""
    import torch

    device = prepare(options)
    start = time.perf_counter()
    size, work = CASES[name](options, device)
    loaded = peak_bytes()
    work()
    cuda = device.type == "cuda"
    return {
        "size": size,
        "seconds": time.perf_counter() - start,
        "loaded GB": loaded / GIGABYTE,
        "device GB": torch.cuda.max_memory_allocated(device) / GIGABYTE if cuda else None,
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--preset", default="section7-ic-8", help="what is trained")
    parser.add_argument("--steps", type=int, default=3, help="of training")
    parser.add_argument("--no-compile", action="store_true", help="train uncompiled")
    parser.add_argument("--ckpt", default="transformer-a", help="whose circuit is found and scored")
    parser.add_argument("--examples", type=int, default=4096)
    parser.add_argument("--inside", choices=list(CASES), help=argparse.SUPPRESS)
    given = sys.argv[1:] if argv is None else list(argv)
    options = parser.parse_args(given)
    if options.quick:
        options.ckpt, options.examples, options.steps, options.no_compile = "small", 16, 1, True
    if options.inside:
        print(json.dumps(run_case(options.inside, options)))
        return
    rows = []
    for name in options.cases:
        done = run_process([sys.executable, __file__, *given, "--inside", name], ROOT)
        if done.status:
            sys.exit(f"{name}: status {done.status}\n{done.output}")
        found = json.loads(done.output.splitlines()[-1])
        size = {"case": name, "size": found.pop("size")}
        rows.append({**size, "peak GB": done.peak / GIGABYTE, **found})
    report(rows, options, given)


if __name__ == "__main__":
    main()
