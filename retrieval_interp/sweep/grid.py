"""Grids of training runs as data: experiments, scales, and the recipe of each cell.

docs/reproduction.md says what the small scales can show and what they cannot.
"""

from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Literal

from retrieval_interp.config import Recipe
from retrieval_interp.presets import PRESETS
from retrieval_interp.tasks import InputError

GRIDS = {
    "section7-ic": "section 7 with the implicit curriculum: D = 5, every symbol is asked",
    "section7-nonic": "section 7 without: D = 3, the last symbol alone is asked",
}


@dataclass(frozen=True)
class Scale:
    """A size of the paper's grid, with changes of its recipe, model and task."""

    about: str  # in one line
    layers: tuple[int, ...] = tuple(range(1, 9))
    seeds: tuple[int, ...] = tuple(range(8))  # per depth
    recipe: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    task: dict[str, Any] = field(default_factory=dict)
    compile: bool = True  # use torch.compile


_SMALL = dict[str, Any](batch=128, examples=2**18, init="linear")
_SMALL_MODEL = dict[str, Any](d_model=64, heads=1, mlp=False)

SCALES: dict[str, Scale] = {
    "full": Scale("the paper's: 8 depths, 8 seeds, 10,000 steps"),
    "laptop": Scale(
        "8 depths, 2 seeds, 1,500 steps of a small model, D = 3: 23 minutes on one core",
        seeds=(0, 1),
        recipe={**_SMALL, "steps": 1_500, "checkpoint_every": 250},
        model=_SMALL_MODEL,
        task={"steps": 3, "base": 10.0},
    ),
    "laptop-5": Scale(
        "the same with D = 5, 3 seeds and the paper's 10,000 steps: 10 hours on one core",
        seeds=(0, 1, 2),
        recipe={**_SMALL, "steps": 10_000, "checkpoint_every": 1_000},
        model=_SMALL_MODEL,
        task={"base": 10.0},
    ),
    "smoke": Scale(
        "2 depths, 2 seeds, seconds: a test, no retrieval problem",
        layers=(1, 2),
        seeds=(0, 1),
        recipe={"steps": 240, "batch": 8, "examples": 64, "learning_rate": 0.01}
        | {"log_every": 5, "checkpoint_every": 20, "validation_examples": 16},
        model={"d_model": 16, "heads": 2},
        task={"chains": 1, "steps": 2, "dim": 2},
        compile=False,
    ),
}


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
    def cells(self) -> dict[str, Recipe]:
        """The recipes of all cells, seed by seed, the deepest first: so the last ones are short."""
        cells = dict[str, Recipe]()
        for seed, layers in product(self.seeds, sorted(self.layers, reverse=True)):
            model = replace(self.recipe.model, layers=layers)
            cells[f"layers-{layers}-seed-{seed}"] = replace(self.recipe, model=model, seed=seed)
        return cells


def make_grid(name: str, scale: str) -> Grid:
    """Make a grid from the names of its experiment and scale."""
    for option, given, choices in (("grid", name, [*GRIDS]), ("scale", scale, [*SCALES])):
        if given not in choices:
            raise InputError(
                f"--{option}: expected one of: {', '.join(choices)}, found {given or 'none':.60}"
            )
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
    same: dict[str, Any] = {key: getattr(chosen, key) for key in ("layers", "seeds", "compile")}
    return Grid(grid=name, scale=scale, recipe=recipe, **same)
