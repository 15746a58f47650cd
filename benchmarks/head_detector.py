"""Heads by similarity (TransformerLens's head_detector), and what replacing them shows.

    python benchmarks/head_detector.py --model equations
    python benchmarks/head_detector.py --model smollm2 [--text FILE]    or a Hugging Face folder

head_detector multiplies a head's pattern by one for previous-token, duplicate-token and induction
heads, and divides by all attention. `ri.scan` replaces the head by its rule and measures the loss.
Without a text the model reads random tokens, twice.
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import Rows, benchmark
from transformer_lens import head_detector
from transformer_lens.model_bridge.bridge import TransformerBridge

import retrieval_interp as ri
from retrieval_interp.circuits.attribution import rank_correlation

DETECTED: dict[str, Callable[..., Any]] = {
    "previous": head_detector.get_previous_token_head_detection_pattern,
    "duplicate": head_detector.get_duplicate_token_head_detection_pattern,
    "induction": head_detector.get_induction_head_detection_pattern,
}
SIMILAR, SHOWN = 0.4, 12


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


def twice(model: Any, sequences: int, most: int) -> list[list[int]]:
    """Random tokens after a beginning-of-sequence token, twice, of different numbers.

    At one distance, a mean pattern by position would hold all of an induction head's attention.
    """
    draw = torch.Generator().manual_seed(0)
    bos = getattr(getattr(model, "tokenizer", None), "bos_token_id", None) or 0
    lengths = torch.randint(most // 2, most + 1, (sequences,), generator=draw).tolist()
    halves = [
        torch.randint(100, model.cfg.d_vocab, (length,), generator=draw).tolist()
        for length in lengths
    ]
    return [[bos, *half, *half] for half in halves]


def load(options: argparse.Namespace) -> tuple[Any, Any]:
    """A model, and a task or text for it."""
    if options.model == "smollm2":
        model = ri.smollm2()
    elif Path(options.model).is_dir():
        model = TransformerBridge.boot_transformers(options.model).eval()
    else:
        checkpoint = ri.load_checkpoint(options.model)
        return checkpoint.model, checkpoint.task
    if options.text is None:
        return model, twice(model, sequences=16, most=40)
    return model, options.text.read_text(encoding="utf-8")


def rows(options: argparse.Namespace) -> Rows:
    """One row per head, those whose replacement costs most first."""
    model, given = load(options)
    # No joint circuit keeps this, and it is not looked at here.
    found = ri.scan(
        model,
        given,
        by=options.by,
        examples=8 if options.quick else 64,
        tolerance=1e-9,
        progress=ri.progress_bar,
    )
    scores = detected(model, found.batch[: 1 if options.quick else 4])
    knowledge = found.uninformed_loss - found.intact_loss
    table: Rows = []
    for row in found.heads:
        kind, score = max(scores[row.head].items(), key=lambda pair: pair[1])
        change = row.loss - found.alone_intact_loss
        table.append(
            {
                "head": str(row.head), "detected": kind, "score": score, "rule": str(row.rule),
                "share": row.share, "change": change, "of_knowledge": change / knowledge,
            }
        )  # fmt: skip
    table.sort(key=lambda row: -row["change"])
    similar = [row for row in table if row["score"] >= SIMILAR and row["of_knowledge"] < 0.01]
    needed = [row for row in table if row["score"] < SIMILAR and row["of_knowledge"] >= 0.05]
    for title, some in (
        ("similar (score of 0.4 and more), not needed (below 1% of what is known)", similar),
        ("needed (5% and more), not similar", needed),
    ):
        best = sorted(some, key=lambda row: -row["score"])[:SHOWN]
        names = ", ".join(f"{row['head']} ({row['detected']} {row['score']:.2f})" for row in best)
        print(f"{title}: {len(some)} of {len(table)} heads; {names or 'none'}")
    known = [row for row in table if not math.isnan(row["change"])]
    correlation = rank_correlation(
        [row["score"] for row in known], [row["change"] for row in known]
    )
    print(f"rank correlation of score and change: {correlation:.2f}")
    return table


main = benchmark(
    __doc__,
    rows,
    {"model": "equations", "text": Path, "by": "rule"},
    quick={},
    shown=lambda rows: rows[:SHOWN],
)

if __name__ == "__main__":
    main()
