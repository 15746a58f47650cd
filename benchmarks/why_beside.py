"""The question of `ri.why` asked in other ways: how much has to be kept for 90%?

    python benchmarks/why_beside.py [--behaviours names capital] [--examples 12]

Heads keep what they write, all others write what they do on the counterfactual prompt. They are
ranked by `slopes` of what they write, as in `ri.why` before it takes any away. Edges between
embedding, heads, MLPs and output keep what they bring in the run at hand, all others bring what
they bring on the counterfactual prompt; they are ranked by EAP (edge attribution patching, Syed et
al., arXiv 2310.10348, with gradients of the prompt) or EAP-IG (a mean over 5 steps from the
embeddings of the counterfactual to it, Hanna et al., arXiv 2403.17806).

`kept` is the shortest beginning of the ranking that recovers 90% of the logit difference on
examples that decide, `others` what that recovers on other examples. There, too, the two numbers of
MIB (Mueller et al., arXiv 2504.13151): CPR is the area under what is recovered by the share of
units kept, CMD the area between that and 1.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from measure import benchmark, shortest, timed
from torch import Tensor

import retrieval_interp as ri
from examples.answers import BEHAVIOURS
from retrieval_interp.circuits.counterfactual.keep_search import Recovery
from retrieval_interp.circuits.counterfactual.units import ALPHAS, MetricTask, Unit, estimate_units
from retrieval_interp.circuits.hooks import run_model

KEPT = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # as in MIB, and none
KEEP, STEPS, WITHIN = 0.9, 5, 1 / 64
Hooks = list[tuple[str, Callable[..., Any]]]


class Heads:
    """Heads that keep what they write."""

    passes = len(ALPHAS)

    def __init__(self, model: Any, task: MetricTask, batch: Any, other: Any):
        self.model, self.task = model, task
        self.recovery = Recovery(model, task, ri.with_counterfactual(model, batch, other))

    def estimates(self) -> list[Tensor]:
        """What each head brings, by layer."""
        batch = self.recovery.batch
        return [*estimate_units(self.model, self.task, batch).heads.sum(0).mean(0)]

    def kept(self, heads: list[Tensor]) -> float:
        """What is recovered by keeping the marked ones, by layer."""
        places = torch.stack(heads).nonzero().tolist()
        return self.recovery.kept([Unit(ri.Head(*place)) for place in places]).share


class Edges:
    """Edges from what a node brings to what another one reads.

    Nodes that bring are the embedding, then each layer's heads and its MLP; those that read are
    each layer's queries, keys and values by head, its MLP, and the output.
    """

    def __init__(self, steps: int, model: Any, task: MetricTask, batch: Any, other: Any):
        self.model, self.task, self.batch = model, task, batch
        self.recovery = Recovery(model, task, ri.with_counterfactual(model, batch, other))
        self.passes, before = steps, 1  # nodes
        self.sources = {"hook_embed": 0}
        self.readers: dict[str, int] = {}  # with how many nodes come before
        for layer in range(model.cfg.n_layers):
            block = f"blocks.{layer}"
            self.readers |= {f"{block}.attn.hook_{name}_input": before for name in "qkv"}
            self.sources[f"{block}.attn.hook_result"] = before
            before += model.cfg.n_heads
            self.readers[f"{block}.hook_mlp_in"] = self.sources[f"{block}.hook_mlp_out"] = before
            before += 1
        self.readers["ln_final.hook_in"] = before
        self.there, self.here = (
            torch.cat([_nodes(x) for x in self.noted(of, self.sources)]) for of in (other, batch)
        )  # what every node brings, [node batch pos d_model]
        self.read = self.noted(other, self.readers)

    def metric(self, batch: Any, hooks: Hooks) -> Tensor:
        with self.model.hooks(fwd_hooks=hooks):
            return self.task.metric(run_model(self.model, batch), self.batch)

    @torch.no_grad()
    def noted(self, batch: Any, names: Iterable[str]) -> list[Tensor]:
        """What passes these hook points."""
        passed: list[Tensor] = []
        self.metric(batch, [(name, lambda x, hook: passed.append(x)) for name in names])
        return passed

    def estimates(self) -> list[Tensor]:
        """What each edge brings, [head node] of every reader."""
        leaves: list[Tensor] = []

        def add_leaf(x: Tensor, hook: Any) -> Tensor:
            leaves.append(torch.zeros_like(x, requires_grad=True))
            return x + leaves[-1]

        change, sums = (self.here - self.there).flatten(1), [torch.zeros(()) for _ in self.readers]
        for step in range(1, self.passes + 1):
            start = torch.lerp(self.there[0], self.here[0], step / self.passes)
            hooks: Hooks = [("hook_embed", lambda x, hook, start=start: start)]
            leaves.clear()
            metric = self.metric(self.batch, [*hooks, *((name, add_leaf) for name in self.readers)])
            sums = [a + b for a, b in zip(sums, torch.autograd.grad(metric.mean(), leaves))]
        means = [_nodes(slope / self.passes).flatten(1) for slope in sums]
        return [mean @ change[:n].T for mean, n in zip(means, self.readers.values())]

    @torch.no_grad()
    def kept(self, edges: list[Tensor]) -> float:
        """What is recovered by keeping the marked ones, [head node] of every reader."""
        change = torch.zeros_like(self.there)

        def note(first: int, x: Tensor, hook: Any) -> None:
            place = slice(first, first + len(_nodes(x)))
            change[place] = _nodes(x) - self.there[place]

        def put(before: int, read: Tensor, mask: Tensor, x: Tensor, hook: Any) -> Tensor:
            brought = mask.to(change) @ change[:before].flatten(1)
            brought = brought.unflatten(1, change.shape[1:])
            return read + (brought[0] if x.ndim == 3 else brought.movedim(0, 2))

        hooks: Hooks = [(name, partial(note, first)) for name, first in self.sources.items()]
        for (name, before), read, mask in zip(self.readers.items(), self.read, edges):
            hooks.append((name, partial(put, before, read, mask)))
        return self.recovery.share(self.metric(self.batch, hooks)).share


def _nodes(x: Tensor) -> Tensor:
    """What each of a layer's heads brings or reads, or the whole, [node batch pos d_model]."""
    return x.detach()[None] if x.ndim == 3 else x.detach().movedim(2, 0)


def marked(estimates: list[Tensor], count: int) -> list[Tensor]:
    """The units with the largest estimates, as masks."""
    values = torch.cat([each.flatten() for each in estimates]).sort(descending=True).values
    least = values[count - 1] if count else torch.inf
    return [each >= least for each in estimates]


def areas(asked: Any, estimates: list[Tensor], total: int) -> dict[str, float]:
    """CPR and CMD."""
    kept = torch.tensor([asked.kept(marked(estimates, round(share * total))) for share in KEPT])
    shares, lost = torch.tensor(KEPT), (1 - kept).abs()
    return {name: float(torch.trapezoid(y, shares)) for name, y in (("CPR", kept), ("CMD", lost))}


def of_method(way: str, model: Any, task: MetricTask, pairs: list[Any]) -> dict[str, Any]:
    """How many units there are and are kept, what they recover on others, passes, seconds."""
    deciding, telling = (WAYS[way](model, task, *pair) for pair in pairs)
    seconds, estimates = timed(deciding.estimates)
    total = sum(each.numel() for each in estimates)
    whole = deciding.kept(marked(estimates, total))
    if abs(whole - 1) > 1e-3:
        raise RuntimeError(f"{way}: everything kept recovers {whole:.4f}, not all")
    count = shortest(total, lambda n: deciding.kept(marked(estimates, n)) >= KEEP, WITHIN)
    row = {"units": total, "kept": count, "others": telling.kept(marked(estimates, count))}
    row |= areas(telling, estimates, total)
    return row | {"passes": deciding.passes, "estimating": seconds}


def of_behaviour(name: str, options: argparse.Namespace, model: Any) -> Iterator[dict[str, Any]]:
    task = BEHAVIOURS[name](model.tokenizer)
    batches = [task.sample(options.examples, split=split) for split in ("discovery", "test")]
    pairs = [(batch, task.counterfactual(batch, 0)) for batch in batches]
    for way in WAYS:
        for what in ("split_qkv_input", "attn_result", "hook_mlp_in"):
            getattr(model, f"set_use_{what}")("edges" in way)
        row = of_method(way, model, MetricTask(task), pairs)
        yield {"behaviour": name, "ranked by": way, **row}


WAYS: dict[str, Callable[..., Any]] = {
    "slopes": Heads,
    "EAP, edges": partial(Edges, 1),
    "EAP-IG, edges": partial(Edges, STEPS),
}


@benchmark(behaviours=["names"], examples=12, quick={"behaviours": ["capital"], "examples": 2})
def main(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    model = ri.smollm2(device=str(options.device))
    return (row for name in options.behaviours for row in of_behaviour(name, options, model))
