"""Is the circuit that is found the same for every seed, and does it hold on other examples?

    python benchmarks/seeds.py [--models small transformer-a] [--seeds 0 1] [--one-hot]
                               [--fewest heads] [--anneal SECONDS] [--json FILE]

A row gives the cost of the circuit, its heads that are not idle, its loss on the examples that
decided and on 2,048 of the test split, and the CPU seconds of the search. `anneal` adds what
simulated annealing finds on the same examples in so many seconds.
"""

import argparse
import math
import random
import time
from collections.abc import Iterator
from functools import partial

from measure import Rows, benchmark, load_model

import retrieval_interp as ri
from retrieval_interp.circuits import Scorer


def anneal(search: ri.Search, seconds: float, seed: int) -> Iterator[str]:
    """Simulated annealing by exact losses, from the best circuit that treats all heads alike.

    A step gives one to three heads another option. What a circuit costs counts, with a penalty for
    a loss above the limit; the temperature falls from 2 units of cost to a twentieth of one.
    """
    draw, began = random.Random(seed), time.monotonic()
    here = min(search.starts, key=search.loss)

    def energy(circuit: ri.Circuit) -> float:
        above = max(0.0, search.loss(circuit, here) / search.limit - 1)
        return search.cost(circuit) + len(search.useful(circuit)) + 40 * above

    while (spent := (time.monotonic() - began) / seconds) < 1:
        yield "annealing"
        trial = here
        for head in draw.sample(search.heads, min(len(search.heads), draw.choice((1, 1, 2, 3)))):
            trial = trial.replace(head, draw.choice(search.neighbours_of(trial, head)))
        below = search.complexity(search.best) if search.best.mechanisms else math.inf
        if search.complexity(trial) < below and search.loss(trial, here) < search.limit:
            search.holds(trial, here)
        worse = energy(trial) - energy(here)
        if worse <= 0 or draw.random() < math.exp(-worse / (2 * 0.025**spent)):
            here = trial


@benchmark(
    models=["small", "k-hop"],
    seeds=[0, 1, 2],
    examples=512,
    one_hot=False,
    fewest="paths",
    anneal=0.0,
    quick={"models": ["small"], "seeds": [0], "examples": 32, "anneal": 1.0},
)
def main(options: argparse.Namespace) -> Rows:
    rows = []
    for name in options.models:
        model, task = load_model(name, "cpu")
        for seed in ri.progress_bar(options.seeds, f"seeds of {name}"):
            fewest, shared = options.fewest, not options.one_hot
            how = ri.SearchOptions(None, options.examples, seed, shared, fewest=fewest)
            searches = {"search": ri.Search(model, task, how)}
            if options.anneal:
                strategy = partial(anneal, seconds=options.anneal, seed=seed)
                searches["annealing"] = ri.Search(model, task, how, strategy)
            for by, search in searches.items():
                began = time.process_time()
                circuit = search.run()
                seconds = time.process_time() - began
                row = {"model": name, "seed": seed, "by": by, "cost": search.cost(circuit)}
                row["heads"] = len(search.useful(circuit))
                row["deciding"] = Scorer(model, task, search.judge.batch).loss(circuit)
                parts = task.sample(2048, seed, split="test").parts(512)  # the whole takes memory
                row["test"] = sum(Scorer(model, task, part).loss(circuit) / 4 for part in parts)
                rows.append({**row, "bar": search.limit, "seconds": seconds})
    return rows
