"""A sweep on disk: its grid, one run folder per cell and one result per finished cell.

grid.json                            grid, scale and settings
cells/layers-4-seed-0/               run folder (retrieval_interp.storage.run_folder)
results/layers-4-seed-0.json         its result; a cell that has one is finished
errors/layers-4-seed-0.txt           why a cell failed; deleted when it succeeds
summary.json                         what all results say
"""

import traceback
from pathlib import Path
from typing import Any

from retrieval_interp.storage.files import (
    check_own,
    lock_folder,
    read_text,
    write_json,
    write_whole,
)
from retrieval_interp.sweep.cells import Job, tidy
from retrieval_interp.sweep.grid import Cell, Grid
from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.structured import from_json, read_json, to_data


def read_grid(path: Path) -> Grid | None:
    """The grid that a folder holds; None if the folder is new or empty."""
    if not check_own(path, "grid.json", "a sweep's"):
        return None
    file = path / "grid.json"
    grid: Grid = from_json(Grid, read_text(file, "a sweep's grid"), str(file))
    return grid


class SweepFolder:
    """The folder of a grid; as a context it is held by one process at a time."""

    def __init__(self, path: Path, grid: Grid):
        self.path, self.grid = path, grid

    def __enter__(self) -> "SweepFolder":
        self._lock = lock_folder(self.path, "a sweep that no other process is running")
        # First, as this file marks the folder as a sweep's should the process be killed.
        if not (self.path / "grid.json").exists():
            write_json(self.path / "grid.json", to_data(self.grid))
        for name in ("cells", "results", "errors"):
            (self.path / name).mkdir(exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def jobs(self, device: str, threads: int, checkpoint: bool) -> list[Job]:
        """The cells that are left; tidies the others, as a kill may have cut in."""
        finished, jobs = self.results(), list[Job]()
        for cell in self.grid.cells:
            folder, recipe = self.path / "cells" / cell.name, self.grid.cell_recipe(cell)
            if cell in finished:
                tidy(folder, checkpoint)
                continue
            if not (folder / "state.safetensors").exists():
                tidy(folder, checkpoint=False)  # the result was removed to run the cell again
            how = device, threads, self.grid.compile, checkpoint
            jobs.append(Job(cell.name, recipe, folder, *how))
        return jobs

    def results(self) -> dict[Cell, dict[str, Any]]:
        """The results of the finished cells."""
        found = {}
        for cell in self.grid.cells:
            if (file := self.path / f"results/{cell.name}.json").exists():
                found[cell] = read_json(read_text(file, "a cell's result"), str(file))
                if found[cell].get("recipe") != to_data(self.grid.cell_recipe(cell)):
                    raise InputError(
                        f"{file}: expected the result of {cell.name} of this grid, found another; "
                        "remove that file to have the cell run again"
                    )
        return found

    def failures(self) -> dict[Cell, str]:
        """Why cells failed, in one line each."""
        files = {cell: self.path / f"errors/{cell.name}.txt" for cell in self.grid.cells}
        return {
            cell: file.read_text().partition("\n")[0]
            for cell, file in files.items()
            if file.exists()
        }

    def write_result(self, job: Job, result: dict[str, Any]) -> None:
        """Write the result of a cell, which then is finished."""
        about = {"cell": job.name, "grid": self.grid.grid, "scale": self.grid.scale}
        data = {"format": 1, "status": "done", **about, **result}
        write_json(self.path / f"results/{job.name}.json", data)
        (self.path / f"errors/{job.name}.txt").unlink(missing_ok=True)
        tidy(job.folder, job.checkpoint)

    def write_error(self, job: Job, error: BaseException) -> str:
        """Write why a cell failed, and say it in one line."""
        file, reason = self.path / f"errors/{job.name}.txt", " ".join(str(error).split())[:500]
        if not isinstance(error, InputError):
            reason = f"{type(error).__name__}: {reason}"
        write_whole(file, "\n".join([reason, "", *traceback.format_exception(error)]))
        return f"{reason} (see {file})"
