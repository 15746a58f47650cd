"""Circuits of heads as graphs of EAP-IG."""

import json
from types import SimpleNamespace as Made

import pytest

import retrieval_interp as ri
from retrieval_interp.circuits.counterfactual.search import Share
from retrieval_interp.circuits.counterfactual.units import Unit
from retrieval_interp.tasks import InputError


@pytest.mark.parametrize("parallel", [False, True])
def test_a_graph_has_the_heads_and_all_that_they_can_read(tmp_path, parallel, without_type_checks):
    """What reads what is stated here by ranks in the order in which a model computes."""
    cfg = Made(n_layers=2, n_heads=2, d_model=4, parallel_attn_mlp=parallel)
    units = ["L0.H1 s0<-s1", "L1.H0 s0", "L1.H0 s1<-s1"]
    scores = [
        Made(unit=Unit.parse(u, 2), without=Share(s, 0.0)) for u, s in zip(units, (0.25, 0.5, 0.75))
    ]
    why = Made(units=scores, levels=[Made(kept=Share(1.0, 0.0))])
    graph = ri.eap_graph(why, Made(cfg=cfg))
    assert graph["cfg"] == vars(cfg)
    heads = {name: node["score"] for name, node in graph["nodes"].items() if name[0] == "a"}
    assert heads == {"a0.h0": 0.0, "a0.h1": 0.75, "a1.h0": 0.75, "a1.h1": 0.0}
    kept = {name for name, node in graph["nodes"].items() if node["in_graph"]}
    assert kept == {"input", "a0.h1", "m0", "a1.h0", "m1"}
    ranks = {"input": 0, "a0.h1": 1, "m0": 1 if parallel else 2, "a1.h0": 3}
    ranks |= {"m1": 3 if parallel else 4, "logits": 5}
    expected = {
        f"{source}->{node}{end}"
        for node, rank in ranks.items()
        for source, before in ranks.items()
        for end in (("<q>", "<k>", "<v>") if node[0] == "a" else ("",))
        if before < rank
    }
    assert set(graph["edges"]) == expected
    assert all(edge["in_graph"] for edge in graph["edges"].values())
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(graph))
    assert ri.heads_in_graph(path) == ["L0.H1", "L1.H0"]
    path.write_text("{}")
    with pytest.raises(InputError, match=r"graph.json: expected a graph of EAP-IG with nodes"):
        ri.heads_in_graph(path)
