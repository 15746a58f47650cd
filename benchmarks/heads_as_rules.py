"""How many heads rules can replace, by cause and by resemblance (docs/language-models.md).

    python benchmarks/heads_as_rules.py [--programs golden_programs.py]

Hayes et al. (arXiv 2606.19317) replace heads by programs, the most alike first. Here the rule that
`ri.scan` finds takes a head's place, in the order of what that costs alone (`cause`), of the share
of attention that the rule has (`resemblance`), or at random. As controls, the same heads get no
attention, uniform, another rule, or their mean pattern. Text is Python's own documentation.
With `--programs`, functions `f(sentence, tokenizer) -> (name, matrix)` of a file are rules as well:
all that run on every text without other packages.
"""

import argparse
import ast
import math
import random
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from measure import Rows, benchmark, load_model, rank_correlation, shortest

import retrieval_interp as ri
from retrieval_interp.circuits import Circuit, Scorer
from retrieval_interp.circuits.losses import standard_error
from retrieval_interp.circuits.means import position_means
from retrieval_interp.circuits.mechanisms import IDENTITY, RULES, UNIFORM, Mechanism, OneHot
from retrieval_interp.circuits.scan import next_token_task

LENGTH, SHUFFLES, RISE = 128, 100, 15  # percent of perplexity, for which most are looked for
SHARES, CONTROLS = (0.1, 0.25, 0.4, 0.5, 0.75, 1.0), ("zero", "uniform", "wrong", "mean")


def beginnings(tokenizer: Any) -> list[list[int]]:
    """The first tokens of each topic, but of those that repeat another one."""
    found, seen = [], set[str]()
    for name in sorted(topics):
        ids = tokenizer(topics[name], add_special_tokens=False)["input_ids"][: LENGTH - 1]
        lines = {line for line in tokenizer.decode(ids).splitlines() if len(line) > 30}
        if len(ids) == LENGTH - 1 and not lines & seen:
            found.append([tokenizer.bos_token_id, *ids])
            seen |= lines
    return found


def opened(options: argparse.Namespace) -> tuple[Any, Any, ri.Task, ri.Batch]:
    """A model, what decides, and the task and the examples that are measured."""
    if options.model != "smollm2":
        model, own = load_model(options.model, "cpu")
        return model, own, own, own.sample(options.test, split="validation")
    model = ri.smollm2()
    read, texts = model.tokenizer, beginnings(model.tokenizer)
    decide, test = texts[::2][: 2 * options.decide], texts[1::2][-options.test :]
    if options.programs:  # which read the text
        decide, test = (
            [ids for ids in rows if read(read.decode(ids[1:]))["input_ids"] == ids]
            for rows in (decide, test)
        )
    task = next_token_task(model, test, LENGTH)
    return model, decide, task, task.whole()


def add_programs(path: Path, tokenizer: Any, texts: Sequence[Sequence[int]]) -> dict[str, int]:
    """Make the functions of a file rules; counts those that run, and the errors of the others."""
    names: dict[str, Any] = {}
    counts = {"programs": 0}
    for part in ast.parse(path.read_text()).body:
        is_function = isinstance(part, ast.FunctionDef)
        try:
            exec(compile(ast.Module([part], []), str(path), "exec"), names)
            if is_function:
                function = names[part.name]
                for ids in texts:
                    _, matrix = function(tokenizer.decode(ids[1:]), tokenizer)
                    if matrix.shape != (len(ids), len(ids)) or not (matrix >= 0).all():
                        raise ValueError
                counts["programs"] += 1
                ri.rule(f"{part.name}-{counts['programs']}", function, tokenizer)
        except Exception as error:  # whatever the code of others raises
            kind = type(error).__name__
            counts[kind] = counts.get(kind, 0) + is_function
    return counts


def correlations(shares: Sequence[float], costs: Sequence[float]) -> dict[str, float]:
    """Of shares and costs: head by head, and with costs summed up in the order of shares."""
    ordered = sorted(range(len(shares)), key=lambda at: -shares[at])
    draw, summed = random.Random(0), list[float]()
    for each in [list(costs), *(draw.sample(costs, len(costs)) for _ in range(SHUFFLES))]:
        sums = torch.tensor([each[at] for at in ordered], dtype=torch.double).cumsum(0).tolist()
        summed.append(rank_correlation([shares[at] for at in ordered], sums))
    found = {"by head": rank_correlation(shares, costs), "summed": summed[0]}
    return found | {"shuffled": sum(summed[1:]) / SHUFFLES}


@benchmark(
    model="smollm2",
    decide=5,
    test=24,
    programs="",
    quick={"model": "equations", "test": 8},
    shown=lambda rows: [row for row in rows if "heads" in row],
)
def main(options: argparse.Namespace) -> Rows:
    """A row per circuit that is measured, one of correlations, and one per head."""
    model, given, task, batch = opened(options)
    table = Rows()
    if options.programs:
        texts = [*given, *batch.inputs.tolist()]
        table.append(add_programs(Path(options.programs), model.tokenizer, texts))
    found = ri.scan(model, given, progress=ri.progress_bar, examples=options.decide)
    cost = {row.head: row.change.mean for row in found.heads}
    rule: dict[ri.Head, Mechanism] = {row.head: row.rule for row in found.heads}
    draw, known = random.Random(0), [IDENTITY, UNIFORM, *RULES[: 2 if batch.tokens is None else 4]]
    put: dict[str, dict[ri.Head, Mechanism]] = {
        "rule": rule,
        "zero": dict.fromkeys(rule, OneHot()),
        "uniform": dict.fromkeys(rule, UNIFORM),
        "wrong": {head: draw.choice([r for r in known if r != own]) for head, own in rule.items()},
        "mean": position_means(model, found.task.sample(options.decide)),
    }
    alike = sorted(found.heads, key=lambda row: -row.share)
    orders = {"cause": sorted(rule, key=cost.__getitem__), "resemblance": [r.head for r in alike]}
    orders["random"] = draw.sample([*rule], len(rule))
    plan = [(order, "rule", share) for order in ("cause", "resemblance") for share in SHARES]
    plan += [("random", "rule", share) for share in SHARES[1:3]]
    plan += [("cause", kind, share) for kind in CONTROLS for share in SHARES[1:3]]
    scorer = Scorer(model, task, batch)
    intact = scorer.losses_by_example(scorer.empty_circuit)

    def measured(order: str, kind: str, count: int) -> dict[str, Any]:
        chosen = orders[order][:count]
        circuit = Circuit({head: put[kind][head] for head in chosen}, batch.roles.shape[-1])
        rise = scorer.losses_by_example(circuit) - intact
        nats, error = float(rise.mean()), standard_error(rise)
        more, row = 100 * math.exp(nats), {"order, in place": f"{order}, {kind}", "heads": count}
        return row | {"nats": nats, "+-": error, "perplexity, %": more - 100, "+- %": more * error}

    for order, kind, share in ri.progress_bar(plan, "measuring circuits"):
        table.append(measured(order, kind, math.ceil(share * len(rule))))
    most = shortest(len(rule), lambda n: measured("cause", "rule", n)["perplexity, %"] > RISE) - 1
    table.append(measured("cause", "rule", most))
    table.append(correlations([row.share for row in found.heads], list(cost.values())))
    kept = [(f"{row.head}", f"{row.rule}", row.share, cost[row.head]) for row in found.heads]
    return table + [dict(zip(("head", "rule", "share", "cost"), each)) for each in kept]
