"""This project's circuit discovery against auto-circuit's ACDC and mask-gradient pruning.

    python benchmarks/autocircuit.py --python PYTHON [--ckpt small] [--compiled 5] [--examples 64]

PYTHON is an interpreter that has auto-circuit; docs/autocircuit.md says how to make one, and how
the numbers compare.

1. `discover` runs on a model and some examples. Its heads are those that attend on paths, and those
   of the paths that it lists as enabling: without them the other heads of a living model, whose
   attention is not replaced, look elsewhere. Uniform and identity heads do not count.
2. The same weights and examples go to `autocircuit_worker.py` in the other environment.
3. The table shows every method's MSE on other examples, for the same number of heads: as many as
   `discover` kept and, in compiled models, as many as there truly are. `MSE` is that of the circuit
   of `discover`, all attention replaced; `resample`, `mean` and `zero` leave the heads as they are
   and replace the outputs of all others; `edges` also cuts the method's other edges.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tqdm import tqdm

from circuits.circuit import WITH_PATHS, Circuit, Head
from circuits.discovery.search import discover
from circuits.hooks.ablated import ablated
from circuits.known.rules import least_layers, random_rules
from circuits.known.weights import compile_circuit
from retrieval_interp.storage.checkpoint import load_checkpoint
from tasks import Batch, InputError, RetrievalTask

INSTALL = (
    "python3.11 -m venv runs/autocircuit-venv && runs/autocircuit-venv/bin/pip install "
    'torch==2.13.0 auto-circuit==1.0.1 "transformer-lens==2.17.*" "numpy<2" "pyarrow<21" '
    '"datasets<4" "transformers>=4.51,<4.54" "pandas<3" safetensors einops'
)
CONFIG_KEYS = (
    *("n_layers", "n_heads", "d_model", "d_head", "d_mlp", "n_ctx", "d_vocab", "d_vocab_out"),
    *("attn_only", "act_fn", "normalization_type", "eps", "use_attn_scale", "attention_dir"),
    "positional_embedding_type",
)
THRESHOLDS = {"tao_exps": [-6, -5, -4, -3, -2, -1], "tao_bases": [1, 3]}


@dataclass(frozen=True)
class Case:
    """A model to explain.

    Attributes:
        name: how the table calls it.
        model: a hooked model of vectors.
        task: what it does.
        truth: the heads that do it, if known.
        tolerance: the MSE that a circuit has to stay below.
    """

    name: str
    model: Any
    task: RetrievalTask
    truth: frozenset[Head] | None
    tolerance: float


@dataclass
class Row:
    """A line of the table.

    Attributes:
        model: the case's name.
        method: what chose the heads.
        heads: those kept.
        mse: of `discover`'s circuit, or of the intact model.
        resample: MSE with the outputs of all other heads taken from another example.
        mean: with their mean at each position instead.
        zero: with zeros instead.
        edges: the least MSE, resampled, of the method's own edge circuits with at most as many.
        least: how many of the method's heads bring `resample` below the tolerance, if any number.
        precision: the share of `heads` that are true ones, if these are known.
        recall: the share of the true heads that are among `heads`.
        seconds: the time to choose them.
    """

    model: str
    method: str
    heads: list[Head]
    mse: float | None = None
    resample: float | None = None
    mean: float | None = None
    zero: float | None = None
    edges: float | None = None
    least: int | None = None
    precision: float | None = None
    recall: float | None = None
    seconds: float | None = None


def main() -> None:
    options = parse_arguments()
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    check_environment(options.python)
    cases = [checkpoint_case(name) for name in options.ckpt]
    cases += [compiled_case(i, options.seed) for i in range(options.compiled)]
    rows: list[Row] = []
    for case in tqdm(cases, "models", leave=False, disable=None):
        rows += compare(case, options)
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps([vars(row) for row in rows], indent=1) + "\n")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", type=Path, required=True, help="interpreter with auto-circuit")
    parser.add_argument("--ckpt", nargs="*", default=["small"], help="checkpoints to compare on")
    parser.add_argument("--compiled", type=int, default=5, help="how many compiled models")
    parser.add_argument("--examples", type=int, default=64, help="examples that methods see")
    parser.add_argument("--test-examples", type=int, default=256, help="examples of all MSEs")
    parser.add_argument("--samples", type=int, default=16, help="steps of integrated gradients")
    parser.add_argument("--seed", type=int, default=0, help="of examples and compiled models")
    parser.add_argument("--json", type=Path, help="write the rows here too")
    return parser.parse_args()


def check_environment(python: Path) -> None:
    """Refuse an interpreter without auto-circuit.

    Raises:
        InputError: with the commands that make one.
    """
    try:
        code = "import importlib.util as u, sys; sys.exit(u.find_spec('auto_circuit') is None)"
        missing = subprocess.run([python, "-c", code], capture_output=True, check=False).returncode
    except OSError:
        missing = 1
    if missing:
        raise InputError(
            f"{python}: expected an interpreter with auto-circuit 1.0.1, found none; make one: "
            f"{INSTALL}"
        )


# Models


def checkpoint_case(name: str) -> Case:
    checkpoint = load_checkpoint(name)
    return Case(name, checkpoint.model, checkpoint.task, None, 0.05)


def compiled_case(index: int, seed: int) -> Case:
    """A compiled model: 1 to 5 steps and 1 or 2 heads in turn, two layers more than needed."""
    task = RetrievalTask(steps=index % 5 + 1, dim=6, tokens="unit", base=100.0)
    layers = least_layers(task) + 2
    n_heads = index % 2 + 1
    rules = random_rules(task, layers, seed + index, n_heads)
    compiled = compile_circuit(rules, task, layers, n_heads)
    truth = frozenset(path.head for path in compiled.carrying | compiled.enabling)
    # Unit tokens have a variance of 1 / dim a component: the paper's 0.05 of a variance of 1.
    name = f"D={task.steps}, {layers} x {n_heads}"
    return Case(name, compiled.model, task, truth, 0.05 / task.dim)


# Both sides


def compare(case: Case, options: argparse.Namespace) -> list[Row]:
    task, model = case.task, case.model
    start = time.perf_counter()
    circuit = discover(
        model, task, tolerance=case.tolerance, examples=options.examples, seed=options.seed
    )
    seconds = time.perf_counter() - start
    test = task.sample(options.test_examples, options.seed, split="test")
    with ablated(model, circuit, test):
        mse = float(task.loss(model(test.inputs), test))
    alone = heads_with_paths(circuit, model)
    living = sorted({*alone, *(path.head for path in circuit.enabling)})
    sets = {"alone": alone, "living": living}
    if case.truth is not None:
        sets["truth"] = sorted(case.truth)
    sizes = sorted({len(living), len(alone) if case.truth is None else len(case.truth)})
    result = run_worker(case, sets, sizes, test, options)

    rows = [
        Row(case.name, "(intact model)", every_head(model), result["baseline"]),
        Row(case.name, "discover", living, mse, seconds=seconds, **result["sets"]["living"]),
    ]
    if alone != living:
        rows.append(Row(case.name, "discover, paths only", alone, mse, **result["sets"]["alone"]))
    if case.truth is not None:
        rows.append(Row(case.name, "(true heads)", sets["truth"], **result["sets"]["truth"]))
    for k in sizes:
        rows += [
            auto_circuit_row(case, name, found, k) for name, found in result["methods"].items()
        ]
        if (best := result["best"][str(k)]) is not None:
            heads = as_heads(best.pop("heads"))
            rows.append(Row(case.name, f"(best {k} of all)", heads, **best))
    return [scored(case, row) for row in rows]


def auto_circuit_row(case: Case, name: str, found: dict[str, Any], k: int) -> Row:
    """What a method of auto-circuit makes of a model with k heads, or all that it ranks."""
    by_heads = found["by_heads"]
    kept = dict(by_heads[min(k, len(by_heads) - 1)])
    least = (n for n, row in enumerate(by_heads) if row["resample"] < case.tolerance)
    edges = (row["mse"] for row in found["by_edges"] if len(row["heads"]) <= k)
    return Row(
        case.name,
        f"{name}, {k}",
        as_heads(kept.pop("heads")),
        edges=min(edges, default=None),
        least=next(least, None),
        seconds=found["seconds"],
        **kept,
    )


def as_heads(pairs: list[list[int]]) -> list[Head]:
    return sorted(Head(*pair) for pair in pairs)


def every_head(model: Any) -> list[Head]:
    cfg = model.cfg
    return [Head(layer, head) for layer in range(cfg.n_layers) for head in range(cfg.n_heads)]


def heads_with_paths(circuit: Circuit, model: Any) -> list[Head]:
    """Heads whose attention the circuit needs: those with paths, or left as they are."""
    idle = {
        head
        for head, mechanism in circuit.mechanisms.items()
        if mechanism.kind in ("uniform", "identity")
        or (mechanism.kind in WITH_PATHS and not mechanism.paths)
    }
    return [head for head in every_head(model) if head not in idle]


def scored(case: Case, row: Row) -> Row:
    """Add precision and recall where the truth is known."""
    if case.truth is not None and not row.method.startswith("("):
        right = len(case.truth & set(row.heads))
        row.precision = right / len(row.heads) if row.heads else None
        row.recall = right / len(case.truth)
    return row


def run_worker(
    case: Case,
    sets: dict[str, list[Head]],
    sizes: list[int],
    test: Batch,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Write the exchange file, run the worker in its own environment and read its result.

    Raises:
        InputError: the worker failed.
    """
    task, model, n = case.task, case.model, options.examples
    train = task.sample(n, options.seed, split="discovery")
    other = task.sample(n, options.seed, split="discovery", start=n)
    other_test = task.sample(len(test), options.seed, split="test", start=len(test))
    tensors = {f"model.{name}": value for name, value in model.named_parameters()} | {
        "train.inputs": train.inputs,
        "train.corrupt": other.inputs,
        "train.targets": train.targets,
        "test.inputs": test.inputs,
        "test.corrupt": other_test.inputs,
        "test.targets": test.targets,
        "test.outputs": task.predictions(model(test.inputs)),
    }
    config = {
        "model": {key: getattr(model.cfg, key) for key in CONFIG_KEYS},
        "queries": task.chains,
        "samples": options.samples,
        **THRESHOLDS,
        "sets": sets,
        "sizes": sizes,
    }
    worker = Path(__file__).with_name("autocircuit_worker.py")
    with tempfile.TemporaryDirectory() as folder:
        exchange, result = Path(folder, "exchange.safetensors"), Path(folder, "result.json")
        contiguous = {name: value.detach().contiguous() for name, value in tensors.items()}
        save_file(contiguous, exchange, {"autocircuit": json.dumps(config)})
        environment = {**os.environ, "TQDM_DISABLE": "1"}
        done = subprocess.run(
            [options.python, worker, exchange, result],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise InputError(f"{worker.name}: expected a result for {case.name}, found {lines[-1]}")
        return json.loads(result.read_text())  # type: ignore[no-any-return]


def table(rows: list[Row]) -> str:
    """Rows as text, a blank line between models."""

    def number(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    lines = [
        f"{'model':<12} {'heads of':<26} {'MSE':>7} {'resample':>9} {'mean':>7} {'zero':>7} "
        f"{'edges':>7} {'least':>5} {'prec.':>5} {'recall':>6} {'seconds':>7}  heads"
    ]
    previous = None
    for row in rows:
        new = row.model != previous
        if new:
            lines.append("")
        previous = row.model
        lines.append(
            f"{row.model if new else '':<12} {row.method:<26} {number(row.loss, '.4f'):>7} "
            f"{number(row.resample, '.4f'):>9} {number(row.mean, '.4f'):>7} "
            f"{number(row.zero, '.4f'):>7} {number(row.edges, '.4f'):>7} "
            f"{number(row.least, 'd'):>5} {number(row.precision, '.2f'):>5} "
            f"{number(row.recall, '.2f'):>6} {number(row.seconds, '.1f'):>7}  "
            f"{' '.join(map(str, row.heads))}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
