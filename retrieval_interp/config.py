"""What a training run is made of: the sizes of a transformer, and a recipe."""

import math
from dataclasses import dataclass, field
from typing import Literal

from retrieval_interp.tasks import InputError, RetrievalTask, TrainingTask
from retrieval_interp.tasks.structured import check_fields, number_field

Init = Literal["gpt2", "linear"]


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a transformer.

    Attributes:
        layers: number of blocks.
        heads: attention heads per block.
        d_model: width of the residual stream.
        d_head: width of a head; default d_model / heads.
        mlp: whether blocks have an MLP (transformer D has none, section 9.1).
    """

    layers: int = number_field(6, minimum=1, maximum=65536)
    heads: int = number_field(1, minimum=1, maximum=65536)
    d_model: int = number_field(64, minimum=1, maximum=65536)
    d_head: int | None = number_field(None, minimum=1, maximum=65536)
    mlp: bool = True

    def __post_init__(self) -> None:
        check_fields(self, "model")
        if self.d_head is None and self.d_model % self.heads:
            raise InputError(
                f"model: expected heads to divide d_model = {self.d_model}, found {self.heads} "
                "heads; give d_head"
            )

    @property
    def head_width(self) -> int:
        """The width of a head."""
        return self.d_head if self.d_head is not None else self.d_model // self.heads


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
    steps: int = number_field(10_000, minimum=1)
    batch: int = number_field(128, minimum=1)
    examples: int = number_field(2**18, minimum=1)
    learning_rate: float = number_field(1e-3, minimum=0)
    weight_decay: float = number_field(0.1, minimum=0)
    warmup: int = number_field(0, minimum=0)
    schedule: Literal["constant", "cosine", "cooldown"] = "constant"
    cooldown: float = number_field(0.2, above=0, maximum=1)
    precision: Literal["float32", "bfloat16"] = "float32"
    init: Init = "gpt2"
    seed: int = number_field(0, minimum=0)
    log_every: int = number_field(50, minimum=1)
    checkpoint_every: int = number_field(1_000, minimum=1)
    validation_examples: int = number_field(512, minimum=1)

    def __post_init__(self) -> None:
        check_fields(self, "recipe")
        if self.examples < self.batch:
            raise InputError(
                f"recipe: expected examples of at least batch = {self.batch}, found {self.examples}"
            )
        if self.checkpoint_every % self.log_every:
            raise InputError(
                f"recipe: expected checkpoint_every to be a multiple of log_every = "
                f"{self.log_every}, found {self.checkpoint_every}"
            )

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        rate = self.learning_rate * min(1.0, (step + 1) / (self.warmup + 1))
        if self.schedule == "cosine":
            rate *= 0.5 * (1 + math.cos(math.pi * step / self.steps))
        elif self.schedule == "cooldown":
            rate *= min(1.0, (1 - step / self.steps) / self.cooldown)
        return rate
