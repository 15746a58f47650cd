"""Add a task that can be trained and kept in checkpoints: python examples/recall_task.py

Associative recall (Arora et al. 2023, https://arxiv.org/abs/2312.04927): pairs of a key and a
value, then every key once more, in random order. At each of these its value is asked for.

    <s>  g   5   c   7   h   6   g   h   c
         s1  s2                  s0               the answer at s0 is 5

A training task is a frozen dataclass of its sizes. `facts` says what follows from them, `draw`
makes examples from counters, so that example i of a seed is always the same. It takes minutes.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import retrieval_interp as ri
import torch
from retrieval_interp.tasks import TokenTask
from retrieval_interp.tasks.sampling import random_words
from retrieval_interp.tasks.token_task import BEGIN


@dataclass(frozen=True)
class RecallTask(TokenTask):
    """Name the value that each key was paired with."""

    pairs: int = 8
    keys: int = 32
    values: int = 32

    name: ClassVar[str] = "recall"

    def facts(self) -> dict[str, Any]:
        if min(self.keys, self.values) < self.pairs:
            raise ri.InputError(f"task: expected at least {self.pairs} keys and values")
        return {
            "n_positions": 1 + 3 * self.pairs,
            "vocabulary": (
                *(str(number) for number in range(self.values)),
                *(f"k{number}" for number in range(self.keys)),
                BEGIN,
            ),
            "candidates": self.values,
            "asked": ("value",),
            "role_names": ("s0", "s1", "s2"),
            "role_labels": ("query key", "key", "its value"),
            "role_symbols": ("key?", "key", "value"),
            "description": f"recall of {self.pairs} pairs",
        }

    def draw(self, indices: torch.Tensor, seed: int, stream: int) -> ri.Batch:
        sizes = [self.keys, self.values, self.pairs]
        words = random_words(indices, sum(sizes), seed, stream).split(sizes, dim=-1)
        key, value, order = (part.argsort(dim=-1, stable=True)[:, : self.pairs] for part in words)
        key = key + self.values
        begin = key.new_full((len(key), 1), self.keys + self.values)
        pairs = torch.stack([key, value], dim=-1).flatten(1)
        query = 1 + 2 * self.pairs + torch.arange(self.pairs, device=key.device)
        roles = torch.stack([query.expand_as(order), 1 + 2 * order, 2 + 2 * order], dim=-1)
        inputs = torch.cat([begin, pairs, key.gather(1, order)], dim=1)
        return ri.Batch(inputs, value.gather(1, order), roles)


if __name__ == "__main__":
    recipe = replace(ri.PRESETS["repeated"], task=RecallTask())
    trained = ri.train_model(recipe, compile=False)
    bench = ri.open(trained.model, recipe.task)
    bench.discover(examples=128)
    print(bench.score())
