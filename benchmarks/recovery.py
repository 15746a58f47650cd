"""Does discovery find circuits that are known because they were built?

    python benchmarks/recovery.py [--models 60] [--json FILE]
    python benchmarks/recovery.py --redundant --models 24

Models are compiled from random matching heads (docs/search-quality.md); the compiler knows what
the output depends on. Circuits that differ from it are equivalent if they deliver every answer by
information flow and keep the loss low on other examples. If a head is halved, two heads share its
work and the true circuit is not unique. With --redundant two or three heads share the first rule,
which tells each position where its token's next pair is, so that any one of them suffices.
"""

import argparse
import itertools
from typing import Any

from measure import Rows, benchmark, timed

import retrieval_interp as ri
from examples.reach_the_bound import TOKEN, Compiled, MatchingHead, compile_circuit, split
from retrieval_interp.circuits import Scorer
from retrieval_interp.circuits.flow import causal_depth, delivered
from tests.random_heads import random_heads

MAX_STEPS, MAX_LAYERS, DIM = 6, 12, 8
TOLERANCE = 0.05 / DIM  # the paper's 0.05, for symbols of variance 1/dim instead of 1


def found_in(index: int, task: ri.RetrievalTask, examples: int) -> dict[str, Any]:
    """Build a model, search for its circuit, and compare."""
    round_number = index // MAX_STEPS
    least, n_heads = causal_depth(task.steps), 1 + round_number % 2
    layers = min(MAX_LAYERS, least + round_number % (MAX_LAYERS - least + 1))
    rules = random_heads(task, layers, seed=index, n_heads=n_heads)
    built = compile_circuit(rules, task, n_layers=layers, n_heads=n_heads)
    how = {"tolerance": TOLERANCE, "examples": examples, "seed": index}
    seconds, found = timed(lambda: ri.discover(built.model, task, **how))
    heads = {ri.Head(layer, head) for layer in range(layers) for head in range(n_heads)}
    paths, carrying, enabling = set(found.paths()), set(built.carrying), set(built.enabling)
    only_enabling = set(found.every_path()) - paths
    loss = Scorer(built.model, task, task.sample(256, index, split="test")).loss(found)
    equivalent = delivered(found, layers) == tuple(range(1, task.steps + 1)) and loss < TOLERANCE
    idle = heads - {path.head for path in paths | only_enabling}
    return {
        "seconds": seconds,
        "carrying": counts(paths, carrying),
        "enabling": counts(only_enabling, enabling - carrying),
        "idle": counts(idle, heads - {path.head for path in carrying | enabling}),
        "exact": paths == carrying,
        "unique": not any(0.1 < rule.scale < 1 for rule in rules),
        "equivalent": paths == carrying or equivalent,
    }


def with_copies(
    index: int, task: ri.RetrievalTask, copies: int, n_heads: int = 1, extras: bool = False
) -> tuple[MatchingHead, Compiled]:
    """A model whose first head, which joins no pairs, has copies; and that head."""
    n_layers, seeds = causal_depth(task.steps) + index % 3, itertools.count(1000 * index)
    draws = (random_heads(task, n_layers, seed, n_heads, extras) for seed in seeds)
    first, *others = next(
        r for r in draws if r[0].query == TOKEN and r[0].head == 0 and r[1].layer > r[0].layer
    )
    rules = [*split(first, range(1, copies)), *others]
    return first, compile_circuit(rules, task, n_layers, max(n_heads, copies))


def copies_found_in(index: int, task: ri.RetrievalTask, examples: int) -> dict[str, Any]:
    """Build a model with copies of a head, and compare what it is found to need."""
    copies = 2 + index // MAX_STEPS % 2
    first, built = with_copies(index, task, copies)
    copied = {path for path in built.enabling if path.head.layer == first.layer}
    sets = {
        tuple(ri.HeadPath(ri.Head(first.layer, head), path) for head in range(copies))
        for _, path in copied
    }
    single = {(path,) for path in (built.carrying | built.enabling) - copied}
    how = {"examples": examples, "seed": index}
    seconds, needed = timed(lambda: ri.needed_paths(built.model, task, TOLERANCE, **how))
    several = {paths for paths in needed if len(paths) > 1}
    counted = {"sets": counts(several, sets), "single": counts(set(needed) - several, single)}
    return {"seconds": seconds, **counted}


def counts(found: set[Any], true: set[Any]) -> list[int]:
    """How many are both found and true, found, and true."""
    return [len(found & true), len(found), len(true)]


def line(name: str, rows: Rows) -> dict[str, Any]:
    """A row of the table, over several models."""
    made: dict[str, Any] = {"": name, "models": len(rows)}
    for key in [key for key, value in rows[0].items() if isinstance(value, list)]:
        right, found, true = (sum(row[key][place] for row in rows) for place in range(3))
        made[f"{key} precision"] = f"{right / found if found else 1:.3f}"
        made[f"{key} recall"] = f"{right / true if true else 1:.3f}"
    if "sets" in rows[0]:
        made["true sets"] = sum(row["sets"][2] for row in rows)
    else:
        made["exact"] = sum(row["exact"] for row in rows)
        made["otherwise equivalent"] = sum(row["equivalent"] for row in rows) - made["exact"]
    return {**made, "seconds": sum(row["seconds"] for row in rows) / len(rows)}


def shown(rows: Rows) -> Rows:
    groups = {
        "truth unique": [row for row in rows if row.get("unique") is True],
        "halved heads": [row for row in rows if row.get("unique") is False],
        "all": rows,
    }
    return [line(name, group) for name, group in groups.items() if group]


@benchmark(
    models=60, examples=128, redundant=False, quick={"models": 2, "examples": 32}, shown=shown
)
def main(options: argparse.Namespace) -> Rows:
    one, made = copies_found_in if options.redundant else found_in, []
    for index in ri.progress_bar(range(options.models), "models"):
        task = ri.RetrievalTask(steps=1 + index % MAX_STEPS, dim=DIM, tokens="unit")
        made.append({"steps": task.steps, **one(index, task, options.examples)})
    return made
