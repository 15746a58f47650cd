"""k-hop induction heads (Sanford, Hsu and Telgarsky 2024, "Transformers, parallel computation, and
logarithmic depth", section 4, https://arxiv.org/abs/2402.09268).

1. With tokens X_1 X_2 ..., the position after the latest earlier occurrence of the token at i is

       find(i) = max { j <= i : X_{j-1} = X_i },

   and the k-hop answer at i is X at find(find(... i)), k times. k = 1 is what an induction head
   answers.
2. A sequence is a begin token and hops+1 random orders of the alphabet, one after the other. So
   every position of the last order has all its hops: each leads to the order before, or to the
   first position of the same one. No token comes twice in a row, as in the paper's experiments;
   where two orders would meet like that, the later one's first two tokens change places.
3. Every position of the last order is asked. With the implicit curriculum all hops 1 .. K are asked
   at once; the paper instead gives k as the first token and also has positions without an answer.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from retrieval_interp.tasks.batch import Batch
from retrieval_interp.tasks.roles import chain_labels, chain_symbols, role_name
from retrieval_interp.tasks.sampling import random_words
from retrieval_interp.tasks.structured import number
from retrieval_interp.tasks.token_task import BEGIN, TokenTask, check_size
from retrieval_interp.tasks.training_task import counted, curriculum_text
from retrieval_interp.tasks.words.prompts.names import letters


@dataclass(frozen=True)
class KHopTask(TokenTask):
    """What followed a token the last time, and so on, k times, for k = 1 .. K.

    With p_0 the asked position and p_k = find(p_{k-1}), where find(i) = max {j <= i : X_{j-1} =
    X_i}, the answers are x_k = X at p_k. A chain is an asked position; there are as many as tokens
    in the alphabet. Roles are those of the retrieval problem:

        s0        p_0, where the answers are read
        s_{2k-1}  the position before p_k: the latest earlier x_{k-1}
        s_{2k}    p_k; holds x_k

    A position can have roles in several chains.

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
            "asked": tuple(f"x_{hop}" for hop in self._asked_hops()),
            "role_names": tuple(map(role_name, range(2 * self.hops + 1))),
            "role_labels": chain_labels(self.hops),
            "role_symbols": chain_symbols(self.hops),
            "description": f"{counted(self.hops, 'hop')} among {self.alphabet} tokens, "
            f"{curriculum_text(self.curriculum)}",
        }

    def _asked_hops(self) -> range:
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
        asked = torch.stack([answers[hop - 1] for hop in self._asked_hops()], dim=-1)
        return Batch(torch.cat([begin, tokens], dim=1), asked, 1 + torch.stack(roles, dim=-1))
