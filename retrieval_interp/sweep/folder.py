"""A sweep on disk: its grid, one run folder per cell and one result per finished cell.

    grid.json                            grid, scale and settings
    cells/layers-4-seed-0/               run folder (retrieval_interp.storage.run_folder)
    results/layers-4-seed-0.json         its result; a cell that has one is finished
    errors/layers-4-seed-0.txt           why a cell failed; deleted when it succeeds
    summary.json                         what all results say

A finished cell keeps config.json, metrics.jsonl (75 kB at full scale) and, unless told otherwise,
its last checkpoint (1 to 6 MB at full scale); the rest is deleted. Every file is written whole or
not at all.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from retrieval_interp.storage.files import (
    check_own,
    lock_folder,
    read_part,
    read_text,
    write_json,
    write_whole,
)
from retrieval_interp.sweep.cells import tidy
from retrieval_interp.sweep.grid import Cell, Grid
from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.structured import from_json, read_json, to_data


@dataclass(frozen=True)
class _Result:
    """The part of a cell's result that is read and checked."""

    format: Literal[1]
    status: Literal["done"]
    cell: str
    validation_loss: float
    partial_losses: tuple[float, ...]
    below_half: tuple[float | None, ...]
    order_held: bool | None
    seconds: float
    seconds_per_step: float
    device: str
    versions: dict[str, str]
    date: str
    recipe: dict[str, Any]


def read_grid(path: Path) -> Grid | None:
    """The grid that a folder holds; None if the folder is new or empty.

    Raises:
        InputError: it is a file or a folder with other content, or grid.json is damaged.
    """
    if not check_own(path, "grid.json", "a sweep's"):
        return None
    file = path / "grid.json"
    grid: Grid = from_json(Grid, read_text(file, "a sweep's grid"), str(file))
    return grid


class SweepFolder:
    """A sweep on disk, held by one process at a time.

    Args:
        path: created if missing.
        grid: the one that the folder holds, if it holds one (see `read_grid`).

    Raises:
        InputError: another process sweeps in the folder, or it cannot be written.
    """

    def __init__(self, path: Path, grid: Grid):
        self.path, self.grid = path, grid
        self._lock = lock_folder(path, "a sweep that no other process is running")
        # First, as this file marks the folder as a sweep's should the process be killed.
        if not (path / "grid.json").exists():
            write_json(path / "grid.json", grid.to_dict())
        for name in ("cells", "results", "errors"):
            (path / name).mkdir(exist_ok=True)

    def close(self) -> None:
        self._lock.release()

    def cell_folder(self, cell: Cell) -> Path:
        """The run folder of a cell."""
        return self.path / "cells" / cell.name

    def write_result(
        self, cell: Cell, result: dict[str, Any], files: dict[str, bytes], checkpoint: bool
    ) -> None:
        """Write the result of a cell, which then is finished; does nothing if it has one.

        Args:
            cell: which one.
            result: as `run_jobs` gives it.
            files: content of its run folder by path, if that is on another disk.
            checkpoint: keep its last checkpoint.

        Raises:
            InputError: it cannot be written.
        """
        folder, file = self.cell_folder(cell), _result_file(self.path, cell)
        if file.exists():
            return
        for name, content in files.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            write_whole(target, content)
        write_json(file, result)
        _error_file(self.path, cell).unlink(missing_ok=True)
        tidy(folder, checkpoint)

    def write_error(self, cell: Cell, reason: str, detail: str) -> Path:
        """Write why a cell failed, with the reason in the first line. Returns the file."""
        file = _error_file(self.path, cell)
        write_whole(file, f"{reason}\n\n{detail}")
        return file


def read_results(path: Path, grid: Grid) -> dict[Cell, dict[str, Any]]:
    """The results of the finished cells.

    Raises:
        InputError: a result is damaged, or is of another cell or recipe.
    """
    files = {cell: _result_file(path, cell) for cell in grid.cells}
    try:
        return {c: _read_result(file, grid, c) for c, file in files.items() if file.exists()}
    except InputError as error:
        raise InputError(f"{error}; remove that file to have the cell run again") from None


def read_failed(path: Path, grid: Grid) -> dict[Cell, str]:
    """Why cells failed, in one line each."""
    return {
        cell: (read_text(file, "an error").splitlines() or ["unknown"])[0]
        for cell in grid.cells
        if (file := _error_file(path, cell)).exists() and not _result_file(path, cell).exists()
    }


def _result_file(path: Path, cell: Cell) -> Path:
    return path / "results" / f"{cell.name}.json"


def _error_file(path: Path, cell: Cell) -> Path:
    return path / "errors" / f"{cell.name}.txt"


def _read_result(file: Path, grid: Grid, cell: Cell) -> dict[str, Any]:
    data: dict[str, Any] = read_json(read_text(file, "a cell's result"), str(file))
    result = read_part(_Result, data, str(file))
    for losses in (result.partial_losses, result.below_half):
        if len(losses) != len(grid.asked):
            asked = ", ".join(grid.asked)
            raise InputError(f"{file}: expected numbers for {asked}, found {len(losses)}")
    if result.recipe != to_data(grid.cell_recipe(cell)) or result.cell != cell.name:
        raise InputError(
            f"{file}: expected the result of {cell.name} of this grid, found one of another recipe"
        )
    return data
