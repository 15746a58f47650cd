"""How well estimates rank hypotheses, by the exact losses, and what they take.

    python benchmarks/attribution.py [--models small transformer-a equations ...] [--examples 128]

Every path that has at least 0.05 of attention is cut, and every head is replaced by uniform and by
identity, in the intact model. The rank correlation (Spearman) of the exact change of the loss with

(first order)     the gradient at the intact model;
(integrated, n)   its mean at n points on the straight line from the hypothesis to the intact model,
                  for each hypothesis separately (as EAP-IG does for edges; --few examples, since
                  each takes n passes);
(curvature, n)    first order plus the curvature term, from n draws.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import torch
from measure import Rows, benchmark, timed
from torch import Tensor

import retrieval_interp as ri
from retrieval_interp.circuits.attribution import rank_correlation

DRAWS = (1, 4, 16)
STEPS = (5, 16)


def integrated(model: Any, task: ri.Task, batch: ri.Batch, trial: ri.Circuit, steps: int) -> float:
    """The mean slope of the loss on the line from a hypothesis's patterns to the model's own."""
    (head,) = trial.mechanisms
    name = f"blocks.{head.layer}.attn.hook_pattern"
    shown: list[Tensor] = []
    with torch.no_grad(), ri.ablated(model, trial, batch):
        model.run_with_hooks(batch.inputs, fwd_hooks=[(name, lambda x, hook: shown.append(x))])
    (wanted,) = shown
    slopes = []
    for step in range(steps):
        share = torch.tensor((step + 0.5) / steps, requires_grad=True)

        def between(own: Tensor, hook: Any, share: Tensor = share) -> Tensor:
            moved = own.clone()
            moved[:, head.head] = own[:, head.head].lerp(wanted[:, head.head], share)
            return moved

        outputs = model.run_with_hooks(batch.inputs, fwd_hooks=[(name, between)])
        loss = task.example_losses(outputs, batch).mean()
        slopes.append(float(torch.autograd.grad(loss, share)[0]))
    return sum(slopes) / steps


def of_model(name: str, options: argparse.Namespace) -> Rows:
    """One row per kind of estimate."""
    checkpoint = ri.load_checkpoint(name, options.device)
    model, task = checkpoint.model, checkpoint.task
    batch = task.sample(options.examples, 0, options.device, split="discovery")
    took, found = timed(lambda: ri.ablations(model, task, batch, least=0.05))
    empty = ri.parse_circuit([], task)
    trials = [empty.cut(row.path) for row in found.paths]
    trials += [empty.replace(head, mechanism) for head, mechanism in found.heads]
    losses = [*(row.live_loss for row in found.paths), *found.heads.values()]
    exact = [loss - found.baseline_loss for loss in losses]
    one = {"model": name, "hypotheses": len(trials)}
    blank = {"rank correlation": None, "of the largest ten": None}
    rows: Rows = [{**one, "estimate": "exact", "seconds": took, **blank}]

    def largest(effects: Sequence[float]) -> set[int]:
        return set(sorted(range(len(exact)), key=effects.__getitem__)[-10:])

    def row(what: str, estimate: Callable[[], list[float]]) -> None:
        took, effects = timed(estimate)
        ranked = {
            "rank correlation": rank_correlation(effects, exact),
            "of the largest ten": len(largest(exact) & largest(effects)),
        }
        rows.append({**one, "estimate": what, "seconds": took, **ranked})

    def from_one_pass(draws: int) -> list[float]:
        attribution = ri.attribute(model, task, batch, draws=draws)
        return [attribution.estimate(trial).effect for trial in trials]

    row("first order", lambda: from_one_pass(0))
    if ri.attribute(model, task, batch[:1], draws=1).has_curvature:
        for draws in DRAWS:
            row(f"curvature, {draws}", lambda draws=draws: from_one_pass(draws))
    few = batch[: options.few]
    for steps in STEPS:
        row(
            f"integrated, {steps}",
            lambda steps=steps: [integrated(model, task, few, trial, steps) for trial in trials],
        )
    return rows


def rows(options: argparse.Namespace) -> Rows:
    return [row for name in options.models for row in of_model(name, options)]


main = benchmark(
    __doc__,
    rows,
    {"models": ["small", "transformer-a", "equations"], "examples": 128, "few": 16},
    quick={"models": ["equations"], "examples": 8, "few": 2},
)

if __name__ == "__main__":
    main()
