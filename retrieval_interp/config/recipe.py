"""Recipes: everything that determines the result of a run (paper, sections 7.1, 8.1, 9.1)."""

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from retrieval_interp.config.model_config import Init, ModelConfig
from retrieval_interp.tasks import InputError, RetrievalTask, TrainingTask

Schedule = Literal["constant", "cosine", "cooldown"]
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Recipe:
    """A training run. On one kind of machine, the same recipe gives the same weights.

    Attributes:
        task: what is learned.
        model: sizes of the transformer.
        steps: optimizer steps.
        batch: examples per step.
        examples: size of the training set, which is shuffled anew every epoch.
        learning_rate: peak learning rate of AdamW.
        weight_decay: decoupled, on every parameter.
        warmup: steps of linear warm-up.
        schedule: `constant`; `cosine`, from learning_rate to 0 at the last step; or `cooldown`,
            constant and then linear to 0.
        cooldown: the final share of the steps over which schedule `cooldown` decays.
        precision: of the matrix products in training: `float32`, or `bfloat16` (torch.autocast;
            weights and measurements stay float32).
        init: of the weights: `gpt2` (TransformerLens's) or `linear` (PyTorch's for linear layers).
        seed: of the weights and the examples.
        log_every: steps between two lines of metrics; each of the last 100 steps has one.
        checkpoint_every: steps between two checkpoints, a multiple of log_every.
        validation_examples: fresh examples on which the validation loss is measured.
    """

    task: TrainingTask = field(default_factory=RetrievalTask)
    model: ModelConfig = field(default_factory=ModelConfig)
    steps: int = 10_000
    batch: int = 128
    examples: int = 2**18
    learning_rate: float = 1e-3
    weight_decay: float = 0.1
    warmup: int = 0
    schedule: Schedule = "constant"
    cooldown: float = 0.2
    precision: Precision = "float32"
    init: Init = "gpt2"
    seed: int = 0
    log_every: int = 50
    checkpoint_every: int = 1_000
    validation_examples: int = 512

    def __post_init__(self) -> None:
        ones = ("steps", "batch", "examples", "log_every", "checkpoint_every")
        least = dict.fromkeys((*ones, "validation_examples"), 1)
        for name in (*least, "warmup", "seed", "learning_rate", "weight_decay"):
            value, lowest = getattr(self, name), least.get(name, 0)
            if not lowest <= value < math.inf:
                raise InputError(f"recipe: expected {name} to be at least {lowest}, found {value}")
        if not 0 < self.cooldown <= 1:
            raise InputError(
                f"recipe: expected cooldown to be a share above 0 and up to 1, found "
                f"{self.cooldown}"
            )
        for name, known in (("schedule", Schedule), ("precision", Precision), ("init", Init)):
            if (value := getattr(self, name)) not in get_args(known):
                expected = " or ".join(map(repr, get_args(known)))
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
