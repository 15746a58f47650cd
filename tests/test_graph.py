import pytest

from retrieval_interp.tasks import GRAPHS, InputError, RetrievalGraph, path_graph, role_letters
from retrieval_interp.tasks.vectors.graph import Node

TRIPLE = "a; x <- a; y <- a; z <- x, y"


def names(graph, numbers):
    return [graph.nodes[number].name for number in numbers]


def test_a_graph_is_read_and_written_as_text():
    graph = RetrievalGraph.parse(" a;x<-a ; y <- a; z <-x ,y")
    assert graph.nodes == (
        Node("a"),
        Node("x", ("a",)),
        Node("y", ("a",)),
        Node("z", ("x", "y")),
    )
    assert str(graph) == TRIPLE
    for known in (*GRAPHS.values(), path_graph(30)):
        assert RetrievalGraph.parse(str(known)) == known


def test_graphs_have_names():
    assert RetrievalGraph.parse("triple") == GRAPHS["triple"] == RetrievalGraph.parse(TRIPLE)
    assert RetrievalGraph.parse("path-2") == RetrievalGraph.parse("A; B <- A; C <- B")


def test_keys_come_first_and_the_order_given_is_kept_else():
    assert str(RetrievalGraph.parse("z <- x, y; x <- a; y <- a; a")) == TRIPLE
    # y may come before x: the order of looking up is the order of the sequence.
    swapped = RetrievalGraph.parse("a; y <- a; x <- a; z <- x, y")
    assert names(swapped, swapped.retrieved) == ["y", "x", "z"]
    assert swapped != GRAPHS["triple"]


def test_roles_of_a_path_are_those_of_equation_1():
    for steps in (1, 2, 7):
        graph = path_graph(steps)
        assert list(graph.roles) == [(i // 2, (i + 1) // 2) for i in range(2 * steps + 1)]
        for role in range(2 * steps + 1):
            assert graph.role_label(role) == role_letters(role)


def test_roles_are_the_query_read_at_its_end_then_each_statement():
    graph = GRAPHS["functions"]
    assert [graph.role_label(role) for role in range(len(graph.roles))] == [
        "query letter",
        "query alias",
        "letter of letter->number",
        "number of letter->number",
        "alias of alias->function",
        "function of alias->function",
        "function of function,number->value",
        "number of function,number->value",
        "value of function,number->value",
    ]
    assert [role.statement for role in graph.roles] == [0, 0, 1, 1, 2, 2, 3, 3, 3]
    assert names(graph, graph.query) == ["alias", "letter"]
    assert names(graph, graph.retrieved) == ["number", "function", "value"]


def test_many_nodes_in_the_worst_order_are_quick():
    nodes = path_graph(20_000).nodes
    assert RetrievalGraph(nodes[::-1]).nodes == nodes


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", r"expected one of triple, functions, relatives, path-<steps>, or nodes .* found ''"),
        ("tripel", "or nodes such as 'a; x <- a; y <- a; z <- x, y', found 'tripel'"),
        ("a; x <- b", "expected keys of the nodes a, x, found 'b' in 'x <- b'; add it as a node"),
        ("a; x <-", "expected keys of the nodes a, x, found ''"),
        (
            "a; x <- a;",
            "expected names of at most 20 letters, digits and _, not starting with a digit, f",
        ),
        ("a; 2 <- a", "not starting with a digit, found '2'"),
        ("a; x <- a; x <- a", "expected every node once, found 'x' twice"),
        ("a; x <- a, a", "expected a key of different nodes, found 'x <- a, a'; name each once"),
        ("x <- x", "expected no cycle, found x <- x; leave one of these out"),
        ("a; x <- a, z; y <- x; z <- y", "expected no cycle, found x <- z <- y <- x; leave"),
        ("a; w <- z; x <- y; y <- x; z <- y, a", "expected no cycle, found y <- x <- y; leave"),
        ("a; x <- a; y <- a", "expected every node but the answer, y, to be in a key, found 'x <-"),
        ("x <- a; a; b", "expected every node but the answer, x, to be in a key, found 'b' in non"),
        ("path-0", "expected 1 to 49999 steps of a path, found 0"),
    ],
)
def test_graphs_that_are_none_are_refused_with_the_reason(text, error):
    with pytest.raises(InputError, match=f"^graph: .*{error}") as caught:
        RetrievalGraph.parse(text)
    assert "\n" not in str(caught.value)


def test_graphs_without_nodes_or_without_anything_to_retrieve_are_refused():
    with pytest.raises(InputError, match="^graph: expected 1 to 50000 nodes, found 0$"):
        RetrievalGraph(())
    with pytest.raises(InputError, match="expected 1 to 50000 nodes, found 50001"):
        RetrievalGraph((Node("a"),) * 50_001)
    with pytest.raises(
        InputError, match="a node to retrieve, such as 'x <- a', found none with a key; add one"
    ):
        RetrievalGraph((Node("a"), Node("b")))
