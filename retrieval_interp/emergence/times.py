"""When each path of a circuit appears in training, and what comes first (paper, section 9.2).

1. *Attention*, the paper's measure: the first step at which a path's mean attention is above 0.5.
2. *Necessity*, in [0, 1]: the share of what the model has learned by a step that is lost if the
   path is cut there (`Series.necessity`); the first step at which it is above half of its last
   value. Only paths that cost more than the tolerance at the last step have such a step.
3. To say which of the two leads, necessity is compared with attention above half of its own last
   value, since a path that shares a role's attention may never reach 0.5.
4. *Losses*: the first step at which each partial loss is below 0.5, in units of a symbol's variance
   (section 7.2; in the paper always in the order x_1, x_2, ...).

All steps are interpolated between measured ones (`retrieval_interp.emergence.crossing`).
"""

from dataclasses import dataclass
from typing import Any

from retrieval_interp.circuits import HeadPath
from retrieval_interp.config.presets import PRESETS
from retrieval_interp.config.recipe import Recipe
from retrieval_interp.emergence.crossing import (
    THRESHOLD,
    Crossing,
    Leader,
    first_above,
    first_below,
    half_of_final,
    who_leads,
)
from retrieval_interp.emergence.series import Series
from retrieval_interp.tasks.structured import to_data

LEAST_ATTENTION = 0.05  # a path that ends below this has no attention


@dataclass(frozen=True)
class PathEmergence:
    """When a path appears.

    Attributes:
        path: the path.
        carries: whether it carries, or only enables.
        attention: its mean attention at the last measured step.
        above: first step with attention above 0.5.
        attention_half: first step with attention above half of its last value.
        necessity: the share of what is learned that is lost at the last step if it is cut.
        necessity_half: first step with necessity above half of its last value.
        frozen_necessity: necessity in the frozen circuit; None if it only enables.
        frozen_half: first step with that above half of its last value.
    """

    path: HeadPath
    carries: bool
    attention: float
    above: Crossing | None
    attention_half: Crossing | None
    necessity: float
    necessity_half: Crossing | None
    frozen_necessity: float | None
    frozen_half: Crossing | None

    @property
    def name(self) -> str:
        """The path, with ~ if it only enables."""
        return f"{self.path}{'' if self.carries else ' ~'}"

    @property
    def leads(self) -> Leader | None:
        """Whether attention or necessity reaches half of its last value first."""
        return who_leads(self.attention_half, self.necessity_half)

    def to_dict(self) -> dict[str, Any]:
        """As JSON data."""
        dest, src = self.path.path.ends()
        return {
            **self.path.head._asdict(),
            "dest": dest,
            "src": src,
            "carries": self.carries,
            "attention": self.attention,
            "attention_above_half": to_data(self.above),
            "attention_half_of_final": to_data(self.attention_half),
            "necessity": self.necessity,
            "necessity_half_of_final": to_data(self.necessity_half),
            "frozen_necessity": self.frozen_necessity,
            "frozen_necessity_half_of_final": to_data(self.frozen_half),
            "leads": self.leads,
        }


def path_emergence(series: Series) -> list[PathEmergence]:
    """When each path of a series appears, in the circuit's order."""
    rows, steps = [], series.steps
    least, least_frozen = series.least_necessity(), series.least_necessity(frozen=True)
    for path in series.paths:
        attention, necessity = series.attention(path), series.necessity(path)
        frozen = series.frozen_necessity(path)
        rows.append(
            PathEmergence(
                path=path,
                carries=frozen is not None,
                attention=attention[-1],
                above=first_above(steps, attention, THRESHOLD),
                attention_half=half_of_final(steps, attention, LEAST_ATTENTION),
                necessity=necessity[-1],
                necessity_half=half_of_final(steps, necessity, least),
                frozen_necessity=frozen[-1] if frozen else None,
                frozen_half=half_of_final(steps, frozen, least_frozen) if frozen else None,
            )
        )
    return rows


def loss_emergence(series: Series) -> dict[str, Crossing | None]:
    """When each partial loss is first below 0.5, by symbol (x_1, x_2, ...)."""
    steps = [row.step for row in series.losses]
    threshold = THRESHOLD * series.recipe.task.loss_scale
    return {
        symbol: first_below(steps, [row.partial_losses[i] for row in series.losses], threshold)
        for i, symbol in enumerate(symbols(series.recipe))
    }


def symbols(recipe: Recipe) -> list[str]:
    """The asked symbols, x_1..x_D, or x_D alone."""
    return list(recipe.task.asked)


def paper_epochs(recipe: Recipe) -> bool:
    """Whether 8 steps make one of the paper's epochs, as for transformer D (section 9.1)."""
    paper = PRESETS["transformer-d"]
    return (recipe.task, recipe.model, recipe.batch) == (paper.task, paper.model, paper.batch)
