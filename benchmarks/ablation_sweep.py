"""The sweep over all single-head and single-path hypotheses, against the usual ways of doing it.

    python benchmarks/ablation_sweep.py [--presets small transformer-a ...] [--examples 128]

In one run, in turn, round after round:
(ours)   `circuits.ablation_sweep` on all hypotheses: each head alone, each path cut live;
(naive)  one `run_with_hooks` of the whole model a hypothesis, on a sample of the same ones;
(patch)  transformer-lens's `get_act_patch_attn_head_pattern_dest_src_pos`, patching zeros, on a
         sample of single entries of the pattern (it cannot patch the four chains of a role path at
         once, so an entry is less than a hypothesis).
(frozen) ours and naive again, with all other heads replaced, as a search does it.
The table gives milliseconds a hypothesis and the ratios; `difference` is the largest between ours
and the naive numbers. Weights are those of a shipped checkpoint of that name, else untrained ones:
the work is the same.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd
import torch
from tqdm import tqdm
from transformer_lens import patching

from circuits import Circuit, Head, HeadPath, Scorer, ablation_sweep, mean_attention
from circuits.ablation import ablated, pattern_hook_name
from circuits.discovery import propose
from circuits.mechanisms import IDENTITY, UNIFORM
from retrieval_interp.checkpoint import load_checkpoint, shipped_checkpoints
from retrieval_interp.model import build_model
from retrieval_interp.presets import PRESETS
from tasks import Batch, RetrievalTask


def load(name: str) -> tuple[Any, RetrievalTask]:
    if name in shipped_checkpoints():
        checkpoint = load_checkpoint(name)
        return checkpoint.model, checkpoint.task
    if name == "eight-heads":
        recipe = PRESETS["section7-ic-4"]
        recipe = replace(recipe, task=replace(recipe.task, steps=3))
    else:
        recipe = PRESETS[name]
    return build_model(recipe.model, recipe.task).eval(), recipe.task


@torch.no_grad()
def naive_mse(model: Any, task: RetrievalTask, batch: Batch, circuit: Circuit) -> float:
    with ablated(model, circuit, batch):
        return float(task.loss(model(batch.inputs), batch))


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def frozen_hypotheses(model: Any, batch: Batch, empty: Circuit) -> list[Circuit]:
    """A whole circuit, and what differs from it by one head or one path."""
    attention = mean_attention(model, batch)
    heads = [Head(la, h) for la in range(attention.shape[0]) for h in range(attention.shape[1])]
    mechanisms = {head: propose(attention[head], "one-hot", 0.1) for head in heads}
    whole = replace(empty, mechanisms=mechanisms)
    simpler = [whole.replace(head, m) for head in heads for m in (UNIFORM, IDENTITY)]
    return [whole, *simpler, *(whole.without(path) for path in whole.paths())]


@torch.no_grad()
def patch(model: Any, task: RetrievalTask, batch: Batch, paths: list[HeadPath]) -> None:
    """transformer-lens's own patching, an entry of the pattern a path."""
    n = batch.inputs.shape[1]
    roles = batch.roles[0, 0]
    zeros = torch.zeros(len(batch), model.cfg.n_heads, n, n)
    cache = {pattern_hook_name(layer): zeros for layer in range(model.cfg.n_layers)}
    entries = pd.DataFrame(
        [
            [head.layer, head.head, int(roles[path.dest]), int(roles[path.src])]
            for head, path in paths
        ],
        columns=["layer", "head_index", "dest_pos", "src_pos"],
    )
    patching.get_act_patch_attn_head_pattern_dest_src_pos(
        model,
        batch.inputs,
        cache,
        lambda outputs: task.loss(outputs, batch),
        index_axis_names=None,
        index_df=entries,
    )


def compare(name: str, examples: int, rounds: int, sample: int) -> str:
    model, task = load(name)
    batch = task.sample(examples, 0, split="test")
    names = ("ours", "naive", "patch", "frozen", "frozen naive")
    times: dict[str, list[float]] = {key: [] for key in names}
    total, difference, hypotheses = 0.0, 0.0, 0
    for round_number in range(rounds):
        seconds, found = timed(lambda: ablation_sweep(model, task, batch))
        empty = Circuit({}, len(task.role_names))
        all_of_them = [(empty.replace(h, m), mse) for (h, m), mse in found.heads.items()]
        all_of_them += [(empty.cut(row.path), row.live_mse) for row in found.paths]
        hypotheses, total = len(all_of_them), seconds
        times["ours"].append(seconds / hypotheses)
        stride = max(1, hypotheses // sample)
        chosen = all_of_them[round_number % stride :: stride]
        seconds, values = timed(lambda c=chosen: [naive_mse(model, task, batch, x) for x, _ in c])
        times["naive"].append(seconds / len(chosen))
        errors = [abs(value - mse) for value, (_, mse) in zip(values, chosen)]
        difference = max(difference, *errors)
        paths = [row.path for row in found.paths][round_number % stride :: stride]
        seconds, _ = timed(lambda p=paths: patch(model, task, batch, p))
        times["patch"].append(seconds / len(paths))
        scorer = Scorer(model, task, batch)
        frozen = frozen_hypotheses(model, batch, empty)
        scorer.rebase(frozen[0])
        seconds, mses = timed(lambda s=scorer, c=frozen: [s.mse(x) for x in c])
        times["frozen"].append(seconds / len(frozen))
        chosen = list(zip(frozen, mses))[round_number::stride]
        seconds, values = timed(lambda c=chosen: [naive_mse(model, task, batch, x) for x, _ in c])
        times["frozen naive"].append(seconds / len(chosen))
        errors = [abs(value - mse) for value, (_, mse) in zip(values, chosen)]
        difference = max(difference, *errors)
    medians = {key: statistics.median(values) for key, values in times.items()}

    def ratio(key: str, to: str) -> float:
        return statistics.median(a / b for a, b in zip(times[key], times[to]))

    return (
        f"{name:<14} {hypotheses:>10} {total:>8.1f} {1e3 * medians['ours']:>8.2f} "
        f"{1e3 * medians['naive']:>9.2f} {1e3 * medians['patch']:>9.2f} "
        f"{ratio('naive', 'ours'):>6.1f} {ratio('patch', 'ours'):>6.1f} "
        f"{1e3 * medians['frozen']:>10.2f} {ratio('frozen naive', 'frozen'):>6.1f} "
        f"{difference:>11.1e}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = ["small", "transformer-a", "eight-heads"]
    parser.add_argument("--presets", nargs="+", default=names)
    parser.add_argument("--examples", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sample", type=int, default=24, help="hypotheses a round run naively")
    options = parser.parse_args()
    print(f"{options.examples} examples, {torch.get_num_threads()} threads")
    print(
        f"{'model':<14} {'hypotheses':>10} {'ours, s':>8} {'ours ms':>8} {'naive ms':>9} "
        f"{'patch ms':>9} {'naive':>6} {'patch':>6} {'frozen ms':>10} {'naive':>6} "
        f"{'difference':>11}"
    )
    for name in tqdm(options.presets, disable=None, leave=False):
        line = compare(name, options.examples, options.rounds, options.sample)
        print(line, flush=True)


if __name__ == "__main__":
    main()
