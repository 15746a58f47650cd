"""All single-head and single-path hypotheses, against the usual ways of measuring them.

    python benchmarks/ablations.py [--models small transformer-a ...] [--examples 128]

In turns, round after round:
(ours)       `ri.ablations`: each head replaced, each path cut in the model;
(naive)      one `run_with_hooks` of the whole model per hypothesis, on a sample of them;
(patch)      transformer-lens's `get_act_patch_attn_head_pattern_dest_src_pos`, patching zeros, on a
             sample of single entries of the pattern (less than a hypothesis, which cuts a path in
             all chains);
(in circuit) ours and naive again, with all other heads replaced, as in a search.
The table gives milliseconds per hypothesis and the median ratios over the rounds; `difference` is
the largest one between our numbers and the naive ones.
"""

import argparse
import io
import statistics
from contextlib import redirect_stderr
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd
import torch
from measure import Rows, benchmark, ratios, timed
from transformer_lens import patching

import retrieval_interp as ri
from retrieval_interp.circuits import Scorer
from retrieval_interp.circuits.mechanisms import IDENTITY, UNIFORM, OneHot

Circuits = list[tuple[ri.Circuit, float]]  # with their losses


def load(name: str, device: torch.device) -> tuple[Any, Any]:
    """A shipped checkpoint, or else an untrained model, which makes no difference to the work."""
    if name in ri.shipped_checkpoints():
        checkpoint = ri.load_checkpoint(name, device)
        return checkpoint.model, checkpoint.task
    recipe = ri.PRESETS["section7-ic-4" if name == "eight-heads" else name]
    if name == "eight-heads":
        recipe = replace(recipe, task=replace(recipe.task, steps=3))
    return ri.build_model(recipe.model, recipe.task, 0, device).eval(), recipe.task


@torch.no_grad()
def naive_loss(model: Any, task: Any, batch: ri.Batch, circuit: ri.Circuit) -> float:
    with ri.ablated(model, circuit, batch):
        return float(task.loss(model(batch.inputs), batch))


def in_a_circuit(model: Any, batch: ri.Batch, empty: ri.Circuit) -> list[ri.Circuit]:
    """A circuit of all heads, and those that differ from it in one head or one path."""
    mechanisms: dict[ri.Head, ri.Mechanism] = {}
    for layer, heads in enumerate(ri.mean_attention(model, batch)):
        for head, attention in enumerate(heads):
            strongest = [(dest, int(row.argmax())) for dest, row in enumerate(attention)]
            paths = [ri.RolePath(*pair) for pair in strongest if attention[pair] >= 0.1]
            mechanisms[ri.Head(layer, head)] = OneHot(tuple(paths)) if paths else UNIFORM
    whole = replace(empty, mechanisms=mechanisms)
    simpler = [whole.replace(head, m) for head in mechanisms for m in (UNIFORM, IDENTITY)]
    return [whole, *simpler, *(whole.without(path) for path in whole.paths())]


@torch.no_grad()
def patch(model: Any, task: Any, batch: ri.Batch, paths: list[ri.HeadPath]) -> None:
    """transformer-lens's own patching, with one entry of the pattern for each path."""
    n, roles = batch.inputs.shape[1], batch.roles[0, 0].tolist()
    zeros = batch.inputs.new_zeros(len(batch), model.cfg.n_heads, n, n)
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(model.cfg.n_layers)]
    entries = [
        [path.head.layer, path.head.head, roles[path.path.dest], roles[path.path.src]]
        for path in paths
    ]
    with redirect_stderr(io.StringIO()):  # its progress bar
        patching.get_act_patch_attn_head_pattern_dest_src_pos(
            model,
            batch.inputs,
            dict.fromkeys(names, zeros),
            lambda outputs: task.loss(outputs, batch),
            index_axis_names=None,
            index_df=pd.DataFrame(entries, columns=["layer", "head_index", "dest_pos", "src_pos"]),
        )


def compare(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """A row of the table."""
    model, task = load(name, options.device)
    batch = task.sample(options.examples, 0, options.device, split="test")
    empty = ri.parse_circuit([], task)
    times: dict[str, list[float]] = {
        key: [] for key in ("ours", "naive", "patch", "in circuit", "naive in circuit")
    }
    difference, hypotheses = 0.0, 0

    def naively(key: str, chosen: Circuits) -> None:
        nonlocal difference
        took, found = timed(lambda: [naive_loss(model, task, batch, c) for c, _ in chosen])
        times[key].append(took / len(chosen))
        difference = max(difference, *(abs(a - b) for a, (_, b) in zip(found, chosen)))

    for round_number in range(options.rounds):
        took, found = timed(lambda: ri.ablations(model, task, batch))
        every = [(empty.replace(head, m), loss) for (head, m), loss in found.heads.items()]
        every += [(empty.cut(row.path), row.live_loss) for row in found.paths]
        hypotheses = len(every)
        times["ours"].append(took / hypotheses)
        some = slice(round_number, None, max(1, hypotheses // options.sample))
        naively("naive", every[some])
        paths = [row.path for row in found.paths][some]
        took, _ = timed(partial(patch, model, task, batch, paths))
        times["patch"].append(took / len(paths))
        scorer, circuits = Scorer(model, task, batch), in_a_circuit(model, batch, empty)
        scorer.rebase(circuits[0])
        took, losses = timed(lambda loss=scorer.loss, of=circuits: list(map(loss, of)))
        times["in circuit"].append(took / len(circuits))
        naively("naive in circuit", list(zip(circuits, losses))[some])
    medians = {key: statistics.median(values) for key, values in times.items()}
    return {
        "model": name,
        "hypotheses": hypotheses,
        "all s": hypotheses * medians["ours"],
        "ms each": 1e3 * medians["ours"],
        "naive ms": 1e3 * medians["naive"],
        "patch ms": 1e3 * medians["patch"],
        "naive/ours": ratios(times["naive"], times["ours"])[0],
        "patch/ours": ratios(times["patch"], times["ours"])[0],
        "in circuit ms": 1e3 * medians["in circuit"],
        "naive/in circuit": ratios(times["naive in circuit"], times["in circuit"])[0],
        "difference": difference,
    }


def rows(options: argparse.Namespace) -> Rows:
    return [compare(name, options) for name in options.models]


main = benchmark(
    __doc__,
    rows,
    {
        "models": ["small", "transformer-a", "eight-heads"],
        "examples": 128,
        "rounds": 3,
        "sample": 24,  # hypotheses run naively per round
    },
    quick={"models": ["small"], "examples": 8, "rounds": 1, "sample": 2},
)

if __name__ == "__main__":
    main()
