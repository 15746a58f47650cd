"""Where four answers of a language model come from, with seconds and memory (docs/answers.md).

    python benchmarks/why_behaviours.py [--behaviours names list docstring repeated] [--seeds 0 1 2]
        [--pages FOLDER]

`pages` gets the page and the picture of the first seed of each behaviour.
"""

import argparse
import resource
from itertools import product
from pathlib import Path
from typing import Any

import torch
from measure import Rows, benchmark, timed

import retrieval_interp as ri
from examples.four_answers import BEHAVIOURS
from retrieval_interp.circuits.hooks import run_model
from retrieval_interp.views.why_view import why_drawing


def row(name: str, seed: int, options: argparse.Namespace, model: Any) -> dict[str, Any]:
    make, counterfactual = BEHAVIOURS[name]
    task = make(model.tokenizer)
    batch = task.sample(200 if options.examples > 8 else 16, seed, split="test")
    with torch.no_grad():
        right = task.logit_differences(run_model(model, batch), batch) > 0
    chosen = {"examples": options.examples, "seed": seed, "upto": options.upto}
    seconds, found = timed(lambda: ri.why(model, task, counterfactual=counterfactual, **chosen))
    if options.pages and seed == options.seeds[0]:
        ri.why_view(found, model).save_html(Path(options.pages) / f"why-{name}.html")
        (Path(options.pages) / f"why-{name}.svg").write_text(why_drawing(found, model))
    last = found.levels[-1]
    return {
        "behaviour": name,
        "seed": seed,
        "right": float(right.float().mean()),
        "intact": found.intact.loss,
        "nothing": found.nothing.loss,
        **{level.name: len(level.units) for level in found.levels},
        "recovered": last.kept.share,
        "se": last.kept.se,
        "complement": last.complement.share,
        "random": found.control[-1] if found.control else None,
        "seconds": seconds,
        "GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,  # on Linux
        "said": str(found),
    }


@benchmark(
    behaviours=list(BEHAVIOURS),
    seeds=[0, 1, 2],
    examples=32,
    upto="paths",
    pages="",
    quick={"behaviours": ["list"], "seeds": [0], "examples": 4, "upto": "heads"},
    shown=lambda rows: [{key: x for key, x in row.items() if key != "said"} for row in rows],
)
def main(options: argparse.Namespace) -> Rows:
    model = ri.smollm2(device=str(options.device))
    return [row(*of, options, model) for of in product(options.behaviours, options.seeds)]


if __name__ == "__main__":
    main()
