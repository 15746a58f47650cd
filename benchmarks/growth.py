"""How the cost of the sweep and of discovery grows with the problem.

    python benchmarks/growth.py [--out growth.html] [--quick]

One size varies at a time: layers, steps D, chains N or examples; the others stay 5, 3, 4 and 128.
(sweep) `circuits.scores.ablations` on an untrained GPT-2 of width 64 with one head per layer;
(discovery) `circuits.discover` on a model compiled from doubling rules, so the true circuit is
known. Layers without a rule are idle, and the width follows from D.
A cost is the minimum over several runs, all sizes in turn. `exponent` is the slope of a line
through the logarithms: 1 is linear, 2 quadratic. A sweep tests more hypotheses on a larger problem;
`each` is the exponent of the cost of one. `exact` says whether discovery found the true paths.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import plotly.express as px
import plotly.graph_objects as go
import torch
from measure import arguments, exponent, machine, prepare, report
from tqdm import tqdm

from retrieval_interp.circuits import ablations, discover
from retrieval_interp.circuits.known.heads import doubling_heads
from retrieval_interp.circuits.known.weights import compile_circuit
from retrieval_interp.tasks import RetrievalTask
from retrieval_interp.training.model import ModelConfig, build_model


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
STYLES = {"sweep": ("#2f6fbe", "circle"), "discovery": ("#e0862b", "diamond")}
Run = Callable[[], dict[str, Any]]


def sweep(size: Size, device: torch.device) -> Run:
    """The sweep at a size, ready to run; gives how many hypotheses it has tested."""
    task = RetrievalTask(steps=size.steps, chains=size.chains)
    config = ModelConfig(layers=size.layers, heads=1, d_model=64)
    model = build_model(config, task, 0, device).eval()
    batch = task.sample(size.examples, 0, device, split="test")

    def run() -> dict[str, Any]:
        found = ablations(model, task, batch)
        return {"questions": len(found.heads) + len(found.paths)}

    return run


def discovery(size: Size, device: torch.device) -> Run:
    """Discovery at a size, ready to run; says whether it has found the true paths."""
    task = RetrievalTask(steps=size.steps, chains=size.chains, dim=6, tokens="unit", base=100.0)
    built = compile_circuit(doubling_heads(task), task, size.layers)
    built.model.to(device, print_details=False)

    def run() -> dict[str, Any]:
        # Unit tokens have variance 1 / dim per component; the paper's 0.05 is for variance 1.
        found = discover(built.model, task, 0.05 / task.dim, size.examples)
        return {"exact": set(found.paths()) == set(built.carrying)}

    return run


def measure(
    varied: dict[str, tuple[int, ...]], start: Size, rounds: int, device: torch.device
) -> list[dict[str, Any]]:
    """One row per kind of work and size, with the cost in seconds."""
    sizes = [(name, value) for name, values in varied.items() for value in values]
    rows = []
    for kind in (sweep, discovery):
        each = sorted({start._replace(**{name: value}) for name, value in sizes})
        runs = {size: kind(size, device) for size in each}
        costs, outcomes = dict.fromkeys(runs, float("inf")), {}
        for _ in tqdm(range(rounds), kind.__name__, leave=False, disable=None):
            for size, run in runs.items():
                begun = time.perf_counter()
                outcomes[size] = run()
                costs[size] = min(costs[size], time.perf_counter() - begun)
        for name, value in sizes:
            size = start._replace(**{name: value})
            row = {"cost of": kind.__name__, "varied": name, "size": value}
            rows.append({**row, "seconds": costs[size], **outcomes[size]})
    return rows


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per kind of work and varied size: the sizes, the costs and their exponents."""
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
    """Seconds against every size, on logarithmic axes, one line per kind of work."""
    exponents = {(line["cost of"], line["against"]): line["exponent"] for line in summary(rows)}
    points = []
    for row in rows:
        kind, against = row["cost of"], LABELS[row["varied"]]
        line = f"{kind} in {against}: exponent {exponents[kind, against]:.2f}"
        points.append({**row, "against": against, "line": line})
    lines = {point["line"]: point["cost of"] for point in points}
    shown = px.line(
        points,
        x="size",
        y="seconds",
        color="line",
        symbol="line",
        facet_col="against",
        markers=True,
        log_x=True,
        log_y=True,
        color_discrete_map={line: STYLES[kind][0] for line, kind in lines.items()},
        symbol_map={line: STYLES[kind][1] for line, kind in lines.items()},
        template="plotly_white",
    )
    for column, name in enumerate(LABELS, start=1):
        values = sorted({row["size"] for row in rows if row["varied"] == name})
        shown.update_xaxes(matches=None, title=LABELS[name], tickvals=values, col=column)
    shown.update_yaxes(tickvals=[0.1, 0.3, 1, 3, 10, 30, 100])
    shown.layout.annotations = ()  # names of the columns, which the axes have
    return shown.update_layout(
        legend={"y": -0.3, "orientation": "h", "title": None}, margin={"t": 20}
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
