"""Heads by similarity (TransformerLens's head_detector) beside what replacing them shows.

    python benchmarks/head_detector.py --model equations
    python benchmarks/head_detector.py --model smollm2 [--text FILE]    or a Hugging Face folder

head_detector multiplies a head's pattern by one for previous-token, duplicate-token and induction
heads, and divides by all attention. `ri.scan` replaces the head by its rule and measures the loss.
The two disagree on heads that look like a pattern and are not needed, and on heads that are needed
and look like none. Without a text the model reads random tokens, twice.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from measure import arguments, machine, prepare, report
from transformer_lens.head_detector import (
    compute_head_attention_similarity_score,
    get_duplicate_token_head_detection_pattern,
    get_induction_head_detection_pattern,
    get_previous_token_head_detection_pattern,
)
from transformer_lens.model_bridge.bridge import TransformerBridge

import retrieval_interp as ri
from retrieval_interp.circuits.attribution.estimates import rank_correlation
from retrieval_interp.circuits.circuit import Head
from retrieval_interp.circuits.hooks.points import pattern_hook_name
from retrieval_interp.circuits.scan.scan import Scan, scan
from retrieval_interp.tasks import Batch
from retrieval_interp.views.scan_view import rule_name

DETECTED = {
    "previous": get_previous_token_head_detection_pattern,
    "duplicate": get_duplicate_token_head_detection_pattern,
    "induction": get_induction_head_detection_pattern,
}
SIMILAR = 0.4
SHOWN = 12


def detected(model: Any, batch: Batch) -> dict[Head, dict[str, float]]:
    """TransformerLens's similarity scores of every head, the mean over sequences."""
    names = [pattern_hook_name(layer) for layer in range(model.cfg.n_layers)]
    scores: dict[Head, dict[str, float]] = {}
    for tokens, end in zip(batch.inputs, batch.roles.flatten(1).amax(1).tolist()):
        tokens = tokens[: end + 1]  # what follows is padding
        with torch.no_grad():
            _, cache = model.run_with_cache(tokens[None], names_filter=names)
        for kind, make in DETECTED.items():
            wanted = make(tokens[None].cpu())
            for layer, name in enumerate(names):
                for number, pattern in enumerate(cache[name][0].float().cpu()):
                    score = compute_head_attention_similarity_score(
                        pattern, wanted, exclude_bos=False, exclude_current_token=False,
                        error_measure="mul",
                    )  # fmt: skip
                    of_head = scores.setdefault(Head(layer, number), dict.fromkeys(DETECTED, 0.0))
                    of_head[kind] += score / len(batch)
    return scores


def twice(model: Any, sequences: int, most: int) -> list[list[int]]:
    """Random tokens after a beginning-of-sequence token, twice.

    Their number, up to `most`, differs from sequence to sequence: at one distance, a mean pattern
    by position would hold all of an induction head's attention.
    """
    draw = torch.Generator().manual_seed(0)
    bos = getattr(getattr(model, "tokenizer", None), "bos_token_id", None) or 0
    lengths = torch.randint(most // 2, most + 1, (sequences,), generator=draw).tolist()
    halves = [
        torch.randint(100, model.cfg.d_vocab, (length,), generator=draw).tolist()
        for length in lengths
    ]
    return [[bos, *half, *half] for half in halves]


def rows(found: Scan, scores: dict[Head, dict[str, float]]) -> list[dict[str, Any]]:
    """One row per head, those that cost most alone first."""
    knowledge = found.uninformed_loss - found.intact_loss
    made = []
    for row in found.heads:
        kind, score = max(scores[row.head].items(), key=lambda pair: pair[1])
        cost = row.loss - found.alone_intact_loss
        made.append(
            {
                "head": str(row.head), "detected": kind, "score": score,
                "rule": rule_name(row.rule), "share": row.share, "change": cost,
                "of_knowledge": cost / knowledge,
            }
        )  # fmt: skip
    return sorted(made, key=lambda row: -row["change"])


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--model", default="equations", help="a checkpoint that reads tokens")
    parser.add_argument("--text", type=Path, help="a file of text, for the folder of a model")
    parser.add_argument("--by", choices=("rule", "mean"), default="rule")
    options = parser.parse_args(argv)
    device = prepare(options)
    model, given = load(options)
    examples = 8 if options.quick else 64
    # No joint circuit keeps this, and it is not looked at here.
    found = scan(
        model, given, by=options.by, examples=examples, tolerance=1e-9, progress=ri.progress_bar
    )
    few = found.batch[: 1 if options.quick else 4]
    scores = detected(model, few)
    table = rows(found, scores)
    for title, some in (
        ("similar (score of 0.4 and more), not needed (below 1% of what is known)", [
            row for row in table if row["score"] >= SIMILAR and row["of_knowledge"] < 0.01]),
        ("needed (5% and more), not similar", [
            row for row in table if row["score"] < SIMILAR and row["of_knowledge"] >= 0.05]),
    ):  # fmt: skip
        best = sorted(some, key=lambda row: -row["score"])[:SHOWN]
        names = ", ".join(f"{row['head']} ({row['detected']} {row['score']:.2f})" for row in best)
        print(f"{title}: {len(some)} of {len(table)} heads; {names or 'none'}")
    print(f"rank correlation of score and change: {_correlation(table):.2f}")
    print(f"{found.task.loss_name} intact {found.alone_intact_loss:.4f}")
    report(table, options, argv, shown=table[:SHOWN], machine=machine(device))


def _correlation(table: list[dict[str, Any]]) -> float:
    known = [row for row in table if not math.isnan(row["change"])]
    return rank_correlation([row["score"] for row in known], [row["change"] for row in known])


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


if __name__ == "__main__":
    main()
