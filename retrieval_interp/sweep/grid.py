"""Grids of training runs as data: which cells there are and what each one trains."""

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from retrieval_interp.config import PRESETS, Recipe
from retrieval_interp.sweep.scales import GRIDS as GRIDS
from retrieval_interp.sweep.scales import SCALES as SCALES
from retrieval_interp.tasks import InputError


class Cell(NamedTuple):
    """One run of a grid."""

    layers: int
    seed: int

    @property
    def name(self) -> str:
        return f"layers-{self.layers}-seed-{self.seed}"


@dataclass(frozen=True, kw_only=True)
class Grid:
    """One of the paper's two depth experiments at a scale, as grid.json holds it."""

    format: Literal[1] = 1
    grid: str  # one of GRIDS
    scale: str  # one of SCALES
    layers: tuple[int, ...]
    seeds: tuple[int, ...]  # per depth
    compile: bool  # use torch.compile
    recipe: Recipe  # of the first cell; the others differ only in layers and seed

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every cell, seed by seed, deepest first, so that the last ones to end are short."""
        depths = sorted(self.layers, reverse=True)
        return tuple(Cell(layers, seed) for seed in self.seeds for layers in depths)

    def cell_recipe(self, cell: Cell) -> Recipe:
        """What a cell trains."""
        model = replace(self.recipe.model, layers=cell.layers)
        return replace(self.recipe, model=model, seed=cell.seed)


def make_grid(name: str, scale: str) -> Grid:
    """A grid by the names of its experiment and scale."""
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
