"""A random sequence and the same again (Olsson et al. 2022, "In-context learning and induction
heads", https://arxiv.org/abs/2209.11895).

1. A begin token is followed by `length` different tokens, drawn at random, and then by the same
   tokens again.
2. In the second copy the next token is asked for: what followed the present one the first time.
3. The second copy begins with a random token of the first and goes round at its end. A copy that
   always begins at the beginning needs no induction head: a head that looks back a fixed distance
   answers (`rotate=False`). The last token of the first copy is not asked about.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from retrieval_interp.tasks.batch import Batch
from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.sampling import random_words
from retrieval_interp.tasks.structured import number
from retrieval_interp.tasks.token_task import BEGIN, TokenTask, check_size
from retrieval_interp.tasks.words.prompts.names import letters


@dataclass(frozen=True)
class RepeatedTokensTask(TokenTask):
    """The next token of a random sequence that is repeated.

    The first copy has no token twice, so that the earlier occurrence, s1, is the only one. A chain
    is an asked position of the second copy; there are length-1 of them:

        s0  a token A of the second copy, where the answer is read
        s1  A in the first copy
        s2  the position after s1; holds the answer

    A position can be s2 of one chain and s1 of the next.

    Attributes:
        length: tokens per copy.
        alphabet: how many tokens there are besides the begin token; at least `length`.
        rotate: begin the second copy at a random place.

    Examples:
        >>> import retrieval_interp as ri
        >>> task = ri.RepeatedTokensTask(length=3, alphabet=5)
        >>> batch = task.sample(1)
        >>> " ".join(task.position_labels(batch, 0))
        '<s> a d c a d c'
        >>> batch.roles[0].tolist(), [task.vocabulary[token] for token in batch.targets[0]]
        ([[4, 1, 2], [5, 2, 3]], ['d', 'c'])
    """

    length: int = number(16, least=2)
    alphabet: int = number(64, least=2)
    rotate: bool = True

    name: ClassVar[str] = "repeated-tokens"

    def facts(self) -> dict[str, Any]:
        n_positions = 1 + 2 * self.length
        check_size(n_positions, self.alphabet + 1)
        if self.alphabet < self.length:
            raise InputError(
                f"task: expected an alphabet of at least length = {self.length} (no token comes "
                f"twice in a copy), found {self.alphabet}"
            )
        place = "from a random place" if self.rotate else "from the beginning"
        return {
            "n_positions": n_positions,
            "vocabulary": (*letters(self.alphabet), BEGIN),
            "candidates": self.alphabet,
            "asked": ("next token",),
            "role_names": ("s0", "s1", "s2"),
            "role_labels": ("repeated A", "first A", "B after it"),
            "role_symbols": ("A?", "A", "B"),
            "description": f"{self.length} of {self.alphabet} tokens, repeated {place}",
        }

    def draw(self, indices: Int[Tensor, " batch"], seed: int, stream: int) -> Batch:
        words = random_words(indices, self.alphabet + 1, seed, stream)
        first = words[:, :-1].argsort(dim=-1, stable=True)[:, : self.length]
        begin = words[:, -1:] % self.length if self.rotate else torch.zeros_like(words[:, -1:])
        places = torch.arange(self.length, device=words.device)
        source = (places + begin) % self.length  # where the first copy has each token
        inputs = torch.cat(
            [torch.full_like(begin, self.alphabet), first, first.gather(1, source)], dim=1
        )
        last = self.length - 1 - begin  # the place of what has no next token in the first copy
        asked = places[:-1] + (places[:-1] >= last)
        source = source.gather(1, asked)
        roles = torch.stack([1 + self.length + asked, 1 + source, 2 + source], dim=-1)
        return Batch(inputs, first.gather(1, source + 1), roles)
