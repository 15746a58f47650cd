"""Run a grid of training runs: `python -m retrieval_interp sweep --grid section7-ic --out DIR`."""

import os
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrieval_interp.commands.command import say, status
from retrieval_interp.commands.options import parse_options
from retrieval_interp.tasks.structured import number_field

if TYPE_CHECKING:
    from retrieval_interp.sweep.grid import Grid

GPU_SHARE = 0.25  # of a process


@dataclass(frozen=True)
class SweepOptions:
    """Run a grid of training runs (paper, section 7), or resume one.

    Attributes:
        out: folder of the sweep.
        grid: section7-ic or section7-nonic; required for a new folder.
        scale: full (the paper's), laptop, laptop-5 or smoke; full for a new folder.
        workers: processes at once; by default 1 on CPUs, 4 on a GPU.
        threads: CPU threads per process; by default the cores divided by the workers.
        address: run on a Ray cluster: host:port of its head node, or auto.
        device: auto, cpu or cuda.
    """

    out: Path
    grid: str | None = None
    scale: str | None = None
    workers: int | None = number_field(None, minimum=1, maximum=256)
    threads: int | None = number_field(None, minimum=1, maximum=256)
    address: str | None = None
    device: str = "auto"


def main(argv: Sequence[str], prog: str = "retrieval-interp sweep") -> None:
    options = parse_options(SweepOptions, argv, prog)
    with status("loading PyTorch"):
        from retrieval_interp.storage.files import check_same
        from retrieval_interp.sweep.cells import read_grid
        from retrieval_interp.sweep.findings import summary_text
        from retrieval_interp.sweep.grid import make_grid
        from retrieval_interp.views.tables import terminal_width

        grid = read_grid(options.out) or make_grid(options.grid or "", options.scale or "full")
    held = {"grid": grid.grid, "scale": grid.scale}
    wanted = {name: getattr(options, name) or value for name, value in held.items()}
    check_same(wanted, held, options.out, "sweep")
    made_by = shlex.join(["--grid", grid.grid, "--scale", grid.scale, "--out", str(options.out)])
    summary = _sweep(grid, options, f"{prog} {made_by}")
    print(summary_text(summary, terminal_width()), flush=True)
    if summary["failed"]:
        sys.exit(1)


def _sweep(grid: "Grid", options: SweepOptions, command: str) -> dict[str, Any]:
    """Run the cells that are left, with a bar and a line for each; return the summary."""
    from tqdm.auto import tqdm

    from retrieval_interp.storage.files import write_json
    from retrieval_interp.sweep import cells
    from retrieval_interp.sweep.findings import summarize

    out, failed = options.out, dict[str, str]()

    def write_summary() -> dict[str, Any]:
        summary = summarize(grid, cells.read_results(out, grid), failed, command)
        write_json(out / "summary.json", summary)
        return summary

    with ExitStack() as stack:
        run, workers, threads = _place(options, stack)
        stack.callback(cells.lock_sweep(out, grid).release)
        jobs = cells.jobs_left(out, grid, options.device, threads)
        total, finished = len(grid.cells), len(grid.cells) - len(jobs)
        before = f", {finished} of them finished before" if finished else ""
        size = f"{total} cells of {grid.recipe.steps} steps"
        say(f"{out}: {grid.grid} at scale {grid.scale}, {size}{before}")
        bar = tqdm(total=total, initial=finished, unit="cell", disable=None, dynamic_ncols=True)
        try:
            with bar, closing(cells.run_jobs(jobs, run, workers or len(jobs) or 1)) as ended:
                for job, future in ended:
                    if error := future.exception():
                        failed[job.name] = "".join(traceback.format_exception(error))
                        result = f"failed: {' '.join(str(error).split())[:500]}"
                    else:
                        finished += 1
                        result = f"validation {grid.recipe.task.loss_name} {future.result():.4f}"
                    write_summary()
                    with bar.external_write_mode():
                        say(f"{job.name}: {result}; {finished} of {total} cells finished")
                    bar.update()
            return write_summary()
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"interrupted with {finished} of {total} cells finished; the same command goes on"
            ) from None


def _place(options: SweepOptions, stack: ExitStack) -> tuple[Callable[[Any], Any], int, int]:
    """Return what runs a cell, how many run at once (0: all), and the threads of each."""
    if options.address is not None:
        from retrieval_interp.sweep.cells import connect, on_nodes

        ray, threads = connect(options.address), options.threads or 1
        stack.callback(ray.shutdown)
        on_gpu = options.device != "cpu" and ray.cluster_resources().get("GPU")
        run = on_nodes(ray, options.out, threads, GPU_SHARE if on_gpu else 0)
        return run, options.workers or 0, threads
    from retrieval_interp.device import choose_device
    from retrieval_interp.sweep.cells import in_process, run_cell

    on_gpu = choose_device(options.device).type == "cuda"
    workers = options.workers or (int(1 / GPU_SHARE) if on_gpu else 1)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return in_process(run_cell), workers, options.threads or max(1, (cores or 1) // workers)
