"""All single-head and single-path hypotheses: what measuring them takes, and what estimates miss.

    python benchmarks/ablations.py [--models small transformer-a ...] [--examples 128]
    python benchmarks/ablations.py --estimates --models small equations ...

What is compared is in docs/speed.md. Naive runs take a sample of hypotheses. Ratios are medians
over the rounds; `difference` is the largest one between our numbers and the naive ones.
"""

import argparse
import statistics
from collections import defaultdict
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from measure import Rows, benchmark, load_model, median_ratio, rank_correlation, timed

import retrieval_interp as ri
from retrieval_interp.circuits import Scorer
from retrieval_interp.circuits.mechanisms import IDENTITY, UNIFORM, OneHot


def load(name: str, device: torch.device) -> tuple[Any, Any]:
    """A trained model, or `eight-heads`, which is not: that makes no difference to the work."""
    if name != "eight-heads":
        return load_model(name, str(device))
    task = ri.RetrievalTask(steps=3)
    return ri.build_model(ri.PRESETS["section7-ic-4"].model, task, 0, device).eval(), task


def hypotheses(found: Any, empty: ri.Circuit) -> list[tuple[ri.Circuit, float]]:
    """Circuits with their losses."""
    heads = [(empty.replace(head, m), loss) for (head, m), loss in found.heads.items()]
    return heads + [(empty.cut(row.path), row.live_loss) for row in found.paths]


@torch.no_grad()
def naive_loss(model: Any, task: Any, batch: ri.Batch, circuit: ri.Circuit) -> float:
    with ri.ablated(model, circuit, batch):
        return float(task.loss(model(batch.inputs), batch))


def in_a_circuit(model: Any, batch: ri.Batch, empty: ri.Circuit) -> list[ri.Circuit]:
    """A circuit of all heads, and those that differ from it in one head or one path."""
    mechanisms: dict[ri.Head, ri.Mechanism] = {}
    for layer, heads in enumerate(ri.mean_attention(model, batch)):
        for head, attention in enumerate(heads):
            strongest = [(dest, int(row.argmax())) for dest, row in enumerate(attention)]
            paths = [ri.RolePath(*pair) for pair in strongest if attention[pair] >= 0.1]
            mechanisms[ri.Head(layer, head)] = OneHot(tuple(paths)) if paths else UNIFORM
    whole = replace(empty, mechanisms=mechanisms)
    simpler = [whole.replace(head, m) for head in mechanisms for m in (UNIFORM, IDENTITY)]
    return [whole, *simpler, *(whole.without(path) for path in whole.paths())]


def compare(name: str, options: argparse.Namespace) -> Rows:
    """A row of the table."""
    model, task = load(name, options.device)
    batch = task.sample(options.examples, 0, options.device, split="test")
    empty = ri.parse_circuit([], task)
    times: dict[str, list[float]] = defaultdict(list)
    difference = 0.0

    def naively(key: str, chosen: list[tuple[ri.Circuit, float]]) -> None:
        nonlocal difference
        took, found = timed(lambda: [naive_loss(model, task, batch, c) for c, _ in chosen])
        times[key].append(took / len(chosen))
        difference = max(difference, *(abs(a - b) for a, (_, b) in zip(found, chosen)))

    for round_number in range(options.rounds):
        took, found = timed(lambda: ri.ablations(model, task, batch))
        every = hypotheses(found, empty)
        times["ours"].append(took / len(every))
        some = slice(round_number, None, max(1, len(every) // options.sample))
        naively("naive", every[some])
        scorer, circuits = Scorer(model, task, batch), in_a_circuit(model, batch, empty)
        scorer.losses(circuits[0], as_base=True)
        took, losses = timed(lambda loss=scorer.loss, of=circuits: list(map(loss, of)))
        times["in circuit"].append(took / len(circuits))
        naively("naive in circuit", list(zip(circuits, losses))[some])
    ms = {key: 1e3 * statistics.median(values) for key, values in times.items()}
    compared = ("naive", "ours"), ("naive in circuit", "in circuit")
    row = {"model": name, "hypotheses": len(every), "all s": len(every) * ms["ours"] / 1e3}
    row |= {f"{key} ms": value for key, value in ms.items()}
    row |= {f"{slow}/{fast}": median_ratio(times[slow], times[fast]) for slow, fast in compared}
    return [row | {"difference": difference}]


def estimates(name: str, options: argparse.Namespace) -> Rows:
    """One row per kind of estimate."""
    model, task = load(name, options.device)
    batch = task.sample(options.examples, 0, options.device, split="discovery")
    took, found = timed(lambda: ri.ablations(model, task, batch, least_attention=0.05))
    trials, losses = zip(*hypotheses(found, ri.parse_circuit([], task)))
    exact = [loss - found.intact_loss for loss in losses]

    def largest(effects: list[float]) -> set[int]:
        return set(sorted(range(len(exact)), key=effects.__getitem__)[-10:])

    def row(estimate: str, seconds: float, effects: list[float]) -> dict[str, Any]:
        shared = len(largest(exact) & largest(effects))
        return {
            "model": name,
            "hypotheses": len(trials),
            "estimate": estimate,
            "seconds": seconds,
            "rank correlation": rank_correlation(effects, exact),
            "of the largest ten": shared,
        }

    def estimated(draws: int) -> list[float]:
        attribution = ri.attribute(model, task, batch, draws=draws)
        return [attribution.estimate(trial).effect for trial in trials]

    curved = ri.attribute(model, task, batch[:1], draws=1).parts[0].of_outputs
    kinds = {"first order": 0, **{f"curvature, {n}": n for n in (1, 4, 16) if curved}}
    rows = (row(kind, *timed(partial(estimated, draws))) for kind, draws in kinds.items())
    return [row("exact", took, exact), *rows]


@benchmark(
    models=["small", "transformer-a", "eight-heads"],
    examples=128,
    rounds=3,
    sample=24,  # hypotheses run naively per round
    estimates=False,
    quick={"models": ["equations"], "examples": 8, "rounds": 1, "sample": 2},
)
def main(options: argparse.Namespace) -> Rows:
    one = estimates if options.estimates else compare
    return [row for name in options.models for row in one(name, options)]
