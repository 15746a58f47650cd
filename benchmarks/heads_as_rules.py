"""How many heads rules can replace, by cause and by resemblance (docs/language-models.md).

    python benchmarks/heads_as_rules.py

Hayes et al. (arXiv 2606.19317) replace heads by programs, those first whose pattern a program has
most of. Here each head is replaced by the rule that `ri.scan` finds most alike, in the order of what
that costs alone (`cause`), of how alike it is (`resemblance`), or at random. Controls replace the
same heads by nothing (`zero`), by `uniform` or by another rule, drawn at random (`wrong`).

Text is the documentation that comes with Python (`pydoc_data.topics`), the beginning of each topic
that shares no line with an earlier one. Half of the topics decide, the other half is measured.
"""

import argparse
import math
import random
from collections.abc import Sequence
from pydoc_data.topics import topics
from typing import Any

import torch
from measure import Rows, benchmark

import retrieval_interp as ri
from retrieval_interp.circuits import Circuit, Scorer
from retrieval_interp.circuits.attribution import rank_correlation
from retrieval_interp.circuits.mechanisms import IDENTITY, RULES, UNIFORM, Mechanism, OneHot
from retrieval_interp.circuits.runs.means import standard_error
from retrieval_interp.circuits.scan import next_token_task

LENGTH, SHUFFLES = 128, 100
SHARES, CONTROLS = (0.1, 0.25, 0.4, 0.5, 0.75, 1.0), (0.25, 0.4)


def beginnings(tokenizer: Any) -> list[list[int]]:
    """The first tokens of each topic, but of those that repeat another one."""
    found, seen = [], set[str]()
    for name in sorted(topics):
        ids = tokenizer(topics[name])["input_ids"][: LENGTH - 1]
        lines = {line for line in tokenizer.decode(ids).splitlines() if len(line) > 30}
        if len(ids) == LENGTH - 1 and not lines & seen:
            found.append([tokenizer.bos_token_id, *ids])
            seen |= lines
    return found


def opened(options: argparse.Namespace) -> tuple[Any, Any, ri.Task, ri.Batch]:
    """A model, what decides, and the task and the examples that are measured."""
    if options.model != "smollm2":
        checkpoint = ri.load_checkpoint(options.model)
        batch = checkpoint.task.sample(options.test, split="validation")
        return checkpoint.model, checkpoint.task, checkpoint.task, batch
    model = ri.smollm2()
    texts = beginnings(model.tokenizer)
    task = next_token_task(model, texts[1::2][: options.test], LENGTH)
    return model, texts[::2][: 2 * options.decide], task, task.whole()


def rank(shares: Sequence[float], costs: Sequence[float]) -> dict[str, float]:
    """Rank correlations of shares and costs, head by head and summed up in the order of shares."""
    ordered = sorted(range(len(shares)), key=lambda at: -shares[at])
    draw, summed = random.Random(0), []
    for each in [list(costs)] + [draw.sample(list(costs), len(costs)) for _ in range(SHUFFLES)]:
        sums = torch.tensor([each[at] for at in ordered], dtype=torch.double).cumsum(0).tolist()
        summed.append(rank_correlation([shares[at] for at in ordered], sums))
    shuffled = sum(summed[1:]) / SHUFFLES
    return {"by head": rank_correlation(shares, costs), "summed": summed[0], "shuffled": shuffled}


def rows(options: argparse.Namespace) -> Rows:
    """A row per circuit that is measured, one of correlations, and one per head."""
    model, given, task, batch = opened(options)
    found = ri.scan(
        model, given, examples=options.decide, tolerance=1e-9, progress=ri.progress_bar
    )  # no joint circuit keeps this tolerance, and none is looked at
    heads, cost = found.heads, {row.head: row.loss - found.intact_loss for row in found.heads}
    draw, scorer = random.Random(0), Scorer(model, task, batch)
    rules = [IDENTITY, UNIFORM, *(RULES if batch.tokens is not None else RULES[:2])]
    rule: dict[ri.Head, Mechanism] = {row.head: row.rule for row in heads}
    put: dict[str, dict[ri.Head, Mechanism]] = {
        "rule": rule,
        "zero": dict.fromkeys(rule, OneHot()),
        "uniform": dict.fromkeys(rule, UNIFORM),
        "wrong": {h: draw.choice([r for r in rules if r != own]) for h, own in rule.items()},
    }
    orders = {
        "cause": sorted(rule, key=lambda head: cost[head]),
        "resemblance": [row.head for row in sorted(heads, key=lambda row: -row.share)],
        "random": draw.sample(list(rule), len(rule)),
    }
    plan = [(order, "rule", share) for order in ("cause", "resemblance") for share in SHARES]
    plan += [("random", "rule", share) for share in CONTROLS]
    plan += [("cause", kind, share) for kind in ("zero", "uniform", "wrong") for share in CONTROLS]
    table, intact = Rows(), scorer.each(scorer.empty_circuit)
    for order, kind, share in ri.progress_bar(plan, "measuring circuits"):
        chosen = orders[order][: math.ceil(share * len(rule))]
        circuit = Circuit({head: put[kind][head] for head in chosen}, batch.roles.shape[-1])
        rise = scorer.each(circuit) - intact
        table.append({"order": order, "put in place": kind, "heads": len(chosen), **costs(rise)})
    table.append(rank([row.share for row in heads], list(cost.values())))
    kept = [{"head": f"{h.head}", "rule": f"{h.rule}", "share": h.share} for h in heads]
    return table + [row | {"cost": cost[h.head]} for row, h in zip(kept, heads)]


def costs(rise: torch.Tensor) -> dict[str, float]:
    """What a circuit costs on all examples, in nats and in perplexity, with standard errors."""
    mean, error = float(rise.mean()), standard_error(rise)
    more = math.exp(mean)
    return {
        "nats": mean,
        "+-": error,
        "perplexity, %": 100 * (more - 1),
        "+- %": 100 * more * error,
    }


own = {"model": "smollm2", "decide": 5, "test": 32}
quick = {"model": "equations", "decide": 8, "test": 8}
main = benchmark(__doc__, rows, own, quick, shown=lambda rows: [r for r in rows if "order" in r])

if __name__ == "__main__":
    main()
