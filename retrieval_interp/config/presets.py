"""The paper's recipes (sections 7.1, 8.1 and 9.1), and our presets (`train --preset`).

What the paper does not state has the defaults of `Recipe`. `PRESETS` are what `train` runs and what
the shipped checkpoints were made with.
"""

from dataclasses import replace
from typing import Any, cast

from retrieval_interp.config.model_config import ModelConfig
from retrieval_interp.config.recipe import Recipe
from retrieval_interp.tasks import (
    GRAPHS,
    ConditionalRetrievalTask,
    EquationsTask,
    KHopTask,
    RepeatedTokensTask,
    RetrievalTask,
)
from retrieval_interp.tasks.structured import to_data

# What the paper does not state
_UNSTATED = ("base", "warmup", "schedule", "cooldown", "precision", "init")
_PRIVATE = ("seed", "log_every", "checkpoint_every", "validation_examples")


def _section7(curriculum: bool, layers: int) -> Recipe:
    """Section 7.1; the paper has eight seeds per depth."""
    return Recipe(
        task=RetrievalTask(steps=5 if curriculum else 3, curriculum=curriculum),
        model=ModelConfig(layers=layers, heads=8, d_model=128),
        steps=10_000,
        batch=512,
        examples=2**20,
    )


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
    **{f"section7-ic-{layers}": _section7(True, layers) for layers in range(1, 9)},
    **{f"section7-nonic-{layers}": _section7(False, layers) for layers in range(1, 9)},
}


def _with_base(recipe: Recipe, base: float, **changes: Any) -> Recipe:
    """A recipe with another base of the rotary encoding: below 10,000 models learn sooner."""
    return replace(recipe, task=replace(cast(RetrievalTask, recipe.task), base=base), **changes)


_QUICK = dict[str, Any](schedule="cooldown", cooldown=0.5, precision="bfloat16", init="linear")


def _quick(name: str, steps: int) -> Recipe:
    """A recipe of section 8.1 for fewer steps."""
    return _with_base(PAPER[name], 10.0, steps=steps, checkpoint_every=500, **_QUICK)


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
    # At a constant learning rate the loss spikes to the end, hence the cooldown and fewer steps
    # than in the paper.
    "transformer-a": _quick("transformer-a", 5_000),
    "transformer-b": _quick("transformer-b", 6_000),
    "transformer-c": _quick("transformer-c", 6_000),
    "transformer-d": _with_base(PAPER["transformer-d"], 100.0, schedule="cooldown"),
    # Section 3.1's example of conditional retrieval, for which the paper has no recipe.
    "conditional": Recipe(
        task=ConditionalRetrievalTask(graph=GRAPHS["triple"], base=10.0, tables="chains"),
        model=ModelConfig(layers=6, heads=1, d_model=64),
        steps=6_000,
        **_QUICK,
    ),
    # A language model of whole words.
    "equations": replace(
        _ON_TOKENS,
        task=EquationsTask(steps=2),
        model=replace(_ON_TOKENS.model, layers=6),
        steps=3_500,
        seed=1,
    ),
    # Induction on tokens, for which other papers are the source: docs/tokens.md.
    "repeated": replace(
        _ON_TOKENS,
        task=RepeatedTokensTask(),
        model=replace(_ON_TOKENS.model, layers=2),
        steps=1_000,
    ),
    # A layer more than three hops need at least.
    "k-hop": replace(_ON_TOKENS, task=KHopTask(), log_every=100),
    # Exactly the four layers that seven hops need.
    "k-hop-7": replace(
        _ON_TOKENS,
        task=KHopTask(hops=7, alphabet=5),
        model=ModelConfig(layers=4, heads=4, d_model=128, mlp=False),
        steps=4_000,
        log_every=100,
    ),
}


def departures(recipe: Recipe, paper: Recipe) -> dict[str, tuple[Any, Any]]:
    """How our recipe differs from one of `PAPER`.

    Returns:
        Our value and the paper's by name; the paper's is None if it states none. Seeds and what is
        only measured are left out.
    """
    ours, theirs = _flat(recipe), _flat(paper)
    return {
        name: (value, None if name in _UNSTATED else theirs.get(name))
        for name, value in ours.items()
        if name not in _PRIVATE and value != theirs.get(name)
    }


def _flat(recipe: Recipe) -> dict[str, Any]:
    parts = to_data(recipe)
    task = {"D" if name == "steps" else name: value for name, value in parts.pop("task").items()}
    # A derived width is no setting of its own.
    return {**parts.pop("model"), "d_head": recipe.model.d_head, **task, **parts}
