"""Train a transformer: `python -m retrieval_interp.train --preset small`."""

if __name__ == "__main__":  # before anything that takes time to load
    from retrieval_interp.cli.interrupts import end_at_once

    end_at_once("train")

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from retrieval_interp.cli.command import parse_options, run_command
from retrieval_interp.cli.process_settings import keep_memory
from retrieval_interp.config.presets import PRESETS
from retrieval_interp.config.recipe import Recipe
from tasks import InputError

PROG = "python -m retrieval_interp.train"


@dataclass(frozen=True)
class TrainOptions:
    """Train a transformer on the retrieval problem.

    Give a preset, change what you like, and run the same command again to go on where a stopped run
    was.

    Attributes:
        recipe: every number of the preset can be changed.
        preset: where the numbers come from, one of the names in the README.
        out: run folder; default runs/<preset>.
        device: auto, cpu or cuda.
        compile: use torch.compile.
        threads: CPU threads; default all.
        watch: a circuit file, whose paths are measured at every log step and written to the run
            folder's watch.jsonl, for emergence to read.
    """

    recipe: Annotated[Recipe, tyro.conf.arg(name="")]
    preset: str = "small"
    out: Path | None = None
    device: str = "auto"
    compile: bool = True
    threads: int | None = None
    watch: Path | None = None


def preset_recipe(name: str) -> Recipe:
    """A recipe by name.

    Raises:
        InputError: unknown; the known ones are listed.
    """
    if name not in PRESETS:
        raise InputError(f"preset {name!r}: expected one of: {', '.join(PRESETS)}")
    return PRESETS[name]


def _preset_of(argv: Sequence[str]) -> str:
    preset = "small"
    for option, value in zip(argv, [*argv[1:], ""]):
        if option == "--preset":
            preset = value
        elif option.startswith("--preset="):
            preset = option.removeprefix("--preset=")
    return preset


def main(argv: Sequence[str]) -> None:
    preset = _preset_of(argv)
    default = TrainOptions(preset_recipe(preset), preset)
    options = parse_options(TrainOptions, argv, PROG, default)

    keep_memory()
    import torch
    from tqdm.auto import tqdm

    from retrieval_interp.emergence.watch import Watch
    from retrieval_interp.storage.circuit_file import read_circuit
    from retrieval_interp.storage.run_folder import last_step
    from retrieval_interp.training.loop import FINAL_STEPS, train_model

    out = options.out or Path("runs") / preset
    if options.threads is not None:
        if not 1 <= options.threads <= 1024:
            raise InputError(f"threads: expected 1 to 1024, found {options.threads}")
        torch.set_num_threads(options.threads)
    recipe, watch = options.recipe, None
    if options.watch is not None:
        watched = read_circuit(
            options.watch,
            recipe.task,
            recipe.model.layers,
            recipe.model.heads,
            "this run is trained on",
        )
        watch = Watch(watched)
    start = last_step(out)
    progress = [start]
    bar = tqdm(total=recipe.steps, unit="step", disable=None, dynamic_ncols=True)

    def show(done: int, row: dict[str, Any] | None) -> None:
        if progress[0] == start:
            onwards = f", going on from step {done - 1}" if done > 1 else ""
            tqdm.write(f"{out}: {recipe.steps} steps of {recipe.batch} examples{onwards}")
        progress[0] = done
        bar.update(done - bar.n)
        if row:
            partial = " ".join(f"{loss:.3f}" for loss in row["partial_losses"])
            bar.set_postfix_str(
                f"loss {row['validation_loss']:.4f} ({recipe.task.asked[0]}.. {partial})", False
            )

    try:
        trained = train_model(recipe, out, options.device, options.compile, show, watch)
    except KeyboardInterrupt:
        kept = last_step(out)
        onwards = (
            f"goes on from step {kept}"
            if kept
            else f"starts over (the first checkpoint is at step {recipe.checkpoint_every})"
        )
        raise KeyboardInterrupt(
            f"interrupted at step {progress[0]}; the same command {onwards}"
        ) from None
    finally:
        bar.close()
    record = trained.record
    if "validation_loss" not in record:
        print(f"{out}: {record['step']} steps; its metrics.jsonl has no losses of the last steps")
        return
    partial = " ".join(
        f"{name} {loss:.4f}" for name, loss in zip(recipe.task.asked, record["partial_losses"])
    )
    print(
        f"{out}: {record['step']} steps in {record['seconds'] / 60:.1f} min, validation "
        f"{recipe.task.loss_name} {record['validation_loss']:.4f} (mean of the last {FINAL_STEPS} "
        f"steps; {partial})"
    )
    print(f"look inside: python -m retrieval_interp.ablate --ckpt {out}")
    if watch is not None:
        print(f"when its paths came: python -m retrieval_interp.emergence --run {out}")


if __name__ == "__main__":
    run_command(main, PROG)
