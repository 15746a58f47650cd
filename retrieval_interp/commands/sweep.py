"""Run a grid of training runs: `python -m retrieval_interp sweep --grid section7-ic --out DIR`.

The depth experiments of section 7, one cell per (layers, seed). Finished cells are never run again,
unfinished ones resume from their last checkpoint, and one that fails is reported while the others
go on. Cells run in worker processes of this machine or on a Ray cluster (`--address`); seeds of one
depth train in common steps where that is faster (`--group`).
"""

import os
import re
import shlex
import sys
from collections.abc import Container, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from retrieval_interp.commands.command import parse_options, saying
from retrieval_interp.tasks.errors import InputError

if TYPE_CHECKING:
    from retrieval_interp.sweep.cells import Job
    from retrieval_interp.sweep.folder import SweepFolder
    from retrieval_interp.sweep.grid import Cell, Grid
    from retrieval_interp.sweep.local import Event

MOST_WORKERS = 256
MOST_THREADS = 1024
MOST_GROUP = 64


@dataclass(frozen=True)
class SweepOptions:
    """Run a grid of training runs (paper, section 7), or resume one.

    Attributes:
        out: folder of the sweep.
        grid: section7-ic or section7-nonic; required for a new folder.
        scale: full (the paper's), gpu-hour, paper-sizes, laptop, laptop-5 or smoke; full
            for a new folder.
        workers: processes at once; by default 1 on CPUs, as many as --gpus-per-cell allows on GPUs,
            and as many as there is room for on a cluster.
        threads: CPU threads per process; by default the cores divided by the workers, 1 on a
            cluster.
        address: run on a Ray cluster: host:port of its head node, or auto.
        device: auto, cpu or cuda.
        gpus_per_cell: share of a GPU per process.
        group: seeds of one depth that train in common steps, in one process: a number, or auto for
            up to 8 on a GPU, or on a CPU if the model is tiny, else 1. Losses equal those of
            single runs up to rounding.
        keep_checkpoints: keep the last checkpoint of every cell (230 MB per grid at full scale).
        summary: run nothing; summarize the finished cells and write summary.json.
    """

    out: Path
    grid: str | None = None
    scale: str | None = None
    workers: int | None = None
    threads: int | None = None
    address: str | None = None
    device: str = "auto"
    gpus_per_cell: float = 0.25
    group: int | Literal["auto"] = "auto"
    keep_checkpoints: bool = True
    summary: bool = False


def main(argv: Sequence[str], prog: str = "retrieval-interp sweep") -> None:
    options = parse_options(SweepOptions, argv, prog)
    _check_options(options)
    with saying("loading PyTorch"):
        grid = _choose_grid(options)
    failed = not options.summary and _sweep(grid, options)
    _summarize(options.out, grid, prog)
    if failed:
        sys.stdout.flush()
        sys.exit(1)


def _check_options(options: SweepOptions) -> None:
    # Whether the device exists is checked later; on a cluster its nodes decide.
    if re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", options.device) is None:
        raise InputError(f"--device: expected auto, cpu or cuda, found {options.device!r:.40}")
    group = None if options.group == "auto" else options.group
    for name, expected, most, found in (
        ("workers", "", MOST_WORKERS, options.workers),
        ("threads", "", MOST_THREADS, options.threads),
        ("group", "auto or ", MOST_GROUP, group),
    ):
        if found is not None and not 1 <= found <= most:
            raise InputError(f"--{name}: expected {expected}1 to {most}, found {found}")
    if not 0 < options.gpus_per_cell <= 1:
        raise InputError(
            f"--gpus-per-cell: expected a number above 0 and at most 1, found "
            f"{options.gpus_per_cell}"
        )


def _choose_grid(options: SweepOptions) -> "Grid":
    """The grid that the folder holds, which must match the options, else the one asked for."""
    from retrieval_interp.storage.files import check_same
    from retrieval_interp.sweep.folder import read_grid
    from retrieval_interp.sweep.grid import GRIDS, make_grid

    found = read_grid(options.out)
    if found is None:
        if options.summary:
            raise InputError(f"{options.out}: expected a sweep's folder, found no grid.json in it")
        if options.grid is None:
            raise InputError(f"--grid: expected one of: {', '.join(GRIDS)}, found none")
        return make_grid(options.grid, options.scale or "full")
    if options.grid is None and options.scale is None:
        return found
    wanted = make_grid(options.grid or found.grid, options.scale or found.scale)
    check_same(wanted.to_dict(), found.to_dict(), options.out, "sweep")
    return wanted


def _sweep(grid: "Grid", options: SweepOptions) -> bool:
    """Run the cells that are left, here or on a cluster. Returns whether one failed."""
    from retrieval_interp.circuits.models.version import check_trainable
    from retrieval_interp.sweep.folder import SweepFolder, read_results
    from retrieval_interp.sweep.groups import in_groups, seeds_together
    from retrieval_interp.training.device import choose_device

    check_trainable()
    with ExitStack() as stack:
        ray = None
        if options.address is None:
            choose_device(options.device)
            workers, threads, gpus = _local_share(options)
        else:
            from retrieval_interp.sweep.ray_cluster import connect, room, run_on_ray

            ray = connect(options.address)
            stack.callback(ray.shutdown)
            threads = options.threads or 1
            found, on_gpu = room(ray, options.gpus_per_cell, threads, options.device)
            workers, gpus = options.workers or found, int(on_gpu)
        folder = SweepFolder(options.out, grid)
        stack.callback(folder.close)
        finished = read_results(options.out, grid)
        jobs = list_jobs(folder, finished, options.device, threads, options.keep_checkpoints)
        size = options.group
        if size == "auto":
            size = seeds_together(grid.recipe, gpus > 0, len(jobs), workers)
        groups = in_groups(jobs, size)
        if ray is None:
            from retrieval_interp.sweep.local import environments, run_local

            events = run_local(groups, environments(workers, threads, gpus))
        else:
            share = options.gpus_per_cell if gpus else 0
            events = run_on_ray(ray, groups, options.out, share, options.workers)
        return _write_down(folder, jobs, events, options)


def _local_share(options: SweepOptions) -> tuple[int, int, int]:
    """The number of workers, of threads per worker and of GPUs to use on this machine."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpus = 0
    if options.device != "cpu" and torch.cuda.is_available():
        gpus = torch.cuda.device_count() if options.device in ("auto", "cuda") else 1
    workers = options.workers or max(1, gpus * int(1 / options.gpus_per_cell))
    return workers, options.threads or max(1, (cores or 1) // workers), gpus


def list_jobs(
    folder: "SweepFolder",
    finished: "Container[Cell]",
    device: str = "auto",
    threads: int = 1,
    checkpoint: bool = True,
) -> "list[Job]":
    """The cells that are left to train; finished cells are tidied, as a kill may have cut in."""
    from retrieval_interp.sweep.cells import Job, tidy
    from retrieval_interp.tasks.structured import to_data

    grid, jobs = folder.grid, []
    for cell in grid.cells:
        path = folder.cell_folder(cell)
        if cell in finished:
            tidy(path, checkpoint)
            continue
        if not (path / "state.safetensors").exists():
            # The result was removed to have the cell run again.
            tidy(path, checkpoint=False)
        jobs.append(
            Job(
                cell=cell.name,
                grid=grid.grid,
                scale=grid.scale,
                layers=cell.layers,
                recipe=to_data(grid.cell_recipe(cell)),
                folder=str(path),
                device=device,
                threads=threads,
                compile=grid.compile,
                checkpoint=checkpoint,
            )
        )
    return jobs


def _write_down(
    folder: "SweepFolder", jobs: "list[Job]", events: "Iterator[Event]", options: SweepOptions
) -> bool:
    """Save results and errors and show progress. Returns whether a cell failed."""
    from retrieval_interp.sweep.local import Done, Failed
    from retrieval_interp.sweep.progress import SweepProgress

    cells = {cell.name: cell for cell in folder.grid.cells}
    progress = SweepProgress(folder.grid, jobs)
    try:
        with closing(events), closing(progress):  # type: ignore[type-var]
            progress.start(options.out)
            for event in events:
                cell = cells[event.job.cell]
                if isinstance(event, Done):
                    folder.write_result(cell, event.result, event.files, options.keep_checkpoints)
                    progress.done(cell, event.result["validation_loss"])
                elif isinstance(event, Failed):
                    file = folder.write_error(cell, event.reason, event.detail)
                    progress.failed(cell, event.reason, file)
                else:
                    progress.step(cell, event.step)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted with {progress.finished} of {len(cells)} cells finished; the same "
            "command goes on"
        ) from None
    return progress.failures > 0


def _summarize(out: Path, grid: "Grid", prog: str) -> None:
    from retrieval_interp.storage.files import write_json
    from retrieval_interp.sweep.findings import summarize, summary_text
    from retrieval_interp.sweep.folder import read_failed, read_results
    from retrieval_interp.views.tables import terminal_width

    made_by = ["--grid", grid.grid, "--scale", grid.scale, "--out", str(out)]
    command = f"{prog} {shlex.join(made_by)}"
    summary = summarize(grid, read_results(out, grid), read_failed(out, grid), command)
    write_json(out / "summary.json", summary)
    print(summary_text(summary, terminal_width()))
