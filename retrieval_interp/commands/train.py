"""Train a transformer: `python -m retrieval_interp.train --preset small`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

import retrieval_interp as ri
from retrieval_interp.commands.command import say, status
from retrieval_interp.commands.options import parse_parts
from retrieval_interp.config import Recipe
from retrieval_interp.presets import PRESETS
from retrieval_interp.storage.files import last_step


@dataclass(frozen=True)
class TrainOptions:
    """Train a transformer on the retrieval problem.

    To resume a stopped run, run the same command again.

    Attributes:
        preset: name of a preset, as shown by `retrieval-interp list`.
        out: run folder; default runs/<preset>.
        device: auto, cpu or cuda.
        compile: use torch.compile.
    """

    preset: str = "small"
    out: Path | None = None
    device: str = "auto"
    compile: bool = True


def main(argv: Sequence[str], prog: str = "retrieval-interp train") -> None:
    options, recipe = train_options(argv, prog)
    out = options.out or Path("runs") / options.preset
    with status("loading TransformerLens"):
        from retrieval_interp.training import keep_freed_memory

    keep_freed_memory()
    start = last_step(out)
    bar = tqdm(initial=start, total=recipe.steps, unit="step", disable=None, dynamic_ncols=True)

    def show(step: int, row: dict[str, Any] | None) -> None:
        if step == start + 1:
            onwards = f", going on from step {start}" if start else ""
            with tqdm.external_write_mode():
                say(f"{out}: {recipe.steps} steps of {recipe.batch} examples{onwards}")
        bar.update(step - bar.n)
        if row:
            partial = " ".join(f"{loss:.3f}" for loss in row["partial_losses"])
            asked = f"({recipe.task.asked[0]}.. {partial})"
            bar.set_postfix_str(f"loss {row['validation_loss']:.4f} {asked}", False)

    try:
        trained = ri.train_model(recipe, out, options.device, options.compile, show)
    except KeyboardInterrupt:
        step = last_step(out)
        raise KeyboardInterrupt(f"interrupted; the same command goes on from step {step}") from None
    finally:
        bar.close()
    record = trained.record
    took = f"{record['step']} steps in {record['seconds'] / 60:.1f} min"
    loss = f"validation {recipe.task.loss_name} {record['validation_loss']:.4f}"
    say(f"{out}: {took}, {loss} (mean of the last 100 steps)")
    say(f"look inside: python -m retrieval_interp.ablate --ckpt {out}")


def train_options(argv: Sequence[str], prog: str) -> tuple[TrainOptions, Recipe]:
    """Read the options, and the preset's recipe, of which every number is an option, too."""
    preset = "small"
    for option, value in zip(argv, [*argv[1:], ""]):
        if option.partition("=")[0] == "--preset":
            preset = value if option == "--preset" else option.partition("=")[2]
    if preset not in PRESETS:
        raise ri.InputError(f"preset {preset!r}: expected one of: {', '.join(PRESETS)}")
    recipe = PRESETS[preset]
    parts = [("", TrainOptions), ("", recipe), ("task.", recipe.task), ("model.", recipe.model)]
    options, recipe, task, model = parse_parts(parts, argv, prog)
    return options, replace(recipe, task=task, model=model)
