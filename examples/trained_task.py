"""How to add a task that can be trained: python examples/trained_task.py

The task: multi-query associative recall (https://arxiv.org/abs/2312.04927). Pairs of a key and a
value, then every key once more, and at each of these its value is asked for. `<s> a 3 d 1 a d` has
the answers 3 and 1.

To ship it with this package, three files change:

1. tasks/tokens.py (or one of your own in tasks/) gets the class below. Its `name`, by which
   `@registered` makes it known, is what recipes and checkpoints call it; its fields are what
   `train --task.pairs 4` sets.
2. tasks/__init__.pyi names it, so that checkpoints of it are read.
3. retrieval_interp/presets.py gets its recipe, for `train --preset recall`.
"""

from dataclasses import dataclass
from functools import cached_property

import retrieval_interp as ri
import torch
from retrieval_interp.tasks.sampling import random_words
from retrieval_interp.tasks.structured import number_field
from retrieval_interp.tasks.training_task import BEGIN, TokenTask, registered
from retrieval_interp.tasks.words.names import letters


@registered
@dataclass(frozen=True)
class RecallTask(TokenTask):
    """The value that each key was paired with."""

    pairs: int = number_field(4, minimum=1)
    keys: int = number_field(8, minimum=1)
    values: int = number_field(8, minimum=2)

    name = "recall"

    asked = ("value",)
    role_names = ("query", "key", "value")  # of a chain, which is a key that is asked

    def __post_init__(self):
        super().__post_init__()
        if min(self.keys, self.values) < self.pairs:
            raise ri.InputError(f"task: expected keys and values for {self.pairs} pairs")

    @cached_property
    def n_positions(self):
        return 1 + 3 * self.pairs

    @cached_property
    def vocabulary(self):
        return (*map(str, range(self.values)), *letters(self.keys), BEGIN)

    @cached_property
    def candidates(self):
        return self.values

    def draw(self, indices, seed, stream):
        sizes = [self.keys, self.values, self.pairs]
        words = random_words(indices, sum(sizes), seed, stream).split(sizes, dim=-1)
        key, value, order = (part.argsort(dim=-1, stable=True)[:, : self.pairs] for part in words)
        key = key + self.values
        begin = key.new_full((len(key), 1), self.keys + self.values)
        pairs = torch.stack([key, value], dim=-1).flatten(1)
        query = 1 + 2 * self.pairs + torch.arange(self.pairs, device=key.device)
        return ri.Batch(
            inputs=torch.cat([begin, pairs, key.gather(1, order)], dim=1),
            targets=value.gather(1, order),  # as candidates
            roles=torch.stack([query.expand_as(order), 1 + 2 * order, 2 + 2 * order], dim=-1),
        )


sizes = ri.ModelConfig(layers=2, heads=1, d_model=32, mlp=False)
recipe = ri.Recipe(RecallTask(), sizes, steps=400, batch=64, examples=2**15, init="linear")
ri.train_model(recipe, "recall")  # a run folder, which later calls resume
bench = ri.open("recall")
bench.suppose("L0.H0 value<-key", "L1.H0 query<-value")
print(bench.score())
