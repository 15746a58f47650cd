"""Does discovery find circuits that are known because they were built?

    python benchmarks/discovery_recovery.py [--models 60] [--json FILE]

Every model is compiled from random matching heads (`tests/random_models.py`): D from 1
to 6, up to 12 layers, one or two heads per layer, some of them idle, halved or distracting. The
heads tell what the output depends on. A row gives, over all models of one D, precision and recall
of the carrying paths, of the paths that only enable, and of the idle heads, which have neither; how
many circuits were found exactly; how many of the others are equivalent (they deliver every answer
by information flow and keep the loss low on other examples); and seconds per model.

If a head is halved, two heads share its work and the true circuit is not unique: either half can be
cut from the intact model without harm. Those models have their own row.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch
from measure import arguments, report
from tqdm import tqdm

from retrieval_interp.circuits import Circuit, Head, discover
from retrieval_interp.circuits.flow import causal_depth
from retrieval_interp.circuits.flow.delivery import delivered
from retrieval_interp.circuits.known.weights import compile_circuit
from retrieval_interp.circuits.scores.scorer import Scorer
from retrieval_interp.tasks import RetrievalTask
from tests.random_models import random_heads

MAX_STEPS, MAX_LAYERS, DIM = 6, 12, 8
TOLERANCE = 0.05 / DIM  # the paper's 0.05, for symbols of variance 1/dim instead of 1


def one_model(index: int, examples: int) -> dict[str, Any]:
    """Build, search and compare one model."""
    steps = 1 + index % MAX_STEPS
    task = RetrievalTask(steps=steps, dim=DIM, tokens="unit")
    round_number = index // MAX_STEPS
    least = causal_depth(task.steps)
    layers = min(MAX_LAYERS, least + round_number % (MAX_LAYERS - least + 1))
    n_heads = 1 + round_number % 2
    heads = random_heads(task, layers, seed=index, n_heads=n_heads)
    built = compile_circuit(heads, task, n_layers=layers, n_heads=n_heads)
    start = time.perf_counter()
    found = discover(built.model, task, TOLERANCE, examples, seed=index)
    seconds = time.perf_counter() - start
    every = {Head(layer, head) for layer in range(layers) for head in range(n_heads)}
    paths = set(found.paths())
    enabling = set(found.every_path()) - paths
    only_enabling = set(built.enabling) - set(built.carrying)
    row: dict[str, Any] = {
        "model": index,
        "steps": steps,
        "layers": layers,
        "heads": n_heads,
        "seconds": seconds,
        "carrying": counts(paths, set(built.carrying)),
        "enabling": counts(enabling, only_enabling),
        "idle": counts(
            every - {path.head for path in paths | enabling},
            every - {path.head for path in set(built.carrying) | set(built.enabling)},
        ),
        "exact": paths == set(built.carrying),
        "unique": not any(0.1 < head.scale < 1 for head in heads),
    }
    row["equivalent"] = row["exact"] or equivalent(built.model, task, found, layers, index)
    return row


def counts(found: set[Any], true: set[Any]) -> list[int]:
    """How many are both found and true, found, and true."""
    return [len(found & true), len(found), len(true)]


def equivalent(model: Any, task: RetrievalTask, found: Circuit, layers: int, seed: int) -> bool:
    """Whether a circuit delivers every answer and keeps the loss low on other examples."""
    scorer = Scorer(model, task, task.sample(256, seed, split="test"))
    all_steps = tuple(range(1, task.steps + 1))
    return delivered(found, layers) == all_steps and scorer.loss(found) < TOLERANCE


def ratio(rows: list[dict[str, Any]], key: str, of: int) -> float:
    right, whole = (sum(row[key][place] for row in rows) for place in (0, of))
    return right / whole if whole else 1.0


def line(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A row of the table."""
    exact = sum(row["exact"] for row in rows)
    shares = {
        f"{key} {what}": f"{ratio(rows, key, of):.3f}"
        for key in ("carrying", "enabling", "idle")
        for of, what in ((1, "precision"), (2, "recall"))
    }
    others = sum(row["equivalent"] for row in rows) - exact
    mean = sum(row["seconds"] for row in rows) / len(rows)
    return {
        "": name,
        "models": len(rows),
        **shares,
        "exact": exact,
        "otherwise equivalent": others,
        "seconds": mean,
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__, device=False)
    parser.add_argument("--models", type=int, default=60)
    parser.add_argument("--examples", type=int, default=128)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)  # the tensors are small
    models = range(2 if options.quick else options.models)
    rows = [one_model(i, options.examples) for i in tqdm(models, disable=None, desc="models")]
    groups = {f"D = {steps}": ("steps", steps) for steps in range(1, MAX_STEPS + 1)}
    groups |= {"truth unique": ("unique", True), "halved heads": ("unique", False)}
    chosen = {name: [row for row in rows if row[k] == v] for name, (k, v) in groups.items()}
    report(rows, options, argv, shown=[line(name, of) for name, of in chosen.items() if of])


if __name__ == "__main__":
    main()
