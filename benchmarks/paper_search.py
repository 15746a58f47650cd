"""The paper's search by hand (appendix E), done by a program, beside that of `ri.discover`.

    python benchmarks/paper_search.py [--models transformer-a ...] [--save FOLDER] [--json FILE]

1. A head's mean attention by role is what one would see in its maps.
2. It suggests uniform, identity and one-hot: the strongest source of every role that has more than
   half of the attention, or 0.3, or 0.1.
3. A head gets the simplest of these with which the loss stays below the paper's 0.05.
4. So do all heads; those that none of these could replace are tried again at the end.
5. The loss with all of them is measured on other examples.
6. So it is without each path, and with the first useful layer uniform.

The paper does not say whether a head that is done stays replaced while the others are tried. If not
(`alone`), nothing makes the loss of step 5 low. If so, the order matters: from the `first` layer on
heads are kept for what they enable in later ones, from the `last` layer on only for what they
bring.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from measure import benchmark, load_model

import retrieval_interp as ri
from retrieval_interp.circuits import Scorer
from retrieval_interp.circuits.mechanisms import IDENTITY, ORIGINAL, UNIFORM, Mechanism
from retrieval_interp.reproduce.evidence import worth_of
from retrieval_interp.storage.files import provenance, write_whole

READINGS = ("alone", "first", "last")


def simplest(
    head: ri.Head,
    circuit: ri.Circuit,
    seen: Iterable[Mechanism],
    loss: Callable[[ri.Circuit], float],
    limit: float,
) -> Mechanism:
    """The simplest mechanism of a head with which a circuit's loss is below a limit (step 3).

    That is uniform or identity, whichever loses less. Or it is the first of the one-hot maps that
    holds, without the paths that it can do without, the least harmful first.
    """

    def cost(mechanism: Mechanism) -> float:
        return loss(circuit.replace(head, mechanism))

    idle = min((UNIFORM, IDENTITY), key=cost)
    if cost(idle) < limit:
        return idle
    kept = next((one_hot for one_hot in seen if one_hot.paths and cost(one_hot) < limit), ORIGINAL)
    for path in sorted(kept.paths, key=lambda path: cost(kept.without(path))):
        fewer = kept.without(path)
        kept = fewer if fewer.paths and cost(fewer) < limit else kept
    return kept


def by_hand(model: Any, task: ri.Task, batch: ri.Batch, limit: float, reading: str) -> ri.Circuit:
    """The circuit of steps 1 to 4; a head that nothing can replace stays as it is."""
    starts = ri.Search(model, task, ri.SearchOptions(limit, len(batch), shared=False)).starts
    scorer, intact = Scorer(model, task, batch), ri.Circuit.empty(task)
    loss, circuit, before = cache(scorer.loss), intact, None
    heads = scorer.heads[::-1] if reading == "last" else scorer.heads
    while circuit != before:
        before = circuit
        for head in [head for head in heads if circuit[head] == ORIGINAL]:
            around = intact if reading == "alone" else circuit
            scorer.losses(around, as_base=True)
            seen = dict.fromkeys(start[head] for start in starts)
            circuit = circuit.replace(head, simplest(head, around, seen, loss, limit))
    return circuit


def row(model: Any, task: ri.Task, circuit: ri.Circuit, batch: ri.Batch) -> dict[str, Any]:
    """Steps 5 and 6."""
    worth = worth_of(Scorer(model, task, batch), circuit)
    return {
        "heads": len(worth.useful),
        "as they are": sum(circuit[head] == ORIGINAL for head in worth.useful),
        "paths": len(worth.ablated),
        "combined": worth.combined_loss,
        "first layer uniform": worth.first_uniform,
        "without": {str(path): loss for path, loss in worth.ablated.items()},
        "circuit": str(circuit).splitlines(),
    }


@benchmark(
    models=["transformer-a", "transformer-b", "transformer-c"],
    readings=list(READINGS),
    limit=0.05,
    examples=256,
    tested=512,
    save="",
    quick={"models": ["small"], "examples": 16, "tested": 16},
    shown=lambda rows: [dict(list(row.items())[:-2]) for row in rows],
)
def main(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for name in options.models:
        model, task = load_model(name, "cpu")
        batch = task.sample(options.examples, split="discovery")
        test = task.sample(options.tested, split="test")
        for reading in options.readings:
            circuit = by_hand(model, task, batch, options.limit, reading)
            if options.save:
                words = f"--models {name} --readings {reading} --save {options.save}"
                record = provenance(f"python benchmarks/paper_search.py {words}")
                file = Path(options.save) / f"{name}.{reading}.circuit.json"
                write_whole(file, circuit.to_json(record))
            yield {"model": name, "reading": reading, **row(model, task, circuit, test)}
