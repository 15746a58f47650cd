"""Where nine answers of a language model come from (docs/answers.md).

    python benchmarks/why_behaviours.py [--model smollm2|gemma3] [--behaviours capital names ...]
        [--seeds 0 1 2] [--pages FOLDER]

`attention`, `values`, `both` are the metric where no head keeps its own; `corrupted` that on the
counterfactual prompts; `tokens` that on these prompts with every head as on the intact ones, so
that only embeddings and MLPs differ. `pages` gets the page of each first seed.
"""

import argparse
import resource
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import torch
from measure import Rows, benchmark, timed

import retrieval_interp as ri
from examples.answers import BEHAVIOURS
from retrieval_interp.circuits.counterfactual.keep_search import Recovery
from retrieval_interp.circuits.counterfactual.units import MetricTask
from retrieval_interp.circuits.hooks import run_model
from retrieval_interp.circuits.patched_heads import PATCHES


def row(name: str, seed: int, options: argparse.Namespace, model: Any) -> dict[str, Any]:
    task = BEHAVIOURS[name](model.tokenizer)
    batch = task.sample(200 if options.examples > 8 else 16, seed, split="test")
    with torch.no_grad():
        right = task.logit_differences(run_model(model, batch), batch) > 0
    chosen = {"examples": options.examples, "seed": seed, "upto": options.upto}
    seconds, why = timed(lambda: ri.why(model, task, **chosen))
    if options.pages and seed == options.seeds[0]:
        ri.why_view(why, model).save_html(Path(options.pages) / f"why-{name}.html")
    levels: dict[str, Any] = {}
    for level in why.levels:
        levels[level.name] = [unit.text(task.role_names) for unit in level.units]
        levels[f"{level.name} kept"], levels[f"{level.name} se"] = level.kept
        levels[f"{level.name} complement"] = level.complement.share
    return {
        "behaviour": name,
        "seed": seed,
        "right": float(right.float().mean()),
        "intact": why.intact.mean,
        "corrupted": why.corrupted.mean,
        **ends(model, MetricTask(task), why),
        **levels,
        "random": why.control[-1] if why.control else None,
        "stability": {unit.unit.text(task.role_names): unit.stability for unit in why.units},
        "runs": why.runs,
        "seconds": seconds,
        "GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,  # on Linux
        "said": str(why),
    }


def ends(model: Any, task: MetricTask, why: ri.Explanation) -> dict[str, float]:
    """The metric where nothing is kept, of attention, values, and both; and where all heads are."""
    names = {"pattern": "attention", "v": "values", "z": "both"}
    left = {
        names[patch]: float(Recovery(model, task, why.batch, patch).none_kept.mean())
        for patch in PATCHES
    }
    asked = replace(why.counterfactual, targets=why.batch.targets, roles=why.batch.roles)
    tokens = Recovery(model, task, ri.with_counterfactual(model, asked, why.batch))
    return {**left, "tokens": float(tokens.none_kept.mean())}


def table(rows: Rows) -> Rows:
    """A line a row, and how alike the units of different seeds are (mean Jaccard)."""
    printed = []
    for row in rows:
        short = {key: value for key, value in row.items() if key not in ("said", "stability")}
        printed.append({k: len(v) if isinstance(v, list) else v for k, v in short.items()})
        same = [each for each in rows if each["behaviour"] == row["behaviour"]]
        for level in ("heads", "paths"):
            sets = [set(each[level]) for each in same if level in each]
            alike = [len(a & b) / len(a | b) for a, b in combinations(sets, 2)]
            printed[-1][f"{level} alike"] = sum(alike) / len(alike) if alike else None
    return printed


@benchmark(
    model="smollm2",
    behaviours=list(BEHAVIOURS),
    seeds=[0, 1, 2],
    examples=32,
    upto="paths",
    pages="",
    quick={"behaviours": ["capital"], "seeds": [0], "examples": 4, "upto": "heads"},
    shown=table,
)
def main(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    make = {"smollm2": ri.smollm2, "gemma3": ri.gemma3}[options.model]
    model = make(device=str(options.device))
    return (row(*of, options, model) for of in product(options.behaviours, options.seeds))
