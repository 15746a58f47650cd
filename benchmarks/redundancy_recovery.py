"""Are duplicated heads found, where it is known which, because they were built?

    python benchmarks/redundancy_recovery.py [--models 24] [--json FILE]

Every model is compiled from random matching heads (`tests/random_models.py`) for D from 1 to 6. Two
or three heads share the work of the first, which tells each position where its token's next pair
is. Half of that finds the same pair, so of the copies of each path any one suffices. (Of heads
that join pairs all would be needed: half a key loses to a rival of full length.) A row gives, over
all models of one D, precision and recall of these sets of paths and of the paths that are needed
alone, and seconds per model.
"""

import itertools
import time
from collections.abc import Sequence
from typing import Any

import torch
from discovery_recovery import DIM, MAX_STEPS, TOLERANCE, counts, ratio
from measure import arguments, report
from tqdm import tqdm

from retrieval_interp.circuits import Head, HeadPath, needed_paths
from retrieval_interp.circuits.flow import causal_depth
from retrieval_interp.circuits.known.heads import TOKEN, MatchingHead, split
from retrieval_interp.circuits.known.weights import compile_circuit
from retrieval_interp.tasks import RetrievalTask
from tests.random_models import random_heads


def heads_that_point(task: RetrievalTask, n_layers: int, index: int) -> tuple[MatchingHead, ...]:
    """Random heads of which the first does not join pairs."""
    draws = (
        random_heads(task, n_layers, seed, extras=False) for seed in itertools.count(1000 * index)
    )
    return next(heads for heads in draws if heads[0].query == TOKEN)


def one_model(index: int, examples: int) -> dict[str, Any]:
    """Build a model and compare what it is found to need."""
    steps = 1 + index % MAX_STEPS
    task = RetrievalTask(steps=steps, dim=DIM, tokens="unit")
    n_layers, copies = causal_depth(steps) + index % 3, 2 + index // MAX_STEPS % 2
    first, *others = heads_that_point(task, n_layers, index)
    built = compile_circuit([*split(first, range(1, copies)), *others], task, n_layers=n_layers)
    copied = {path for path in built.enabling if path.head.layer == first.layer}
    sets = {
        tuple(HeadPath(Head(first.layer, head), path) for head in range(copies))
        for _, path in copied
    }
    alone = {(path,) for path in (built.carrying | built.enabling) - copied}
    start = time.perf_counter()
    found = set(needed_paths(built.model, task, TOLERANCE, examples, seed=index))
    seconds = time.perf_counter() - start
    several = {paths for paths in found if len(paths) > 1}
    return {
        "model": index,
        "steps": steps,
        "layers": n_layers,
        "copies": copies,
        "sets": counts(several, sets),
        "alone": counts(found - several, alone),
        "seconds": seconds,
    }


def line(name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A row of the table."""
    return {
        "": name,
        "models": len(rows),
        "sets": sum(row["sets"][2] for row in rows),
        **{
            f"{key} {what}": f"{ratio(rows, key, of):.3f}"
            for key in ("sets", "alone")
            for of, what in ((1, "precision"), (2, "recall"))
        },
        "seconds": sum(row["seconds"] for row in rows) / len(rows),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__, device=False)
    parser.add_argument("--models", type=int, default=24)
    parser.add_argument("--examples", type=int, default=128)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)  # the tensors are small
    models = range(2 if options.quick else options.models)
    rows = [one_model(i, options.examples) for i in tqdm(models, disable=None, desc="models")]
    by_steps = {steps: [row for row in rows if row["steps"] == steps] for steps in range(1, 7)}
    shown = [line(f"D = {steps}", of) for steps, of in by_steps.items() if of]
    report(rows, options, argv, shown=[*shown, line("all", rows)])


if __name__ == "__main__":
    main()
