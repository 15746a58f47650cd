"""Sizes of transformers and recipes of training runs, the paper's and ours; imports no torch."""

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from retrieval_interp import tasks
from retrieval_interp.tasks import GRAPHS, InputError, RetrievalTask, TrainingTask
from retrieval_interp.tasks.structured import check_fields, number, to_data

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

    layers: int = number(6, least=1, most=65536)
    heads: int = number(1, least=1, most=65536)
    d_model: int = number(64, least=1, most=65536)
    d_head: int | None = number(None, least=1, most=65536)
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
    steps: int = number(10_000, least=1)
    batch: int = number(128, least=1)
    examples: int = number(2**18, least=1)
    learning_rate: float = number(1e-3, least=0)
    weight_decay: float = number(0.1, least=0)
    warmup: int = number(0, least=0)
    schedule: Literal["constant", "cosine", "cooldown"] = "constant"
    cooldown: float = number(0.2, least=0, most=1)
    precision: Literal["float32", "bfloat16"] = "float32"
    init: Init = "gpt2"
    seed: int = number(0, least=0)
    log_every: int = number(50, least=1)
    checkpoint_every: int = number(1_000, least=1)
    validation_examples: int = number(512, least=1)

    def __post_init__(self) -> None:
        check_fields(self, "recipe")
        if self.examples < self.batch:
            raise InputError(
                f"recipe: expected examples of at least batch = {self.batch}, found {self.examples}"
            )
        if self.cooldown == 0:
            raise InputError("recipe: expected cooldown above 0, found 0")
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


_UNSTATED = ("base", "warmup", "schedule", "cooldown", "precision", "init")  # not in the paper
_NOT_COMPARED = ("seed", "log_every", "checkpoint_every", "validation_examples")

_ABC = Recipe(
    task=RetrievalTask(steps=3),
    model=ModelConfig(layers=12, heads=1, d_model=128),
    steps=24_000,
    batch=128,
    examples=2**18,
)

PAPER: dict[str, Recipe] = {
    # Section 8.1: three seeds of one recipe.
    "transformer-a": _ABC,
    "transformer-b": replace(_ABC, seed=1),
    "transformer-c": replace(_ABC, seed=2),
    # Section 9.1: no MLPs, heads of 16, a checkpoint every 80 steps.
    "transformer-d": Recipe(
        task=RetrievalTask(steps=4),
        model=ModelConfig(layers=24, heads=1, d_model=512, d_head=16, mlp=False),
        steps=6_400,
        batch=256,
        examples=2**18,
        log_every=40,
        checkpoint_every=80,
    ),
    # Section 7.1: with and without the implicit curriculum; the paper has eight seeds per depth.
    **{
        f"section7-{name}-{layers}": Recipe(
            task=RetrievalTask(steps=steps, curriculum=name == "ic"),
            model=ModelConfig(layers=layers, heads=8, d_model=128),
            batch=512,
            examples=2**20,
        )
        for name, steps in (("ic", 5), ("nonic", 3))
        for layers in range(1, 9)
    },
}


def _with_base(recipe: Recipe, base: float, **changes: Any) -> Recipe:
    """Return a recipe with another base of the position encoding: lower ones are learned sooner."""
    return replace(recipe, task=replace(cast(RetrievalTask, recipe.task), base=base), **changes)


_QUICK = dict[str, Any](schedule="cooldown", cooldown=0.5, precision="bfloat16", init="linear")

_ON_TOKENS = Recipe(
    model=ModelConfig(layers=4, heads=1, d_model=64, mlp=False),
    steps=3_000,
    warmup=100,
    **{**_QUICK, "cooldown": 0.4},
)

PRESETS: dict[str, Recipe] = {
    # The shipped default. At a constant learning rate the loss spikes late, hence cosine.
    "small": _with_base(
        _ABC,
        100.0,
        model=ModelConfig(layers=5, heads=1, d_model=64),
        steps=12_000,
        schedule="cosine",
        seed=1,
    ),
    **PAPER,
    # At a constant learning rate the loss spikes to the end: hence a cooldown, and fewer steps.
    **{
        f"transformer-{name}": _with_base(
            PAPER[f"transformer-{name}"], 10.0, steps=steps, checkpoint_every=500, **_QUICK
        )
        for name, steps in (("a", 5_000), ("b", 6_000), ("c", 6_000))
    },
    "transformer-d": _with_base(PAPER["transformer-d"], 100.0, schedule="cooldown"),
    # Section 3.1's example, for which the paper has no recipe.
    "conditional": Recipe(
        task=tasks.ConditionalRetrievalTask(graph=GRAPHS["triple"], base=10.0, tables="chains"),
        model=ModelConfig(layers=6, heads=1, d_model=64),
        steps=6_000,
        **_QUICK,
    ),
    # A language model of whole words.
    "equations": replace(
        _ON_TOKENS,
        task=tasks.EquationsTask(steps=2),
        model=replace(_ON_TOKENS.model, layers=6),
        steps=3_500,
        seed=1,
    ),
    # Induction on tokens, for which other papers are the source: docs/tokens.md.
    "repeated": replace(
        _ON_TOKENS,
        task=tasks.RepeatedTokensTask(),
        model=replace(_ON_TOKENS.model, layers=2),
        steps=1_000,
    ),
    # A layer more than three hops need at least.
    "k-hop": replace(_ON_TOKENS, task=tasks.KHopTask(), log_every=100),
    # Exactly the four layers that seven hops need.
    "k-hop-7": replace(
        _ON_TOKENS,
        task=tasks.KHopTask(hops=7, alphabet=5),
        model=ModelConfig(layers=4, heads=4, d_model=128, mlp=False),
        steps=4_000,
        log_every=100,
    ),
}


def departures(recipe: Recipe, paper: Recipe) -> dict[str, tuple[Any, Any]]:
    """Return how our recipe differs from one of `PAPER`: our value and the paper's, or None.

    Seeds are left out, and what affects only measurements.
    """
    ours, theirs = _flat(recipe), _flat(paper)
    return {
        name: (value, None if name in _UNSTATED else theirs.get(name))
        for name, value in ours.items()
        if name not in _NOT_COMPARED and value != theirs.get(name)
    }


def _flat(recipe: Recipe) -> dict[str, Any]:
    parts = to_data(recipe)
    task = {"D" if name == "steps" else name: value for name, value in parts.pop("task").items()}
    # The default width, which is derived, is written out, so that equal widths are equal.
    return {**parts.pop("model"), "d_head": recipe.model.d_head, **task, **parts}
