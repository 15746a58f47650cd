"""The paths of a circuit in the model of one training step (paper, section 9.1).

1. A `Probe` measures one model after another on the same examples: the mean attention of every path
   of the circuit, and what each path is worth at that step.
2. A path is worth what the loss rises by without it. *Live*: the path is cut in the intact model
   and later attention computed anew. *Frozen*: the whole circuit is in place, and the path is left
   out of it, as the paper does with the trained model (appendix E).

The paper measures attention alone. A path may have its attention before anything reads what it
brings, and be worth something before it has most of the attention.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from circuits import Circuit, HeadPath, Scorer, mean_attention
from circuits.ablation import is_causal
from circuits.mechanisms import check_paths
from circuits.scoring import mean_loss
from tasks import InputError, RetrievalTask

Source = Literal["checkpoint", "watch"]
EXAMPLES = 32  # sequences, as in section 9.1
_DIGITS = 7  # after the point, in files


@dataclass(frozen=True)
class PathAtStep:
    """One path at one step.

    Attributes:
        attention: its mean attention, in [0, 1].
        live_mse: the MSE when it is cut in the intact model, later attention computed anew.
        frozen_mse: the MSE with the whole circuit in place but for this path; None for a path that
            only enables, which the circuit does without.
    """

    attention: float
    live_mse: float
    frozen_mse: float | None


@dataclass(frozen=True)
class Snapshot:
    """A circuit's paths in the model of one step.

    Attributes:
        step: optimizer steps done.
        examples: how many examples of the test split were measured on.
        seed: of the examples.
        baseline_mse: the intact model's MSE on them.
        partial_losses: the same for each asked symbol.
        combined_mse: with the whole circuit in place.
        paths: carrying paths first, then enabling ones, in the circuit's order.
        source: a checkpoint, or the log that `train --watch` wrote.
    """

    step: int
    examples: int
    seed: int
    baseline_mse: float
    partial_losses: tuple[float, ...]
    combined_mse: float
    paths: dict[HeadPath, PathAtStep]
    source: Source = "checkpoint"

    def to_dict(self) -> dict[str, Any]:
        """As JSON data, to 7 decimal places; `snapshot_from_dict` reads it back."""
        rows = {}
        for path, at in self.paths.items():
            row = {"attention": at.attention, "live_mse": at.live_mse}
            if at.frozen_mse is not None:
                row["frozen_mse"] = at.frozen_mse
            rows[str(path)] = {key: round(value, _DIGITS) for key, value in row.items()}
        return {
            "step": self.step,
            "source": self.source,
            "examples": self.examples,
            "seed": self.seed,
            "baseline_mse": round(self.baseline_mse, _DIGITS),
            "partial_losses": [round(loss, _DIGITS) for loss in self.partial_losses],
            "combined_mse": round(self.combined_mse, _DIGITS),
            "paths": rows,
        }


def paths_of(circuit: Circuit) -> tuple[HeadPath, ...]:
    """The paths of a circuit that are followed: carrying ones, then those that only enable."""
    return (*circuit.paths(), *circuit.enabling)


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
        task: RetrievalTask,
        circuit: Circuit,
        examples: int = EXAMPLES,
        seed: int = 0,
        device: str | torch.device = "cpu",
    ):
        if not paths_of(circuit):
            raise InputError(
                "circuit: expected at least one path to follow through training (a one-hot or "
                "shared head with paths, or an enabling path), found none"
            )
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
        baseline, partial = mean_loss(scorer.base_losses), scorer.base_losses.mean(dim=0)
        attention = mean_attention(model, self.batch)
        empty = Circuit({}, circuit.n_roles, circuit.rest, circuit.task)
        live = {path: scorer.mse(empty.cut(path)) for path in paths_of(circuit)}
        combined = scorer.rebase(circuit)
        frozen = {path: scorer.mse(circuit.without(path)) for path in circuit.paths()}
        return Snapshot(
            step,
            len(self.batch),
            self.seed,
            baseline,
            tuple(partial.tolist()),
            combined,
            {
                path: PathAtStep(float(attention[path.head][path.path]), mse, frozen.get(path))
                for path, mse in live.items()
            },
        )


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
                *_numbers(row["paths"][name], ("attention", "live_mse")),
                *(_numbers(row["paths"][name], ("frozen_mse",)) if path in carrying else (None,)),
            )
            for name, path in names.items()
        }
        step, examples, seed = (int(row[key]) for key in ("step", "examples", "seed"))
        baseline, combined = _numbers(row, ("baseline_mse", "combined_mse"))
        partial = tuple(map(float, row["partial_losses"]))
        source: Source = "watch" if row.get("source") == "watch" else "checkpoint"
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{where}: expected what the paths of one step get and are worth, found {row!r:.60}"
        ) from None
    return Snapshot(step, examples, seed, baseline, partial, combined, paths, source)


def _numbers(row: Any, keys: Iterable[str]) -> list[float]:
    return [float(row[key]) for key in keys]
