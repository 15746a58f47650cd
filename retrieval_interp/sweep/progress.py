"""How far a sweep is: a bar on a terminal, a line now and then elsewhere.

The whole grid is one bar. A step of a cell counts as its number of layers plus 0.3, as measured
(0.016, 0.055 and 0.092 s with 1, 4 and 8 layers at scale laptop), so that the time left is right
although deep cells come first.
"""

import sys
import time
from pathlib import Path
from typing import Any

from retrieval_interp.commands.command import say
from retrieval_interp.sweep.cells import Job
from retrieval_interp.sweep.grid import Cell, Grid

_SECONDS_BETWEEN_LINES = 300.0
_EMBEDDING = 0.3


class SweepProgress:
    """Shows the progress of a grid.

    Args:
        grid: all cells.
        jobs: those that are left to do.
    """

    def __init__(self, grid: Grid, jobs: list[Job]):
        from tqdm.auto import tqdm

        left = {job.cell for job in jobs}
        self._grid, self._steps = grid, grid.recipe.steps
        ended = [cell for cell in grid.cells if cell.name not in left]
        # Steps done, and how many of them before this sweep.
        self._done = dict.fromkeys(grid.cells, 0) | dict.fromkeys(ended, self._steps)
        self._before = dict.fromkeys(ended, self._steps)
        self.finished = len(ended)
        self.failures = 0
        self._began = self._spoke = time.monotonic()
        self._on_terminal = sys.stderr.isatty()
        self._bar: Any = tqdm(
            total=100.0,
            disable=not self._on_terminal,
            dynamic_ncols=True,
            bar_format="{desc} {percentage:3.0f}%|{bar}| {elapsed}{postfix}",
        )

    def start(self, out: Path) -> None:
        """Say what there is to do."""
        before = f", {self.finished} of them finished before" if self.finished else ""
        self._say(
            f"{out}: {self._grid.grid} at scale {self._grid.scale}, {len(self._done)} cells of "
            f"{self._steps} steps{before}"
        )
        self._show()

    def step(self, cell: Cell, done: int) -> None:
        """A cell has done so many steps; what it had done before this sweep is not counted."""
        self._before.setdefault(cell, done)
        self._done[cell] = done
        self._show()
        if not self._on_terminal and time.monotonic() - self._spoke > _SECONDS_BETWEEN_LINES:
            self._say(self._where())

    def done(self, cell: Cell, loss: float) -> None:
        """A cell has ended."""
        self.finished += 1
        self._before.setdefault(cell, 0)
        self._end(cell, f"validation {self._grid.recipe.task.loss_name} {loss:.4f}")

    def failed(self, cell: Cell, reason: str, file: Path) -> None:
        """A cell has failed."""
        self.failures += 1
        self._before[cell] = self._steps
        self._end(cell, f"failed: {reason} (see {file})")

    def close(self) -> None:
        self._bar.close()

    def seconds_left(self) -> float | None:
        """Time left at the pace so far; None before there is one."""
        left = self._work({cell: self._steps - done for cell, done in self._done.items()})
        worked = self._work(
            {cell: self._done[cell] - before for cell, before in self._before.items()}
        )
        if left == 0:
            return 0.0
        return (time.monotonic() - self._began) * left / worked if worked > 0 else None

    def _end(self, cell: Cell, what: str) -> None:
        self._done[cell] = self._steps
        self._show()
        self._say(f"{cell.name}: {what}; {self._where()}")

    def _work(self, steps: dict[Cell, int]) -> float:
        return sum((number * (cell.layers + _EMBEDDING) for cell, number in steps.items()), 0.0)

    def _count(self, cells: str = "cells") -> str:
        failed = f", {self.failures} failed" if self.failures else ""
        return f"{self.finished} of {len(self._done)} {cells}{failed}"

    def _where(self) -> str:
        seconds = self.seconds_left()
        return self._count("cells finished") + (
            f", about {_duration(seconds)} left" if seconds else ""
        )

    def _say(self, line: str) -> None:
        self._spoke = time.monotonic()
        with self._bar.external_write_mode():
            say(line)
        sys.stdout.flush()

    def _show(self) -> None:
        share = self._work(self._done) / self._work(dict.fromkeys(self._done, self._steps))
        seconds = self.seconds_left()
        self._bar.set_description_str(self._count(), False)
        left = "starting" if seconds is None else f"{_duration(seconds)} left"
        self._bar.set_postfix_str(left, False)
        self._bar.update(100 * share - self._bar.n)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
