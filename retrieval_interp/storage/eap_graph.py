"""Write circuits of heads as the JSON graphs of EAP-IG (github.com/hannamw/EAP-IG), and read them.

Nodes are `input`, `a9.h9` for a head, `m9` for an MLP, and `logits`; an edge is `m8->a9.h9<q>`.
"""

import re
from pathlib import Path
from typing import Any

from retrieval_interp.circuits.counterfactual.explanation import Explanation
from retrieval_interp.circuits.hooks import HookedModel
from retrieval_interp.storage.files import read_text
from retrieval_interp.tasks import InputError
from retrieval_interp.tasks.structured import read_json


def eap_graph(why: Explanation, model: HookedModel) -> dict[str, Any]:
    """Return the heads of an explanation as a graph, for `Graph.from_json` of EAP-IG.

    Its heads, the input and all MLPs are in the graph, with every edge between them. The score of a
    head is the recovered share that is lost without its units, one by one and added up; heads that
    are not in the graph have 0. All edges have the score 0.
    """
    cfg, scores = model.cfg, dict[str, float]()
    # In parallel blocks MLPs do not read the heads of their layer.
    parallel = bool(getattr(cfg, "parallel_attn_mlp", False))
    for unit in why.units:
        name = "a{}.h{}".format(*unit.unit.head)
        lost = why.levels[-1].kept.share - unit.without.share
        scores[name] = scores.get(name, 0.0) + lost
    nodes: dict[str, Any] = {"input": {"in_graph": True}}
    edges: dict[str, Any] = {}
    before = ["input"]  # nodes in the graph that the next ones read

    def join(node: str, *inputs: str) -> None:
        for source in before:
            for end in inputs or ("",):
                edges[f"{source}->{node}{end}"] = {"score": 0.0, "in_graph": True}

    for layer in range(cfg.n_layers):
        heads = [f"a{layer}.h{head}" for head in range(cfg.n_heads)]
        nodes |= {
            head: {"in_graph": head in scores, "score": scores.get(head, 0.0)} for head in heads
        }
        kept, mlp = [head for head in heads if head in scores], f"m{layer}"
        for head in kept:
            join(head, "<q>", "<k>", "<v>")
        before += [] if parallel else kept
        nodes[mlp] = {"in_graph": True}
        join(mlp)
        before += [*(kept if parallel else []), mlp]
    join("logits")
    sizes = {name: getattr(cfg, name) for name in ("n_layers", "n_heads", "d_model")}
    return {"cfg": {**sizes, "parallel_attn_mlp": parallel}, "nodes": nodes, "edges": edges}


def heads_in_graph(path: str | Path) -> list[str]:
    """Return the heads that are in a graph file of EAP-IG, as `bench.keep` takes them: `L9.H9`."""
    data = read_json(read_text(Path(path), "a graph"), str(path))
    nodes = data.get("nodes") if isinstance(data, dict) else None
    if not isinstance(nodes, dict):
        raise InputError(f"{path}: expected a graph of EAP-IG with nodes, found none")
    heads = []
    for name, node in nodes.items():
        place = re.fullmatch(r"a(\d+)\.h(\d+)", name)
        if place and (node.get("in_graph") if isinstance(node, dict) else node):
            heads.append("L{}.H{}".format(*place.groups()))
    return heads
