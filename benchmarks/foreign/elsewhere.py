"""What the programs of this folder share: a table of what is found in models of others.

Weights are read from a path that the user gives. Tasks are written anew, with roles, from what the
authors say.
A circuit is found by `ri.discover` with its defaults and scored on 2,000 examples of the `test`
split. `holds` is what it promises, decided there: *yes* or *no* by two standard errors, else *not
clear*; a search that finds nothing promises nothing.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import retrieval_interp as ri
from retrieval_interp.circuits import Circuit
from retrieval_interp.circuits.tolerance import constant_losses

sys.path.append(str(Path(__file__).resolve().parent.parent))
from measure import benchmark, timed

from tests.built_by_hand import DrawnTask


class Foreign(DrawnTask):
    """The task of a model that others trained, and what is published about its heads.

    Each statement has a check of whether a circuit says the same.
    """

    title: str
    published: Sequence[tuple[str, Callable[[Circuit], bool]]]

    def model(self, path: Path) -> Any:
        """The model, from the path of a checked-out repository."""
        raise NotImplementedError

    def more(self, model: Any, circuit: Circuit) -> dict[str, Any]:
        """What else is measured."""
        return {}


def has(*lines: str) -> Callable[[Circuit], bool]:
    """Whether a circuit has one of some paths, carrying or needed by the model, or mechanisms."""

    def found(circuit: Circuit) -> bool:
        paths = [path.text(circuit.role_names) for path in circuit.every_path()]
        heads = [f"{head} {mechanism.kind}" for head, mechanism in circuit.mechanisms.items()]
        return not {*paths, *heads}.isdisjoint(lines)

    return found


def row(model: Any, task: Foreign, examples: int, tested: int, **options: Any) -> dict[str, Any]:
    """What is found in one model."""
    seconds, circuit = timed(lambda: ri.discover(model, task, examples=examples, **options))
    batch = task.sample(tested, split="test")
    score = ri.score_circuit(model, task, circuit, batch, controls=0)
    excess, error = score.combined_loss - score.intact_loss, score.excess_se
    allowed = score.limit - score.intact_loss
    holds = "no" if excess - 2 * error > allowed else "not clear"
    holds = "yes" if excess + 2 * error < allowed else holds
    agrees = {says: check(circuit) for says, check in task.published}
    print(f"\n{task.title}:\n{circuit}", file=sys.stderr)
    for says, same in agrees.items():
        print(f"published: {says}: {'agrees' if same else 'not so here'}", file=sys.stderr)
    return {
        "model": task.title,
        "intact": score.intact_loss,
        "constant": float(constant_losses(task, batch, model.cfg.d_vocab_out).mean()),
        "circuit": score.combined_loss,
        "excess": excess,
        "error": error,
        "kept": score.kept,
        "replaced": f"{len(circuit.mechanisms)} of {model.cfg.n_layers * model.cfg.n_heads}",
        "holds": holds if circuit.mechanisms else "found nothing",
        "agrees": f"{sum(agrees.values())} of {len(agrees)}",
        "seconds": seconds,
        **task.more(model, circuit),
    }


def command(tasks: list[Foreign]) -> Callable[..., None]:
    """The `main` of a program, which is given the path of a checked-out repository."""

    @benchmark(
        {"examples": 32, "tested": 64}, path="", models=[], examples=512, tested=2000, time=0
    )
    def run(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
        for task in tasks:
            if task.title in options.models or not options.models:
                model, time = task.model(Path(options.path)), options.time or None
                yield row(model, task, options.examples, options.tested, time=time)

    return run
