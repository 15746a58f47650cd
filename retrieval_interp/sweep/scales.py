"""The names of grids and scales, and how a scale changes the paper's recipe. Loads nothing heavy.

What the small scales teach, and what they cannot, is in docs/reproduction.md.
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


_LAPTOP = Scale(
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
    task={"steps": 3, "base": 10.0},
)

SCALES: dict[str, Scale] = {
    "full": Scale("the paper's: 8 depths, 8 seeds, 10,000 steps"),
    # As the learning rate is constant, each cell is the beginning of the same cell at full scale.
    "gpu-hour": Scale("the same cells, 3,000 steps each", recipe={"steps": 3_000}),
    # The paper's sizes with what made the laptop's runs learn.
    "paper-sizes": Scale(
        "the paper's sizes, 3,000 steps, one seed, base 10: a day on two cores",
        seeds=(0,),
        recipe={"steps": 3_000, "precision": "bfloat16", "init": "linear"},
        task={"base": 10.0},
    ),
    "laptop": _LAPTOP,
    "laptop-5": replace(
        _LAPTOP,
        about="the same with D = 5, 3 seeds and the paper's 10,000 steps: 10 hours on one core",
        seeds=(0, 1, 2),
        recipe=_LAPTOP.recipe | {"steps": 10_000, "checkpoint_every": 1_000},
        task={"base": 10.0},
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
