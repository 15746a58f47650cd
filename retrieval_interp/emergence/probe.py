"""The paths of a circuit in the model of one training step (paper, section 9.1).

1. A `Probe` measures one model after another on the same examples: the mean attention of every path
   of the circuit, and what each path is worth at that step.
2. A path is worth what the loss rises by without it. *Live*: the path is cut in the intact model
   and later attention computed anew. *Frozen*: the whole circuit is in place, and the path is left
   out of it, as the paper does with the trained model (appendix E).

The paper measures attention alone. A path may have its attention before anything reads what it
brings, and be worth something before it has most of the attention.
"""

import math
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from circuits import Circuit, HeadPath, Scorer, mean_attention
from circuits.attention import check_paths
from circuits.hooks.points import is_causal
from tasks import InputError, TrainingTask

Source = Literal["checkpoint", "watch"]
EXAMPLES = 32  # sequences, as in section 9.1
_DIGITS = 7  # after the point, in files


@dataclass(frozen=True)
class PathAtStep:
    """One path at one step.

    Attributes:
        attention: its mean attention, in [0, 1].
        live_losses: the loss of each asked symbol when it is cut in the intact model, later
            attention computed anew.
        frozen_losses: the same with the whole circuit in place but for this path; None for a path
            that only enables, which the circuit does without.
    """

    attention: float
    live_losses: tuple[float, ...]
    frozen_losses: tuple[float, ...] | None

    @property
    def live_loss(self) -> float:
        """The loss when it is cut in the intact model."""
        return fmean(self.live_losses)

    @property
    def frozen_loss(self) -> float | None:
        """The loss with the circuit in place but for this path; None if it only enables."""
        return None if self.frozen_losses is None else fmean(self.frozen_losses)


@dataclass(frozen=True)
class Snapshot:
    """A circuit's paths in the model of one step.

    Attributes:
        step: optimizer steps done.
        examples: how many examples of the test split were measured on.
        seed: of the examples.
        partial_losses: the intact model's loss on them, for each asked symbol.
        combined_losses: the same with the whole circuit in place.
        paths: carrying paths first, then enabling ones, in the circuit's order.
        source: a checkpoint, or the log that `train --watch` wrote.
    """

    step: int
    examples: int
    seed: int
    partial_losses: tuple[float, ...]
    combined_losses: tuple[float, ...]
    paths: dict[HeadPath, PathAtStep]
    source: Source = "checkpoint"

    @property
    def baseline_loss(self) -> float:
        """The intact model's loss."""
        return fmean(self.partial_losses)

    @property
    def combined_loss(self) -> float:
        """The loss with the whole circuit in place."""
        return fmean(self.combined_losses)

    def to_dict(self) -> dict[str, Any]:
        """As JSON data, to 7 decimal places; `snapshot_from_dict` reads it back."""
        rows = {}
        for path, at in self.paths.items():
            row: dict[str, Any] = {"attention": round(at.attention, _DIGITS)}
            row["live_losses"] = _rounded(at.live_losses)
            if at.frozen_losses is not None:
                row["frozen_losses"] = _rounded(at.frozen_losses)
            rows[str(path)] = row
        return {
            "step": self.step,
            "source": self.source,
            "examples": self.examples,
            "seed": self.seed,
            "partial_losses": _rounded(self.partial_losses),
            "combined_losses": _rounded(self.combined_losses),
            "paths": rows,
        }


def paths_of(circuit: Circuit) -> tuple[HeadPath, ...]:
    """The paths of a circuit that are followed: carrying ones, then those that only enable."""
    return (*circuit.paths(), *circuit.enabling)


def check_has_paths(circuit: Circuit) -> None:
    """Refuse a circuit in which there is nothing to follow.

    Raises:
        InputError: no head has paths, and none is listed as enabling.
    """
    if not paths_of(circuit):
        raise InputError(
            "circuit: expected at least one path to follow through training (of a one-hot or "
            "shared head, or an enabling one), found none"
        )


class Probe:
    """Measures a circuit's paths in one model after another, on the same examples.

    Args:
        task: what the models are trained on.
        circuit: its one-hot, shared and enabling paths are followed.
        examples: how many sequences (paper: 32).
        seed: which ones, of the test split.
        device: where the models are.

    Raises:
        InputError: a circuit without paths, or with paths that the task or a causal model lacks.
    """

    def __init__(
        self,
        task: TrainingTask,
        circuit: Circuit,
        examples: int = EXAMPLES,
        seed: int = 0,
        device: str | torch.device = "cpu",
    ):
        check_has_paths(circuit)
        self.task, self.circuit, self.seed = task, circuit, seed
        self.batch = task.sample(examples, seed, device, split="test")
        for path in paths_of(circuit):
            check_paths((path.path,), self.batch.roles, True, f"{path.head}: ")

    @torch.no_grad()
    def measure(self, model: Any, step: int) -> Snapshot:
        """What every path gets and is worth in a model.

        Args:
            model: a hooked model, unchanged afterwards.
            step: how many steps it was trained.

        Raises:
            InputError: the circuit does not fit the model, or the model's losses are not finite.
        """
        circuit = self.circuit
        circuit.check_fits(model.cfg.n_layers, model.cfg.n_heads)
        if not is_causal(model):
            raise InputError("emergence: expected a causal model, found one without a mask")
        scorer = Scorer(model, self.task, self.batch)
        attention = mean_attention(model, self.batch)
        empty = Circuit({}, circuit.n_roles, circuit.rest, circuit.task)
        intact = _by_symbol(scorer.base_losses)
        live = {path: _by_symbol(scorer.losses(empty.cut(path))) for path in paths_of(circuit)}
        scorer.rebase(circuit)
        combined = _by_symbol(scorer.base_losses)
        frozen = {
            path: _by_symbol(scorer.losses(circuit.without(path))) for path in circuit.paths()
        }
        return Snapshot(
            step,
            len(self.batch),
            self.seed,
            intact,
            combined,
            {
                path: PathAtStep(float(attention[path.head][path.path]), losses, frozen.get(path))
                for path, losses in live.items()
            },
        )


def _by_symbol(losses: Float[Tensor, "batch target"]) -> tuple[float, ...]:
    return tuple(losses.mean(dim=0).tolist())


def _rounded(losses: tuple[float, ...]) -> list[float]:
    return [round(loss, _DIGITS) for loss in losses]


def snapshot_from_dict(row: Any, circuit: Circuit, where: str) -> Snapshot:
    """Read what `Snapshot.to_dict` gave.

    Raises:
        InputError: a number is missing, or the paths are not the circuit's.
    """
    try:
        names = {str(path): path for path in paths_of(circuit)}
        if list(row["paths"]) != list(names):
            raise InputError(
                f"{where}: expected the circuit's {len(names)} paths, found "
                f"{list(row['paths'])!s:.60}"
            )
        carrying = set(circuit.paths())
        paths = {
            path: PathAtStep(
                _numbers([row["paths"][name]["attention"]])[0],
                _numbers(row["paths"][name]["live_losses"]),
                _numbers(row["paths"][name]["frozen_losses"]) if path in carrying else None,
            )
            for name, path in names.items()
        }
        step, examples, seed = (int(row[key]) for key in ("step", "examples", "seed"))
        partial, combined = _numbers(row["partial_losses"]), _numbers(row["combined_losses"])
        source: Source = "watch" if row.get("source") == "watch" else "checkpoint"
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{where}: expected what the paths of one step get and are worth, found {row!r:.60}"
        ) from None
    return Snapshot(step, examples, seed, partial, combined, paths, source)


def _numbers(values: Any) -> tuple[float, ...]:
    if not isinstance(values, list) or not values:
        raise ValueError("a loss for each asked symbol")
    numbers = tuple(map(float, values))
    if not all(map(math.isfinite, numbers)):
        raise ValueError("finite losses")
    return numbers
