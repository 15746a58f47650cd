"""The names of grids and scales, and how much of the paper's recipe a scale runs.

`full` is the paper's: 8 depths, 8 seeds, 10,000 steps.

`gpu-hour` has all 64 + 64 cells and cuts only the steps, to 3,000: as the learning rate is
constant, each of its cells is the beginning of the same cell at full scale. An estimate, not a
measurement: a width of 128 is bound by memory, with about 1 GB moved per layer and step (0.3 ms on
an H200), so 1.5 ms per step with the curriculum and 1 ms without at the mean depth of 4.5. The
64 * 3,000 steps then keep a GPU busy for 5 and 3 minutes, twice that with the gaps between
processes, if four to eight cells at once (or eight seeds in one step) hide the 3 ms per step on the
CPU and the 25 s to start and compile. In all 15 to 25 minutes.

`laptop` is for 2 CPU cores: 16 cells in 23 minutes of training, one cell at a time on one core
(0.016 s per step with one layer, 0.092 s with eight). Departures from the paper: D = 3 for both
grids, 2 seeds, 1,500 steps of 128 out of 2^18 examples, d_model 64, one head, no MLPs, base 10 of
the rotary encoding and PyTorch's initialization of linear layers.

`laptop-5` has the paper's D = 5 with the curriculum, and else what `laptop` has: 16 cells in 33
minutes, two at a time. Within 1,500 steps whether a run leaves the plateau depends on depth and
seed (docs/reproduction.md).

`paper-sizes` has the paper's task, model, batch and depths, with what made the laptop's runs learn
(base 10 and PyTorch's initialization), in bfloat16, 3,000 steps and one seed. As the rate is
constant, a longer run begins with the same steps. They are too few for four layers at D = 5, which
are still on the plateau after 3,500, as eight are after 1,000 (docs/reproduction.md).

`smoke` is for tests: seconds, on one chain of two steps, which is no retrieval problem.
"""

from dataclasses import dataclass, field, replace
from typing import Any

GRIDS = {
    "section7-ic": "section 7 with the implicit curriculum: D = 5, every symbol is asked",
    "section7-nonic": "section 7 without: D = 3, the last symbol alone is asked",
}


@dataclass(frozen=True)
class Scale:
    """How much of the paper's grid is run, and how its recipe, model and task are changed."""

    about: str  # one line
    layers: tuple[int, ...] = tuple(range(1, 9))
    seeds: tuple[int, ...] = tuple(range(8))  # per depth
    recipe: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    task: dict[str, Any] = field(default_factory=dict)
    compile: bool = True  # use torch.compile


_SMALL = Scale(
    "8 depths, 2 seeds, 1,500 steps of a small model, D = 3: 23 minutes on one core",
    seeds=(0, 1),
    recipe={
        "steps": 1_500,
        "batch": 128,
        "examples": 2**18,
        "init": "linear",
        "checkpoint_every": 250,
    },
    model={"d_model": 64, "heads": 1, "mlp": False},
    task={"base": 10.0},
)

SCALES: dict[str, Scale] = {
    "full": Scale("the paper's: 8 depths, 8 seeds, 10,000 steps"),
    "gpu-hour": Scale("the same cells, 3,000 steps each", recipe={"steps": 3_000}),
    "paper-sizes": Scale(
        "the paper's sizes, 3,000 steps, one seed, base 10: a day on two cores",
        seeds=(0,),
        recipe={
            "steps": 3_000,
            "precision": "bfloat16",
            "init": "linear",
        },
        task={"base": 10.0},
    ),
    "laptop": replace(_SMALL, task={"steps": 3, "base": 10.0}),
    "laptop-5": replace(
        _SMALL, about="the same with D = 5 and the curriculum: 33 minutes on two cores"
    ),
    "smoke": Scale(
        "2 depths, 2 seeds, seconds: a test, no retrieval problem",
        layers=(1, 2),
        seeds=(0, 1),
        recipe={
            "steps": 240,
            "batch": 8,
            "examples": 64,
            "learning_rate": 0.01,
            "log_every": 5,
            "checkpoint_every": 20,
            "validation_examples": 16,
        },
        model={"d_model": 16, "heads": 2},
        task={"chains": 1, "steps": 2, "dim": 2},
        compile=False,
    ),
}
