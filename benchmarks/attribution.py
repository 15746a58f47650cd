"""How well estimates rank hypotheses, by the exact losses, and what they take.

    python benchmarks/attribution.py [--models small transformer-a equations ...] [--examples 128]

Every path that has some attention is cut, and every head is replaced by uniform and by identity,
in the intact model. The rank correlation (Spearman) of the exact change of the loss with

(first order)     the gradient at the intact model;
(integrated, n)   its mean at n points on the straight line from the hypothesis to the intact model,
                  for each hypothesis by itself (as EAP-IG does for edges; a few examples, as each
                  takes n passes);
(curvature, n)    first order plus the curvature term, from n draws;
(logits)          first order of a logit difference in the place of the cross entropy.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch
from measure import arguments, machine, prepare, report
from torch import Tensor

from retrieval_interp.circuits import Circuit, Scorer, attribute
from retrieval_interp.circuits.attribution.estimates import Attribution, rank_correlation
from retrieval_interp.circuits.circuit import Head, HeadPath
from retrieval_interp.circuits.hooks.ablated import ablated
from retrieval_interp.circuits.hooks.points import is_causal, pattern_hook_name
from retrieval_interp.circuits.mechanisms import IDENTITY, UNIFORM
from retrieval_interp.circuits.runs.losses import mean_loss
from retrieval_interp.circuits.runs.mean_attention import mean_attention
from retrieval_interp.circuits.scores.control import allowed_paths
from retrieval_interp.storage.checkpoint import load_checkpoint
from retrieval_interp.tasks import Batch, EquationsTask, Task

DRAWS = (1, 4, 16)
STEPS = (5, 16)


def hypotheses(model: Any, task: Task, batch: Batch) -> list[Circuit]:
    """Every cut of a path with at least 0.05 of attention, and every head made idle."""
    attention = mean_attention(model, batch)
    empty = Circuit({}, len(task.role_names), task=task.to_dict())
    heads = [Head(la, h) for la in range(attention.shape[0]) for h in range(attention.shape[1])]
    paths = allowed_paths(batch, is_causal(model))
    cuts = [
        empty.cut(HeadPath(head, path))
        for head in heads
        for path in paths
        if attention[head][path] >= 0.05
    ]
    return [*cuts, *(empty.replace(head, m) for head in heads for m in (UNIFORM, IDENTITY))]


def integrated(model: Any, task: Task, batch: Batch, trial: Circuit, steps: int) -> float:
    """The mean slope of the loss on the line from a hypothesis's patterns to the model's own."""
    (head,) = trial.mechanisms
    name = pattern_hook_name(head.layer)
    shown: list[Tensor] = []
    with torch.no_grad(), ablated(model, trial, batch):
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


class LogitDifference(EquationsTask):
    """The equations, with the largest wrong logit minus the right one in the place of the loss."""

    def example_losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        logits, right = self._logits(outputs, batch), self._targets(batch)[..., None]
        wrong = logits.scatter(-1, right, -torch.inf).max(-1).values
        return (wrong - logits.gather(-1, right)[..., 0]).mean(dim=1)


def measure(name: str, examples: int, few: int, device: torch.device) -> list[dict[str, Any]]:
    checkpoint = load_checkpoint(name, device)
    model, task = checkpoint.model, checkpoint.task
    batch = task.sample(examples, 0, device, split="discovery")
    trials = hypotheses(model, task, batch)
    scorer = Scorer(model, task, batch)
    start = time.perf_counter()
    baseline = mean_loss(scorer.base_losses)
    exact = [scorer.loss(trial) - baseline for trial in trials]
    seconds = time.perf_counter() - start
    nothing = {"rank correlation": None, "of the largest ten": None}
    one = {"model": name, "estimate": "exact", "hypotheses": len(trials), "seconds": seconds}
    rows: list[dict[str, Any]] = [{**one, **nothing}]

    def row(what: str, effects: Sequence[float], took: float) -> None:
        top = set(sorted(range(len(exact)), key=exact.__getitem__)[-10:])
        found = set(sorted(range(len(exact)), key=effects.__getitem__)[-10:])
        rows.append(
            {
                "model": name,
                "estimate": what,
                "hypotheses": len(trials),
                "seconds": took,
                "rank correlation": rank_correlation(effects, exact),
                "of the largest ten": len(top & found),
            }
        )

    def passes(of: Task, draws: int) -> tuple[Attribution, float]:
        begun = time.perf_counter()
        attribution = attribute(model, of, batch, draws=draws)
        return attribution, begun

    for draws in (0, *DRAWS):
        attribution, begun = passes(task, draws)
        if draws and not attribution.has_curvature:
            break
        effects = [attribution.estimate(trial).effect for trial in trials]
        what = f"curvature, {draws}" if draws else "first order"
        row(what, effects, time.perf_counter() - begun)
    if isinstance(task, EquationsTask):
        attribution, begun = passes(LogitDifference(**vars(task)), 0)
        effects = [attribution.estimate(trial).effect for trial in trials]
        row("logits", effects, time.perf_counter() - begun)
    for steps in STEPS:
        begun = time.perf_counter()
        effects = [integrated(model, task, batch[:few], trial, steps) for trial in trials]
        row(f"integrated, {steps}", effects, time.perf_counter() - begun)
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--models", nargs="+", default=["small", "transformer-a", "equations"])
    parser.add_argument("--examples", type=int, default=128)
    parser.add_argument("--few", type=int, default=16, help="examples of integrated gradients")
    options = parser.parse_args(argv)
    device = prepare(options)
    if options.quick:
        options.models, options.examples, options.few = ["equations"], 8, 2
    rows = []
    for name in options.models:
        rows += measure(name, options.examples, options.few, device)
    report(rows, options, argv, machine=machine(device))


if __name__ == "__main__":
    main()
