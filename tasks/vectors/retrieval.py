"""The retrieval problem in continuous vectors (paper, sections 3.1, 6 and 7; appendix B).

1. A chain has steps+1 symbols x_0..x_D; pair d is (x_{d-1}, x_d).
2. The sequence holds every chain's pair D, then every chain's pair D-1, ..., then pair 1, in fresh
   random order within a step, then the queries x_0.
3. The target of a query is x_1..x_D (with the implicit curriculum) or x_D alone (without).

Symbols, encodings and losses are inherited from `tasks.vectors.vector_task`; this task is the
special case of a path. The paper gives the target "DN" dimensions; here they are D*K, which is
the same for N = K = 4.
"""

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from retrieval_interp.tasks.batch import Batch
from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.positions import Position
from retrieval_interp.tasks.training_task import counted
from retrieval_interp.tasks.vectors.arrangement import Tables
from retrieval_interp.tasks.vectors.graph import RetrievalGraph, path_graph
from retrieval_interp.tasks.vectors.vector_task import MAX_NUMBERS, Tokens, VectorTask


@dataclass(frozen=True)
class RetrievalTask(VectorTask):
    """Follow `chains` interleaved chains of `steps` induction steps each.

    A sequence has T = N (2D + 1) positions. Its loss is the mean squared error over the queries c,
    the asked symbols x_k and their components i:

        loss = mean over c, k, i of (output[c, k, i] - x_k[c, i])²

    With Gaussian symbols an answer of all zeros scores 1. A model that cannot tell the N candidates
    apart does best with their mean, which scores 1 - 1/N: the plateau that training starts from.

    Attributes:
        chains: number of chains, N.
        steps: induction steps per chain, D.
        dim: dimensions of a symbol, K; even, since encodings are cosine-sine pairs.
        curriculum: ask for all of x_1..x_D (implicit curriculum) or for x_D only.
        position: one encoding per `pair` (equation 1) or per `token`.
        base: base of the rotary frequencies.
        tokens: symbols as drawn (`gaussian`, as in the paper) or scaled to length 1 (`unit`), which
            makes matching by inner product exact.

    Raises:
        InputError: a parameter is out of range.

    Examples:
        >>> import retrieval_interp as ri
        >>> task = ri.RetrievalTask(chains=4, steps=3, dim=4, base=100.0)
        >>> batch = task.sample(8, seed=0, split="test")
        >>> batch.inputs.shape  # batch, position, 2K: symbol and encoding
        torch.Size([8, 28, 8])
        >>> batch.targets.shape  # batch, query, D * K
        torch.Size([8, 4, 12])
        >>> batch.roles.shape  # batch, chain, 2D + 1
        torch.Size([8, 4, 7])
        >>> task.role_labels[2], task.plateau
        ('B of A->B', 0.75)
    """

    chains: int = 4
    steps: int = 3
    dim: int = 4
    curriculum: bool = True
    position: Position = "pair"
    base: float = 10_000.0
    tokens: Tokens = "gaussian"

    name: ClassVar[str] = "retrieval"

    def __post_init__(self) -> None:
        self._check("steps")
        if self.n_positions * self.dim > MAX_NUMBERS:
            raise InputError(
                f"task: expected chains * (2 * steps + 1) * dim of at most {MAX_NUMBERS}, "
                f"found {self.n_positions * self.dim}; use a smaller task"
            )

    @cached_property
    def graph(self) -> RetrievalGraph:  # type: ignore[override]
        """The path A; B <- A; C <- B; and so on."""
        return path_graph(self.steps)

    @property
    def tables(self) -> Tables:  # type: ignore[override]
        """Only the chains' own pairs; on a path both kinds of tables are the same."""
        return "chains"

    @property
    def n_positions(self) -> int:
        """Sequence length, T = N (2D + 1)."""
        return self.chains * (2 * self.steps + 1)

    @property
    def asked(self) -> tuple[str, ...]:
        """x_1..x_D with the implicit curriculum, x_D without."""
        return tuple(f"x_{step}" for step in self.asked_nodes)

    @property
    def description(self) -> str:
        return (
            f"retrieval with {counted(self.chains, 'chain')} of {counted(self.steps, 'step')} in "
            f"{self.dim} dimensions, {'with' if self.curriculum else 'without'} implicit curriculum"
        )

    def layout(
        self,
        symbols: Float[Tensor, "batch chain symbol dim"],
        slots: Int[Tensor, "batch step chain"],
    ) -> Batch:
        """Arrange given symbols into sequences.

        Args:
            symbols: x_0..x_D of every chain; chain c is the one whose query stands c-th.
            slots: one permutation per step: slots[b, d-1, c] is the place of chain c's pair d among
                the pairs of step d.

        Returns:
            The batch, on the device of `symbols`.
        """
        return self.arrange(symbols.flatten(1, 2), slots.flatten(1))

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self)}
