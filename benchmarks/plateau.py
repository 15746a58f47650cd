"""Which of the choices that the paper leaves open let a transformer leave the plateau.

    python benchmarks/plateau.py [--steps 1000] [--threads 1] [--out benchmarks/results/plateau.csv]

The paper (sections 6 to 8) names neither the base of the rotary encoding nor the initialization;
equation (1) lets the two elements of a pair share an encoding. Everything else is the six-layer
cell of the depth experiment at scale laptop. A run that the file already holds is not run again.
"""

import argparse
import csv
import itertools
from dataclasses import replace
from pathlib import Path

import torch
from tqdm import tqdm

from retrieval_interp.storage.files import write_whole
from retrieval_interp.sweep.grid import Cell, make_grid
from retrieval_interp.training.loop import train_model

EVERY = 50
BASES = (10.0, 100.0, 10_000.0)
CHOICES = [
    *itertools.product(["pair"], BASES, ["linear", "gpt2"], [0]),
    *itertools.product(["token"], BASES, ["linear"], [0]),
]
HEADER = ["position", "base", "init", "seed", "step", "x_1", "x_2", "x_3"]
OUT = Path(__file__).parent / "results" / "plateau.csv"


def trained(position: str, base: float, init: str, seed: int, steps: int) -> list[list[str]]:
    """The partial losses of one run, a row every 50 steps."""
    cell = make_grid("section7-ic", "laptop").cell_recipe(Cell(layers=6, seed=seed))
    recipe = replace(
        cell,
        task=replace(cell.task, position=position, base=base),
        init=init,
        steps=steps,
        log_every=EVERY,
        checkpoint_every=EVERY,
    )
    return [
        [position, f"{base:g}", init, str(seed), str(row["step"])]
        + [f"{loss:.4f}" for loss in row["partial_losses"]]
        for row in train_model(recipe).metrics
        if row["step"] % EVERY == 0
    ]


def table(rows: list[list[str]]) -> str:
    """When each symbol's loss is first below 0.5, a row a run."""
    lines = ["| encoding | base | init | seed | steps | x_1 | x_2 | x_3 |", "|" + "---|" * 8]
    for key, group in itertools.groupby(rows, key=lambda row: row[:4]):
        run = list(group)
        first = [
            next((row[4] for row in run if float(row[place]) < 0.5), "never") for place in (5, 6, 7)
        ]
        lines.append(f"| {' | '.join([*key, run[-1][4], *first])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    out: Path = options.out
    rows = list(csv.reader(out.read_text().splitlines()))[1:] if out.exists() else []
    known = {tuple(row[:4]) for row in rows}
    for position, base, init, seed in tqdm(CHOICES, unit="run"):
        if (position, f"{base:g}", init, str(seed)) in known:
            continue
        rows += trained(position, base, init, seed, options.steps)
        rows.sort(key=lambda row: (row[0], float(row[1]), *row[2:3], int(row[3]), int(row[4])))
        write_whole(out, "\n".join(",".join(row) for row in [HEADER, *rows]) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
