"""Peak memory of training, discovery and scoring, each in its own process.

    python benchmarks/memory.py [--cases train discover score] [--examples 4096]

(train) a few compiled steps with a preset of the depth experiment, 512 examples per step;
(discover) `ri.discover`, and (score) the score of the shipped circuit, of a checkpoint. `peak` is
the peak resident memory of the process, including compiler and libraries.
"""

import argparse
import sys

from measure import Rows, benchmark, run_process

CASES = {
    "train": "recipe = replace(ri.PRESETS[{preset!r}], steps=3); "
    "ri.train_model(recipe, None, {device!r}, compile={compile})",
    "discover": "found = ri.load_checkpoint({ckpt!r}, {device!r}); "
    "ri.discover(found.model, found.task, examples={examples})",
    "score": "bench = ri.open({ckpt!r}, examples={examples}, device={device!r}); "
    "bench.load('retrieval_interp/results/{ckpt}.circuit.json'); bench.score()",
}
LOADING = "from dataclasses import replace; import retrieval_interp as ri; import torch; "


def rows(options: argparse.Namespace) -> Rows:
    made = []
    for name in options.cases:
        code = LOADING + f"torch.set_num_threads({options.threads}); "
        code += CASES[name].format(**vars(options), compile=not options.quick)
        done = run_process([sys.executable, "-c", code])
        if done.status:
            sys.exit(f"{name}: status {done.status}\n{done.output}")
        size = options.preset if name == "train" else f"{options.ckpt}, {options.examples} examples"
        made.append(
            {"case": name, "size": size, "peak GB": done.peak / 1e9, "seconds": done.seconds}
        )
    return made


main = benchmark(
    __doc__,
    rows,
    {
        "cases": list(CASES),
        "preset": "section7-ic-8",  # what is trained
        "ckpt": "transformer-a",  # whose circuit is found and scored
        "examples": 4096,
        "device": "cpu",
        "threads": 1,
    },
    quick={"preset": "small", "ckpt": "small", "examples": 16},
    device=False,
)

if __name__ == "__main__":
    main()
