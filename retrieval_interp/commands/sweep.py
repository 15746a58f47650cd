"""Run a grid of training runs: `python -m retrieval_interp sweep --grid section7-ic --out DIR`."""

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrieval_interp.commands.command import parse_options, say, saying
from retrieval_interp.tasks.errors import InputError

if TYPE_CHECKING:
    from retrieval_interp.sweep.folder import SweepFolder
    from retrieval_interp.sweep.grid import Grid


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
        gpus_per_cell: share of a GPU per process; here all share one, a cluster has several.
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
    keep_checkpoints: bool = True
    summary: bool = False


def main(argv: Sequence[str], prog: str = "retrieval-interp sweep") -> None:
    options = parse_options(SweepOptions, argv, prog)
    for name in ("workers", "threads"):
        found = getattr(options, name)
        if found is not None and not 1 <= found <= 256:
            raise InputError(f"--{name}: expected 1 to 256, found {found}")
    if not 0 < options.gpus_per_cell <= 1:
        found = options.gpus_per_cell
        raise InputError(f"--gpus-per-cell: expected above 0 and at most 1, found {found}")

    with saying("loading PyTorch"):
        from retrieval_interp.storage.files import write_json
        from retrieval_interp.sweep.findings import summarize, summary_text
        from retrieval_interp.sweep.folder import SweepFolder
        from retrieval_interp.views.tables import terminal_width

        grid = _choose_grid(options)
    folder = SweepFolder(options.out, grid)
    failed = not options.summary and _sweep(folder, options)
    made_by = shlex.join(["--grid", grid.grid, "--scale", grid.scale, "--out", str(options.out)])
    summary = summarize(grid, folder.results(), folder.failures(), f"{prog} {made_by}")
    write_json(options.out / "summary.json", summary)
    print(summary_text(summary, terminal_width()), flush=True)
    if failed:
        sys.exit(1)


def _choose_grid(options: SweepOptions) -> "Grid":
    """The grid that the folder holds, which must match the options, else the one asked for."""
    from retrieval_interp.storage.files import check_same
    from retrieval_interp.sweep.folder import read_grid
    from retrieval_interp.sweep.grid import GRIDS, make_grid
    from retrieval_interp.tasks.structured import to_data

    found = read_grid(options.out)
    if found is None and options.summary:
        raise InputError(f"{options.out}: expected a sweep's folder, found no grid.json in it")
    if found is None and options.grid is None:
        raise InputError(f"--grid: expected one of: {', '.join(GRIDS)}, found none")
    if found is None:
        return make_grid(str(options.grid), options.scale or "full")
    if options.grid or options.scale:
        wanted = make_grid(options.grid or found.grid, options.scale or found.scale)
        check_same(to_data(wanted), to_data(found), options.out, "sweep")
    return found


def _sweep(folder: "SweepFolder", options: SweepOptions) -> bool:
    """Run the cells that are left, with a bar and a line for each. Returns whether one failed."""
    from tqdm.auto import tqdm

    from retrieval_interp.circuits.models.either import check_trainable
    from retrieval_interp.sweep.cells import run_jobs

    check_trainable()
    grid, cells, failed = folder.grid, len(folder.grid.cells), False
    with ExitStack() as stack:
        run, workers, threads = _place(options, stack)
        stack.enter_context(folder)
        jobs = folder.jobs(options.device, threads, options.keep_checkpoints)
        finished = cells - len(jobs)
        before = f", {finished} of them finished before" if finished else ""
        what = f"{grid.grid} at scale {grid.scale}, {cells} cells of {grid.recipe.steps} steps"
        say(f"{folder.path}: {what}{before}")
        bar = tqdm(total=cells, initial=finished, unit="cell", disable=None, dynamic_ncols=True)
        try:
            with bar, closing(run_jobs(jobs, run, workers or len(jobs) or 1)) as ended:
                for job, future in ended:
                    if error := future.exception():
                        failed, said = True, f"failed: {folder.write_error(job, error)}"
                    else:
                        finished += 1
                        folder.write_result(job, result := future.result())
                        loss = result["validation_loss"]
                        said = f"validation {grid.recipe.task.loss_name} {loss:.4f}"
                    with bar.external_write_mode():
                        say(f"{job.name}: {said}; {finished} of {cells} cells finished")
                    bar.update()
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"interrupted with {finished} of {cells} cells finished; the same command goes on"
            ) from None
    return failed


def _place(options: SweepOptions, stack: ExitStack) -> tuple[Callable[[Any], Any], int, int]:
    """What runs a cell, how many at once (0: all), and the threads of each."""
    if options.address is not None:
        from retrieval_interp.sweep.ray_cluster import connect, on_nodes

        ray, threads = connect(options.address), options.threads or 1
        stack.callback(ray.shutdown)
        on_gpu = options.device != "cpu" and ray.cluster_resources().get("GPU")
        run = on_nodes(ray, options.out, threads, options.gpus_per_cell if on_gpu else 0)
        return run, options.workers or 0, threads
    from retrieval_interp.sweep.cells import in_process, run_cell
    from retrieval_interp.training import choose_device

    on_gpu = choose_device(options.device).type == "cuda"
    workers = options.workers or (int(1 / options.gpus_per_cell) if on_gpu else 1)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return in_process(run_cell), workers, options.threads or max(1, (cores or 1) // workers)
