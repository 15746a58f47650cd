"""Conditional retrieval in continuous vectors (paper, section 3.1; F4 and F5 of section 4).

A step may depend on several earlier values: the steps form a directed acyclic graph
(`tasks.vectors.graph`). On a path the examples equal those of `tasks.vectors.retrieval`.

With `chains` tables any part of a key finds its statement, so a model can solve the task by
matching one part, without a condition. With `full` tables it has to match all parts: one of two
parts matches `chains` statements, and the best guess is their mean, with an MSE of 1 - 1/N.
`full` is therefore the default, as in the paper's prompts. It costs longer sequences: with N
chains, N^2 statements for a key of two.
"""

from dataclasses import dataclass, fields
from typing import Any, ClassVar, get_args

from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.positions import Position
from retrieval_interp.tasks.training_task import counted
from retrieval_interp.tasks.vectors.arrangement import Tables
from retrieval_interp.tasks.vectors.graph import GRAPHS, RetrievalGraph
from retrieval_interp.tasks.vectors.vector_task import MAX_NUMBERS, Tokens, VectorTask


@dataclass(frozen=True)
class ConditionalRetrievalTask(VectorTask):
    """Follow `chains` interleaved chains, whose steps form a graph.

    A query with several symbols takes several tokens; outputs are read at the last one (role s0).

    Attributes:
        chains: number of chains, N.
        graph: what each step depends on, such as `GRAPHS["triple"]`, the paper's example.
        dim: dimensions of a symbol, K; even, since encodings are cosine-sine pairs.
        curriculum: ask for every retrieved symbol (implicit curriculum) or for the last only.
        position: one encoding per statement (`pair`, equation 1) or per `token`.
        base: base of the rotary frequencies.
        tokens: symbols as drawn (`gaussian`, as in the paper) or scaled to length 1 (`unit`).
        tables: a statement for every combination of key values (`full`), or only the chains' own
            statements (`chains`).

    Raises:
        InputError: a parameter is out of range, or the sequence is too long.
    """

    chains: int = 4
    graph: RetrievalGraph = GRAPHS["triple"]
    dim: int = 4
    curriculum: bool = True
    position: Position = "pair"
    base: float = 10_000.0
    tokens: Tokens = "gaussian"
    tables: Tables = "full"

    name: ClassVar[str] = "conditional"

    def __post_init__(self) -> None:
        self._check()
        if not isinstance(self.graph, RetrievalGraph):
            raise InputError(
                "task: expected graph to be a RetrievalGraph, such as GRAPHS['triple'], "
                f"path_graph(3) or RetrievalGraph.parse('a; x <- a'), found {self.graph!r:.60}"
            )
        if self.tables not in get_args(Tables):
            raise InputError(f"task: expected tables 'full' or 'chains', found {self.tables!r}")
        if self.n_positions * self.dim > MAX_NUMBERS:
            raise InputError(
                f"task: expected a sequence of at most {MAX_NUMBERS // self.dim} positions in "
                f"{self.dim} dimensions, found {self.n_positions}; use fewer chains, a smaller "
                "graph or tables 'chains'"
            )

    @property
    def description(self) -> str:
        tables = "full tables" if self.tables == "full" else "the chains' own statements"
        return (
            f"conditional retrieval with {counted(self.chains, 'chain')} of {self.graph} in "
            f"{self.dim} dimensions, {tables}, {'with' if self.curriculum else 'without'} implicit "
            "curriculum"
        )

    def to_dict(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"name": self.name, **values, "graph": str(self.graph)}
