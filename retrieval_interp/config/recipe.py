"""Recipes: everything that decides what a run ends with (paper, sections 7.1, 8.1 and 9.1)."""

import math
from dataclasses import dataclass, field
from typing import Literal

from retrieval_interp.config.model_config import Init, ModelConfig
from tasks import ConditionalRetrievalTask, EquationsTask, InputError, RetrievalTask


@dataclass(frozen=True)
class Recipe:
    """A training run. The same recipe gives the same weights, on one kind of machine.

    Attributes:
        task: what is learned.
        model: what learns it.
        steps: optimizer steps.
        batch: examples a step.
        examples: size of the training set, gone through in a fresh order every epoch.
        learning_rate: Adam's, at its highest.
        weight_decay: decoupled, on every parameter.
        warmup: steps of linear warm-up.
        schedule: `constant`; `cosine` from learning_rate down to 0 at the last step; or `cooldown`,
            constant and then linearly down to 0.
        cooldown: the share of the steps, the last ones, over which schedule `cooldown` goes down.
        precision: of the matrix products in training: `float32`, or `bfloat16` (torch.autocast; the
            weights and all that is measured stay float32).
        init: of the weights, `gpt2` (TransformerLens's) or `linear` (PyTorch's of linear layers).
        seed: of the weights and of the examples.
        log_every: steps between two lines of metrics; the last 100 steps each have one.
        checkpoint_every: steps between two checkpoints, a multiple of log_every.
        validation_examples: fresh examples that the validation loss is measured on.

    Raises:
        InputError: a value is out of range.
    """

    task: RetrievalTask | ConditionalRetrievalTask | EquationsTask = field(
        default_factory=RetrievalTask
    )
    model: ModelConfig = field(default_factory=ModelConfig)
    steps: int = 10_000
    batch: int = 128
    examples: int = 2**18
    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    warmup: int = 0
    schedule: Literal["constant", "cosine", "cooldown"] = "constant"
    cooldown: float = 0.2
    precision: Literal["float32", "bfloat16"] = "float32"
    init: Init = "gpt2"
    seed: int = 0
    log_every: int = 50
    checkpoint_every: int = 1_000
    validation_examples: int = 512

    def __post_init__(self) -> None:
        for name, least in (
            ("steps", 1),
            ("batch", 1),
            ("examples", 1),
            ("warmup", 0),
            ("seed", 0),
            ("log_every", 1),
            ("checkpoint_every", 1),
            ("validation_examples", 1),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
                raise InputError(
                    f"recipe: expected {name} to be an integer of at least {least}, found {value!r}"
                )
        for name in ("learning_rate", "weight_decay"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and 0 <= value < math.inf):
                raise InputError(
                    f"recipe: expected {name} to be a number from 0 up, found {value!r}"
                )
        if not (isinstance(self.cooldown, (int, float)) and 0 < self.cooldown <= 1):
            raise InputError(
                f"recipe: expected cooldown to be a share above 0 and up to 1, found "
                f"{self.cooldown!r}"
            )
        for name, known in (
            ("schedule", ("constant", "cosine", "cooldown")),
            ("precision", ("float32", "bfloat16")),
            ("init", ("gpt2", "linear")),
        ):
            if (value := getattr(self, name)) not in known:
                expected = " or ".join(map(repr, known))
                raise InputError(f"recipe: expected {name} {expected}, found {value!r}")
        if self.examples < self.batch:
            raise InputError(
                f"recipe: expected at least batch = {self.batch} examples, found {self.examples}"
            )
        if self.checkpoint_every % self.log_every:
            raise InputError(
                f"recipe: expected checkpoint_every to be a multiple of log_every = "
                f"{self.log_every}, found {self.checkpoint_every}"
            )

    def learning_rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        rate = self.learning_rate * min(1.0, (step + 1) / (self.warmup + 1))
        if self.schedule == "cosine":
            rate *= 0.5 * (1 + math.cos(math.pi * step / self.steps))
        elif self.schedule == "cooldown":
            rate *= min(1.0, (1 - step / self.steps) / self.cooldown)
        return rate
