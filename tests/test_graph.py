import pytest

from retrieval_interp.tasks import GRAPHS, InputError, RetrievalGraph, path_graph, role_letters
from retrieval_interp.tasks.graph import Node


def names(graph, numbers):
    return [graph.nodes[number].name for number in numbers]


def test_a_graph_is_read_and_written_as_text():
    graph = RetrievalGraph.parse(" a;x<-a ; y <- a; z <-x ,y")
    assert graph.nodes == (Node("a"), Node("x", ("a",)), Node("y", ("a",)), Node("z", ("x", "y")))
    assert str(graph) == "a; x <- a; y <- a; z <- x, y"
    for known in (*GRAPHS.values(), path_graph(30)):
        assert RetrievalGraph.parse(str(known)) == known
    assert RetrievalGraph.parse("triple") == GRAPHS["triple"] == graph
    assert path_graph(2) == RetrievalGraph.parse("A; B <- A; C <- B")


def test_roles_of_a_path_are_those_of_equation_1():
    graph = path_graph(7)
    assert list(graph.roles) == [(i // 2, (i + 1) // 2) for i in range(15)]
    assert [graph.role_label(role) for role in range(15)] == list(map(role_letters, range(15)))


def test_roles_are_the_query_read_at_its_end_then_each_statement():
    graph = GRAPHS["functions"]
    assert [graph.role_label(role) for role in range(len(graph.roles))] == [
        *("query letter", "query alias", "letter of letter->number", "number of letter->number"),
        *("alias of alias->function", "function of alias->function"),
        *(f"{node} of function,number->value" for node in ("function", "number", "value")),
    ]
    assert [role.statement for role in graph.roles] == [0, 0, 1, 1, 2, 2, 3, 3, 3]
    assert names(graph, graph.retrieved) == ["number", "function", "value"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("tripel", "expected one of triple, .* found 'tripel'"),
        ("a; x <- b", "found 'x <- b'"),
        ("a; x <-", "found 'x <- '"),
        ("a; 2 <- a", "found '2 <- a'"),
        ("a; x <- a; x <- a", "found 'x <- a'"),
        ("a; x <- a, a", "found 'x <- a, a'"),
        ("x <- a; a", "keys of different earlier nodes, found 'x <- a'"),
        ("a; x <- a; y <- a", "all nodes but the last, the answer, .* found 'x <- a'"),
        ("a; x <- a; b", "found 'x <- a'"),
    ],
)
def test_graphs_that_are_none_are_refused(text, error):
    with pytest.raises(InputError, match=f"^graph: .*{error}"):
        RetrievalGraph.parse(text)
