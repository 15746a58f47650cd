"""Heads by similarity (TransformerLens's head_detector), and what replacing them shows.

    python benchmarks/head_detector.py --model equations
    python benchmarks/head_detector.py --model smollm2 --by mean

head_detector multiplies a head's pattern by one for previous-token, duplicate-token and induction
heads, and divides by all attention. `ri.scan` replaces the head by its rule and measures the loss;
with `--by mean`, its mean pattern takes its place.
SmolLM2 reads random tokens, twice. The table has the heads whose replacement costs most.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
from measure import Rows, benchmark, load_model
from transformer_lens import head_detector

import retrieval_interp as ri
from retrieval_interp.circuits.hooks import heads_of
from retrieval_interp.circuits.means import position_means

DETECTED: dict[str, Callable[..., Any]] = {
    "previous": head_detector.get_previous_token_head_detection_pattern,
    "duplicate": head_detector.get_duplicate_token_head_detection_pattern,
    "induction": head_detector.get_induction_head_detection_pattern,
}
HOW: dict[str, Any] = {"exclude_bos": False, "exclude_current_token": False, "error_measure": "mul"}
similarity = head_detector.compute_head_attention_similarity_score


def detected(model: Any, batch: ri.Batch) -> dict[str, dict[ri.Head, float]]:
    """TransformerLens's similarity scores, averaged over sequences."""
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.cfg.n_layers)]
    scores = {kind: dict.fromkeys(heads_of(model), 0.0) for kind in DETECTED}
    for tokens, end in zip(batch.inputs, batch.roles.flatten(1).amax(1).tolist()):
        tokens = tokens[None, : end + 1]  # what follows is padding
        with torch.no_grad():
            _, cache = model.run_with_cache(tokens, names_filter=names)
        for kind, make in DETECTED.items():
            wanted = make(tokens.cpu())
            for head in scores[kind]:
                pattern = cache["pattern", head.layer][0, head.head].float().cpu()
                scores[kind][head] += similarity(pattern, wanted, **HOW) / len(batch)
    return scores


def twice(model: Any) -> list[list[int]]:
    """16 sequences of 20 to 40 random tokens after a beginning-of-sequence token, twice.

    At one distance, a mean pattern by position would hold all of an induction head's attention.
    """
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(20, 41, (16,), generator=draw).tolist()
    last, start = model.cfg.d_vocab, model.tokenizer.bos_token_id or 0
    halves = [torch.randint(100, last, (n,), generator=draw).tolist() for n in lengths]
    return [[start, *half, *half] for half in halves]


@benchmark({"examples": 8}, lambda rows: rows[:12], model="equations", by="rule", examples=64)
def main(options: argparse.Namespace) -> Rows:
    """One row per head, those whose replacement costs most first."""
    model, task = load_model(options.model, "cpu")
    how = {"examples": options.examples, "progress": ri.progress_bar}
    found = ri.scan(model, task or twice(model), **how)
    changes = {row.head: row.change.loss for row in found.heads}
    if options.by == "mean":
        score, empty = ri.Scorer(model, found.task, found.batch), ri.Circuit.empty(found.task)
        for head, mean in position_means(model, found.task.sample(len(found.batch))).items():
            changes[head] = score.loss(empty.replace(head, mean)) - found.intact_loss
    scores = detected(model, found.batch[:4])
    table: Rows = []
    for row in sorted(found.heads, key=lambda row: -changes[row.head]):
        kind = max(scores, key=lambda kind: scores[kind][row.head])
        change = changes[row.head]
        known = change / (found.uninformed_loss - found.intact_loss)
        of_head = {"head": str(row.head), "detected": kind, "score": scores[kind][row.head]}
        of_rule = {"rule": str(row.rule), "share": row.share}
        table.append(of_head | of_rule | {"change": change, "of_knowledge": known})
    return table


if __name__ == "__main__":
    main()
