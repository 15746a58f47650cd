"""The question of `ri.why` asked in other ways: how much has to be kept for 90%?

    python benchmarks/why_beside.py [--behaviours names repeated] [--examples 12]

- `attention`: heads that keep their own attention, as in `ri.why` (before it takes any away).
- `outputs`: heads that keep their own outputs; all others give those of the counterfactual prompt.
- `EAP`, `EAP-IG`: edges between embedding, heads, MLPs and output that keep what they bring in the
  run at hand; all others bring what they bring on the counterfactual prompt. Edge attribution
  patching (Syed et al., arXiv 2310.10348), with gradients of the prompt, or as a mean over 5 steps
  from the embeddings of the counterfactual to it (Hanna et al., arXiv 2403.17806).

Each ranks its units by estimates, and keeps the shortest beginning that recovers 90% of the logit
difference on examples that decide; `others` is what that recovers on other examples.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from measure import Rows, benchmark, shortest, timed
from torch import Tensor

import retrieval_interp as ri
from examples.four_answers import BEHAVIOURS
from retrieval_interp.circuits.counterfactual.units import SHARES, MetricTask
from retrieval_interp.circuits.hooks import run_model

KEEP, STEPS, WITHIN = 0.9, 5, 1 / 64
Hooks = list[tuple[str, Callable[..., Any]]]


class Asked:
    """Some examples, their counterfactual prompts, and the metric of both."""

    def __init__(self, model: Any, task: MetricTask, batch: Any, other: Any):
        self.model, self.task, self.batch, self.other = model, task, batch, other
        with torch.no_grad():
            self.intact, self.nothing = (float(self.each(of).mean()) for of in (batch, other))

    def each(self, batch: Any, hooks: Hooks | None = None) -> Tensor:
        with self.model.hooks(fwd_hooks=hooks or []):
            return self.task.metric(run_model(self.model, batch), self.batch)

    @torch.no_grad()
    def share(self, hooks: Hooks) -> float:
        """What is recovered with some hooks."""
        metric = float(self.each(self.batch, hooks).mean())
        return (metric - self.nothing) / (self.intact - self.nothing)

    @torch.no_grad()
    def noted(self, batch: Any, names: list[str]) -> list[Tensor]:
        """What passes these hook points."""
        found: list[Tensor] = []
        self.each(batch, [(name, lambda x, hook: found.append(x)) for name in names])
        return found

    def slopes(self, before: Hooks, names: list[str]) -> list[Tensor]:
        """The gradient of the metric by what passes these hook points, after other hooks."""
        leaves: list[Tensor] = []

        def add_leaf(x: Tensor, hook: Any) -> Tensor:
            leaves.append(torch.zeros_like(x, requires_grad=True))
            return x + leaves[-1]

        hooks = [*before, *((name, add_leaf) for name in names)]
        return list(torch.autograd.grad(self.each(self.batch, hooks).mean(), leaves))


class Heads(Asked):
    """Heads whose attention, or whose outputs before they are mixed, are kept."""

    def __init__(self, part: str, axis: int, *args: Any):
        super().__init__(*args)
        self.axis, self.passes = axis, len(SHARES)
        self.names = [f"blocks.{layer}.attn.{part}" for layer in range(self.model.cfg.n_layers)]
        self.others = self.noted(self.other, self.names)

    def estimates(self) -> list[Tensor]:
        """What each head brings, by layer."""
        return [torch.stack(found).mean(0) for found in zip(*map(self._brought, SHARES))]

    def _brought(self, share: float) -> list[Tensor]:
        changes: list[Tensor] = []

        def mix(x: Tensor, hook: Any) -> Tensor:
            other = self.others[hook.layer()]
            changes.append((x - other).detach())
            return torch.lerp(other, x, share)

        slopes = self.slopes([(name, mix) for name in self.names], self.names)
        products = [change * slope for change, slope in zip(changes, slopes)]
        return [product.movedim(self.axis, 0).flatten(1).sum(1) for product in products]

    def kept(self, heads: list[Tensor]) -> float:
        """What is recovered by keeping the marked ones, by layer."""

        def put(x: Tensor, hook: Any) -> Tensor:
            own, other = (each.movedim(self.axis, -1) for each in (x, self.others[hook.layer()]))
            return torch.where(heads[hook.layer()], own, other).movedim(-1, self.axis)

        return self.share([(name, put) for name in self.names])


class Edges(Asked):
    """Edges from what a node brings to what another one reads.

    Nodes that bring are the embedding, then each layer's heads and its MLP; those that read are
    each layer's queries, keys and values by head, its MLP, and the output.
    """

    def __init__(self, steps: int, *args: Any):
        super().__init__(*args)
        self.passes, before = steps, 1  # nodes
        self.sources = {"hook_embed": 0}
        self.readers: dict[str, int] = {}  # with how many nodes come before
        for layer in range(self.model.cfg.n_layers):
            block = f"blocks.{layer}"
            self.readers |= {f"{block}.attn.hook_{name}_input": before for name in "qkv"}
            self.sources[f"{block}.attn.hook_result"] = before
            before += self.model.cfg.n_heads
            self.readers[f"{block}.hook_mlp_in"] = self.sources[f"{block}.hook_mlp_out"] = before
            before += 1
        self.readers["ln_final.hook_in"] = before
        self.there, self.here = map(self._brought, (self.other, self.batch))
        self.read = self.noted(self.other, list(self.readers))

    def _brought(self, batch: Any) -> Tensor:
        """What every node brings, [node batch pos d_model]."""
        return torch.cat([_nodes(x) for x in self.noted(batch, list(self.sources))])

    def estimates(self) -> list[Tensor]:
        """What each edge brings, [head node] of every reader."""
        change, sums = (self.here - self.there).flatten(1), [torch.zeros(()) for _ in self.readers]
        for step in range(1, self.passes + 1):
            start = torch.lerp(self.there[0], self.here[0], step / self.passes)
            put: Hooks = [("hook_embed", lambda x, hook, start=start: start)]
            sums = [a + b for a, b in zip(sums, self.slopes(put, list(self.readers)))]
        means = [_nodes(slope / self.passes).flatten(1) for slope in sums]
        return [mean @ change[:n].T for mean, n in zip(means, self.readers.values())]

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
        return self.share(hooks)


def _nodes(x: Tensor) -> Tensor:
    """What each of a layer's heads brings or reads, or the whole, [node batch pos d_model]."""
    return x.detach()[None] if x.ndim == 3 else x.detach().movedim(2, 0)


def marked(estimates: list[Tensor], count: int) -> list[Tensor]:
    """The units with the largest estimates, as masks."""
    least = torch.cat([each.flatten() for each in estimates]).topk(count).values[-1]
    return [each >= least for each in estimates]


def of_method(method: str, model: Any, task: MetricTask, pairs: list[Any]) -> dict[str, Any]:
    """How many units there are and are kept, what they recover on others, passes, seconds."""
    deciding, telling = (WAYS[method](model, task, *pair) for pair in pairs)
    seconds, found = timed(deciding.estimates)
    total = sum(each.numel() for each in found)
    whole = deciding.kept(marked(found, total))
    if abs(whole - 1) > 1e-3:
        raise RuntimeError(f"{method}: everything kept recovers {whole:.4f}, not all")
    count = shortest(total, lambda n: deciding.kept(marked(found, n)) >= KEEP, WITHIN)
    row = {"units": total, "kept": count, "others": telling.kept(marked(found, count))}
    return row | {"passes": deciding.passes, "estimating": seconds}


def of_behaviour(name: str, options: argparse.Namespace, model: Any) -> Rows:
    make, counterfactual = BEHAVIOURS[name]
    plain, rows = make(model.tokenizer), Rows()
    other = counterfactual or plain.counterfactual
    batches = [plain.sample(options.examples, split=split) for split in ("discovery", "test")]
    pairs = [(batch, other(batch, 0)) for batch in batches]
    for method in WAYS:
        for what in ("split_qkv_input", "attn_result", "hook_mlp_in"):
            getattr(model, f"set_use_{what}")(method.startswith("EAP"))
        row = of_method(method, model, MetricTask(plain), pairs)
        rows.append({"behaviour": name, "method": method, **row})
    return rows


WAYS: dict[str, Callable[..., Any]] = {
    "attention": partial(Heads, "hook_pattern", 1),
    "outputs": partial(Heads, "hook_z", 2),
    "EAP": partial(Edges, 1),
    "EAP-IG": partial(Edges, STEPS),
}


@benchmark(behaviours=["names"], examples=12, quick={"behaviours": ["list"], "examples": 2})
def main(options: argparse.Namespace) -> Rows:
    model = ri.smollm2(device=str(options.device))
    return [row for name in options.behaviours for row in of_behaviour(name, options, model)]


if __name__ == "__main__":
    main()
