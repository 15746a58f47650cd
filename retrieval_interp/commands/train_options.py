"""The options of `train`. They include the fields of a recipe, whose tasks need torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from retrieval_interp.commands.command import parse_options
from retrieval_interp.config.presets import PRESETS
from retrieval_interp.config.recipe import Recipe
from retrieval_interp.tasks.errors import InputError


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


def train_options(argv: Sequence[str], prog: str) -> TrainOptions:
    """Read the options; those of the recipe default to the preset's.

    Raises:
        InputError: as `parse_options`, or the preset is unknown; the known ones are listed.
    """
    preset = "small"
    for option, value in zip(argv, [*argv[1:], ""]):
        if option == "--preset":
            preset = value
        elif option.startswith("--preset="):
            preset = option.removeprefix("--preset=")
    if preset not in PRESETS:
        raise InputError(f"preset {preset!r}: expected one of: {', '.join(PRESETS)}")
    options = parse_options(TrainOptions, argv, prog, TrainOptions(PRESETS[preset], preset))
    if options.threads is not None and not 1 <= options.threads <= 1024:
        raise InputError(f"--threads: expected 1 to 1024, found {options.threads}")
    return options
