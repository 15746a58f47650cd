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
from measure import Rows, benchmark, timed
from torch import Tensor
from why_behaviours import BEHAVIOURS

import retrieval_interp as ri
from retrieval_interp.circuits.counterfactual.search import Recovery
from retrieval_interp.circuits.counterfactual.units import SHARES, MetricTask, estimate_units
from retrieval_interp.circuits.hooks import Hooked

KEEP, STEPS = 0.9, 5
COLUMNS = ("behaviour", "method", "units", "kept", "others", "passes", "estimating")


class Asked:
    """Some examples, their counterfactual prompts, and the metric of both."""

    def __init__(self, model: Any, task: MetricTask, batch: Any, other: Any):
        self.model, self.task, self.batch, self.other = model, task, batch, other
        self.layers = range(model.cfg.n_layers)
        with torch.no_grad():
            self.intact, self.nothing = (self.metric(each) for each in (batch, other))

    def metric(self, batch: Any, hooks: Any = ()) -> float:
        return float(self.each(batch, hooks).mean())

    def each(self, batch: Any, hooks: Any = ()) -> Tensor:
        with self.model.hooks(fwd_hooks=list(hooks)):
            return self.task.metric(Hooked(self.model).run(batch), self.batch)

    def share(self, metric: float) -> float:
        return (metric - self.nothing) / (self.intact - self.nothing)


class Outputs(Asked):
    """Heads whose outputs, before they are mixed, are kept."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.passes = len(SHARES)
        self.names = [f"blocks.{layer}.attn.hook_z" for layer in self.layers]
        self.others: list[Tensor] = []
        with torch.no_grad():
            note = [(name, lambda z, hook: self.others.append(z)) for name in self.names]
            self.metric(self.other, note)

    def estimates(self) -> list[Tensor]:
        """What each head brings, by layer."""
        return [torch.stack(found).mean(0) for found in zip(*map(self._slopes, SHARES))]

    def _slopes(self, share: float) -> list[Tensor]:
        changes, leaves = list[Tensor](), list[Tensor]()

        def mix(z: Tensor, hook: Any) -> Tensor:
            other = self.others[hook.layer()]
            changes.append((z - other).detach())
            leaves.append(torch.zeros_like(z, requires_grad=True))
            return torch.lerp(other, z, share) + leaves[-1]

        total = self.each(self.batch, [(name, mix) for name in self.names]).mean()
        slopes = torch.autograd.grad(total, leaves)
        return [(change * slope).sum((0, 1, 3)) for change, slope in zip(changes, slopes)]

    @torch.no_grad()
    def kept(self, heads: list[Tensor]) -> float:
        """What is recovered by keeping the marked ones, by layer."""

        def put(z: Tensor, hook: Any) -> Tensor:
            layer = hook.layer()
            return torch.where(heads[layer][:, None], z, self.others[layer])

        return self.share(self.metric(self.batch, [(name, put) for name in self.names]))


class Edges(Asked):
    """Edges from what a node brings to what another one reads.

    Nodes that bring are the embedding, then each layer's heads and its MLP; those that read are
    each layer's queries, keys and values by head, its MLP, and the output.
    """

    def __init__(self, steps: int, *args: Any):
        super().__init__(*args)
        heads = self.model.cfg.n_heads
        self.passes, self.per_layer = steps, heads + 1
        self.sources = [("hook_embed", 0)]
        self.readers: list[tuple[str, int]] = []  # with how many nodes come before
        for layer in self.layers:
            before, block = 1 + layer * self.per_layer, f"blocks.{layer}"
            self.sources += [(f"{block}.attn.hook_result", before)]
            self.sources += [(f"{block}.hook_mlp_out", before + heads)]
            self.readers += [(f"{block}.attn.hook_{name}_input", before) for name in "qkv"]
            self.readers += [(f"{block}.hook_mlp_in", before + heads)]
        self.readers += [("ln_final.hook_in", 1 + len(self.layers) * self.per_layer)]
        with torch.no_grad():
            self.there, self.read = self._noted(self.other)
            self.here, _ = self._noted(self.batch)

    def _noted(self, batch: Any) -> tuple[Tensor, list[Tensor]]:
        """What every node brings, [node batch pos d_model], and what is read."""
        brought, read = list[Tensor](), list[Tensor]()
        hooks: list[Any] = [
            (name, lambda x, hook: brought.extend(_nodes(x))) for name, _ in self.sources
        ]
        hooks += [(name, lambda x, hook: read.append(x)) for name, _ in self.readers]
        self.metric(batch, hooks)
        return torch.stack(brought), read

    def estimates(self) -> list[Tensor]:
        """What each edge brings, [head node] of every reader."""
        change, total = (self.here - self.there).flatten(1), None
        for step in range(1, self.passes + 1):
            leaves: list[Tensor] = []

            def add_leaf(x: Tensor, hook: Any, leaves: list[Tensor] = leaves) -> Tensor:
                leaves.append(torch.zeros_like(x, requires_grad=True))
                return x + leaves[-1]

            start = torch.lerp(self.there[0], self.here[0], step / self.passes)
            hooks = [("hook_embed", lambda x, hook, start=start: start)]
            hooks += [(name, add_leaf) for name, _ in self.readers]
            slopes = torch.autograd.grad(self.each(self.batch, hooks).mean(), leaves)
            found = [
                _by_head(slope).flatten(1) @ change[:before].T / self.passes
                for slope, (_, before) in zip(slopes, self.readers)
            ]
            total = found if total is None else [a + b for a, b in zip(total, found)]
        return total or []

    @torch.no_grad()
    def kept(self, edges: list[Tensor]) -> float:
        """What is recovered by keeping the marked ones, [head node] of every reader."""
        change = torch.zeros_like(self.there)
        places = dict(self.sources)

        def note(x: Tensor, hook: Any, name: str) -> None:
            nodes = torch.stack(_nodes(x))
            place = slice(places[name], places[name] + len(nodes))
            change[place] = nodes - self.there[place]

        def put(x: Tensor, hook: Any, number: int) -> Tensor:
            before, mask = self.readers[number][1], edges[number]
            brought = mask.to(change) @ change[:before].flatten(1)
            brought = brought.unflatten(1, change.shape[1:])
            moved = brought[0] if x.ndim == 3 else brought.movedim(0, 2)
            return self.read[number] + moved

        hooks: list[Any] = [
            (name, lambda x, hook, n=name: note(x, hook, n)) for name, _ in self.sources
        ]
        hooks += [
            (name, lambda x, hook, n=number: put(x, hook, n))
            for number, (name, _) in enumerate(self.readers)
        ]
        return self.share(self.metric(self.batch, hooks))


def _nodes(x: Tensor) -> list[Tensor]:
    """What each of a layer's heads brings, or the whole."""
    return [x.detach()] if x.ndim == 3 else list(x.detach().unbind(2))


def _by_head(x: Tensor) -> Tensor:
    return x[None] if x.ndim == 3 else x.movedim(2, 0)


def shortest(count: int, holds: Callable[[int], bool]) -> int:
    """How many of the first units do, by bisection."""
    low, high = 0, count
    while high - low > max(1, high // 64):
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def marked(estimates: list[Tensor], count: int) -> list[Tensor]:
    """The units with the largest estimates, as masks."""
    least = torch.cat([each.flatten() for each in estimates]).topk(count).values[-1]
    return [each >= least for each in estimates]


def of_behaviour(name: str, options: argparse.Namespace, model: Any) -> Rows:
    make, counterfactual = BEHAVIOURS[name]
    plain = make(model.tokenizer)
    task, other = MetricTask(plain), counterfactual or plain.counterfactual
    batches = [plain.sample(options.examples, split=split) for split in ("discovery", "test")]
    pairs = [(batch, other(batch, 0)) for batch in batches]
    deciding, telling = (
        Recovery(model, task, ri.with_counterfactual(model, *pair)) for pair in pairs
    )
    seconds, estimates = timed(lambda: estimate_units(model, task, deciding.batch, SHARES))
    ranked = estimates.units("heads")
    count = shortest(len(ranked), lambda n: deciding.kept(ranked[:n]).share >= KEEP)
    numbers = len(ranked), count, telling.kept(ranked[:count]).share, len(SHARES), seconds
    rows = [(name, "attention", *numbers)]
    switches = model.set_use_split_qkv_input, model.set_use_attn_result, model.set_use_hook_mlp_in
    for switch in switches:
        switch(True)
    for method in WAYS:
        rows.append((name, method, *of_method(method, model, task, pairs)))
    for switch in switches:
        switch(False)
    return [dict(zip(COLUMNS, row)) for row in rows]


def of_method(
    method: str, model: Any, task: MetricTask, pairs: list[tuple[Any, Any]]
) -> tuple[int, int, float, int, float]:
    """How many units there are and are kept, what they recover on others, passes, seconds."""
    deciding, telling = (WAYS[method](model, task, *pair) for pair in pairs)
    seconds, found = timed(deciding.estimates)
    total = sum(each.numel() for each in found)
    whole = deciding.kept(marked(found, total))
    if abs(whole - 1) > 1e-3:
        raise RuntimeError(f"{method}: everything kept recovers {whole:.4f}, not all")
    count = shortest(total, lambda n: deciding.kept(marked(found, n)) >= KEEP)
    return total, count, telling.kept(marked(found, count)), deciding.passes, seconds


WAYS: dict[str, Callable[..., Any]] = {
    "outputs": Outputs,
    "EAP": partial(Edges, 1),
    "EAP-IG": partial(Edges, STEPS),
}


def run(options: argparse.Namespace) -> Rows:
    model = ri.smollm2(device=str(options.device))
    return [row for name in options.behaviours for row in of_behaviour(name, options, model)]


main = benchmark(
    __doc__,
    run,
    {"behaviours": ["names"], "examples": 12},
    quick={"behaviours": ["list"], "examples": 2},
)

if __name__ == "__main__":
    main()
