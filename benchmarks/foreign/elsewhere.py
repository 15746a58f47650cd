"""What the programs of this folder share: tasks drawn one by one, and a table of what is found.

Each program reads the weights of models that others trained, from a path that the user gives. Their
tasks are written anew, with roles, from what the authors say.

A circuit is found by `ri.discover` with its defaults and scored on 2,000 examples of the `test`
split. `holds` is what it promises, decided there: *yes* or *no* by two standard errors, else *not
clear*; a search that finds nothing promises nothing.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import retrieval_interp as ri
from retrieval_interp.circuits import Circuit, Scorer
from retrieval_interp.circuits.runs.means import standard_error
from retrieval_interp.circuits.scores.scorer import (
    Bar,
    constant_loss,
    kept_share,
    uninformed_loss,
)
from retrieval_interp.tasks import Split

sys.path.append(str(Path(__file__).resolve().parent.parent))
from measure import Rows, benchmark, timed

Example = tuple[list[int], list[int], list[list[int]]]  # tokens, targets, roles by chain


class ForeignTask(ri.Task):
    """Examples drawn one by one, scored by the cross entropy at some positions.

    Subclasses say which positions are `asked` and `draw` an example: its tokens, one target for
    every asked position, and for every chain the position of each role, -1 where it is absent.
    """

    loss_name = "cross entropy"
    asked: Sequence[int]

    def draw(self, rng: Random) -> Example:
        raise NotImplementedError

    def sample(self, n: int, seed: int = 0, device: Any = "cpu", split: Split = "train",
               start: int = 0) -> ri.Batch:  # fmt: skip
        drawn = [self.draw(Random(f"{seed} {split} {start + number}")) for number in range(n)]
        tokens, targets, roles = (torch.tensor(part) for part in zip(*drawn))
        return ri.Batch(tokens, targets, roles).to(device)

    def example_losses(self, outputs: Tensor, batch: ri.Batch) -> Tensor:
        outputs = outputs[:, list(self.asked)]
        losses = F.cross_entropy(outputs.flatten(0, 1), batch.targets.flatten(), reduction="none")
        return losses.view(batch.targets.shape).mean(dim=1, keepdim=True)


class Foreign(NamedTuple):
    """A model, its task, and what is published about its heads.

    Each statement has a check of whether a circuit says the same.
    """

    name: str
    model: Any
    task: ForeignTask
    published: dict[str, Callable[[Circuit], bool]]


def has(*paths: str) -> Callable[[Circuit], bool]:
    """Whether a circuit names one of some paths, as carrying or as needed by the model."""
    return lambda circuit: any(
        path.text(circuit.role_names) in paths for path in circuit.every_path()
    )


def row(found: Foreign, examples: int, tested: int, **options: Any) -> dict[str, Any]:
    """What is found in one model."""
    model, task = found.model, found.task
    seconds, circuit = timed(lambda: ri.discover(model, task, examples=examples, **options))
    batch = task.sample(tested, split="test")
    scorer = Scorer(model, task, batch)
    intact, losses = scorer.base_losses.mean(dim=1), scorer.losses(circuit).mean(dim=1)
    nothing = uninformed_loss(model, task, batch, scorer.each)
    above = Bar(task, intact, nothing.loss, None).side(losses)
    holds = {True: "no", False: "yes", None: "not clear"}[above]
    agrees = {says: check(circuit) for says, check in found.published.items()}
    print(f"\n{found.name}:\n{circuit}", file=sys.stderr)
    for says, same in agrees.items():
        print(f"published: {says}: {'agrees' if same else 'not so here'}", file=sys.stderr)
    return {
        "model": found.name,
        "intact": float(intact.mean()),
        "constant": constant_loss(task, batch, model.cfg.d_vocab_out),
        "uninformed": nothing.loss,
        "circuit": float(losses.mean()),
        "excess": float((losses - intact).mean()),
        "error": standard_error(losses - intact),
        "kept": kept_share(float(losses.mean()), float(intact.mean()), nothing.loss),
        "replaced": f"{len(circuit.mechanisms)} of {model.cfg.n_layers * model.cfg.n_heads}",
        "holds": holds if circuit.mechanisms else "found nothing",
        "agrees": f"{sum(agrees.values())} of {len(agrees)}",
        "seconds": seconds,
        "unfinished": circuit.unfinished,
    }


def main(
    description: str | None, models: Callable[[Path], dict[str, Callable[[], Foreign]]]
) -> None:
    """Run one of the programs, which are given the path of a checked-out repository."""

    def rows(options: argparse.Namespace) -> Rows:
        known, more = models(options.path), {"restarts": 1 if options.quick else 4}
        more["time"] = options.time or None
        names = options.models or list(known)
        return [row(known[name](), options.examples, options.tested, **more) for name in names]

    benchmark(
        description,
        rows,
        {"path": Path, "models": [], "examples": 512, "tested": 2000, "time": 0},
        quick={"examples": 32, "tested": 64},
    )()
