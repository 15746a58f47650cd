"""How well estimates rank heads by what they bring, at either end, for attention patching.

    python benchmarks/why_estimates.py [--models equations k-hop-7 smollm2 smollm2-repeated]

With all attention at P' + a (P - P'), P' being that on a counterfactual prompt, a backward pass
gives the gradient g of the metric by every pattern. The ways to estimate a head from it:

- `pattern`: the sum of (P - P') g, the one that `ri.why` uses, at one or the mean of several a. It
  puts the whole other pattern in place, as the correction of AtP* for queries and keys does
  (Kramar et al., arXiv 2403.00745).
- `scores`: the same from attention scores, linear through the softmax, which is AtP without it.
- `drops`: AtP*'s other correction: the mean of absolute estimates, with the gradient through one
  layer left out at a time.
- `temperature`: `pattern` with gradients through softmax at temperature 2 (GIM, arXiv 2505.17630).
- `fisher`: half the mean square of (P - P') g, g for a label drawn from what the model answers.
- `curvature`: half the mean square of (P - P') g, g for random signs of the answers' logits.

Estimates are compared (Spearman) with exact runs of the heads with the largest mean estimates:
removing one from the intact model, and restoring one where nothing else is kept. `sum` is that of
all heads' estimates as a share of what the counterfactual takes away: at a = 1 it tells a saturated
model, whose slopes say little. `top` is how many heads of the ranking recover 90%.
"""

import argparse
from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from measure import Rows, benchmark, load_model, rank_correlation, shortest, timed
from torch import Tensor

import retrieval_interp as ri
from examples.four_answers import BEHAVIOURS
from retrieval_interp.circuits.counterfactual.search import Recovery
from retrieval_interp.circuits.counterfactual.units import SHARES, MetricTask, Unit, estimate_units
from retrieval_interp.circuits.hooks import in_all_layers, run_model

MEAN = (0.1, 0.5, 0.9)
WAYS: list[tuple[str, tuple[float, ...]]] = [
    *(("pattern", at) for at in ((0.0,), (1.0,), (0.5,), MEAN, SHARES)),
    ("drops", (1.0,)),
    *product(("scores", "temperature", "fisher", "curvature"), ((1.0,), MEAN)),
]
TEMPERATURE = 2.0
Metric = Callable[[Tensor, Any], Tensor]


def gradients(
    model: Any, metric: Metric, batch: Any, share: float, temperature: float, dropped: int | None
) -> tuple[list[Tensor], list[Tensor]]:
    """Each layer's own pattern in the run, and the metric's gradient by the pattern in use."""
    own, leaves, entering = list[Tensor](), list[Tensor](), list[Tensor]()

    def mix(pattern: Tensor, hook: Any) -> Tensor:
        own.append(pattern.detach())
        leaves.append(torch.zeros_like(own[-1]).requires_grad_())
        softer = torch.softmax(pattern.clamp(min=1e-12).log() / temperature, -1)
        pattern = pattern.detach() + temperature * (softer - softer.detach())
        there = batch.counterfactual[hook.layer()].pattern
        return torch.lerp(there, pattern, share) + leaves[-1]

    def pass_by(stream: Tensor, hook: Any) -> Tensor:
        """What leaves a block, whose gradient does not go through it."""
        return entering[0] + (stream - entering[0]).detach()

    hooks = in_all_layers(model, "hook_pattern", mix)
    if dropped is not None:
        hooks.append((f"blocks.{dropped}.hook_resid_pre", lambda x, hook: entering.append(x)))
        hooks.append((f"blocks.{dropped}.hook_resid_post", pass_by))
    with model.hooks(fwd_hooks=hooks):
        total = metric(run_model(model, batch), batch).sum()
    return own, list(torch.autograd.grad(total, leaves, materialize_grads=True))


def estimate(way: str, at: tuple[float, ...], model: Any, task: Any, batch: Any) -> Tensor:
    """What every head brings, [layer head]."""
    squared = way in ("fisher", "curvature")
    metric: Metric = _drawn(way, task) if squared else MetricTask(task).metric
    layers: list[int | None] = list(range(model.cfg.n_layers)) if way == "drops" else [None]
    temperature = TEMPERATURE if way == "temperature" else 1.0
    found = []
    for share in at:
        for dropped in layers:
            own, slopes = gradients(model, metric, batch, share, temperature, dropped)
            rows = []
            for p, g, layer in zip(own, slopes, batch.counterfactual):
                other = layer.pattern
                change = p - other
                if way == "scores":
                    used = torch.lerp(other, p, share)
                    g = used * (g - (used * g).sum(-1, keepdim=True))
                    change = p.clamp(min=1e-12).log() - other.clamp(min=1e-12).log()
                each = (change * g).sum((-2, -1))  # [batch head]
                rows.append((each.square() / 2 if squared else each).mean(0))
            found.append(torch.stack(rows))
    estimates = torch.stack(found)
    return (estimates.abs() if way == "drops" else estimates).mean(0)


def _drawn(way: str, task: Any) -> Metric:
    """The log probability of a drawn answer, or the answers' logits with random signs."""
    draw = torch.Generator().manual_seed(0)

    def metric(outputs: Tensor, batch: Any) -> Tensor:
        vectors = batch.targets.is_floating_point()  # of whose answers all signs are alike
        if vectors:
            logits = task.answers(outputs, batch).flatten(1)
        elif hasattr(task, "logits"):
            logits = task.logits(outputs, batch).flatten(0, -2)
        else:  # of a text: of all acceptable answers
            logits = task._sides(outputs, batch).flatten(1)
        if vectors or way == "curvature":
            signs = torch.randint(2, logits.shape, generator=draw).to(logits) * 2 - 1
            return (logits * signs).nansum(-1)
        logits = logits.nan_to_num(-torch.inf)
        chosen = torch.multinomial(logits.detach().softmax(-1).cpu(), 1, generator=draw)
        return logits.log_softmax(-1).gather(-1, chosen.to(logits.device))[:, 0]

    return metric


def of_model(name: str, options: argparse.Namespace) -> Rows:
    model, task = load_model(name.removesuffix("-repeated"), str(options.device))
    counterfactual = None
    if task is None:
        make, counterfactual = BEHAVIOURS["repeated" if "-" in name else "names"]
        task = make(model.tokenizer)
    batch = task.sample(options.examples, 0, options.device, split="discovery")
    other = (counterfactual or task.counterfactual)(batch, 0)
    batch = ri.with_counterfactual(model, batch, other)
    recovery = Recovery(model, MetricTask(task), batch, "pattern")
    timings = [timed(lambda w=way: estimate(*w, model, task, batch)) for way in WAYS]
    estimates = estimate_units(model, recovery.scorer.task, batch, "pattern")
    ordered = estimates.heads.sum(0).mean(0)
    torch.testing.assert_close(timings[4][1], ordered, rtol=1e-3, atol=1e-4)
    order = ordered.abs().flatten().argsort(descending=True)[: options.heads].tolist()
    units = [Unit(recovery.heads[place]) for place in order]
    lost = [1 - recovery.without([unit]).share for unit in units]
    recovery.kept((), stay=True)
    restored = [recovery.kept([unit]).share for unit in units]

    def top(ranked: list[Unit]) -> int:
        return shortest(len(ranked), lambda n: recovery.kept(ranked[:n]).share >= 0.9)

    rows: Rows = []
    for (way, at), (seconds, found) in zip(WAYS, timings):
        flat = found.flatten()
        ranked = [Unit(recovery.heads[at]) for at in flat.argsort(descending=True).tolist()]
        estimates = flat[order].tolist()
        row = {"model": name, "estimate": way, "a": ", ".join(f"{share:g}" for share in at)}
        row["removals"] = rank_correlation(estimates, lost)
        row["restorings"] = rank_correlation(estimates, restored)
        row["sum"] = float(found.sum()) / recovery.gap
        row["top"] = top(ranked)
        row["passes"] = len(at) * (model.cfg.n_layers if way == "drops" else 1)
        rows.append(row | {"seconds": seconds})
    return rows


@benchmark(
    models=["equations", "k-hop-7", "smollm2", "smollm2-repeated"],
    examples=24,
    heads=100,
    quick={"models": ["equations"], "examples": 8, "heads": 4},
)
def main(options: argparse.Namespace) -> Rows:
    return [row for name in options.models for row in of_model(name, options)]


if __name__ == "__main__":
    main()
