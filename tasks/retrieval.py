"""Where every symbol stands in the sequences of a retrieval graph (paper, sections 3.1, 4 and 6).

A node's candidates are the symbols of the chains if it is given in the query; any other has one per
line of its table, a statement of its value for one combination of candidates of its key. `full`
tables have all combinations (appendix A.4, A.5), `chains` tables only those of the chains. A
sequence holds the tables, the last node's first, each with its lines shuffled, then the queries.
"""

import itertools
import math
import statistics
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.graph import GRAPHS, RetrievalGraph, path_graph
from retrieval_interp.tasks.sampling import Position, normals, random_words, rotary_encoding
from retrieval_interp.tasks.structured import number
from retrieval_interp.tasks.task import Batch, Outputs
from retrieval_interp.tasks.training_task import TrainingTask, check_size, counted

Tables = Literal["full", "chains"]
Tokens = Literal["gaussian", "unit"]
_MANY = 10**12  # a cap on counts, which grow exponentially with nested keys


class Element(NamedTuple):
    """One symbol of one line; its position is start + width * (the line's place in its table)."""

    symbol: int  # c * nodes + v for chain c's symbol of node v; those of no chain come after
    node: int  # of which it is a candidate
    line: int  # table by table, in the order of nodes; last the queries, which are not shuffled
    start: int  # its position if its line is the table's first
    width: int  # elements per line


@dataclass(frozen=True)
class Arrangement:
    """The order of symbols, lines and roles."""

    n_symbols: int  # per sequence
    tables: tuple[range, ...]  # the lines of every table, in the order of nodes
    elements: tuple[Element, ...]  # the sequence in which the lines of every table are in order
    roles: tuple[tuple[int, ...], ...]  # the element of every role, [chain][role]


def candidate_counts(graph: RetrievalGraph, chains: int, tables: Tables) -> list[int]:
    """The number of candidates of each node, capped at 10^12."""
    counts: list[int] = []
    for key in graph.keys:
        full = math.prod(counts[parent] for parent in key)
        counts.append(min(full, _MANY) if key and tables == "full" else chains)
    return counts


def sequence_length(graph: RetrievalGraph, chains: int, tables: Tables) -> int:
    """The number of positions, computed without laying them out."""
    counts = candidate_counts(graph, chains, tables)
    lines = sum(count * (len(key) + 1) for count, key in zip(counts, graph.keys) if key)
    return lines + chains * len(graph.query)


def arrange(graph: RetrievalGraph, chains: int, tables: Tables) -> Arrangement:
    """Lay out the sequences of a graph, for a number of interleaved chains."""
    lines: list[list[tuple[int, ...]]] = []  # [node][candidate]: the candidates in its key
    own: list[list[int]] = []  # [node][chain]: the chain's candidate
    symbols: list[list[int]] = []  # [node][candidate]
    n_nodes, counts = len(graph.nodes), candidate_counts(graph, chains, tables)
    new = itertools.count(chains * n_nodes)
    for node, key in enumerate(graph.keys):
        chosen = [tuple(own[parent][chain] for parent in key) for chain in range(chains)]
        every = itertools.product(*(range(counts[parent]) for parent in key))
        lines.append(list(every) if key and tables == "full" else chosen)
        place = {line: candidate for candidate, line in enumerate(lines[node])}
        own.append([place[line] for line in chosen] if key else list(range(chains)))
        of_chain = {own[node][chain]: chain * n_nodes + node for chain in range(chains)}
        symbols.append([of_chain[i] if i in of_chain else next(new) for i in range(counts[node])])

    ends = itertools.accumulate((counts[node] for node in graph.retrieved), initial=0)
    spans = [range(first, end) for first, end in itertools.pairwise(ends)]
    sections = [
        ((*graph.keys[node], node), span.start, [(*line, i) for i, line in enumerate(lines[node])])
        for node, span in reversed(list(zip(graph.retrieved, spans)))
    ]
    queries = [(chain,) * len(graph.query) for chain in range(chains)]
    sections.append((graph.query, spans[-1].stop, queries))
    elements: list[Element] = []
    begins: list[int] = []  # of every section
    for members, first, rows in sections:
        begins.insert(0, len(elements))
        elements += [
            Element(symbols[node][candidate], node, first + line, begins[0] + at, len(members))
            for line, row in enumerate(rows)
            for at, (node, candidate) in enumerate(zip(members, row))
        ]

    def roles_of(chain: int) -> tuple[int, ...]:
        query = begins[0] + chain * len(graph.query)
        *earlier, last = range(query, query + len(graph.query))
        places = [last, *earlier]
        for node, begin in zip(graph.retrieved, begins[1:]):
            width = len(graph.keys[node]) + 1
            begin += width * own[node][chain]
            places += range(begin, begin + width)
        return tuple(places)

    roles = tuple(roles_of(chain) for chain in range(chains))
    return Arrangement(sum(counts), tuple(spans), tuple(elements), roles)


@dataclass(frozen=True)
class _Symbols:
    """What all tasks of vectors have.

    Attributes:
        chains: number of chains, N.
        dim: dimensions of a symbol, K; even, for cosine-sine pairs.
        curriculum: ask for everything retrieved (implicit curriculum) or the last only.
        position: one encoding per pair (equation 1) or per token.
        base: of the rotary frequencies.
        tokens: symbols as drawn (gaussian, as in the paper), or scaled to length 1, which makes
            matching exact.
    """

    chains: int = number(4, least=1)
    dim: int = number(4, least=2)
    curriculum: bool = True
    position: Position = "pair"
    base: float = 10_000.0
    tokens: Tokens = "gaussian"


class VectorTask(_Symbols, TrainingTask):
    """Retrieval in vectors along a graph; the attributes are those of the subclasses."""

    graph: RetrievalGraph
    tables: Tables = "chains"
    plateau: float
    asked_nodes: tuple[int, ...]  # the nodes of the graph that a query asks for

    loss_name: ClassVar[str] = "MSE"
    answer_roles = (0,)

    def complete(self, facts: dict[str, Any]) -> dict[str, Any]:
        if self.dim % 2 or not self.base > 1:
            found = f"{self.dim} and {self.base}"
            raise InputError(f"task: expected an even dim and a base above 1, found {found}")
        graph: RetrievalGraph = facts["graph"]
        names = [node.name for node in graph.nodes]
        nodes = graph.retrieved if self.curriculum else graph.retrieved[-1:]
        asked = facts.get("asked") or tuple(names[node] for node in nodes)
        name_of = dict(zip(nodes, asked))
        pairs = [(key, node) for node in nodes for key in graph.keys[node] if key in nodes]
        symbols = [names[role.node] for role in graph.roles]
        # The uninformative answer is the mean of the candidates, or zeros where there is only one.
        counts = candidate_counts(graph, self.chains, self.tables)
        scale = 1.0 if self.tokens == "gaussian" else 1 / self.dim  # variance of a component
        plateau = scale * statistics.fmean(1 - 1 / counts[n] if counts[n] > 1 else 1 for n in nodes)
        own = {
            "d_in": 2 * self.dim,
            "symbol_width": self.dim,
            "d_out": self.dim * len(nodes),
            "asked_nodes": nodes,
            "asked": asked,
            "steps_between": tuple((name_of[key], name_of[node]) for key, node in pairs),
            "loss_scale": scale,
            "plateau": plateau,
            "loss_meaning": f"{self.loss_name} is the mean over all asked components: 0 is perfect,"
            f" {plateau:.2g} the plateau before anything is learned, {scale:.2g} answering zeros; "
            "+- is the standard error over examples",
            "role_labels": tuple(map(graph.role_label, range(len(graph.roles)))),
            "role_symbols": (f"{symbols[0]}?", *symbols[1:]),
            "position_note": f"{names[graph.retrieved[0]]}2 is the symbol "
            f"{names[graph.retrieved[0]]} of the second chain, {symbols[0]}2? its query.",
        }
        return super().complete({**own, **facts})

    @cached_property
    def _arrangement(self) -> Arrangement:
        return arrange(self.graph, self.chains, self.tables)

    def position_labels(self, batch: Batch, example: int) -> list[str]:
        """Name and chain of every symbol: `B2`, or `A2?` for a query."""
        nodes, elements = self.graph.nodes, self._arrangement.elements
        labels = [nodes[element.node].name for element in elements]
        for chain, roles in enumerate(batch.roles[example].tolist(), start=1):
            for role, place in enumerate(roles):
                labels[place] += f"{chain}" if role else f"{chain}?"
        return labels

    def draw(self, indices: Int[Tensor, " batch"], seed: int, stream: int) -> Batch:
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
        self, symbols: Float[Tensor, "batch symbol dim"], places: Int[Tensor, "batch line"]
    ) -> Batch:
        """Arrange symbols, by their numbers, and lines, by their places in their tables."""
        batch, device = symbols.shape[0], symbols.device
        elements = torch.tensor(self._arrangement.elements, device=device)
        symbol, _, line, start, width = elements.unbind(-1)
        chain = torch.arange(self.chains, device=device).expand(batch, -1)
        positions = start + width * torch.cat([places, chain], dim=-1)[:, line]  # [batch element]
        tokens = symbols.new_empty(batch, self.n_positions, self.dim)
        tokens.scatter_(1, positions[:, :, None].expand(-1, -1, self.dim), symbols[:, symbol])
        counts = torch.arange(self.n_positions, device=device)
        if self.position == "pair":
            counts[1:] = (line[1:] != line[:-1]).cumsum(0)
        encoding = rotary_encoding(self.n_positions, self.dim, self.base).to(symbols)[counts]
        own = symbols[:, : self.chains * len(self.graph.nodes)].unflatten(1, (self.chains, -1))
        return Batch(
            inputs=torch.cat([tokens, encoding.expand(batch, -1, -1)], dim=-1),
            targets=own[:, :, list(self.asked_nodes)].flatten(2),  # [batch chain (symbol dim)]
            roles=positions[:, torch.tensor(self._arrangement.roles, device=device)],
        )

    def example_losses(self, outputs: Outputs, batch: Batch) -> Float[Tensor, "batch target"]:
        """Mean squared error of each example and asked symbol."""
        error: Tensor = (self.answers(outputs, batch)[:, :, 0] - batch.targets).square()
        return error.unflatten(-1, (len(self.asked), self.dim)).mean(dim=(1, 3))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class RetrievalTask(VectorTask):
    """Chains of vectors, followed for `steps` induction steps each.

    A chain has the symbols x_0..x_D; pair d is (x_{d-1}, x_d). A sequence has T = N (2D + 1)
    positions. With Gaussian symbols an answer of zeros scores 1, the mean of all candidates
    1 - 1/N.

    Attributes:
        steps: induction steps per chain, D.
    """

    steps: int = number(3, least=1)

    name: ClassVar[str] = "retrieval"

    def facts(self) -> dict[str, Any]:
        n_positions = self.chains * (2 * self.steps + 1)
        check_size(n_positions, 2 * self.dim)
        first = 1 if self.curriculum else self.steps
        return {
            "n_positions": n_positions,
            "graph": path_graph(self.steps),
            "asked": tuple(f"x_{step}" for step in range(first, self.steps + 1)),
            "description": f"retrieval with {counted(self.chains, 'chain')} of "
            f"{counted(self.steps, 'step')} in {self.dim} dimensions, {self.curriculum_text}",
        }


@dataclass(frozen=True)
class ConditionalRetrievalTask(VectorTask):
    """Chains of vectors whose steps depend on one another as a graph (section 3.1; F4 and F5).

    On a path the examples equal those of `RetrievalTask`. A query with several symbols takes
    several tokens.

    Attributes:
        graph: what each step depends on.
        tables: a statement for every combination of key values (full, as in the paper's prompts),
            or only the chains' own.
    """

    graph: RetrievalGraph = GRAPHS["triple"]
    tables: Tables = "full"

    name: ClassVar[str] = "conditional"

    def facts(self) -> dict[str, Any]:
        n_positions = sequence_length(self.graph, self.chains, self.tables)
        check_size(n_positions, 2 * self.dim)
        tables = "full tables" if self.tables == "full" else "the chains' own statements"
        return {
            "n_positions": n_positions,
            "graph": self.graph,
            "description": f"conditional retrieval with {counted(self.chains, 'chain')} of "
            f"{self.graph} in {self.dim} dimensions, {tables}, {self.curriculum_text}",
        }
