"""Grids of training runs as data: which cells there are and what each one trains.

1. A grid is one of the paper's two depth experiments (section 7): with the implicit curriculum
   (D = 5) or without (D = 3). Its cells are (layers, seed).
2. A scale (`retrieval_interp.sweep.scales`) says how many cells and how much of the paper's recipe.
3. A cell's recipe is the preset of its depth with the scale's changes and the cell's seed.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from retrieval_interp.config.presets import PRESETS
from retrieval_interp.config.recipe import Recipe
from retrieval_interp.sweep.scales import GRIDS as GRIDS
from retrieval_interp.sweep.scales import SCALES as SCALES
from retrieval_interp.tasks import InputError
from retrieval_interp.tasks.structured import to_data


class Cell(NamedTuple):
    """One run of a grid."""

    layers: int
    seed: int

    @property
    def name(self) -> str:
        return f"layers-{self.layers}-seed-{self.seed}"


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A grid at a scale, as grid.json holds it.

    Raises:
        InputError: no depth or no seed.
    """

    format: Literal[1] = 1
    grid: str  # one of GRIDS
    scale: str  # one of SCALES
    layers: tuple[int, ...]
    seeds: tuple[int, ...]  # per depth
    compile: bool  # use torch.compile
    recipe: Recipe  # of the first cell; the others differ only in layers and seed

    def __post_init__(self) -> None:
        if not (self.layers and self.seeds):
            raise InputError(
                f"expected layers and seeds, found {len(self.layers)} and {len(self.seeds)}"
            )

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every cell, seed by seed, deepest first, so that the last ones to end are short."""
        depths = sorted(self.layers, reverse=True)
        return tuple(Cell(layers, seed) for seed in self.seeds for layers in depths)

    def cell_recipe(self, cell: Cell) -> Recipe:
        """What a cell trains."""
        model = replace(self.recipe.model, layers=cell.layers)
        return replace(self.recipe, model=model, seed=cell.seed)

    @property
    def asked(self) -> tuple[str, ...]:
        """The symbols that have partial losses: x_1..x_D, or x_D alone."""
        return self.recipe.task.asked

    def to_dict(self) -> dict[str, Any]:
        """The JSON data in grid.json."""
        data: dict[str, Any] = to_data(self)
        return data


def make_grid(name: str, scale: str) -> Grid:
    """A grid by the names of its experiment and scale.

    Raises:
        InputError: a name is unknown; the known ones are listed.
    """
    if name not in GRIDS:
        raise InputError(f"grid {name!r:.60}: expected one of: {', '.join(GRIDS)}")
    if scale not in SCALES:
        raise InputError(f"scale {scale!r:.60}: expected one of: {', '.join(SCALES)}")
    chosen = SCALES[scale]
    preset = PRESETS[f"{name}-{chosen.layers[0]}"]
    task: Any = preset.task
    recipe = replace(
        preset,
        task=replace(task, **chosen.task),
        model=replace(preset.model, **chosen.model),
        seed=chosen.seeds[0],
        **chosen.recipe,
    )
    return Grid(
        grid=name,
        scale=scale,
        layers=chosen.layers,
        seeds=chosen.seeds,
        compile=chosen.compile,
        recipe=recipe,
    )
