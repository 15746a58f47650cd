"""What training asks of whoever watches it, such as `retrieval_interp.emergence.watch.Watch`."""

from pathlib import Path
from typing import Protocol, runtime_checkable

from circuits.models.transformer import Transformer
from retrieval_interp.config.recipe import Recipe


@runtime_checkable
class Watcher(Protocol):
    """Is shown the model where a run begins, every `log_every` steps and at the last step.

    It has to leave the model and all random state as they are: training goes the same way, to the
    last bit, with and without. An InputError from any of its methods ends the run.
    """

    def check(self, folder: Path, recipe: Recipe) -> None:
        """Refuse a run folder before anything in it is changed."""

    def start(self, folder: Path | None, recipe: Recipe, step: int, model: Transformer) -> None:
        """Begin, or go on where a run goes on.

        Args:
            folder: the run folder, whose lines after `step` are dropped already; None if nothing
                is to be written.
            recipe: how the model is trained.
            step: optimizer steps done so far.
            model: the trained model, on its device.
        """

    def measure(self, step: int, model: Transformer) -> None:
        """Look at the model of a step."""
