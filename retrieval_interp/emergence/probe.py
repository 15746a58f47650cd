"""The paths of a circuit in the model of one training step (paper, section 9.1).

1. A `Probe` measures one model after another on the same examples: the mean attention of every path
   of the circuit, and what each path is worth at that step.
2. A path is worth the rise of the loss without it. *Live*: the path is cut in the intact model and
   later attention is recomputed. *Frozen*: the path is left out of the circuit with all the rest
   in place, as the paper does with the trained model (appendix E).

The paper measures attention alone. A path may have attention before anything reads what it brings,
and be worth something before it has most of the attention.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits import Circuit, HeadPath, Scorer, mean_attention
from retrieval_interp.circuits.attention import check_paths
from retrieval_interp.circuits.hooks.points import is_causal
from retrieval_interp.tasks import InputError, TrainingTask
from retrieval_interp.tasks.structured import from_data

Source = Literal["checkpoint", "watch"]
EXAMPLES = 32  # sequences, as in section 9.1
_DIGITS = 7  # decimal places in files


@dataclass(frozen=True)
class PathAtStep:
    """One path at one step.

    Attributes:
        attention: its mean attention, in [0, 1].
        live_losses: the loss of each asked symbol when the path is cut in the intact model and
            later attention is recomputed.
        frozen_losses: the loss of each asked symbol with the circuit in place except for this
            path; None for a path that only enables, which is not part of the circuit.
    """

    attention: float
    live_losses: tuple[float, ...]
    frozen_losses: tuple[float, ...] | None = None

    @property
    def live_loss(self) -> float:
        """Mean of `live_losses`."""
        return fmean(self.live_losses)

    @property
    def frozen_loss(self) -> float | None:
        """Mean of `frozen_losses`; None if the path only enables."""
        return None if self.frozen_losses is None else fmean(self.frozen_losses)


@dataclass(frozen=True)
class Snapshot:
    """A circuit's paths in the model of one step.

    Attributes:
        step: optimizer steps done.
        examples: how many examples of the test split were measured on.
        seed: of the examples.
        partial_losses: the intact model's loss of each asked symbol.
        combined_losses: the same with the whole circuit in place.
        paths: carrying paths first, then enabling ones, in the circuit's order.
        source: a checkpoint, or the log of `train --watch`.

    Raises:
        InputError: a number is not finite, or there is not one loss per asked symbol.
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

    def __post_init__(self) -> None:
        losses = [self.partial_losses, self.combined_losses]
        numbers = [at.attention for at in self.paths.values()]
        for at in self.paths.values():
            losses.append(at.live_losses)
            if at.frozen_losses is not None:
                losses.append(at.frozen_losses)
        numbers += [loss for row in losses for loss in row]
        if len({len(row) for row in losses}) > 1 or not all(map(math.isfinite, numbers)):
            raise InputError(
                f"step {self.step}: expected finite numbers everywhere, one loss per asked symbol"
            )

    def to_dict(self) -> dict[str, Any]:
        """As JSON data with 7 decimal places; `snapshot_from_dict` reads it back."""
        paths = {str(path): vars(at) for path, at in self.paths.items()}
        data: dict[str, Any] = _rounded({**vars(self), "paths": paths})
        return data


@dataclass(frozen=True)
class _Row:
    """A snapshot on disk, where paths are named by text."""

    step: int
    examples: int
    seed: int
    partial_losses: tuple[float, ...]
    combined_losses: tuple[float, ...]
    paths: dict[str, Any]
    source: Source = "checkpoint"


def paths_of(circuit: Circuit) -> tuple[HeadPath, ...]:
    """The paths to follow: carrying ones, then those that only enable."""
    return (*circuit.paths(), *circuit.enabling)


def check_has_paths(circuit: Circuit) -> None:
    """Refuse a circuit that has no paths to follow."""
    if not paths_of(circuit):
        raise InputError(
            "circuit: expected at least one path to follow through training (of a one-hot or "
            "shared head, or an enabling one), found none"
        )


class Probe:
    """Measures a circuit's paths in one model after another, on the same examples.

    Args:
        task: what the models are trained on.
        circuit: whose one-hot, shared and enabling paths are followed.
        examples: how many sequences of the test split (paper: 32).
        seed: of these sequences.
        device: where the models are.

    Raises:
        InputError: the circuit has no paths, or paths that the task or a causal model lacks.
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
        """The attention of every path in a model, and what the path is worth.

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
        by_role = mean_attention(model, self.batch)
        attention = {path: float(by_role[path.head][path.path]) for path in paths_of(circuit)}
        empty = Circuit({}, circuit.n_roles, circuit.task)
        intact = _by_symbol(scorer.base_losses)
        live = {path: _by_symbol(scorer.losses(empty.cut(path))) for path in paths_of(circuit)}
        scorer.rebase(circuit)
        combined = _by_symbol(scorer.base_losses)
        frozen = {
            path: _by_symbol(scorer.losses(circuit.without(path))) for path in circuit.paths()
        }
        paths = {
            path: PathAtStep(attention[path], losses, frozen.get(path))
            for path, losses in live.items()
        }
        return Snapshot(step, len(self.batch), self.seed, intact, combined, paths)


def _by_symbol(losses: Float[Tensor, "batch target"]) -> tuple[float, ...]:
    return tuple(losses.mean(dim=0).tolist())


def _rounded(value: Any) -> Any:
    """JSON data with rounded numbers, without keys that are None."""
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items() if part is not None}
    if isinstance(value, tuple):
        return [_rounded(part) for part in value]
    return round(value, _DIGITS) if isinstance(value, float) else value


def snapshot_from_dict(data: Any, circuit: Circuit, where: str) -> Snapshot:
    """Read what `Snapshot.to_dict` gave for a circuit; `where` names the data in errors.

    Raises:
        InputError: a number is missing or not finite, or the paths are not the circuit's.
    """
    row: _Row = from_data(_Row, data, where)
    names = {str(path): path for path in paths_of(circuit)}
    if list(row.paths) != list(names):
        raise InputError(
            f"{where}: expected the circuit's {len(names)} paths, found {list(row.paths)!s:.60}"
        )
    paths: dict[HeadPath, PathAtStep] = {
        names[name]: from_data(PathAtStep, at, f"{where}: {name}") for name, at in row.paths.items()
    }
    carrying = {path for path, at in paths.items() if at.frozen_losses is not None}
    if carrying != set(circuit.paths()):
        raise InputError(f"{where}: expected frozen_losses of the carrying paths, found others")
    with named(where):
        return Snapshot(**{**vars(row), "paths": paths})


@contextmanager
def named(where: str) -> Iterator[None]:
    """Put the place before the message of an error."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
