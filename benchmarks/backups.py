"""How well do measures rank the heads that back up others? (docs/answers.md)

    python benchmarks/backups.py [--models built k-hop-7 smollm2] [--json FILE]

A head is removed if it writes nothing. It is a backup, and so are those that it stands in for, if
all heads of a set of two to four can be spared but for one of them, and all together cost at least
twice what they cost in sum (on examples other than those that decide). `built` models have two or
three copies of a head. SmolLM2 has too many sets: there a head is a backup if it costs more, by two
standard errors and 1% of what was learned, once one or all of the first heads are gone, those that
`ri.why` finds. All heads are ranked by

- `alone`: what removing the head costs; `estimated`: the same by gradients (`ri.attribute`);
- `one gone`: how much more it costs once another head is gone (the most; in SmolLM2 a first one);
- `all gone`: how much more once all heads are gone that cost something alone (in SmolLM2, all
  first ones), the growth of arXiv 2607.01940; `all gone, estimated`: the same by gradients;
- `sets`: whether it is in one of the sets of which any one suffices (`ri.needed_paths`).

Numbers are areas under the ROC curve; 0.5 is chance.
"""

import argparse
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import pandas as pd
import torch
from measure import Rows, benchmark, load_model
from recovery import DIM, TOLERANCE

import retrieval_interp as ri
from examples.reach_the_bound import TOKEN, compile_circuit, split
from retrieval_interp.circuits import Circuit, Head, Scorer
from retrieval_interp.circuits.flow import causal_depth
from retrieval_interp.circuits.hooks import heads_of
from retrieval_interp.circuits.losses import standard_error
from retrieval_interp.circuits.mechanisms import OneHot
from retrieval_interp.circuits.tolerance import uninformed_loss
from tests.oracles import random_heads

LARGEST, COUNTS = 4, 0.01
Heads = frozenset[Head]
NONE = Heads()


class Removals:
    """Losses of a model without some heads, on some examples."""

    def __init__(self, model: Any, task: ri.Task, batch: ri.Batch):
        self.scorer = Scorer(model, task, batch)
        self.losses: Callable[[Heads], torch.Tensor] = cache(self._losses)
        blind = uninformed_loss(model, task, batch, self.scorer.losses_by_example)
        self.learned = blind.loss - float(self.losses(NONE).mean())

    def _losses(self, heads: Heads) -> torch.Tensor:
        return self.scorer.losses_by_example(without(heads, self.scorer.task))

    def cost(self, heads: Heads) -> float:
        return float((self.losses(heads) - self.losses(NONE)).mean())

    def costs(self, head: Head) -> bool:
        """Whether removing it alone costs two standard errors, and 1% of what was learned."""
        return clearly(self.rise(head), self.learned)

    def rise(self, head: Head, gone: Heads = NONE) -> torch.Tensor:
        """What removing one more head costs, by example."""
        return self.losses(gone | {head}) - self.losses(gone)


def clearly(more: torch.Tensor, learned: float) -> bool:
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


def measures(case: Case, heads: Sequence[Head]) -> dict[str, list[float]]:
    """The numbers by which heads are ranked."""
    model, task, batch, *_ = case
    removals = Removals(model, task, batch)
    first = case.first or Heads(head for head in heads if removals.costs(head))
    intact, rest = (
        ri.attribute(model, task, batch),
        ri.attribute(model, task, batch, without(first, task)),
    )

    def growth(head: Head, gone: Iterable[Heads]) -> float:
        return max(float((removals.rise(head, g) - removals.rise(head)).mean()) for g in gone)

    estimated = {head: intact.change(head, OneHot()).effect for head in heads}
    sets = ri.needed_paths(model, task, case.tolerance, len(batch), progress=ri.progress_bar)
    backing = {path.head for paths in sets if len(paths) > 1 for path in paths}
    return {
        "alone": [float(removals.rise(head).mean()) for head in heads],
        "estimated": [estimated[head] for head in heads],
        "one gone": [growth(h, [Heads({o}) for o in case.first or heads if o != h]) for h in heads],
        "all gone": [growth(head, [first - {head}]) for head in heads],
        "all gone, estimated": [rest.change(h, OneHot()).effect - estimated[h] for h in heads],
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
    usable = (r for r in draws if r[0].query == TOKEN and r[0].head == 0 and r[1].layer > 0)
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
    """Indirect objects in SmolLM2, and the heads that look from the first head's layer on."""
    model = ri.smollm2()
    task = ri.IndirectObjectTask(model.tokenizer)
    found = ri.why(
        model, task, upto="heads", examples=examples, controls=0, progress=ri.progress_bar
    )
    first = Heads(found.circuit.mechanisms)
    heads = Heads(head for head in heads_of(model) if head.layer >= min(first).layer)
    batch, others = (task.sample(examples, split=split) for split in ("validation", "test"))
    removals = Removals(model, task, others)

    def is_backup(head: Head) -> bool:
        gone = (first - {head}, *(Heads({one}) for one in first if one != head))
        rises = (removals.rise(head, others) - removals.rise(head) for others in gone)
        return any(clearly(rise, removals.learned) for rise in rises)

    backups = Heads(filter(is_backup, ri.progress_bar(sorted(heads), "removing heads")))
    return Case(model, task, batch, heads, backups, first)


def auc(scores: Sequence[float], true: Sequence[bool]) -> float:
    """The share of pairs of a true and another head that are ranked right; ties count half."""
    ranks, count = pd.Series(scores).rank(), sum(true)
    above = float(ranks[list(true)].sum()) - count * (count + 1) / 2
    return above / (count * (len(true) - count))


def areas(case: Case) -> dict[str, Any]:
    """A row: how well each measure ranks the heads."""
    heads = sorted(case.heads)
    true = [head in case.backups for head in heads]
    row: dict[str, Any] = {"heads": len(heads), "backups": sum(true)}
    if 0 < sum(true) < len(true):
        row |= {name: auc(scores, true) for name, scores in measures(case, heads).items()}
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
