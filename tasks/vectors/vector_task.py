"""Retrieval in continuous vectors, along any graph (paper, sections 3.1, 6 and 7; appendix B).

1. The symbols of a sequence are drawn i.i.d. from N(0, 1) in `dim` dimensions (optionally scaled to
   unit length) and arranged by `tasks.vectors.arrangement`: tables of statements, the last node's
   first, in fresh random order within a table, then the queries.
2. Every token is followed by a rotary positional encoding of `dim` numbers.
3. The target of a query is every retrieved symbol of its chain, in the order of the graph's nodes
   (with the implicit curriculum), or only the last one (without). The outputs are read at role s0,
   the last token of the query.

Chains are numbered in the order of their queries. They are exchangeable, so this is equivalent to
shuffling the queries as the paper does.
"""

import statistics
from functools import cached_property
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from retrieval_interp.tasks.batch import Batch
from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.positions import Position, rotary_encoding
from retrieval_interp.tasks.roles import role_name
from retrieval_interp.tasks.sampling import normals, random_words
from retrieval_interp.tasks.training_task import TrainingTask
from retrieval_interp.tasks.vectors.arrangement import (
    Arrangement,
    Tables,
    arrange,
    candidate_counts,
    sequence_length,
)
from retrieval_interp.tasks.vectors.graph import RetrievalGraph

Tokens = Literal["gaussian", "unit"]
MAX_NUMBERS = 100_000  # positions per sequence times dim


class VectorTask(TrainingTask):
    """Common base of the retrieval tasks in vectors. Subclasses are frozen dataclasses.

    Attributes:
        chains: number of chains, N.
        graph: what each step depends on.
        dim: dimensions of a symbol, K; even, since encodings are cosine-sine pairs.
        curriculum: ask for every retrieved symbol (implicit curriculum) or for the last only.
        position: one encoding per statement (`pair`, equation 1) or per `token`.
        base: base of the rotary frequencies.
        tokens: symbols as drawn (`gaussian`, as in the paper) or scaled to length 1 (`unit`), which
            makes matching by inner product exact.
        tables: which statements there are besides the chains' own (`tasks.vectors.arrangement`).
    """

    chains: int
    graph: RetrievalGraph
    dim: int
    curriculum: bool
    position: Position
    base: float
    tokens: Tokens
    tables: Tables

    loss_name: ClassVar[str] = "MSE"
    answer_roles: ClassVar[tuple[int, ...]] = (0,)

    def _check(self, *counts: str) -> None:
        """Check the fields; `counts` names further fields that count from 1.

        Raises:
            InputError: naming the field.
        """
        self._check_counts(("chains", 1), *((name, 1) for name in counts), ("dim", 2))
        if self.dim % 2:
            raise InputError(
                f"task: expected an even dim (cosine-sine pairs encode positions), found {self.dim}"
            )
        self._check_curriculum()
        if self.position not in ("pair", "token"):
            raise InputError(f"task: expected position 'pair' or 'token', found {self.position!r}")
        if not (isinstance(self.base, (int, float)) and 1 < self.base < 1e300):
            raise InputError(f"task: expected base to be a number above 1, found {self.base!r}")
        if self.tokens not in ("gaussian", "unit"):
            raise InputError(f"task: expected tokens 'gaussian' or 'unit', found {self.tokens!r}")

    @cached_property
    def _arrangement(self) -> Arrangement:
        return arrange(self.graph, self.chains, self.tables)

    # Shapes

    @property
    def n_positions(self) -> int:
        """Sequence length, T."""
        return sequence_length(self.graph, self.chains, self.tables)

    @property
    def d_in(self) -> int:
        """Components of an input vector: symbol and encoding."""
        return 2 * self.dim

    @property
    def d_out(self) -> int:
        """Components of a target vector."""
        return self.dim * self.n_targets

    @property
    def asked_nodes(self) -> tuple[int, ...]:
        """The nodes of the graph that a query asks for."""
        return self.graph.retrieved if self.curriculum else self.graph.retrieved[-1:]

    @property
    def asked(self) -> tuple[str, ...]:
        """Names of what a query asks for, one per column of `example_losses`."""
        return tuple(self.graph.nodes[node].name for node in self.asked_nodes)

    @property
    def steps_between(self) -> tuple[tuple[str, str], ...]:
        """Keys and their values in the graph, among what is asked."""
        names = dict(zip(self.asked_nodes, self.asked))
        return tuple(
            (names[key], name)
            for node, name in names.items()
            for key in self.graph.keys[node]
            if key in names
        )

    @property
    def plateau(self) -> float:
        """MSE of answering with the mean of M candidates: 1 - 1/M of a symbol's variance.

        With one candidate that mean is the answer; the uninformative answer is then all zeros.
        """
        counts = candidate_counts(self.graph, self.chains, self.tables)
        each = (1 - 1 / counts[node] if counts[node] > 1 else 1.0 for node in self.asked_nodes)
        return statistics.fmean(each) * self.loss_scale

    @property
    def loss_scale(self) -> float:
        """Variance of a symbol's component: the MSE of answering zeros."""
        return 1.0 if self.tokens == "gaussian" else 1 / self.dim

    @property
    def loss_meaning(self) -> str:
        return (
            f"{self.loss_name} is the mean over all asked components: 0 is perfect, "
            f"{self.plateau:.2g} the plateau before anything is learned, {self.loss_scale:.2g} "
            "answering zeros; +- is the standard error over examples"
        )

    # Names

    @property
    def role_names(self) -> tuple[str, ...]:
        """s0, s1, ..., as paths are written; `tasks.vectors.graph` defines them."""
        return tuple(map(role_name, range(len(self.graph.roles))))

    @property
    def role_labels(self) -> tuple[str, ...]:
        """`query A`, `A of A->B`, `B of A->B`, ..."""
        return tuple(map(self.graph.role_label, range(len(self.graph.roles))))

    @property
    def role_symbols(self) -> tuple[str, ...]:
        """The symbol at each role: `A?`, `A`, `B`, `B`, ..."""
        names = [self.graph.nodes[role.node].name for role in self.graph.roles]
        return (f"{names[0]}?", *names[1:])

    def path_label(self, dest: int, src: int) -> str:
        """A path in letters, shortened if both ends are in the same statement."""
        to, source = self.graph.roles[dest], self.graph.roles[src]
        together = to.statement == source.statement > 0
        left = self.graph.nodes[to.node].name if together else self.graph.role_label(dest)
        return f"{left} <- {self.graph.role_label(src)}"

    def position_labels(self, batch: Batch, example: int) -> list[str]:
        """Name and chain number of every symbol; the last symbol of a query gets a `?`.

        `B2` is B of the chain whose query comes second, and `A2?` is that query. A symbol that
        belongs to no chain has no number.
        """
        tokens = [tuple(token) for token in batch.inputs[example, :, : self.dim].tolist()]
        chains = batch.roles[example].tolist()
        owner = {tokens[place]: chain for chain, roles in enumerate(chains, 1) for place in roles}
        labels = [
            f"{self.graph.nodes[element.node].name}{owner.get(token, '')}"
            for element, token in zip(self._arrangement.elements, tokens)
        ]
        for roles in chains:
            labels[roles[0]] += "?"
        return labels

    @property
    def position_note(self) -> str:
        query = self.role_symbols[0].removesuffix("?")
        symbol = self.graph.nodes[self.graph.retrieved[0]].name
        return f"{symbol}2 is the symbol {symbol} of the second chain, {query}2? its query."

    # Examples

    def _generate(self, indices: Int[Tensor, " batch"], seed: int, stream: int) -> Batch:
        tables = self._arrangement.tables
        n_numbers = self._arrangement.n_symbols * self.dim
        words = random_words(indices, n_numbers + tables[-1].stop, seed, stream)
        symbols = normals(words[:, :n_numbers]).unflatten(-1, (-1, self.dim))
        if self.tokens == "unit":
            symbols = F.normalize(symbols, dim=-1)
        # One sort for all tables: words have 32 bits, and the table's number goes above them.
        first = torch.tensor([span.start for span in tables for _ in span], device=words.device)
        places = torch.argsort(words[:, n_numbers:] + (first << 32), dim=-1, stable=True) - first
        return self.arrange(symbols, places)

    def arrange(
        self,
        symbols: Float[Tensor, "batch symbol dim"],
        places: Int[Tensor, "batch line"],
    ) -> Batch:
        """Arrange given symbols into sequences.

        Args:
            symbols: by number, as in `tasks.vectors.arrangement.Element`.
            places: the place of every line in its table, a permutation per table; no queries.

        Returns:
            The batch, on the device of `symbols`.
        """
        batch, device = symbols.shape[0], symbols.device
        elements = torch.tensor(self._arrangement.elements, device=device)
        symbol, _, line, start, width = elements.unbind(-1)
        chain = torch.arange(self.chains, device=device).expand(batch, -1)
        positions = start + width * torch.cat([places, chain], dim=-1)[:, line]  # [batch element]
        tokens = symbols.new_empty(batch, self.n_positions, self.dim)
        tokens.scatter_(1, positions[:, :, None].expand(-1, -1, self.dim), symbols[:, symbol])
        encoding = self._encoding(device).to(symbols.dtype)
        own = symbols[:, : self.chains * len(self.graph.nodes)].unflatten(1, (self.chains, -1))
        return Batch(
            inputs=torch.cat([tokens, encoding.expand(batch, -1, -1)], dim=-1),
            targets=rearrange(
                own[:, :, list(self.asked_nodes)],
                "batch chain symbol dim -> batch chain (symbol dim)",
            ),
            roles=positions[:, torch.tensor(self._arrangement.roles, device=device)],
        )

    def _encoding(self, device: torch.device) -> Float[Tensor, "pos dim"]:
        places = torch.arange(self.n_positions)
        if self.position == "pair":
            lines = torch.tensor([element.line for element in self._arrangement.elements])
            places[1:] = (lines[1:] != lines[:-1]).cumsum(0)
        return rotary_encoding(self.n_positions, self.dim, self.base)[places].to(device)

    # Losses

    def predictions(self, outputs: Float[Tensor, "batch pos d_out"]) -> Float[Tensor, "..."]:
        """The outputs at role s0 of every chain, [batch query d_out].

        Args:
            outputs: at all positions, or at these only.
        """
        if outputs.shape[1] == self.chains:
            return outputs
        width = len(self.graph.query)
        return outputs[:, -self.chains * width :][:, width - 1 :: width]

    def example_losses(
        self, outputs: Float[Tensor, "batch pos d_out"], batch: Batch
    ) -> Float[Tensor, "batch target"]:
        """Mean squared error of each example and asked symbol."""
        error: Tensor = (self.predictions(outputs) - batch.targets).square()
        return error.unflatten(-1, (self.n_targets, self.dim)).mean(dim=(1, 3))  # type: ignore[no-any-return]

    def loss(self, outputs: Float[Tensor, "batch pos d_out"], batch: Batch) -> Float[Tensor, ""]:
        """Mean squared error over everything asked."""
        return (self.predictions(outputs) - batch.targets).square().mean()
