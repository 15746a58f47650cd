"""A sweep on disk: which grid it is, a run folder a cell, and a result a finished cell.

    grid.json                            grid, scale and settings
    cells/layers-4-seed-0/               run folder (retrieval_interp.storage.run_folder)
    results/layers-4-seed-0.json         the result: a cell that has one is finished
    errors/layers-4-seed-0.txt           why a cell failed; goes when it succeeds
    summary.json                         what all results say

Of a finished cell config.json, metrics.jsonl (75 kB at full scale) and, unless it is not wanted,
the last checkpoint are kept (1 to 6 MB a cell at full scale); the rest is deleted. Every file is
written whole or not at all.
"""

import json
from pathlib import Path
from typing import Any

from retrieval_interp.storage.files import (
    check_held,
    is_temporary,
    lock_folder,
    read_text,
    remove_leftovers,
    write_whole,
)
from retrieval_interp.sweep.cells import FORMAT, tidy
from retrieval_interp.sweep.grid import Cell, Grid, grid_from_dict
from tasks.errors import InputError
from tasks.structured import is_number, to_data

_NUMBERS = ("validation_loss", "seconds", "seconds_per_step")


def read_grid(path: Path) -> Grid | None:
    """The grid that a folder holds; None if the folder is new or empty.

    Raises:
        InputError: a file, a folder with other content, or a grid.json that is not a grid's.
    """
    file = path / "grid.json"
    if path.exists() and not path.is_dir():
        raise InputError(f"{path}: expected a new folder or a sweep's, found a file")
    if not file.exists():
        if path.is_dir() and any(
            child.name != "lock" and not is_temporary(child) for child in path.iterdir()
        ):
            raise InputError(
                f"{path}: expected a new folder or a sweep's, found a folder with other files and "
                "no grid.json; give another --out"
            )
        return None
    return grid_from_dict(_read_json(file, "a sweep's grid"), str(file))


def check_same(wanted: Grid, found: Grid, path: Path) -> None:
    """Refuse to go on with other settings.

    Raises:
        InputError: the first setting that differs is named.
    """
    flat_wanted, flat_found = _flatten(wanted.to_dict()), _flatten(found.to_dict())
    for key, value in flat_wanted.items():
        if value != flat_found[key]:
            raise InputError(
                f"{path}: expected a sweep with {key} = {value}, found one with {key} = "
                f"{flat_found[key]}; give another --out, or the same settings to go on"
            )


class SweepFolder:
    """A sweep on disk, held by one process at a time.

    Args:
        path: created if missing.
        grid: must be the one that the folder holds, if it holds one.

    Raises:
        InputError: the folder holds another grid or other files, another process sweeps in it, or
            it cannot be written.
    """

    def __init__(self, path: Path, grid: Grid):
        self.path, self.grid = path, grid
        found = read_grid(path)
        if found is not None:
            check_same(grid, found, path)
        self._lock = lock_folder(path, "a sweep that no other process is running")
        # First: by this file a folder is known as a sweep's, should the process be killed.
        if found is None:
            write_whole(path / "grid.json", json.dumps(grid.to_dict(), indent=2) + "\n")
        for name in ("cells", "results", "errors"):
            (path / name).mkdir(exist_ok=True)
        for folder in (path / "results", path / "errors"):
            remove_leftovers(folder)

    def close(self) -> None:
        self._lock.close()

    def cell_folder(self, cell: Cell) -> Path:
        """The run folder of a cell."""
        return self.path / "cells" / cell.name

    def write_result(
        self, cell: Cell, result: dict[str, Any], files: dict[str, bytes], checkpoint: bool
    ) -> None:
        """Write the result of a cell, once; after that it is finished.

        Args:
            cell: which one.
            result: of `run_job`.
            files: what its run folder holds, where that is on another disk.
            checkpoint: keep its last checkpoint.

        Raises:
            InputError: it cannot be written, or the folder is not held any more.
        """
        check_held(self._lock)
        folder, file = self.cell_folder(cell), _result_file(self.path, cell)
        if file.exists():
            return
        for name, content in files.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            write_whole(target, content)
        write_whole(file, json.dumps(result, indent=2) + "\n")
        _error_file(self.path, cell).unlink(missing_ok=True)
        tidy(folder, checkpoint)

    def write_error(self, cell: Cell, reason: str, detail: str) -> Path:
        """Write why a cell failed: the reason in the first line. Returns the file."""
        file = _error_file(self.path, cell)
        write_whole(file, f"{reason}\n\n{detail}")
        return file


def read_results(path: Path, grid: Grid) -> dict[Cell, dict[str, Any]]:
    """The results of the finished cells.

    Raises:
        InputError: a result is not one, or is of another cell or recipe.
    """
    results = {}
    for cell in grid.cells:
        file = _result_file(path, cell)
        if file.exists():
            results[cell] = _read_json(file, "a cell's result")
            _check_result(results[cell], grid, cell, file)
    return results


def read_failed(path: Path, grid: Grid) -> dict[Cell, str]:
    """Why cells failed, in a line each."""
    return {
        cell: (read_text(file, "an error").splitlines() or ["unknown"])[0]
        for cell in grid.cells
        if (file := _error_file(path, cell)).exists() and not _result_file(path, cell).exists()
    }


def _result_file(path: Path, cell: Cell) -> Path:
    return path / "results" / f"{cell.name}.json"


def _error_file(path: Path, cell: Cell) -> Path:
    return path / "errors" / f"{cell.name}.txt"


def _check_result(result: Any, grid: Grid, cell: Cell, file: Path) -> None:
    n = len(grid.asked)
    try:
        well_formed = (
            result["format"] == FORMAT
            and result["status"] == "done"
            and all(is_number(result[key]) for key in _NUMBERS)
            and [is_number(loss) for loss in result["partial_losses"]] == [True] * n
            and len(result["below_half"]) == n
            and result["order_held"] in (True, False, None)
            and all(isinstance(result[key], str) for key in ("device", "date"))
            and all(isinstance(version, str) for version in result["versions"].values())
        )
        recipe = result["recipe"]
    except (KeyError, TypeError, AttributeError):
        well_formed, recipe = False, None
    if not well_formed:
        raise InputError(
            f"{file}: expected a cell's result, found other JSON; remove that file to have the "
            "cell run again"
        )
    if recipe != to_data(grid.cell_recipe(cell)) or result.get("cell") != cell.name:
        raise InputError(
            f"{file}: expected the result of {cell.name} of this grid, found one of another "
            "recipe; remove that file to have the cell run again"
        )


def _read_json(file: Path, what: str) -> Any:
    try:
        return json.loads(read_text(file, what))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{file}: expected {what} in JSON, found {str(error)[:80]}") from None


def _flatten(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
