"""The retrieval problem in vectors: along chains (paper, sections 4 and 6) and graphs (3.1).

A chain has a symbol for every node of a graph, which for the plain problem is a path. A sequence
has the tables (`graph`), the last node's first, each with its lines shuffled, then the queries.
"""

import statistics
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from retrieval_interp.tasks.graph import (
    GRAPHS,
    RetrievalGraph,
    Table,
    Tables,
    candidate_counts,
    lay_out,
    path_graph,
)
from retrieval_interp.tasks.messages import InputError, counted
from retrieval_interp.tasks.sampling import Position, normals, random_words, rotary_encoding
from retrieval_interp.tasks.structured import number_field
from retrieval_interp.tasks.task import Batch, Outputs
from retrieval_interp.tasks.training_task import MAX_WORDS, TrainingTask, registered

Tokens = Literal["gaussian", "unit"]


@dataclass(frozen=True)
class _Symbols:
    """The sizes that all tasks in vectors have.

    Attributes:
        chains: number of chains, N.
        dim: dimensions of a symbol, K; even, for cosine-sine pairs.
        curriculum: ask for every retrieved symbol (implicit curriculum), or for the last only.
        position: one position encoding per pair (equation 1) or per token.
        base: of the rotary frequencies.
        tokens: symbols as drawn (gaussian, as in the paper), or scaled to length 1, which makes
            matching exact.
    """

    chains: int = number_field(4, minimum=1)
    dim: int = number_field(4, minimum=2, maximum=MAX_WORDS // 2)
    curriculum: bool = True
    position: Position = "pair"
    base: float = 10_000.0
    tokens: Tokens = "gaussian"


class VectorTask(_Symbols, TrainingTask):
    """Retrieval in vectors along a graph; the attributes are those of the subclasses."""

    graph: RetrievalGraph
    tables: Tables = "chains"

    loss_name: ClassVar[str] = "MSE"
    scored_roles = (0,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim % 2 or not self.base > 1:
            given = f"{self.dim} and {self.base}"
            raise InputError(f"task: expected an even dim and a base above 1, found {given}")

    @property
    def _counts(self) -> list[int]:
        """The number of candidates of each node, which is the number of lines of its table."""
        return candidate_counts(self.graph, self.chains, self.tables)

    @cached_property
    def n_positions(self) -> int:
        keys = zip(self._counts, self.graph.keys)
        lines = sum(count * (len(key) + 1) for count, key in keys if key)
        return lines + self.chains * len(self.graph.query)

    @cached_property
    def asked_nodes(self) -> tuple[int, ...]:
        """The nodes of the graph that a query asks for."""
        return self.graph.retrieved if self.curriculum else self.graph.retrieved[-1:]

    @cached_property
    def asked(self) -> tuple[str, ...]:
        return tuple(self.graph.nodes[node].name for node in self.asked_nodes)

    @cached_property
    def steps_between(self) -> tuple[tuple[str, str], ...]:
        names, keys = dict(zip(self.asked_nodes, self.asked)), self.graph.keys
        pairs = [(key, node) for node in names for key in keys[node] if key in names]
        return tuple((names[key], names[node]) for key, node in pairs)

    @cached_property
    def d_in(self) -> int:  # type: ignore[override]
        return 2 * self.dim

    @cached_property
    def symbol_width(self) -> int:  # type: ignore[override]
        return self.dim

    @cached_property
    def d_out(self) -> int:  # type: ignore[override]
        return self.dim * len(self.asked)

    @cached_property
    def loss_scale(self) -> float:  # type: ignore[override]
        """The variance of a component."""
        return 1.0 if self.tokens == "gaussian" else 1 / self.dim

    @cached_property
    def plateau(self) -> float:  # type: ignore[override]
        """The loss of answering the mean of the candidates, or zeros if there is only one."""
        counts = [self._counts[node] for node in self.asked_nodes]
        return self.loss_scale * statistics.fmean(1 - 1 / n if n > 1 else 1 for n in counts)

    @cached_property
    def loss_meaning(self) -> str:
        return (
            f"{self.loss_name} is the mean over all asked components: 0 is perfect, "
            f"{self.plateau:.2g} the plateau before anything is learned, {self.loss_scale:.2g} "
            "answering zeros; +- is the standard error over examples"
        )

    @cached_property
    def role_labels(self) -> tuple[str, ...]:
        return self.graph.role_labels

    @cached_property
    def role_symbols(self) -> tuple[str, ...]:
        return self.graph.role_symbols

    @cached_property
    def position_note(self) -> str:  # type: ignore[override]
        query, symbol = self.graph.query[-1], self.graph.retrieved[0]
        query_name, name = (self.graph.nodes[node].name for node in (query, symbol))
        return f"{name}2 is the symbol {name} of the second chain, {query_name}2? its query."

    @cached_property
    def _lines(self) -> list[tuple[int, ...]]:
        """The nodes of every line, in the order of the sequence."""
        return [table.nodes for table in self._tables for _ in table.lines]

    def position_labels(self, batch: Batch, example: int) -> list[str]:
        """Return the name and chain of every symbol: `B2`, or `A2?` for a query."""
        labels = [self.graph.nodes[node].name for line in self._lines for node in line]
        for chain, roles in enumerate(batch.roles[example].tolist(), start=1):
            for role, place in enumerate(roles):
                labels[place] += f"{chain}" if role else f"{chain}?"
        return labels

    def draw(self, indices: Int[Tensor, " batch"], seed: int, stream: int) -> Batch:
        counts = self._counts
        n_numbers = sum(counts) * self.dim
        tables = [counts[node] for node in self.graph.retrieved]
        words = random_words(indices, n_numbers + sum(tables), seed, stream)
        symbols = normals(words[:, :n_numbers]).unflatten(-1, (-1, self.dim))
        if self.tokens == "unit":
            symbols = F.normalize(symbols, dim=-1)
        # One sort shuffles all tables: words have 32 bits, and the bits above say which table.
        starts = [sum(tables[:number]) for number in range(len(tables))]
        first = torch.tensor([s for s, n in zip(starts, tables) for _ in range(n)]).to(words)
        places = torch.argsort(words[:, n_numbers:] + (first << 32), dim=-1, stable=True) - first
        return self.arrange(symbols, places)

    @cached_property
    def _tables(self) -> list[Table]:
        return lay_out(self.graph, self.chains, self.tables)

    def arrange(
        self, symbols: Float[Tensor, "batch symbol dim"], places: Int[Tensor, "batch line"]
    ) -> Batch:
        """Put symbols, given chain by chain, into the lines of their tables, at these places.

        The last node's table comes first, and the queries last, in the order of the chains.
        """
        queries = torch.arange(self.chains, device=places.device).expand(len(places), -1)
        by_table = places.split([self._counts[node] for node in self.graph.retrieved], dim=1)
        parts, starts, begin = list[Tensor](), list[Tensor](), 0
        for table, place in zip(self._tables, (*by_table[::-1], queries)):
            lines = symbols[:, torch.tensor(table.lines, device=places.device)]
            width = len(table.nodes)
            order = place[..., None, None].expand_as(lines)
            parts.append(torch.empty_like(lines).scatter(1, order, lines).flatten(1, 2))
            starts.append(begin + width * place[:, table.of_chain])  # [batch chain]
            begin += width * len(table.lines)
        roles = [
            starts[-1 - statement] + self._tables[-1 - statement].nodes.index(node)
            for node, statement in self.graph.roles
        ]
        counts = torch.arange(self.n_positions)
        if self.position == "pair":
            counts = torch.tensor([n for n, line in enumerate(self._lines) for _ in line])
        encoding = rotary_encoding(self.n_positions, self.dim, self.base)[counts].to(symbols)
        by_chain = symbols[:, : self.chains * len(self.graph.nodes)].unflatten(1, (self.chains, -1))
        return Batch(
            inputs=torch.cat(
                [torch.cat(parts, dim=1), encoding.expand(len(symbols), -1, -1)], dim=-1
            ),
            targets=by_chain[:, :, list(self.asked_nodes)].flatten(2),  # [batch chain (symbol dim)]
            roles=torch.stack(roles, dim=-1),
        )

    def example_losses(self, outputs: Outputs, batch: Batch) -> Float[Tensor, "batch target"]:
        """Return the mean squared error of each example and asked symbol."""
        error: Tensor = (self.answers(outputs, batch)[:, :, 0] - batch.targets).square()
        return error.unflatten(-1, (len(self.asked), self.dim)).mean(dim=(1, 3))  # type: ignore[no-any-return]


@registered
@dataclass(frozen=True)
class RetrievalTask(VectorTask):
    """Chains of vectors, each followed for `steps` induction steps.

    A chain has the symbols x_0..x_D; pair d is (x_{d-1}, x_d). A sequence has T = N (2D + 1)
    positions. With Gaussian symbols an answer of zeros scores 1, the mean of all candidates
    1 - 1/N.

    Attributes:
        steps: induction steps per chain, D.
    """

    steps: int = number_field(3, minimum=1, maximum=MAX_WORDS)

    name: ClassVar[str] = "retrieval"

    @cached_property
    def graph(self) -> RetrievalGraph:  # type: ignore[override]
        return path_graph(self.steps)

    @cached_property
    def asked(self) -> tuple[str, ...]:
        return tuple(f"x_{step}" for step in self.asked_nodes)

    @cached_property
    def description(self) -> str:
        chains, steps = counted(self.chains, "chain"), counted(self.steps, "step")
        return (
            f"retrieval with {chains} of {steps} in {self.dim} dimensions, {self.curriculum_text}"
        )


@registered
@dataclass(frozen=True)
class ConditionalRetrievalTask(VectorTask):
    """Chains of vectors whose steps depend on one another as a graph (section 3.1; F4 and F5).

    If the graph is a single path, the examples equal those of `RetrievalTask`. A query with several
    symbols takes several tokens.

    Attributes:
        graph: what each step depends on.
        tables: a statement for every combination of key values (full, as in the paper's prompts),
            or only the chains' own.
    """

    graph: RetrievalGraph = GRAPHS["triple"]
    tables: Tables = "full"

    name: ClassVar[str] = "conditional"

    @cached_property
    def description(self) -> str:
        tables = "full tables" if self.tables == "full" else "the chains' own statements"
        return (
            f"conditional retrieval with {counted(self.chains, 'chain')} of {self.graph} in "
            f"{self.dim} dimensions, {tables}, {self.curriculum_text}"
        )
