"""Heads by similarity (TransformerLens's head_detector), and what replacing them shows.

    python benchmarks/head_detector.py --model equations
    python benchmarks/head_detector.py --model smollm2 --by mean

head_detector multiplies a head's pattern by one for previous-token, duplicate-token and induction
heads, and divides by all attention. `ri.scan` replaces the head by its rule and measures the loss.
SmolLM2 reads random tokens, twice. The table has the heads whose replacement costs most.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
from measure import Rows, benchmark
from transformer_lens import head_detector

import retrieval_interp as ri

DETECTED: dict[str, Callable[..., Any]] = {
    "previous": head_detector.get_previous_token_head_detection_pattern,
    "duplicate": head_detector.get_duplicate_token_head_detection_pattern,
    "induction": head_detector.get_induction_head_detection_pattern,
}


def detected(model: Any, batch: ri.Batch) -> dict[ri.Head, dict[str, float]]:
    """TransformerLens's similarity scores of every head, averaged over sequences."""
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.cfg.n_layers)]
    scores: dict[ri.Head, dict[str, float]] = {}
    for tokens, end in zip(batch.inputs, batch.roles.flatten(1).amax(1).tolist()):
        tokens = tokens[: end + 1]  # what follows is padding
        with torch.no_grad():
            _, cache = model.run_with_cache(tokens[None], names_filter=names)
        for kind, make in DETECTED.items():
            wanted = make(tokens[None].cpu())
            for layer, name in enumerate(names):
                for number, pattern in enumerate(cache[name][0].float().cpu()):
                    score = head_detector.compute_head_attention_similarity_score(
                        pattern, wanted, exclude_bos=False, exclude_current_token=False,
                        error_measure="mul",
                    )  # fmt: skip
                    head = ri.Head(layer, number)
                    of_head = scores.setdefault(head, dict.fromkeys(DETECTED, 0.0))
                    of_head[kind] += score / len(batch)
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


def rows(options: argparse.Namespace) -> Rows:
    """One row per head, those whose replacement costs most first."""
    if options.model == "smollm2":
        model: Any = ri.smollm2()
        given: Any = twice(model)
    else:
        checkpoint = ri.load_checkpoint(options.model)
        model, given = checkpoint.model, checkpoint.task
    examples = 8 if options.quick else 64
    # No joint circuit keeps this, and it is not looked at here.
    few = {"by": options.by, "examples": examples, "tolerance": 1e-9}
    found = ri.scan(model, given, progress=ri.progress_bar, **few)
    scores = detected(model, found.batch[: 1 if options.quick else 4])
    knowledge = found.uninformed_loss - found.intact_loss
    table: Rows = []
    for row in found.heads:
        kind, score = max(scores[row.head].items(), key=lambda pair: pair[1])
        change = row.loss - found.intact_loss
        known = {"share": row.share, "change": change, "of_knowledge": change / knowledge}
        of_head = {"head": str(row.head), "detected": kind, "score": score, "rule": str(row.rule)}
        table.append(of_head | known)
    return sorted(table, key=lambda row: -row["change"])


own = {"model": "equations", "by": "rule"}
main = benchmark(__doc__, rows, own, quick={}, shown=lambda rows: rows[:12])

if __name__ == "__main__":
    main()
