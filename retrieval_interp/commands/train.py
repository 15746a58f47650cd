"""Train a transformer: `python -m retrieval_interp.train --preset small`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from tqdm.auto import tqdm

import retrieval_interp as ri
from retrieval_interp.commands.command import parse_options, say, saying
from retrieval_interp.config.presets import PRESETS
from retrieval_interp.config.recipe import Recipe


@dataclass(frozen=True)
class TrainOptions:
    """Train a transformer on the retrieval problem.

    To resume a stopped run, run the same command again.

    Attributes:
        recipe: any number of the preset can be changed.
        preset: name of a preset, as shown by `retrieval-interp list`.
        out: run folder; default runs/<preset>.
        device: auto, cpu or cuda.
        compile: use torch.compile.
        threads: CPU threads; default all.
        watch: a circuit file. Its paths are measured at every log step and written to watch.jsonl
            in the run folder, for emergence to read.
    """

    recipe: Annotated[Recipe, tyro.conf.arg(name="")]
    preset: str = "small"
    out: Path | None = None
    device: str = "auto"
    compile: bool = True
    threads: int | None = None
    watch: Path | None = None


def main(argv: Sequence[str], prog: str = "retrieval-interp train") -> None:
    options = train_options(argv, prog)
    recipe, out = options.recipe, options.out or Path("runs") / options.preset
    with saying("loading TransformerLens"):
        from retrieval_interp.storage.run_folder import last_step
        from retrieval_interp.training.freed_memory import keep_freed_memory

        watch = _watch(options)
    keep_freed_memory()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    bar = _Bar(recipe, out, last_step(out), options.compile)
    try:
        trained = ri.train_model(recipe, out, options.device, options.compile, bar.show, watch)
    except KeyboardInterrupt:
        kept = last_step(out)
        first = f"starts over (the first checkpoint is at step {recipe.checkpoint_every})"
        onwards = f"goes on from step {kept}" if kept else first
        raise KeyboardInterrupt(
            f"interrupted at step {bar.done}; the same command {onwards}"
        ) from None
    finally:
        bar.close()
    _tell(trained.record, recipe, out)
    if watch is not None:
        say(f"when its paths came: python -m retrieval_interp emergence --run {out}")


def train_options(argv: Sequence[str], prog: str) -> TrainOptions:
    """Read the options; those of the recipe default to the preset's."""
    preset = "small"
    for option, value in zip(argv, [*argv[1:], ""]):
        if option.partition("=")[0] == "--preset":
            preset = value if option == "--preset" else option.partition("=")[2]
    if preset not in PRESETS:
        raise ri.InputError(f"preset {preset!r}: expected one of: {', '.join(PRESETS)}")
    options = parse_options(TrainOptions, argv, prog, TrainOptions(PRESETS[preset], preset))
    if options.threads is not None and not 1 <= options.threads <= 1024:
        raise ri.InputError(f"--threads: expected 1 to 1024, found {options.threads}")
    return options


def _watch(options: TrainOptions) -> "ri.Watch | None":
    from retrieval_interp.storage.circuit_file import read_circuit

    if options.watch is None:
        return None
    task, model = options.recipe.task, options.recipe.model
    trained_on = "this run is trained on"
    return ri.Watch(read_circuit(options.watch, task, model.layers, model.heads, trained_on))


class _Bar:
    """A bar on a terminal, and a line that says what is trained once the first step is done."""

    def __init__(self, recipe: Recipe, out: Path, start: int, compile: bool):
        self.recipe, self.out, self.start, self.done = recipe, out, start, start
        waiting = "compiling the model" if compile else "first step"
        self._bar = tqdm(
            desc=waiting, total=recipe.steps, unit="step", disable=None, dynamic_ncols=True
        )
        self.close = self._bar.close

    def show(self, step: int, row: dict[str, Any] | None) -> None:
        recipe = self.recipe
        if self.done == self.start:
            self._bar.set_description_str("", False)
            onwards = f", going on from step {step - 1}" if step > 1 else ""
            with tqdm.external_write_mode():
                say(f"{self.out}: {recipe.steps} steps of {recipe.batch} examples{onwards}")
        self.done = step
        self._bar.update(step - self._bar.n)
        if row:
            partial = " ".join(f"{loss:.3f}" for loss in row["partial_losses"])
            text = f"loss {row['validation_loss']:.4f} ({recipe.task.asked[0]}.. {partial})"
            self._bar.set_postfix_str(text, False)


def _tell(record: dict[str, Any], recipe: Recipe, out: Path) -> None:
    if "validation_loss" not in record:
        say(f"{out}: {record['step']} steps; its metrics.jsonl has no losses of the last steps")
        return
    losses = zip(recipe.task.asked, record["partial_losses"])
    partial = " ".join(f"{name} {loss:.4f}" for name, loss in losses)
    say(
        f"{out}: {record['step']} steps in {record['seconds'] / 60:.1f} min, validation "
        f"{recipe.task.loss_name} {record['validation_loss']:.4f} (mean of the last 100 steps; "
        f"{partial})"
    )
    say(f"look inside: python -m retrieval_interp.ablate --ckpt {out}")
