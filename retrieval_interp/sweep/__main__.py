"""Run a grid of training runs: `python -m retrieval_interp.sweep --grid section7-ic --out DIR`.

The depth experiments of section 7, cell by cell: (layers, seed). A finished cell is never run
again, an unfinished one goes on from its last checkpoint, one that fails is reported while the
others go on. On this machine in worker processes, or on a Ray cluster (`--address`); seeds of one
depth train in common steps where that is faster (`--group`).
"""

import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from retrieval_interp.cli.command import parse_options, run_command
from tasks.errors import InputError

if TYPE_CHECKING:
    from retrieval_interp.sweep.cells import Job
    from retrieval_interp.sweep.folder import SweepFolder
    from retrieval_interp.sweep.grid import Cell, Grid
    from retrieval_interp.sweep.local import Event

PROG = "python -m retrieval_interp.sweep"
MOST_WORKERS = 256
MOST_GROUP = 64


@dataclass(frozen=True)
class SweepOptions:
    """Run a grid of training runs (paper, section 7), or go on with one.

    Attributes:
        out: folder of the sweep.
        grid: section7-ic or section7-nonic; needed for a new folder.
        scale: full (the paper's), gpu-hour, laptop or smoke; full for a new folder.
        workers: processes at once; on CPUs 1 by default, on GPUs as many as --gpus-per-cell
            allows, on a cluster as many as it has room for.
        threads: CPU threads of each process; by default the cores divided by the workers, on a
            cluster 1.
        address: run on a Ray cluster: host:port of its head node, or auto.
        device: auto, cpu or cuda.
        gpus_per_cell: share of a GPU that a process takes.
        group: seeds of one depth that train in common steps, in one process: a number, or auto:
            up to 8 on a GPU, and on a CPU if the model is tiny, else 1. The losses are those of
            single runs up to rounding.
        keep_checkpoints: keep the last checkpoint of every cell (230 MB per grid at full scale).
        summary: run nothing; print what the finished cells say and write it to summary.json.
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


def main(argv: Sequence[str], prog: str = PROG) -> None:
    options = parse_options(SweepOptions, argv, prog)
    _check_options(options)

    from retrieval_interp.sweep.folder import SweepFolder, read_results

    grid = _choose_grid(options)
    if options.summary:
        _summarize(options.out, grid, prog)
        return

    from retrieval_interp.training.device import choose_device

    ray = None
    if options.address is None:
        choose_device(options.device)
    else:
        from retrieval_interp.sweep.ray_cluster import connect

        ray = connect(options.address)
    try:
        folder = SweepFolder(options.out, grid)
        try:
            finished = read_results(options.out, grid)
            jobs = _jobs(folder, finished, options)
            groups = _groups(grid, jobs, options, ray)
            if ray is None:
                from retrieval_interp.sweep.local import environments, run_local

                workers, threads, gpus = _local_share(options)
                events = run_local(groups, environments(workers, threads, gpus))
            else:
                from retrieval_interp.sweep.ray_cluster import run_on_ray

                share = options.gpus_per_cell
                events = run_on_ray(ray, groups, options.out, share, options.workers)
            failed = _run(folder, jobs, events, options)
        finally:
            folder.close()
    finally:
        if ray is not None:
            ray.shutdown()
    _summarize(options.out, grid, prog)
    if failed:
        sys.stdout.flush()
        sys.exit(1)


def _check_options(options: SweepOptions) -> None:
    # Whether a device is there is another question, and on a cluster one for its nodes.
    if re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", options.device) is None:
        raise InputError(f"--device: expected auto, cpu or cuda, found {options.device!r:.40}")
    if options.workers is not None and not 1 <= options.workers <= MOST_WORKERS:
        raise InputError(f"--workers: expected 1 to {MOST_WORKERS}, found {options.workers}")
    if options.threads is not None and not 1 <= options.threads <= 1024:
        raise InputError(f"--threads: expected 1 to 1024, found {options.threads}")
    if options.group != "auto" and not 1 <= options.group <= MOST_GROUP:
        raise InputError(f"--group: expected auto or 1 to {MOST_GROUP}, found {options.group}")
    if not 0 < options.gpus_per_cell <= 1:
        raise InputError(
            f"--gpus-per-cell: expected a number above 0 and at most 1, found "
            f"{options.gpus_per_cell}"
        )


def _choose_grid(options: SweepOptions) -> "Grid":
    """The grid that is asked for, or the one that the folder holds; both, if they are the same."""
    from retrieval_interp.storage.files import check_same
    from retrieval_interp.sweep.folder import read_grid
    from retrieval_interp.sweep.grid import GRIDS, SCALES, make_grid

    # Names first: they may be wrong whatever the folder holds.
    if options.grid is not None or options.scale is not None:
        make_grid(options.grid or next(iter(GRIDS)), options.scale or next(iter(SCALES)))
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


def _local_share(options: SweepOptions) -> tuple[int, int, int]:
    """Workers, threads a worker, and GPUs used, on this machine."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpus = 0
    if options.device != "cpu" and torch.cuda.is_available():
        gpus = torch.cuda.device_count() if options.device in ("auto", "cuda") else 1
    workers = options.workers or max(1, gpus * int(1 / options.gpus_per_cell))
    threads = options.threads or max(1, (cores or 1) // workers)
    return workers, threads, gpus


def _jobs(
    folder: "SweepFolder", finished: dict["Cell", dict[str, object]], options: SweepOptions
) -> "list[Job]":
    """What is left to do; what killed sweeps left in finished cells is cleared away."""
    from retrieval_interp.sweep.cells import Job, tidy
    from tasks.structured import to_data

    grid, jobs = folder.grid, []
    threads = options.threads or (1 if options.address else _local_share(options)[1])
    for cell in grid.cells:
        if cell in finished:
            tidy(folder.cell_folder(cell), options.keep_checkpoints)
            continue
        if not (folder.cell_folder(cell) / "state.safetensors").exists():
            # Its result was removed, to have it run again.
            tidy(folder.cell_folder(cell), checkpoint=False)
        jobs.append(
            Job(
                cell=cell.name,
                grid=grid.grid,
                scale=grid.scale,
                layers=cell.layers,
                recipe=to_data(grid.cell_recipe(cell)),
                folder=str(folder.cell_folder(cell)),
                device=options.device,
                threads=threads,
                compile=grid.compile,
                checkpoint=options.keep_checkpoints,
            )
        )
    return jobs


def _groups(grid: "Grid", jobs: "list[Job]", options: SweepOptions, ray: Any) -> "list[list[Job]]":
    """The jobs that train together."""
    from retrieval_interp.sweep.groups import in_groups, seeds_together

    size = options.group
    if size == "auto":
        if ray is None:
            workers, _, gpus = _local_share(options)
            on_gpu = gpus > 0
        else:
            from retrieval_interp.sweep.ray_cluster import room

            found, on_gpu = room(ray, options.gpus_per_cell, options.threads or 1, options.device)
            workers = options.workers or found
        size = seeds_together(grid.recipe, on_gpu, len(jobs), workers)
    return in_groups(jobs, size)


def _run(
    folder: "SweepFolder",
    jobs: "list[Job]",
    events: "Iterator[Event]",
    options: SweepOptions,
) -> dict[str, str]:
    """Write down what happens; returns the cells that failed."""
    from contextlib import closing

    from retrieval_interp.sweep.local import Done, Failed
    from retrieval_interp.sweep.progress import SweepProgress

    grid = folder.grid
    cells = {cell.name: cell for cell in grid.cells}
    failed: dict[str, str] = {}
    progress = SweepProgress(grid, jobs)
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
                    failed[cell.name] = event.reason
                    progress.failed(cell, event.reason, file)
                else:
                    progress.step(cell, event.step)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted with {progress.finished} of {len(grid.cells)} cells finished; the same "
            "command goes on"
        ) from None
    return failed


def _summarize(out: Path, grid: "Grid", prog: str) -> None:
    from retrieval_interp.storage.files import write_json
    from retrieval_interp.sweep.findings import summarize, summary_text
    from retrieval_interp.sweep.folder import read_failed, read_results

    made_by = ["--grid", grid.grid, "--scale", grid.scale, "--out", str(out)]
    command = f"{prog} {shlex.join(made_by)}"
    summary = summarize(grid, read_results(out, grid), read_failed(out, grid), command)
    write_json(out / "summary.json", summary)
    print(summary_text(summary))


if __name__ == "__main__":
    run_command(main, PROG)
