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
from retrieval_interp.circuits.tolerance import tolerance_of, uninformed_loss

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
        self.blind = uninformed_loss(model, task, batch, self.scorer.losses_by_example).loss

    def _losses(self, heads: Heads) -> Tensor:
        return self.scorer.losses_by_example(self.without(heads))

    def without(self, heads: Iterable[Head]) -> Circuit:
        return Circuit(dict.fromkeys(heads, OneHot()), len(self.task.role_names))

    def cost(self, heads: Heads) -> float:
        return float((self.losses(heads) - self.losses(NONE)).mean())

    def rises(self, heads: Iterable[Head], gone: Heads = NONE) -> dict[Head, Tensor]:
        """What removing each one more head costs, by example."""
        self.scorer.rebase(self.without(gone))
        return {head: self.losses(gone | {head}) - self.losses(gone - {head}) for head in heads}

    def growths(self, heads: Iterable[Head], gone: Heads) -> dict[Head, Tensor]:
        """How much more it costs once others are gone."""
        alone, then = self.rises(heads), self.rises(heads, gone)
        return {head: then[head] - alone[head] for head in heads}

    def clear(self, rises: dict[Head, Tensor]) -> Heads:
        """The heads that cost clearly more."""
        least = COUNTS * (self.blind - self.intact)
        return Heads(h for h, r in rises.items() if r.mean() > max(least, 2 * standard_error(r)))


def areas(
    removals: Removals,
    heads: Sequence[Head],
    backups: Heads,
    first: Heads = NONE,
    tolerance: float | None = None,
    sets: Sequence[Sequence[ri.HeadPath]] | None = None,
) -> dict[str, Any]:
    """A row: how well each measure ranks the heads.

    Args:
        removals: on the examples that decide.
        heads: those that are ranked.
        backups: which of them are.
        first: the heads that were found first; by default those that cost something alone.
        tolerance: of the sets.
        sets: paths of which any one suffices, if they are known.
    """
    row: dict[str, Any] = {"heads": len(heads), "backups": len(backups)}
    if not 0 < len(backups) < len(heads):
        return row
    model, task, batch = removals.model, removals.task, removals.batch
    rises = removals.rises(heads)
    alone = {head: float(rise.mean()) for head, rise in rises.items()}
    gone = sorted(first, key=alone.__getitem__)[-3:] or heads
    first = first or removals.clear(rises)
    grown = removals.growths(heads, first)
    by_pair = {other: removals.growths(heads, Heads({other})) for other in gone}
    intact = ri.attribute(model, task, batch)
    then = ri.attribute(model, task, batch, removals.without(first))
    estimated = {head: intact.change(head, OneHot()).effect for head in heads}
    if sets is None:
        sets = ri.needed_paths(model, task, tolerance, len(batch))
    backing = {path.head for paths in sets if len(paths) > 1 for path in paths}
    measures = {
        "alone": alone,
        "estimated": estimated,
        "one gone": {
            head: max(float(growth[head].mean()) for o, growth in by_pair.items() if o != head)
            for head in heads
        },
        "all gone": {head: float(growth.mean()) for head, growth in grown.items()},
        "all gone, estimated": {
            head: then.change(head, OneHot()).effect - estimated[head] for head in heads
        },
        "sets": {head: float(head in backing) for head in heads},
    }
    return row | {name: roc_auc(scores, backups) for name, scores in measures.items()}


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
    removals = Removals(made.model, task, batch)
    return areas(removals, heads_of(made.model), copied, tolerance=TOLERANCE)


def trained(name: str, examples: int) -> dict[str, Any]:
    """A model of few heads, of which all sets of up to four are removed."""
    model, task = load_model(name, "cpu")
    decide, confirm = (
        Removals(model, task, task.sample(examples, split=split))
        for split in ("validation", "test")
    )
    heads = heads_of(model)
    limit = tolerance_of(task, confirm.intact, confirm.blind)
    return areas(decide, heads, spared_but_one(confirm, heads, limit))


def names(examples: int) -> dict[str, Any]:
    """Indirect objects in SmolLM2, and its heads from the layer of the first one on."""
    model = ri.smollm2()
    task = ri.IndirectObjectTask(model.tokenizer)
    found = ri.why(
        model, task, upto="heads", examples=examples, controls=0, progress=ri.progress_bar
    )
    first = Heads(unit.head for unit in found.levels[-1].units)
    heads = [head for head in heads_of(model) if head.layer >= min(first).layer]
    decide, confirm = (
        Removals(model, task, task.sample(examples, split=split))
        for split in ("validation", "test")
    )
    grown = confirm.growths(ri.progress_bar(heads, "removing heads"), first)
    return areas(decide, heads, confirm.clear(grown), first, sets=found.needed)


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
                yield {"model": name, **built(index, options.examples)}
        elif name == "smollm2":
            yield {"model": name, **names(options.prompts)}
        else:
            yield {"model": name, **trained(name, options.examples)}


if __name__ == "__main__":
    main()
