"""How well do measures rank the heads that back up others? (docs/answers.md)

    python benchmarks/backups.py [--models built k-hop-7 smollm2] [--json FILE]

A head is removed by zero ablation. It is a backup, and so are those that it stands in for, if
all heads of a set of two to four can be spared but for one of them, and all together cost at least
twice what they cost in sum (on examples other than those that decide). `built` models have two or
three copies of a head. SmolLM2 has too many sets: there a head is a backup if it costs more, by two
standard errors and 1% of what was learned, once the first heads, those of `ri.why`, are gone.
All heads are ranked by

- `alone`: what removing the head costs; `estimated`: the same by gradients (`ri.attribute`);
- `one gone`: how much more it costs once another head is gone: the most, with the three that cost
  most alone in SmolLM2, and with any in the others;
- `all gone`: how much more once all first heads are gone, which in other models than SmolLM2 are
  those that cost something alone (the growth of arXiv 2607.01940); `all gone, estimated`: the same
  by gradients;
- `sets`: whether it is in one of the sets of which any one suffices (`ri.needed_paths`, `ri.why`).

Numbers are areas under the ROC curve; 0.5 is chance.
"""

import argparse
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import pandas as pd
from measure import Rows, benchmark, load_model
from recovery import DIM, TOLERANCE
from torch import Tensor

import retrieval_interp as ri
from examples.gpt2_names import roc_auc
from examples.reach_the_bound import TOKEN, compile_circuit, split
from retrieval_interp.circuits import Circuit, Head, Scorer
from retrieval_interp.circuits.flow import causal_depth
from retrieval_interp.circuits.hooks import heads_of
from retrieval_interp.circuits.losses import standard_error
from retrieval_interp.circuits.mechanisms import OneHot
from retrieval_interp.circuits.tolerance import uninformed_loss
from tests.random_heads import random_heads

LARGEST, COUNTS = 4, 0.01
Heads = frozenset[Head]
NONE = Heads()


class Removals:
    """Losses of a model without some heads, on some examples."""

    def __init__(self, model: Any, task: ri.Task, batch: ri.Batch):
        self.scorer = Scorer(model, task, batch)
        self.losses: Callable[[Heads], Tensor] = cache(self._losses)
        blind = uninformed_loss(model, task, batch, self.scorer.losses_by_example)
        self.learned = blind.loss - float(self.losses(NONE).mean())

    def _losses(self, heads: Heads) -> Tensor:
        return self.scorer.losses_by_example(without(heads, self.scorer.task))

    def cost(self, heads: Heads) -> float:
        return float((self.losses(heads) - self.losses(NONE)).mean())

    def rises(self, heads: Iterable[Head], gone: Heads = NONE) -> dict[Head, Tensor]:
        """What removing each one more head costs, by example."""
        self.scorer.rebase(without(gone, self.scorer.task))
        return {head: self.losses(gone | {head}) - self.losses(gone - {head}) for head in heads}

    def growths(self, heads: Iterable[Head], gone: Heads) -> dict[Head, Tensor]:
        """How much more it costs once others are gone."""
        alone, then = self.rises(heads), self.rises(heads, gone)
        return {head: then[head] - alone[head] for head in heads}


def clearly(more: Tensor, learned: float) -> bool:
    return bool(more.mean() > max(COUNTS * learned, 2 * standard_error(more)))


def without(heads: Iterable[Head], task: ri.Task) -> Circuit:
    return Circuit(dict.fromkeys(heads, OneHot()), len(task.role_names))


class Case(NamedTuple):
    """A model, the heads to rank, which of them are backups, and which were found first."""

    model: Any
    task: ri.Task
    batch: ri.Batch  # which decides
    heads: Heads
    backups: Heads
    first: Heads = NONE
    tolerance: float | None = None
    sets: Sequence[Sequence[ri.HeadPath]] | None = None  # of which any one suffices


def measures(case: Case, heads: Sequence[Head]) -> dict[str, list[float]]:
    """The numbers by which heads are ranked."""
    model, task, batch = case.model, case.task, case.batch
    removals = Removals(model, task, batch)
    alone = {head: float(rise.mean()) for head, rise in removals.rises(heads).items()}
    costly = Heads(h for h in heads if clearly(removals.rises([h])[h], removals.learned))
    first, others = case.first or costly, heads
    if case.first:
        others = sorted(case.first, key=lambda head: -alone[head])[:3]
    intact = ri.attribute(model, task, batch)
    then = ri.attribute(model, task, batch, without(first, task))
    estimated = {head: intact.change(head, OneHot()).effect for head in heads}
    grown = {head: float(g.mean()) for head, g in removals.growths(heads, first).items()}
    pairs = [(other, removals.growths(heads, Heads({other}))) for other in others]
    sets = case.sets
    if sets is None:
        sets = ri.needed_paths(model, task, case.tolerance, len(batch))
    backing = {path.head for paths in sets if len(paths) > 1 for path in paths}
    return {
        "alone": list(alone.values()),
        "estimated": list(estimated.values()),
        "one gone": [max(float(g[h].mean()) for o, g in pairs if o != h) for h in heads],
        "all gone": list(grown.values()),
        "all gone, estimated": [then.change(h, OneHot()).effect - estimated[h] for h in heads],
        "sets": [float(head in backing) for head in heads],
    }


def spared_but_one(removals: Removals, heads: Sequence[Head], limit: float) -> Heads:
    """The heads of all sets of 2 to 4 whose removal breaks the model, while that of no part does.

    They cost at least twice as much together as in sum, or small costs would merely add up.
    """
    breaking: list[Heads] = []
    for size in range(1, LARGEST + 1):
        for chosen in map(Heads, itertools.combinations(heads, size)):
            if not any(known <= chosen for known in breaking) and (
                removals.losses(chosen).mean() > limit
            ):
                breaking.append(chosen)
    standing_in = (
        chosen
        for chosen in breaking
        if removals.cost(chosen) > 2 * sum(removals.cost(Heads({head})) for head in chosen)
    )
    return NONE.union(*(chosen for chosen in standing_in if len(chosen) > 1))


def built(index: int, examples: int) -> Case:
    """A model with two or three copies of its first head, and distractors."""
    task = ri.RetrievalTask(steps=1 + index % 6, dim=DIM, tokens="unit")
    layers, copies = causal_depth(task.steps) + index % 3, 2 + index % 2
    seeds = itertools.count(1000 * index)
    draws = (random_heads(task, layers, seed, n_heads=3) for seed in seeds)
    usable = (
        r for r in draws if r[0].query == TOKEN and r[0].head == 0 and r[1].layer > r[0].layer
    )
    head, *others = next(usable)
    rules = [*split(head, range(1, copies)), *others]
    made = compile_circuit(rules, task, n_layers=layers, n_heads=3)
    heads = Heads(Head(layer, number) for layer in range(layers) for number in range(3))
    copied = Heads(Head(head.layer, number) for number in range(copies))
    batch = task.sample(examples, index, split="validation")
    return Case(made.model, task, batch, heads, copied, tolerance=TOLERANCE)


def trained(name: str, examples: int) -> Case:
    """A model of few heads, of which all sets of up to four are removed."""
    model, task = load_model(name, "cpu")
    batch, others = (task.sample(examples, split=split) for split in ("validation", "test"))
    heads, intact = heads_of(model), Circuit({}, len(task.role_names))
    limit = ri.score_circuit(model, task, intact, others, controls=0).tolerance
    backups = spared_but_one(Removals(model, task, others), heads, limit)
    return Case(model, task, batch, Heads(heads), backups)


def names(examples: int) -> Case:
    """Indirect objects in SmolLM2, and its heads from the layer of the first one on."""
    model = ri.smollm2()
    task = ri.IndirectObjectTask(model.tokenizer)
    found = ri.why(
        model, task, upto="heads", examples=examples, controls=0, progress=ri.progress_bar
    )
    first = Heads(unit.head for unit in found.levels[-1].units)
    heads = [head for head in heads_of(model) if head.layer >= min(first).layer]
    batch, others = (task.sample(examples, split=split) for split in ("validation", "test"))
    removals = Removals(model, task, others)
    grown = removals.growths(ri.progress_bar(heads, "removing heads"), first)
    backups = Heads(head for head, growth in grown.items() if clearly(growth, removals.learned))
    return Case(model, task, batch, Heads(heads), backups, first, sets=found.needed)


def areas(case: Case) -> dict[str, Any]:
    """A row: how well each measure ranks the heads."""
    heads = sorted(case.heads)
    row: dict[str, Any] = {"heads": len(heads), "backups": len(case.backups)}
    if 0 < len(case.backups) < len(heads):
        for name, scores in measures(case, heads).items():
            row[name] = roc_auc(dict(zip(heads, scores)), case.backups)
    return row


def shown(rows: Rows) -> Rows:
    """Means over models of a kind."""
    usable = pd.DataFrame([row for row in rows if "alone" in row])
    means = usable.groupby("model", sort=False).mean().reset_index()
    means.insert(1, "models", usable.groupby("model", sort=False).size().to_list())
    return means.to_dict("records")


@benchmark(
    models=["built", "transformer-a", "transformer-b", "transformer-c", "k-hop-7", "smollm2"],
    examples=128,
    built=24,
    prompts=16,
    quick={"models": ["built"], "examples": 32, "built": 2},
    shown=shown,
)
def main(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name in options.models:
        if name == "built":
            for index in ri.progress_bar(range(options.built), "models"):
                yield {"model": name, **areas(built(index, options.examples))}
        elif name == "smollm2":
            yield {"model": name, **areas(names(options.prompts))}
        else:
            yield {"model": name, **areas(trained(name, options.examples))}


if __name__ == "__main__":
    main()
