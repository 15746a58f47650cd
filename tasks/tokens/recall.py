"""Multi-query associative recall (Arora et al. 2023, "Zoology: measuring and improving recall in
efficient language models", https://arxiv.org/abs/2312.04927).

1. A begin token is followed by pairs of a key and a value, and then by every key once more, in
   random order. At each of these its value is asked for.
2. Keys and values are different words, and none comes in two pairs. The paper scatters the keys
   among other tokens; here they follow at once.
"""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from retrieval_interp.tasks.batch import Batch
from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.sampling import random_words
from retrieval_interp.tasks.token_task import BEGIN, TokenTask
from retrieval_interp.tasks.training_task import counted
from retrieval_interp.tasks.words.prompts.names import letters


@dataclass(frozen=True)
class RecallTask(TokenTask):
    """Name the value that each key was paired with.

    A chain is a key that is asked about:

        s0  the key as a query, where the answer is read
        s1  the key in its pair
        s2  its value, the answer

    Attributes:
        pairs: pairs per sequence.
        keys: how many keys there are; at least `pairs`.
        values: how many values there are; at least `pairs`.

    Raises:
        InputError: a parameter is out of range, or the sequence is too long.

    Examples:
        >>> import retrieval_interp as ri
        >>> task = ri.RecallTask(pairs=2, keys=4, values=4)
        >>> batch = task.sample(1)
        >>> " ".join(task.position_labels(batch, 0))
        '<s> a 3 d 1 a d'
        >>> batch.roles[0].tolist(), [task.vocabulary[token] for token in batch.targets[0]]
        ([[5, 1, 2], [6, 3, 4]], ['3', '1'])
    """

    pairs: int = 8
    keys: int = 32
    values: int = 32

    name: ClassVar[str] = "recall"

    def __post_init__(self) -> None:
        self._check_counts(("pairs", 1), ("keys", 2), ("values", 2))
        for name in ("keys", "values"):
            if getattr(self, name) < self.pairs:
                raise InputError(
                    f"task: expected {name} of at least pairs = {self.pairs} (none comes in two "
                    f"pairs), found {getattr(self, name)}"
                )
        self._check_sizes(self.keys + self.values + 1)

    @property
    def n_positions(self) -> int:
        """Tokens per sequence, 1 + 3 pairs."""
        return 1 + 3 * self.pairs

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Values are numbers, keys letters; and `BEGIN`."""
        return (*map(str, range(self.values)), *letters(self.keys), BEGIN)

    @property
    def candidates(self) -> int:
        return self.values

    @property
    def asked(self) -> tuple[str, ...]:
        return ("value",)

    # Names

    @property
    def role_names(self) -> tuple[str, ...]:
        return ("s0", "s1", "s2")

    @property
    def role_labels(self) -> tuple[str, ...]:
        return ("query key", "key", "its value")

    @property
    def role_symbols(self) -> tuple[str, ...]:
        return ("key?", "key", "value")

    @property
    def description(self) -> str:
        return (
            f"recall of {counted(self.pairs, 'pair')} of {self.keys} keys and {self.values} values"
        )

    # Examples

    def _generate(self, indices: Int[Tensor, " batch"], seed: int, stream: int) -> Batch:
        sizes = [self.keys, self.values, self.pairs]
        words = random_words(indices, sum(sizes), seed, stream).split(sizes, dim=-1)
        key, value, order = (part.argsort(dim=-1, stable=True)[:, : self.pairs] for part in words)
        key = key + self.values
        begin = key.new_full((len(key), 1), self.keys + self.values)
        pairs = torch.stack([key, value], dim=-1).flatten(1)
        query = 1 + 2 * self.pairs + torch.arange(self.pairs, device=key.device)
        return Batch(
            inputs=torch.cat([begin, pairs, key.gather(1, order)], dim=1),
            targets=value.gather(1, order),
            roles=torch.stack([query.expand_as(order), 1 + 2 * order, 2 + 2 * order], dim=-1),
        )

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self)}
