"""Induction on random tokens, as in the literature: repeated sequences and k hops."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.roles import chain_labels, chain_symbols
from retrieval_interp.tasks.sampling import random_words
from retrieval_interp.tasks.structured import number
from retrieval_interp.tasks.task import Batch
from retrieval_interp.tasks.training_task import (
    BEGIN,
    TokenTask,
    check_size,
    counted,
    curriculum_text,
)
from retrieval_interp.tasks.words.names import letters


@dataclass(frozen=True)
class RepeatedTokensTask(TokenTask):
    """The next token of a random sequence that is repeated.

    From Olsson et al. 2022, "In-context learning and induction heads"
    (https://arxiv.org/abs/2209.11895). The second copy begins with a random token of the first and
    goes round at its end, so that no fixed distance leads to the answer. The first copy has no
    token twice. A chain is an asked position of the second copy:

        s0  a token A of the second copy, where the answer is read
        s1  A in the first copy
        s2  the position after s1; holds the answer

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
                f"task: expected an alphabet of at least length = {self.length}, found "
                f"{self.alphabet}"
            )
        place = "from a random place" if self.rotate else "from the beginning"
        return {
            "n_positions": n_positions,
            "vocabulary": (*letters(self.alphabet), BEGIN),
            "candidates": self.alphabet,
            "asked": ("next token",),
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

    def counterfactual(self, batch: Batch, seed: int = 0) -> Batch:
        """A second copy drawn anew, so that it repeats nothing but by chance."""
        other = self.sample(len(batch), seed + 1, batch.inputs.device, "train").inputs
        first, end = batch.inputs[:, : 1 + self.length], other[:, 1 : 1 + self.length]
        return replace(batch, inputs=torch.cat([first, end], dim=1))


@dataclass(frozen=True)
class KHopTask(TokenTask):
    """What followed a token the last time, and so on, k times, for k = 1 .. K.

    From Sanford, Hsu and Telgarsky 2024, "Transformers, parallel computation, and logarithmic
    depth", section 4 (https://arxiv.org/abs/2402.09268). A sequence is a begin token and hops+1
    random orders of the alphabet, where no token comes twice in a row: the first two tokens of an
    order change places instead. All hops are asked for at every position of the last order.

    With p_0 the asked position and p_k = find(p_{k-1}), where find(i) = max {j <= i : X_{j-1} =
    X_i}, the answers are x_k = X at p_k. Roles are those of the retrieval problem:

        s0        p_0, where the answers are read
        s_{2k-1}  the position before p_k: the latest earlier x_{k-1}
        s_{2k}    p_k; holds x_k

    Attributes:
        hops: the largest k, K.
        alphabet: how many tokens there are besides the begin token.
        curriculum: ask for all of x_1 .. x_K (implicit curriculum), or for x_K only.

    Examples:
        >>> import retrieval_interp as ri
        >>> task = ri.KHopTask(hops=2, alphabet=3)
        >>> batch = task.sample(1)
        >>> " ".join(task.position_labels(batch, 0))
        '<s> a c b c a b c b a'
        >>> batch.roles[0, 0].tolist(), [task.vocabulary[token] for token in batch.targets[0, 0]]
        ([7, 4, 5, 1, 2], ['a', 'c'])
    """

    hops: int = number(3, least=1)
    alphabet: int = number(8, least=3)
    curriculum: bool = True

    name: ClassVar[str] = "k-hop"

    def facts(self) -> dict[str, Any]:
        n_positions = 1 + (self.hops + 1) * self.alphabet
        check_size(n_positions, self.alphabet + 1)
        return {
            "n_positions": n_positions,
            "vocabulary": (*letters(self.alphabet), BEGIN),
            "candidates": self.alphabet,
            "asked": tuple(f"x_{hop}" for hop in self.asked_hops),
            "role_labels": chain_labels(self.hops),
            "role_symbols": chain_symbols(self.hops),
            "description": f"{counted(self.hops, 'hop')} among {self.alphabet} tokens, "
            f"{curriculum_text(self.curriculum)}",
        }

    @property
    def asked_hops(self) -> range:
        return range(1 if self.curriculum else self.hops, self.hops + 1)

    def draw(self, indices: Int[Tensor, " batch"], seed: int, stream: int) -> Batch:
        size = self.alphabet
        words = random_words(indices, (self.hops + 1) * size, seed, stream)
        orders = words.unflatten(-1, (-1, size)).argsort(dim=-1, stable=True)
        start = orders[:, 1:, :2]
        meets = start[..., :1] == orders[:, :-1, -1:]
        orders[:, 1:, :2] = torch.where(meets, start.flip(-1), start)
        tokens, places = orders.flatten(1), orders.argsort(dim=-1).flatten(1)
        here = torch.arange(self.hops * size, (self.hops + 1) * size, device=words.device)
        here = here.expand(len(words), -1)
        roles, answers = [here], []
        for _ in range(self.hops):
            before = (here // size - 1) * size  # where the order before begins
            earlier = before + places.gather(1, before + tokens.gather(1, here))
            here = earlier + 1
            roles += [earlier, here]
            answers.append(tokens.gather(1, here))
        begin = tokens.new_full((len(tokens), 1), size)
        asked = torch.stack([answers[hop - 1] for hop in self.asked_hops], dim=-1)
        return Batch(torch.cat([begin, tokens], dim=1), asked, 1 + torch.stack(roles, dim=-1))
