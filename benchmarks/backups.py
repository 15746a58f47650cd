"""How well do measures rank the heads that back up others? (docs/answers.md)

    python benchmarks/backups.py [--models built k-hop-7] [--json FILE]

A head is removed by zero ablation. It is a backup, and so are those that it stands in for, if
all heads of a set of two to four can be spared but for one of them, and all together cost at least
twice what they cost in sum (on examples other than those that decide). `built` models have two or
three copies of a head. All heads are ranked by

- `alone`: what removing the head costs; `estimated`: the same by gradients (`ri.attribute`);
- `one gone`: how much more it costs, at most, once another head is gone;
- `all gone`: how much more once all heads are gone that cost something alone (the growth of arXiv
  2607.01940), by two standard errors and 1% of what was learned; `all gone, estimated`: the same
  by gradients;
- `sets`: whether it is in one of the sets of which any one suffices (`ri.needed_paths`).

Numbers are areas under the ROC curve; 0.5 is chance.
"""

import argparse
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import pandas as pd
from measure import Rows, benchmark, load_model
from recovery import DIM, TOLERANCE, with_copies
from torch import Tensor

import retrieval_interp as ri
from examples.gpt2_names import roc_auc
from retrieval_interp.circuits import Circuit, Head, Scorer
from retrieval_interp.circuits.hooks import heads_of
from retrieval_interp.circuits.losses import standard_error
from retrieval_interp.circuits.mechanisms import OneHot
from retrieval_interp.circuits.tolerance import measure_uninformed, tolerance_of

LARGEST, COUNTS = 4, 0.01
Heads = frozenset[Head]
NONE = Heads()


class Removals:
    """Losses of a model without some heads, on some examples."""

    def __init__(self, model: Any, task: ri.Task, batch: ri.Batch):
        self.model, self.task, self.batch = model, task, batch
        self.scorer = Scorer(model, task, batch)
        self.losses: Callable[[Heads], Tensor] = cache(self._losses)
        self.intact = float(self.losses(NONE).mean())
        self.blind = measure_uninformed(model, task, batch, self.scorer.losses_by_example).loss

    def _losses(self, heads: Heads) -> Tensor:
        return self.scorer.losses_by_example(self.without(heads))

    def without(self, heads: Iterable[Head]) -> Circuit:
        return Circuit(dict.fromkeys(heads, OneHot()), len(self.task.role_names))

    def cost(self, heads: Heads) -> float:
        return float((self.losses(heads) - self.losses(NONE)).mean())

    def rises(self, heads: Iterable[Head], gone: Heads = NONE) -> dict[Head, Tensor]:
        """What removing each one more head costs, by example."""
        self.scorer.losses(self.without(gone), as_base=True)
        return {head: self.losses(gone | {head}) - self.losses(gone - {head}) for head in heads}

    def growths(self, heads: Iterable[Head], gone: Heads) -> dict[Head, Tensor]:
        """How much more it costs once others are gone."""
        alone, then = self.rises(heads), self.rises(heads, gone)
        return {head: then[head] - alone[head] for head in heads}


def areas(removals: Removals, backups: Heads, tolerance: float | None = None) -> dict[str, Any]:
    """A row: how well each measure ranks the heads of a model."""
    model, task, batch = removals.model, removals.task, removals.batch
    heads = heads_of(model)
    row: dict[str, Any] = {"heads": len(heads), "backups": len(backups)}
    if not 0 < len(backups) < len(heads):
        return row
    alone = removals.rises(heads)
    least = COUNTS * (removals.blind - removals.intact)
    costly = Heads(h for h in heads if alone[h].mean() > max(least, 2 * standard_error(alone[h])))
    by_pair = {other: removals.growths(heads, Heads({other})) for other in heads}
    intact = ri.attribute(model, task, batch)
    then = ri.attribute(model, task, batch, removals.without(costly))
    estimated = {head: intact.change(head, OneHot()).effect for head in heads}
    sets = ri.needed_paths(model, task, tolerance, len(batch))
    backing = {path.head for paths in sets if len(paths) > 1 for path in paths}
    measures = {
        "alone": means(alone),
        "estimated": estimated,
        "one gone": {
            head: max(means(growth)[head] for other, growth in by_pair.items() if other != head)
            for head in heads
        },
        "all gone": means(removals.growths(heads, costly)),
        "all gone, estimated": {
            head: then.change(head, OneHot()).effect - estimated[head] for head in heads
        },
        "sets": {head: float(head in backing) for head in heads},
    }
    return row | {name: roc_auc(scores, backups) for name, scores in measures.items()}


def means(losses: dict[Head, Tensor]) -> dict[Head, float]:
    return {head: float(of_examples.mean()) for head, of_examples in losses.items()}


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


def built(index: int, examples: int) -> dict[str, Any]:
    """A model with two or three copies of its first head, and distractors."""
    task = ri.RetrievalTask(steps=1 + index % 6, dim=DIM, tokens="unit")
    copies = 2 + index % 2
    first, made = with_copies(index, task, copies, n_heads=3, extras=True)
    copied = Heads(Head(first.layer, number) for number in range(copies))
    batch = task.sample(examples, index, split="validation")
    return areas(Removals(made.model, task, batch), copied, TOLERANCE)


def trained(name: str, examples: int) -> dict[str, Any]:
    """A model of few heads, of which all sets of up to four are removed."""
    model, task = load_model(name, "cpu")
    decide, confirm = (
        Removals(model, task, task.sample(examples, split=split))
        for split in ("validation", "test")
    )
    limit = tolerance_of(task, confirm.intact, confirm.blind)
    return areas(decide, spared_but_one(confirm, heads_of(model), limit))


def shown(rows: Rows) -> Rows:
    """Means over models of a kind."""
    usable = pd.DataFrame([row for row in rows if "alone" in row])
    means = usable.groupby("model", sort=False).mean().reset_index()
    means.insert(1, "models", usable.groupby("model", sort=False).size().to_list())
    return means.to_dict("records")


@benchmark(
    models=["built", "transformer-a", "transformer-b", "transformer-c", "k-hop-7"],
    examples=128,
    built=24,
    quick={"models": ["built"], "examples": 32, "built": 2},
    shown=shown,
)
def main(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name in options.models:
        if name == "built":
            for index in ri.progress_bar(range(options.built), "models"):
                yield {"model": name, **built(index, options.examples)}
        else:
            yield {"model": name, **trained(name, options.examples)}
