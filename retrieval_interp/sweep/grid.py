"""Grids of training runs as data: which cells there are and what each one trains.

1. A grid is one of the paper's two depth experiments (section 7): with the implicit curriculum
   (D = 5) or without (D = 3). Its cells are (layers, seed).
2. A scale says how many cells and how much of the paper's recipe: `SCALES` is the one place.
3. A cell's recipe is the preset of its depth with the scale's changes and the cell's seed.

`full` is the paper's: 8 depths, 8 seeds, 10,000 steps.

`gpu-hour` has all 64 + 64 cells and cuts only the steps, to 3,000: as the learning rate is
constant, each of its cells is the beginning of the same cell at full scale. Reasoned, not measured:
a layer has 12 * 128^2 weights and a step 512 * 44 (without curriculum 512 * 28) positions, which is
27 (17) GFLOP a layer and step, but a width of 128 is bound by memory: about 1 GB moved a layer and
step, 0.3 ms of an H200, so 1.5 ms (1 ms) at the mean depth of 4.5. 64 * 3,000 steps are then 5 (3)
minutes of a busy GPU, twice that with the gaps between processes. What one process cannot hide,
3 ms a step on its CPU and 25 s to start and compile, four to eight cells at once do, be it eight
seeds in one step (`retrieval_interp.sweep.groups`). In all 15 to 25 minutes.

`laptop` is for 2 CPU cores: 16 cells in 23 minutes of training, one cell at a time on one core
(0.016 s a step with one layer, 0.092 s with eight). Departures from the paper: D = 3 for both
grids, 2 seeds, 1,500 steps of 128 out of 2^18 examples, d_model 64, one head, no MLPs, base 10 of
the rotary encoding and PyTorch's initialization of linear layers. Of what was tried at D = 5
nothing learned more than x_1 in 800 to 2,800 steps (4 or 6 layers; one, four and eight heads; bases
10, 15 and 100).

`smoke` is for tests: seconds, on one chain of two steps, which is no retrieval problem.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from retrieval_interp.config.presets import PRESETS
from retrieval_interp.config.recipe import Recipe
from tasks import InputError
from tasks.structured import from_data, to_data

GRIDS = ("section7-ic", "section7-nonic")
FORMAT = 1


class Cell(NamedTuple):
    """One run of a grid."""

    layers: int
    seed: int

    @property
    def name(self) -> str:
        return f"layers-{self.layers}-seed-{self.seed}"


@dataclass(frozen=True)
class Scale:
    """How much of the paper's grid is run.

    Attributes:
        layers: depths.
        seeds: seeds a depth.
        recipe: what differs from the paper's recipe.
        model: what differs in its model.
        task: what differs in its task.
        compile: use torch.compile.
    """

    layers: tuple[int, ...] = tuple(range(1, 9))
    seeds: tuple[int, ...] = tuple(range(8))
    recipe: tuple[tuple[str, Any], ...] = ()
    model: tuple[tuple[str, Any], ...] = ()
    task: tuple[tuple[str, Any], ...] = ()
    compile: bool = True


SCALES: dict[str, Scale] = {
    "full": Scale(),
    "gpu-hour": Scale(recipe=(("steps", 3_000),)),
    "laptop": Scale(
        seeds=(0, 1),
        recipe=(
            ("steps", 1_500),
            ("batch", 128),
            ("examples", 2**18),
            ("init", "linear"),
            ("checkpoint_every", 250),
        ),
        model=(("d_model", 64), ("heads", 1), ("mlp", False)),
        task=(("steps", 3), ("base", 10.0)),
    ),
    "smoke": Scale(
        layers=(1, 2),
        seeds=(0, 1),
        recipe=(
            ("steps", 240),
            ("batch", 8),
            ("examples", 64),
            ("learning_rate", 0.01),
            ("log_every", 5),
            ("checkpoint_every", 20),
            ("validation_examples", 16),
        ),
        model=(("d_model", 16), ("heads", 2)),
        task=(("chains", 1), ("steps", 2), ("dim", 2)),
        compile=False,
    ),
}


@dataclass(frozen=True)
class Grid:
    """A grid at a scale.

    Attributes:
        name: one of `GRIDS`.
        scale: one of `SCALES`.
        layers: depths.
        seeds: seeds a depth.
        recipe: that of the first cell; the others differ in layers and seed alone.
        compile: use torch.compile.
    """

    name: str
    scale: str
    layers: tuple[int, ...]
    seeds: tuple[int, ...]
    recipe: Recipe
    compile: bool

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every cell, seed by seed, the deepest first: what is left at the end is short."""
        depths = sorted(self.layers, reverse=True)
        return tuple(Cell(layers, seed) for seed in self.seeds for layers in depths)

    def cell_recipe(self, cell: Cell) -> Recipe:
        """What a cell trains."""
        model = replace(self.recipe.model, layers=cell.layers)
        return replace(self.recipe, model=model, seed=cell.seed)

    @property
    def asked(self) -> tuple[str, ...]:
        """The symbols that partial losses are of: x_1..x_D, or x_D alone."""
        return self.recipe.task.asked

    def to_dict(self) -> dict[str, Any]:
        """As JSON data: what grid.json holds."""
        return {
            "format": FORMAT,
            "grid": self.name,
            "scale": self.scale,
            "layers": list(self.layers),
            "seeds": list(self.seeds),
            "compile": self.compile,
            "recipe": to_data(self.recipe),
        }


def make_grid(name: str, scale: str) -> Grid:
    """A grid by the names of its experiment and scale.

    Raises:
        InputError: one of them is unknown; the known ones are listed.
    """
    if name not in GRIDS:
        raise InputError(f"grid {name!r:.60}: expected one of: {', '.join(GRIDS)}")
    if scale not in SCALES:
        raise InputError(f"scale {scale!r:.60}: expected one of: {', '.join(SCALES)}")
    chosen = SCALES[scale]
    preset = PRESETS[f"{name}-{chosen.layers[0]}"]
    recipe = replace(
        preset,
        task=replace(preset.task, **dict(chosen.task)),
        model=replace(preset.model, **dict(chosen.model)),
        seed=chosen.seeds[0],
        **dict(chosen.recipe),
    )
    return Grid(name, scale, chosen.layers, chosen.seeds, recipe, chosen.compile)


def grid_from_dict(data: Any, where: str) -> Grid:
    """Read what `Grid.to_dict` gave.

    Args:
        data: JSON data.
        where: what to call it in errors.

    Raises:
        InputError: a key is missing, unknown or of the wrong type.
    """
    keys = ("format", "grid", "scale", "layers", "seeds", "compile", "recipe")
    if not isinstance(data, dict) or data.keys() != set(keys):
        found = ", ".join(map(str, data)) if isinstance(data, dict) else type(data).__name__
        raise InputError(f"{where}: expected the keys {', '.join(keys)}, found {found:.80}")
    if data["format"] != FORMAT:
        raise InputError(f"{where}: expected format {FORMAT}, found {data['format']!r:.20}")
    for key in ("layers", "seeds"):
        values = data[key]
        if not isinstance(values, list) or not values or any(type(x) is not int for x in values):
            raise InputError(f"{where}: expected {key} to be integers, found {values!r:.60}")
    if not (isinstance(data["grid"], str) and isinstance(data["scale"], str)):
        raise InputError(f"{where}: expected the names of a grid and a scale, found others")
    recipe = from_data(Recipe, data["recipe"], f"{where}: recipe")
    return Grid(
        data["grid"],
        data["scale"],
        tuple(data["layers"]),
        tuple(data["seeds"]),
        recipe,
        bool(data["compile"]),
    )
