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
   at once, each with logits of its own; the paper instead gives k as the first token and also has
   positions without an answer.
"""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from retrieval_interp.tasks.batch import Batch
from retrieval_interp.tasks.roles import path_letters, role_letters, role_name, symbol_letter
from retrieval_interp.tasks.sampling import random_words
from retrieval_interp.tasks.token_task import BEGIN, TokenTask
from retrieval_interp.tasks.training_task import counted
from retrieval_interp.tasks.words.prompts.names import letters


@dataclass(frozen=True)
class KHopTask(TokenTask):
    """From a token to what followed it the last time, and so on, k times, for k = 1 .. K.

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

    Raises:
        InputError: a parameter is out of range, or the sequence is too long.

    Examples:
        >>> import retrieval_interp as ri
        >>> task = ri.KHopTask(hops=2, alphabet=3)
        >>> batch = task.sample(1)
        >>> " ".join(task.position_labels(batch, 0))
        '<s> a c b c a b c b a'
        >>> batch.roles[0, 0].tolist(), [task.vocabulary[token] for token in batch.targets[0, 0]]
        ([7, 4, 5, 1, 2], ['a', 'c'])
    """

    hops: int = 3
    alphabet: int = 8
    curriculum: bool = True

    name: ClassVar[str] = "k-hop"

    def __post_init__(self) -> None:
        self._check_counts(("hops", 1), ("alphabet", 3))
        self._check_curriculum()
        self._check_sizes(self.alphabet + 1)

    @property
    def n_positions(self) -> int:
        """Tokens per sequence, 1 + (hops + 1) alphabet."""
        return 1 + (self.hops + 1) * self.alphabet

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Letters, and `BEGIN`."""
        return (*letters(self.alphabet), BEGIN)

    @property
    def candidates(self) -> int:
        return self.alphabet

    @property
    def asked_hops(self) -> tuple[int, ...]:
        """The k of every x_k that is asked for."""
        return tuple(range(1, self.hops + 1)) if self.curriculum else (self.hops,)

    @property
    def asked(self) -> tuple[str, ...]:
        """`x_1` .. `x_K`, or `x_K`."""
        return tuple(f"x_{hop}" for hop in self.asked_hops)

    # Names

    @property
    def role_names(self) -> tuple[str, ...]:
        return tuple(map(role_name, range(2 * self.hops + 1)))

    @property
    def role_labels(self) -> tuple[str, ...]:
        """`query A`, `A of A->B`, `B of A->B`, ..."""
        return tuple(map(role_letters, range(2 * self.hops + 1)))

    @property
    def role_symbols(self) -> tuple[str, ...]:
        chain = (symbol_letter(role // 2) for role in range(1, 2 * self.hops + 1))
        return (f"{symbol_letter(0)}?", *chain)

    def path_label(self, dest: int, src: int) -> str:
        """A path in letters, shortened if both ends are in the same pair."""
        return path_letters(dest, src)

    @property
    def description(self) -> str:
        return (
            f"{counted(self.hops, 'hop')} among {self.alphabet} tokens, "
            f"{'with' if self.curriculum else 'without'} implicit curriculum"
        )

    # Examples

    def _generate(self, indices: Int[Tensor, " batch"], seed: int, stream: int) -> Batch:
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

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self)}
