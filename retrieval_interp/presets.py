"""Recipes of training runs: the paper's, ours by name, and how the two differ."""

from dataclasses import replace
from typing import Any, cast

from retrieval_interp import tasks
from retrieval_interp.config import ModelConfig, Recipe
from retrieval_interp.tasks import GRAPHS, RetrievalTask
from retrieval_interp.tasks.structured import to_data

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
