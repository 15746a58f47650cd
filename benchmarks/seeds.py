"""Is the circuit that is found the same for every seed, and does it hold on other examples?

    python benchmarks/seeds.py [--models small transformer-a] [--seeds 0 1] [--json FILE]

A row gives the cost of the circuit, its heads that are not idle, its loss on the examples that
decided and on 2,048 of the test split, and the CPU seconds of the search.
"""

import argparse
import time

from measure import Rows, benchmark, load_model

import retrieval_interp as ri
from retrieval_interp.circuits import Scorer


@benchmark(
    models=["small", "k-hop"],
    seeds=[0, 1, 2],
    examples=512,
    one_hot=False,
    quick={"models": ["small"], "seeds": [0], "examples": 32},
)
def main(options: argparse.Namespace) -> Rows:
    made = []
    for name in options.models:
        model, task = load_model(name, "cpu")
        for seed in ri.progress_bar(options.seeds, f"seeds of {name}"):
            how = ri.SearchOptions(examples=options.examples, seed=seed, shared=not options.one_hot)
            began, search = time.process_time(), ri.Search(model, task, how)
            found = search.run()
            seconds = time.process_time() - began
            cost, heads = search.space.simplicity(found)
            losses = {
                "deciding": Scorer(model, task, search.judge.batch).loss(found),
                "test": Scorer(model, task, task.sample(2048, seed, split="test")).loss(found),
            }
            row = {"model": name, "seed": seed, "cost": cost, "heads": heads, **losses}
            made.append({**row, "bar": search.judge.bar.loss, "seconds": seconds})
    return made


if __name__ == "__main__":
    main()
