"""How the cost of the sweep and of discovery grows with the problem.

    python benchmarks/growth.py [--out growth.html] [--quick]

One size varies at a time, layers, steps D, chains N and examples; the others stay 5, 3, 4 and 128.
(sweep) `circuits.scores.hypotheses` on an untrained GPT-2 of width 64, one head a layer;
(discover) `circuits.discover` on a model compiled from doubling rules, whose circuit is the truth.
Layers without a rule are idle there, and its width follows from D.
A cost is the least of some runs, all sizes in turn. `exponent` is the slope of a line through the
logarithms: 1 is linear, 2 quadratic. A sweep asks more questions of a larger problem; `each` is the
exponent of the cost of one. `exact` says whether discovery found the true paths.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import plotly.graph_objects as go
import torch
from measure import arguments, exponent, machine, prepare, report, seconds
from plotly.subplots import make_subplots
from tqdm import tqdm

from circuits import ablation_sweep, discover
from circuits.known.rules import doubling_rules
from circuits.known.weights import compile_circuit
from retrieval_interp.training.model import ModelConfig, build_model
from tasks import RetrievalTask


class Size(NamedTuple):
    """What a cost depends on."""

    layers: int = 5
    steps: int = 3
    chains: int = 4
    examples: int = 128


VARIED = {
    "layers": (3, 5, 8, 12),
    "steps": (1, 2, 4, 8),
    "chains": (2, 4, 8, 16),
    "examples": (64, 128, 256, 512),
}
QUICK = {"layers": (3, 4), "steps": (1, 2), "chains": (2, 3), "examples": (8, 16)}
LABELS = {"layers": "layers", "steps": "steps D", "chains": "chains N", "examples": "examples"}


class Sweep:
    """The sweep at a size, ready to run."""

    def __init__(self, size: Size, device: torch.device):
        self.task = RetrievalTask(steps=size.steps, chains=size.chains)
        config = ModelConfig(layers=size.layers, heads=1, d_model=64)
        self.model = build_model(config, self.task, 0, device).eval()
        self.batch = self.task.sample(size.examples, 0, device, split="test")

    def __call__(self) -> None:
        self.found = ablation_sweep(self.model, self.task, self.batch)

    def outcome(self) -> dict[str, Any]:
        return {"questions": len(self.found.heads) + len(self.found.paths)}


class Discovery:
    """Discovery at a size, ready to run."""

    def __init__(self, size: Size, device: torch.device):
        self.task = RetrievalTask(
            steps=size.steps, chains=size.chains, dim=6, tokens="unit", base=100.0
        )
        self.built = compile_circuit(doubling_rules(self.task), self.task, size.layers)
        self.model, self.examples = self.built.model, size.examples
        self.model.to(device, print_details=False)

    def __call__(self) -> None:
        # Unit tokens have a variance of 1 / dim a component: the paper's 0.05 of a variance of 1.
        self.found = discover(self.model, self.task, 0.05 / self.task.dim, self.examples)

    def outcome(self) -> dict[str, Any]:
        return {"exact": set(self.found.paths()) == set(self.built.carrying)}


def measure(
    varied: dict[str, tuple[int, ...]], start: Size, rounds: int, device: torch.device
) -> list[dict[str, Any]]:
    """A row for each of both and every size, the cost in seconds."""
    rows = []
    for kind in (Sweep, Discovery):
        sizes = {start._replace(**{name: v}) for name, values in varied.items() for v in values}
        runs = {size: kind(size, device) for size in sorted(sizes)}
        costs = dict.fromkeys(runs, float("inf"))
        for _ in tqdm(range(rounds), kind.__name__, leave=False, disable=None):
            for size, run in runs.items():
                costs[size] = min(costs[size], seconds(run, 1, device))
        rows += [
            {
                "cost of": kind.__name__.lower(),
                "varied": name,
                "size": value,
                "seconds": costs[size],
                **runs[size].outcome(),
            }
            for name, values in varied.items()
            for value in values
            for size in [start._replace(**{name: value})]
        ]
    return rows


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each of both and every size varied: the sizes, the costs and their exponents."""
    lines = []
    for kind, name in dict.fromkeys((row["cost of"], row["varied"]) for row in rows):
        group = [row for row in rows if (row["cost of"], row["varied"]) == (kind, name)]
        sizes, costs = [row["size"] for row in group], [row["seconds"] for row in group]
        each = [row["seconds"] / row["questions"] for row in group if "questions" in row]
        exact = [row["exact"] for row in group if "exact" in row]
        lines.append(
            {
                "cost of": kind,
                "against": LABELS[name],
                "sizes": " ".join(map(str, sizes)),
                "seconds": " ".join(f"{cost:.2g}" for cost in costs),
                "exponent": exponent(sizes, costs),
                "each": exponent(sizes, each) if each else None,
                "exact": f"{sum(exact)} of {len(exact)}" if exact else None,
            }
        )
    return lines


def figure(rows: Sequence[dict[str, Any]]) -> go.Figure:
    """Seconds against every size, on logarithmic axes, a line for each of both."""
    shown = make_subplots(1, len(LABELS), shared_yaxes=True)
    for line in summary(rows):
        kind = line["cost of"]
        column = list(LABELS.values()).index(line["against"]) + 1
        group = [
            row
            for row in rows
            if row["cost of"] == kind and LABELS[row["varied"]] == line["against"]
        ]
        shown.add_trace(
            go.Scatter(
                x=[row["size"] for row in group],
                y=[row["seconds"] for row in group],
                name=f"{kind} in {line['against']}: exponent {line['exponent']:.2f}",
                mode="lines+markers",
                line={"color": {"sweep": "#2f6fbe", "discovery": "#e0862b"}[kind]},
                marker={"symbol": {"sweep": "circle", "discovery": "diamond"}[kind]},
            ),
            row=1,
            col=column,
        )
        values = sorted({row["size"] for row in group})
        shown.update_xaxes(type="log", title=line["against"], tickvals=values, row=1, col=column)
    shown.update_yaxes(type="log", tickvals=[0.1, 0.3, 1, 3, 10, 30, 100])
    shown.update_yaxes(title="seconds", col=1)
    return shown.update_layout(
        template="plotly_white", legend={"y": -0.3, "orientation": "h"}, margin={"t": 20}
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.set_defaults(threads=1)  # the tensors are small
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write the figure here (HTML)")
    options: argparse.Namespace = parser.parse_args(argv)
    device = prepare(options)
    print(machine(device))
    start = Size(3, 2, 2, 16) if options.quick else Size()
    varied = QUICK if options.quick else VARIED
    rows = measure(varied, start, 1 if options.quick else options.rounds, device)
    lines = summary(rows)
    report(rows, options, argv, shown=lines, machine=machine(device), exponents=lines)
    if options.out is not None:
        figure(rows).write_html(options.out)


if __name__ == "__main__":
    main()
