"""auto-circuit's ACDC and mask-gradient pruning on a model of continuous vectors.

    python autocircuit_worker.py EXCHANGE.safetensors RESULT.json

Runs in an environment of its own (transformer-lens 2.17, auto-circuit 1.0.1) and imports nothing of
this project; `autocircuit.py` writes the exchange file, runs this and reads the result.

1. The HookedTransformer is built with a read-in of vectors, and must give the outputs on file.
2. Edges run between the input, heads, MLPs and the output, for all positions at once; the output
   counts at the queries only. An edge that is cut brings what it brings on another example.
3. ACDC prunes against the change (MSE) of the intact model's output, mask gradients against the MSE
   to the target. auto-circuit has both built in; only the output slice is set here.
4. Circuits of n edges are run, for up to 40 of the n at which scores differ. A head is kept if kept
   edges lead from the input through it to the output.
5. Heads are ranked by the least n at which they are kept, ties by their edges' scores. For every k,
   the k first heads are kept whole, with all MLPs, and the other heads' outputs are replaced.
"""

import itertools
import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from auto_circuit.data import PromptDataLoader, PromptDataset, PromptPairBatch, collate_fn
from auto_circuit.prune import run_circuits
from auto_circuit.prune_algos.ACDC import acdc_prune_scores
from auto_circuit.prune_algos.mask_gradient import mask_gradient_prune_scores
from auto_circuit.types import AblationType, Edge, PatchType, PruneScores
from auto_circuit.utils.graph_utils import patchable_model
from auto_circuit.utils.patchable_model import PatchableModel
from auto_circuit.utils.tensor_ops import desc_prune_scores
from ordered_set import OrderedSet
from safetensors import safe_open
from torch import Tensor
from transformer_lens import HookedTransformer, HookedTransformerConfig

HeadName = tuple[int, int]
MOST_SIZES = 40  # numbers of edges to run, at most
MOST_SUBSETS = 300  # sets of heads to try for the best one, at most


class VectorTransformer(HookedTransformer):
    """HookedTransformer whose input is [batch, pos, d_in] vectors instead of tokens."""

    def input_to_embed(self, input: Tensor, **_: Any) -> tuple[Tensor, None, None, None]:
        return self.hook_embed(input @ self.W_E), None, None, None


def build_model(config: dict[str, Any], weights: dict[str, Tensor]) -> VectorTransformer:
    """The model on file, with the hook points that auto-circuit asks for."""
    cfg = HookedTransformerConfig(**config, init_weights=False, device="cpu")
    model = VectorTransformer(cfg)
    lacking, foreign = model.load_state_dict(weights, strict=False)
    lacking = [name for name in lacking if name in dict(model.named_parameters())]
    if lacking or foreign:
        raise SystemExit(f"weights do not fit: missing {lacking}, foreign {foreign}")
    model.set_use_attn_result(True)
    model.set_use_split_qkv_input(True)
    if not cfg.attn_only:
        model.set_use_hook_mlp_in(True)
    return model.eval()


class OneBatch(PromptDataLoader):
    """All examples of a split as one batch, put together once; ACDC uses the first batch only."""

    def __init__(self, tensors: dict[str, Tensor], split: str):
        clean, corrupt, targets = (
            tensors[f"{split}.{kind}"] for kind in ("inputs", "corrupt", "targets")
        )
        dataset = PromptDataset(clean, corrupt, list(targets), list(targets))
        super().__init__(dataset, seq_len=None, diverge_idx=0, batch_size=len(clean))
        self.batch: PromptPairBatch = collate_fn([dataset[i] for i in range(len(dataset))])

    def __iter__(self) -> Iterator[PromptPairBatch]:  # type: ignore[override]
        return iter([self.batch])


# Which heads a set of edges keeps


def head_of(name: str) -> HeadName | None:
    """(1, 0) for auto-circuit's `A1.0` or `A1.0.Q`; None for the input, MLPs and the output."""
    if not name.startswith("A"):
        return None
    layer, head = name[1:].split(".")[:2]
    return int(layer), int(head)


def node_of(name: str) -> str:
    """A node's name less its Q, K or V."""
    return ".".join(name.split(".")[:2])


def kept_heads(edges: Iterable[Edge]) -> set[HeadName]:
    """The heads on a way from the input to the output."""
    steps = {(node_of(e.src.name), node_of(e.dest.name)) for e in edges}

    def reached(start: str, steps: set[tuple[str, str]]) -> set[str]:
        found, frontier = {start}, {start}
        while frontier:
            frontier = {dest for src, dest in steps if src in frontier} - found
            found |= frontier
        return found

    backward = {(dest, src) for src, dest in steps}
    on_way = reached("Resid Start", steps) & reached("Resid End", backward)
    return {head for name in on_way if (head := head_of(name)) is not None}


# Losses


def edge_losses(
    model: PatchableModel, loader: OneBatch, scores: PruneScores, sizes: list[int]
) -> dict[int, float]:
    """MSE to the target by number of edges kept, all others cut."""
    outputs = run_circuits(model, loader, sizes, scores, PatchType.TREE_PATCH)
    return {
        n: float((by_batch[loader.batch.key] - loader.batch.answers).square().mean())
        for n, by_batch in outputs.items()
    }


def heads_loss(
    model: PatchableModel, loader: OneBatch, heads: Iterable[HeadName], ablation: AblationType
) -> float:
    """MSE to the target with these heads kept whole and the outputs of all others replaced."""
    heads = set(heads)
    kept = {
        edge for edge in model.edges if (head := head_of(edge.src.name)) is None or head in heads
    }
    scores = model.circuit_prune_scores(edges=kept)
    outputs = run_circuits(model, loader, [len(kept)], scores, PatchType.TREE_PATCH, ablation)
    return float((outputs[len(kept)][loader.batch.key] - loader.batch.answers).square().mean())


ABLATIONS = {
    "resample": AblationType.RESAMPLE,
    "mean": AblationType.TOKENWISE_MEAN_CLEAN,
    "zero": AblationType.ZERO,
}


# Methods


def sizes_of(scores: PruneScores) -> list[int]:
    """Numbers of edges that a threshold on the scores can keep, thinned out."""
    flat = desc_prune_scores(scores)
    ends = (flat[1:] != flat[:-1]).nonzero().flatten() + 1
    sizes = [0, *ends.tolist(), len(flat)]
    if len(sizes) <= MOST_SIZES:
        return sizes
    picked = torch.linspace(0, len(sizes) - 1, MOST_SIZES).round().long().unique()
    return [sizes[i] for i in picked.tolist()]


def edges_kept(model: PatchableModel, scores: PruneScores, n: int) -> set[Edge]:
    if n == 0:
        return set()
    threshold = desc_prune_scores(scores)[n - 1]
    return {edge for edge in model.edges if edge.prune_score(scores).abs() >= threshold}


def rank_heads(model: PatchableModel, scores: PruneScores) -> list[HeadName]:
    """Heads in the order in which they join the circuit as edges are added, best first."""
    flat = desc_prune_scores(scores)
    levels = [0, *((flat[1:] != flat[:-1]).nonzero().flatten() + 1).tolist(), len(flat)]
    joined: dict[HeadName, int] = {}
    for n in levels:
        for head in kept_heads(edges_kept(model, scores, n)):
            joined.setdefault(head, n)
    weight: dict[HeadName, float] = dict.fromkeys(joined, 0.0)
    for edge in model.edges:
        for head in {head_of(edge.src.name), head_of(edge.dest.name)} - {None}:
            score = abs(float(edge.prune_score(scores)))
            weight[head] += 1e9 if math.isinf(score) else score
    return sorted(joined, key=lambda head: (joined[head], -weight[head], head))


def run_method(
    model: PatchableModel,
    method: Callable[..., PruneScores],
    train: OneBatch,
    test: OneBatch,
) -> dict[str, Any]:
    start = time.perf_counter()
    scores = method(model, train, None)
    seconds = time.perf_counter() - start
    if not all(bool(torch.isfinite(s).logical_or(s == math.inf).all()) for s in scores.values()):
        raise SystemExit("prune scores that are not numbers")
    losses = edge_losses(model, test, scores, sizes_of(scores))
    ranking = rank_heads(model, scores)
    return {
        "seconds": seconds,
        "ranking": ranking,
        "by_heads": [
            {
                "heads": ranking[:k],
                **{
                    name: heads_loss(model, test, ranking[:k], ablation)
                    for name, ablation in ABLATIONS.items()
                },
            }
            for k in range(len(ranking) + 1)
        ],
        "by_edges": [
            {"edges": n, "mse": mse, "heads": sorted(kept_heads(edges_kept(model, scores, n)))}
            for n, mse in sorted(losses.items())
        ],
        "scores": {
            edge.name: "inf" if math.isinf(score := float(edge.prune_score(scores))) else score
            for edge in sorted(model.edges, key=lambda edge: edge.name)
        },
    }


def best_heads(
    model: PatchableModel, train: OneBatch, test: OneBatch, k: int
) -> dict[str, Any] | None:
    """The k heads with the least MSE on the training examples, by trying all sets of k."""
    heads = sorted(head for src in model.srcs if (head := head_of(src.name)) is not None)
    if not 0 < k <= len(heads) or math.comb(len(heads), k) > MOST_SUBSETS:
        return None
    found = min(
        itertools.combinations(heads, k),
        key=lambda subset: heads_loss(model, train, subset, AblationType.RESAMPLE),
    )
    return {
        "heads": found,
        **{name: heads_loss(model, test, found, ablation) for name, ablation in ABLATIONS.items()},
    }


def methods(config: dict[str, Any]) -> dict[str, Callable[..., PruneScores]]:
    gradient = partial(mask_gradient_prune_scores, grad_function="logit", answer_function="mse")
    return {
        "acdc": partial(
            acdc_prune_scores,
            tao_exps=config["tao_exps"],
            tao_bases=config["tao_bases"],
            faithfulness_target="mse",
        ),
        "gradient, integrated": partial(gradient, integrated_grad_samples=config["samples"]),
        "gradient, mask 1": partial(gradient, mask_val=1.0),
    }


def main() -> None:
    source, result = map(Path, sys.argv[1:3])
    with safe_open(source, framework="pt") as file:
        config = json.loads(file.metadata()["autocircuit"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    random.seed(0)
    torch.manual_seed(0)
    weights = {name[6:]: tensors[name] for name in tensors if name.startswith("model.")}
    hooked = build_model(config["model"], weights)
    queries = (slice(None), slice(-config["queries"], None))
    with torch.no_grad():
        outputs = hooked(tensors["test.inputs"])[queries]
    difference = float((outputs - tensors["test.outputs"]).abs().max())
    if not difference < 1e-3:
        raise SystemExit(f"the rebuilt model's outputs differ by {difference:g}")

    model = patchable_model(hooked, factorized=True, separate_qkv=True)
    model.out_slice = queries
    # A set's order changes from run to run, and ACDC follows it within a layer.
    model.edges = OrderedSet(
        sorted(model.edges, key=lambda edge: (edge.dest.name, -edge.src.src_idx))
    )
    train, test = OneBatch(tensors, "train"), OneBatch(tensors, "test")
    everything = sorted(head for src in model.srcs if (head := head_of(src.name)) is not None)
    content = {
        "edges": model.n_edges,
        "difference": difference,
        "baseline": heads_loss(model, test, everything, AblationType.RESAMPLE),
        "methods": {
            name: run_method(model, method, train, test) for name, method in methods(config).items()
        },
        "sets": {
            label: {
                name: heads_loss(model, test, map(tuple, heads), a) for name, a in ABLATIONS.items()
            }
            for label, heads in config["sets"].items()
        },
        "best": {str(k): best_heads(model, train, test, k) for k in config["sizes"]},
    }
    result.write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
