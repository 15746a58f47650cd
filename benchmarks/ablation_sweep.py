"""The sweep over all single-head and single-path hypotheses, against the usual ways of doing it.

    python benchmarks/ablation_sweep.py [--presets small transformer-a ...] [--examples 128]

In turns, round after round:
(ours)   `circuits.scores.ablations` on all hypotheses: each head alone, each path cut live;
(naive)  one `run_with_hooks` of the whole model per hypothesis, on a sample of them;
(patch)  transformer-lens's `get_act_patch_attn_head_pattern_dest_src_pos`, patching zeros, on a
         sample of single entries of the pattern (it cannot patch the four chains of a role path at
         once, so an entry is less than a hypothesis).
(frozen) ours and naive again, with all other heads replaced, as in a search.
The table gives milliseconds per hypothesis and the median ratios over the rounds; `difference` is
the largest one between our numbers and the naive ones. Weights are those of a shipped checkpoint of
that name, else untrained, which makes no difference to the work.
"""

import io
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import replace
from typing import Any

import pandas as pd
import torch
from measure import arguments, machine, prepare, ratios, report, synchronize
from tqdm import tqdm
from transformer_lens import patching

from retrieval_interp.circuits import (
    Circuit,
    Head,
    HeadPath,
    Scorer,
    ablations,
    mean_attention,
)
from retrieval_interp.circuits.discovery.space import propose
from retrieval_interp.circuits.hooks.ablated import ablated
from retrieval_interp.circuits.hooks.points import pattern_hook_name
from retrieval_interp.circuits.mechanisms import IDENTITY, UNIFORM
from retrieval_interp.config.presets import PRESETS
from retrieval_interp.storage.checkpoint import load_checkpoint, shipped_checkpoints
from retrieval_interp.tasks import Batch, RetrievalTask
from retrieval_interp.training.model import build_model


def load(name: str, device: torch.device) -> tuple[Any, RetrievalTask]:
    if name in shipped_checkpoints():
        checkpoint = load_checkpoint(name, device)
        return checkpoint.model, checkpoint.task
    if name == "eight-heads":
        recipe = PRESETS["section7-ic-4"]
        recipe = replace(recipe, task=replace(recipe.task, steps=3))
    else:
        recipe = PRESETS[name]
    return build_model(recipe.model, recipe.task, 0, device).eval(), recipe.task


@torch.no_grad()
def naive_loss(model: Any, task: RetrievalTask, batch: Batch, circuit: Circuit) -> float:
    with ablated(model, circuit, batch):
        return float(task.loss(model(batch.inputs), batch))


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds and result; there is no need to synchronize, as results are numbers on the CPU."""
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def frozen_hypotheses(model: Any, batch: Batch, empty: Circuit) -> list[Circuit]:
    """A circuit of all heads, and those that differ from it in one head or one path."""
    attention = mean_attention(model, batch)
    heads = [Head(la, h) for la in range(attention.shape[0]) for h in range(attention.shape[1])]
    mechanisms = {head: propose(attention[head], "one-hot", 0.1) for head in heads}
    whole = replace(empty, mechanisms=mechanisms)
    simpler = [whole.replace(head, m) for head in heads for m in (UNIFORM, IDENTITY)]
    return [whole, *simpler, *(whole.without(path) for path in whole.paths())]


@torch.no_grad()
def patch(model: Any, task: RetrievalTask, batch: Batch, paths: list[HeadPath]) -> None:
    """transformer-lens's own patching, with one entry of the pattern for each path."""
    n = batch.inputs.shape[1]
    roles = batch.roles[0, 0]
    zeros = batch.inputs.new_zeros(len(batch), model.cfg.n_heads, n, n)
    cache = {pattern_hook_name(layer): zeros for layer in range(model.cfg.n_layers)}
    entries = pd.DataFrame(
        [
            [head.layer, head.head, int(roles[path.dest]), int(roles[path.src])]
            for head, path in paths
        ],
        columns=["layer", "head_index", "dest_pos", "src_pos"],
    )
    with redirect_stderr(io.StringIO()):  # its progress bar
        patching.get_act_patch_attn_head_pattern_dest_src_pos(
            model,
            batch.inputs,
            cache,
            lambda outputs: task.loss(outputs, batch),
            index_axis_names=None,
            index_df=entries,
        )


def compare(
    name: str, examples: int, rounds: int, sample: int, device: torch.device
) -> dict[str, Any]:
    """A row of the table."""
    model, task = load(name, device)
    batch = task.sample(examples, 0, device, split="test")
    names = ("ours", "naive", "patch", "frozen", "frozen naive")
    times: dict[str, list[float]] = {key: [] for key in names}
    difference, hypotheses = 0.0, 0

    def naively(key: str, chosen: list[tuple[Circuit, float]]) -> None:
        nonlocal difference
        seconds, found = timed(lambda: [naive_loss(model, task, batch, c) for c, _ in chosen])
        times[key].append(seconds / len(chosen))
        difference = max(difference, *(abs(a - b) for a, (_, b) in zip(found, chosen)))

    for round_number in range(rounds):
        seconds, found = timed(lambda: ablations(model, task, batch))
        empty = Circuit({}, len(task.role_names))
        all_of_them = [(empty.replace(head, m), loss) for (head, m), loss in found.heads.items()]
        all_of_them += [(empty.cut(row.path), row.live_loss) for row in found.paths]
        hypotheses = len(all_of_them)
        times["ours"].append(seconds / hypotheses)
        stride = max(1, hypotheses // sample)
        naively("naive", all_of_them[round_number % stride :: stride])
        paths = [row.path for row in found.paths][round_number % stride :: stride]
        seconds, _ = timed(lambda p=paths: (patch(model, task, batch, p), synchronize(device)))
        times["patch"].append(seconds / len(paths))
        scorer = Scorer(model, task, batch)
        frozen = frozen_hypotheses(model, batch, empty)
        scorer.rebase(frozen[0])
        seconds, losses = timed(lambda s=scorer, c=frozen: [s.loss(x) for x in c])
        times["frozen"].append(seconds / len(frozen))
        naively("frozen naive", list(zip(frozen, losses))[round_number::stride])
    medians = {key: statistics.median(values) for key, values in times.items()}
    return {
        "model": name,
        "hypotheses": hypotheses,
        "sweep s": hypotheses * medians["ours"],
        "ms each": 1e3 * medians["ours"],
        "naive ms": 1e3 * medians["naive"],
        "patch ms": 1e3 * medians["patch"],
        "naive/ours": ratios(times["naive"], times["ours"])[0],
        "patch/ours": ratios(times["patch"], times["ours"])[0],
        "frozen ms": 1e3 * medians["frozen"],
        "naive/frozen": ratios(times["frozen naive"], times["frozen"])[0],
        "difference": difference,
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    names = ["small", "transformer-a", "eight-heads"]
    parser.add_argument("--presets", nargs="+", default=names)
    parser.add_argument("--examples", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sample", type=int, default=24, help="hypotheses run naively per round")
    options = parser.parse_args(argv)
    if options.quick:
        options.presets, options.examples, options.rounds, options.sample = ["small"], 8, 1, 2
    device = prepare(options)
    print(f"{machine(device)}, {options.examples} examples")
    rows = [
        compare(name, options.examples, options.rounds, options.sample, device)
        for name in tqdm(options.presets, disable=None, leave=False)
    ]
    report(rows, options, argv, machine=machine(device))


if __name__ == "__main__":
    main()
