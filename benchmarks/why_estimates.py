"""How well estimates rank heads by what they bring, at either end, for attention patching.

    python benchmarks/why_estimates.py [--models equations k-hop-7 smollm2] [--heads 100]

With all attention at P' + a (P - P'), P' being that on a counterfactual prompt, one pass gives an
estimate of every head. Estimates at one or several a are compared (Spearman) with exact runs of the
heads with the largest mean estimates: removing one from the intact model, and restoring one where
nothing else is kept. `top` is how many heads of the ranking recover 90%.
"""

import argparse

import torch
from measure import Rows, benchmark, timed

import retrieval_interp as ri
from retrieval_interp.circuits.attribution import rank_correlation
from retrieval_interp.circuits.counterfactual.search import Recovery
from retrieval_interp.circuits.counterfactual.units import MetricTask, Unit, estimate_units

POINTS = ((0.0,), (1.0,), (0.5,), (0.1, 0.5, 0.9), (0.0, 0.25, 0.5, 0.75, 1.0))


def of_model(name: str, options: argparse.Namespace) -> Rows:
    if name == "smollm2":
        model = ri.smollm2(device=str(options.device))
        task: ri.Task = ri.IndirectObjectTask(model.tokenizer)
    else:
        checkpoint = ri.load_checkpoint(name, options.device)
        model, task = checkpoint.model, checkpoint.task
    batch = task.sample(options.examples, 0, options.device, split="discovery")
    batch = ri.with_counterfactual(model, batch, task.counterfactual(batch))
    recovery, metric = Recovery(model, MetricTask(task), batch), MetricTask(task)
    timings = [timed(lambda at=at: estimate_units(model, metric, batch, at)) for at in POINTS]
    mean = torch.stack([found.heads for _, found in timings]).mean(0)
    order = mean.abs().flatten().argsort(descending=True)[: options.heads].tolist()
    units = [Unit(recovery.heads[place]) for place in order]
    lost = [1 - recovery.without([unit]).share for unit in units]
    recovery.around([])
    restored = [recovery.kept([unit]).share for unit in units]
    rows: Rows = []
    for at, (seconds, found) in zip(POINTS, timings):
        estimates, ranked = [found.of(unit) for unit in units], found.units("heads")
        low, high = 0, len(ranked)
        while high - low > 1:
            middle = (low + high) // 2
            enough = recovery.kept(ranked[:middle]).share >= 0.9
            low, high = (low, middle) if enough else (middle, high)
        rows.append(
            {
                "model": name,
                "a": ", ".join(f"{share:g}" for share in at),
                "removals": rank_correlation(estimates, lost),
                "restorings": rank_correlation(estimates, restored),
                "top": high,
                "passes": len(at),
                "seconds": seconds,
            }
        )
    return rows


main = benchmark(
    __doc__,
    lambda options: [row for name in options.models for row in of_model(name, options)],
    {"models": ["equations", "k-hop-7", "smollm2"], "examples": 24, "heads": 100},
    quick={"models": ["equations"], "examples": 8, "heads": 4},
)

if __name__ == "__main__":
    main()
