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

from measure import Rows, benchmark, load_model

import retrieval_interp as ri
from retrieval_interp.circuits import Scorer


def anneal(search: ri.Search, seconds: float, seed: int) -> ri.Circuit:
    """Simulated annealing by exact losses, from the best circuit that treats all heads alike.

    A step gives one to three heads another option. What a circuit costs counts, with a penalty for
    a loss above the tolerance; the temperature falls from 2 units of cost to a twentieth of one.
    """
    judge, space, draw = search.judge, search.space, random.Random(seed)
    penalty, began, best = 40 / judge.bar.loss, time.monotonic(), judge.empty
    here = min(space.whole, key=judge.loss)

    def energy(circuit: ri.Circuit) -> float:
        return space.size(space.key(circuit)) + penalty * max(
            0.0, judge.loss(circuit) - judge.bar.loss
        )

    while (spent := (time.monotonic() - began) / seconds) < 1:
        trial = here
        for head in draw.sample(space.heads, min(len(space.heads), draw.choice((1, 1, 2, 3)))):
            option = draw.choice(space.options(space.part(head, trial[head])))
            trial = trial.replace(head, option.mechanism)
        simpler = best == judge.empty or space.key(trial) < space.key(best)
        if simpler and judge.loss(trial) < judge.bar.loss and judge.holds(trial):
            best = trial
        worse = energy(trial) - energy(here)
        if worse <= 0 or draw.random() < math.exp(-worse / (2 * 0.025**spent)):
            here = trial
            judge.around(here)
    return best


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
    made = []
    for name in options.models:
        model, task = load_model(name, "cpu")
        for seed in ri.progress_bar(options.seeds, f"seeds of {name}"):
            fewest, shared = options.fewest, not options.one_hot
            how = ri.SearchOptions(None, options.examples, seed, shared, fewest=fewest)
            began, search = time.process_time(), ri.Search(model, task, how)
            found = {"search": (search.run(), time.process_time() - began)}
            if limit := options.anneal:
                found["annealing"] = anneal(ri.Search(model, task, how), limit, seed), limit
            for by, (circuit, seconds) in found.items():
                cost = search.space.cost(circuit)
                heads = search.space.size(search.space.key(circuit)) - cost
                row = {"model": name, "seed": seed, "by": by, "cost": cost, "heads": heads}
                row["deciding"] = Scorer(model, task, search.judge.batch).loss(circuit)
                parts = task.sample(2048, seed, split="test").parts(512)  # the whole takes memory
                row["test"] = sum(Scorer(model, task, part).loss(circuit) / 4 for part in parts)
                made.append({**row, "bar": search.judge.bar.loss, "seconds": seconds})
    return made


if __name__ == "__main__":
    main()
