"""When each path of a circuit appears in training, and what comes first (paper, section 9.2).

1. *Attention*, the paper's measure: the first step at which a path's mean attention is above 0.5.
2. *Necessity*, in [0, 1]: the share of what the model has learned by a step that is lost if the
   path is cut there (`Series.necessity`); the first step at which it is above half of its last
   value. Only paths that cost more than the tolerance at the last step have such a step.
3. To say which of the two leads, necessity is compared with attention above half of its own last
   value, since a path that shares a role's attention may never reach 0.5.
4. *Losses*: the first step at which each partial loss is below 0.5, in units of a symbol's variance
   (section 7.2; in the paper always in the order x_1, x_2, ...).
"""

from dataclasses import dataclass
from typing import Any, Literal

from retrieval_interp.circuits import HeadPath
from retrieval_interp.config.presets import PRESETS
from retrieval_interp.config.recipe import Recipe
from retrieval_interp.emergence.crossing import (
    THRESHOLD,
    Crossing,
    first_above,
    first_below,
    half_of_final,
)
from retrieval_interp.emergence.series import Series
from retrieval_interp.tasks.structured import to_data

LEAST_ATTENTION = 0.05  # a path that ends below this has no attention


@dataclass(frozen=True)
class PathEmergence:
    """When a path appears; steps are interpolated, "half" is above half of the last value."""

    path: HeadPath
    attention: float  # mean at the last measured step
    above: Crossing | None  # 0.5
    attention_half: Crossing | None
    necessity: float  # at the last step, cut in the intact model
    necessity_half: Crossing | None
    frozen_necessity: float | None  # removed from the circuit; None if it only enables
    frozen_half: Crossing | None

    @property
    def carries(self) -> bool:
        """Whether it carries, or only enables."""
        return self.frozen_necessity is not None

    @property
    def name(self) -> str:
        """The path, with ~ if it only enables."""
        return f"{self.path}{'' if self.carries else ' ~'}"

    @property
    def leads(self) -> Literal["attention", "necessity", "unresolved"] | None:
        """Which of attention and necessity reaches half of its last value at an earlier measured
        step; `unresolved` if both do between the same two; None if one never does.
        """
        attention, necessity = self.attention_half, self.necessity_half
        if attention is None or necessity is None:
            return None
        if attention.by == necessity.by:
            return "unresolved"
        return "attention" if attention.by < necessity.by else "necessity"

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
    steps, task = [row.step for row in series.losses], series.recipe.task
    columns = zip(*(row.partial_losses for row in series.losses))
    threshold = THRESHOLD * task.loss_scale
    return {
        name: first_below(steps, losses, threshold) for name, losses in zip(task.asked, columns)
    }


def paper_epochs(recipe: Recipe) -> bool:
    """Whether 8 steps make one of the paper's epochs, as for transformer D (section 9.1)."""
    paper = PRESETS["transformer-d"]
    return (recipe.task, recipe.model, recipe.batch) == (paper.task, paper.model, paper.batch)
