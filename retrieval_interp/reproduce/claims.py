"""What the paper claims, and what the evidence says about it.

A claim gives one row for each thing it is about, such as a transformer. Rows at a smaller scale
are shown with those at the paper's, never instead of them. The paper gives two decimals, so ranges
are compared to two decimals and include their ends.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

from retrieval_interp.circuits import HeadPath
from retrieval_interp.circuits.flow import causal_depth, least_depth, paper_bound
from retrieval_interp.config.presets import PAPER, departures
from retrieval_interp.config.recipe import Recipe
from retrieval_interp.reproduce.evidence import LOSS_EXAMPLES, Evidence, Trained, Worth
from retrieval_interp.reproduce.heads import heads_emerge, joins_pair
from retrieval_interp.sweep.findings import UNLEARNED, above_text
from retrieval_interp.sweep.findings import order_text as losses_order_text
from retrieval_interp.tasks import RetrievalTask
from retrieval_interp.views.paper import FIRST_LAYER, PATHS, SUFFICIENT, range_text

Verdict = Literal["reproduced", "reproduced at smaller scale", "not reproduced", "not run"]
LEARNED = 0.01  # section 8.2: validation MSE of A, B and C (C6)
D_LEARNED = 0.031  # section 9.2: validation MSE of D (C10)
D_SUFFICIENT = 0.045  # section 9.2: the same with its circuit in place (C10)
PAPER_SCALE = "the paper's"
MODULE = "python -m retrieval_interp"
ABC = ("transformer-a", "transformer-b", "transformer-c")
ALL = (*ABC, "small")


@dataclass(frozen=True)
class Row:
    """A claim and our number."""

    id: str  # C2 to C11
    claim: str
    where: str  # in the paper
    paper: str  # the paper's number
    ours: str  # our number; empty if nothing was run
    scale: str  # how our run's size compares with the paper's
    command: str  # makes our number
    verdict: Verdict
    source: str  # what our number was computed or read from
    rule: str = ""  # how the verdict is reached, if the paper's number does not say it


Rows = Iterator[Row]
Answer = tuple[str, bool]  # our number in words, and whether it agrees with the paper's


def judge(evidence: Evidence, only: Sequence[str] = ()) -> list[Row]:
    """The rows of some claims, by default of all."""
    return [row for name in (only or CLAIMS) for row in CLAIMS[name](evidence)]


def c2(evidence: Evidence) -> Rows:
    def least(steps: int) -> int:
        return least_depth(steps, causal=True)

    # With the mask no fewer layers are needed than without.
    holds = all(
        least(d) >= least_depth(d, causal=False) >= paper_bound(d) and least(d) == causal_depth(d)
        for d in range(1, 17)
    )
    sharper = "; ".join(f"D = {d}: bound {paper_bound(d)}, least {least(d)}" for d in (1, 3, 4, 16))
    row = partial(Row, "C2", "depth is at least log3(2D)", "section 5, appendix B", "proof")
    yield row(
        f"holds for D = 1..16, and is not tight: {sharper} with the causal mask",
        "simulated for D = 1..16; proofs in docs/depth.md",
        f"{MODULE} bound --steps 1 3 4 16",
        _verdict(holds),
        "retrieval_interp.circuits.flow",
    )


def c3(evidence: Evidence) -> Rows:
    where = "section 7.2, figure 4 left"
    paper = f"100% of runs end above {UNLEARNED:g}"
    row = partial(Row, "C3", "without curriculum nothing is learned, even at D = 3", where, paper)
    return _of_grid(
        row, evidence, "section7-nonic", lambda s: (above_text(s), s["share_above_0.7"] == 1.0)
    )


def c4(evidence: Evidence) -> Rows:
    where, paper = "section 7.2, figure 4 right", "partial losses by depth (a figure)"
    row = partial(Row, "C4", "later places of the chain need more layers", where, paper)
    return _of_grid(row, evidence, "section7-ic", _later_needs_depth)


def c5(evidence: Evidence) -> Rows:
    claim = "partial losses fall below 0.5 in the order x_1, x_2, ..."

    def in_order(summary: dict[str, Any]) -> Answer:
        order = summary["order"]
        return losses_order_text(order), order["held"] > 0 and not order["broken"]

    row = partial(Row, "C5", claim, "section 7.2", "100% of runs")
    return _of_grid(row, evidence, "section7-ic", in_order)


def c6(evidence: Evidence) -> Rows:
    row = partial(Row, "C6", "A, B and C learn", "section 8.2", f"validation MSE below {LEARNED:g}")
    return _of_models(row, evidence, ALL, lambda t: _fresh_loss(t, LEARNED), trains=True)


def c7(evidence: Evidence) -> Rows:
    claim = "a few heads as one-hot maps, all others uniform or identity, do it all"
    row = partial(Row, "C7", claim, "appendix E", f"combined MSE below {SUFFICIENT:g}")
    return _of_models(row, evidence, ALL, _sufficient)


def c8(evidence: Evidence) -> Rows:
    first = range_text(FIRST_LAYER)
    paper = f"{range_text(PATHS)} without it (first useful layer: {first})"
    rule = "reproduced if every path of the circuit lies inside its range, to two decimals"
    row = partial(Row, "C8", "every path is necessary", "appendix E", paper, rule=rule)
    return _of_models(row, evidence, ALL, lambda trained: costs_of_paths(trained.worth))


def c9(evidence: Evidence) -> Rows:
    claim = "the first useful head joins pairs; four heads, where three would do"
    row = partial(Row, "C9", claim, "section 8.2", "4 useful heads")
    return _of_models(row, evidence, ALL, _useful_heads)


def c10(evidence: Evidence) -> Rows:
    paper = f"MSE {D_LEARNED:g}, with the circuit {D_SUFFICIENT:g}"
    row = partial(Row, "C10", "D learns, and its circuit holds", "section 9.2", paper)
    return _of_models(row, evidence, ["transformer-d"], _learned_with_circuit)


def c11(evidence: Evidence) -> Rows:
    where = "section 9.2, figures 6 and 7, appendix D"
    paper = "an induction head first (epoch 450), then one head per further token, in order"
    rule = "reproduced if all four conditions hold (docs/emergence.md)"
    row = partial(Row, "C11", "heads emerge one after the other", where, paper, rule=rule)
    for name, smaller in (("transformer-d", False), ("small", True)):
        scale, file = f"{name}: {'smaller' if smaller else PAPER_SCALE}", f"{name}.emergence.json"
        found = evidence.series(name)
        if found is None:
            run, out = evidence.runs / name, evidence.runs / file
            yield row("", scale, f"{MODULE} emergence --run {run} --json {out}", "not run", "")
        else:
            ours, holds = heads_emerge(found[0])
            yield row(ours, scale, found[1], _verdict(holds, smaller), file)


CLAIMS: dict[str, Callable[[Evidence], Rows]] = {
    each.__name__.upper(): each for each in (c2, c3, c4, c5, c6, c7, c8, c9, c10, c11)
}


def _verdict(agrees: bool, smaller: bool = False) -> Verdict:
    if not agrees:
        return "not reproduced"
    return "reproduced at smaller scale" if smaller else "reproduced"


# Section 7


def _of_grid(
    row: Callable[..., Row], evidence: Evidence, name: str, say: Callable[[dict[str, Any]], Answer]
) -> Rows:
    """Judge a claim by the summary of a grid."""
    summary = evidence.grid(name)
    if summary is None:
        command = f"{MODULE} sweep --grid {name} --out {evidence.runs / name}"
        yield row("", PAPER_SCALE, command, "not run", "")
    else:
        ours, agrees = say(summary)
        full = summary["scale"] == "full" and summary["finished"] == summary["cells"]
        scale, verdict = PAPER_SCALE if full else _grid_scale(summary), _verdict(agrees, not full)
        yield row(ours, scale, summary["command"], verdict, f"{name}.json")


def _grid_scale(summary: dict[str, Any]) -> str:
    recipe = summary["recipe"]
    task, model = recipe["task"], recipe["model"]
    return (
        f"{summary['scale']}: {summary['finished']} of {summary['cells']} runs, "
        f"D = {task['steps']}, {recipe['steps']} steps of {recipe['batch']}, d_model "
        f"{model['d_model']}, {model['heads']} head{'s' if model['heads'] > 1 else ''}, MLPs "
        f"{'on' if model['mlp'] else 'off'}, base {task['base']:g}"
    )


def _later_needs_depth(summary: dict[str, Any]) -> Answer:
    depths = summary["depths"]
    least = [
        min((row["layers"] for row in depths if row["partial_losses"][i] < 0.5), default=math.inf)
        for i in range(len(summary["asked"]))
    ]
    said = ", ".join(
        f"{name} {'at no depth' if layers == math.inf else f'from {layers} layers'}"
        for name, layers in zip(summary["asked"], least)
    )
    reached = sum(layers < math.inf for layers in least)
    rises = least == sorted(least) and len(set(least)) > 1 and reached > 1
    return f"mean partial loss below 0.5: {said}", rises


# Sections 8 and 9


def _of_models(
    row: Callable[..., Row],
    evidence: Evidence,
    names: Sequence[str],
    say: Callable[[Trained], Answer],
    trains: bool = False,
) -> Rows:
    """Judge a claim by transformers of the paper, and by `small`, a smaller A.

    The command of a row finds the circuit, or trains the transformer.
    """
    for name in names:
        trained = evidence.trained(name)
        if trained is None:
            command = f"{MODULE}.train --preset {name} --out {evidence.runs / name}"
            yield row("", name, command, "not run", "")
        else:
            paper = PAPER["transformer-a" if name == "small" else name]
            ours, agrees = say(trained)
            scale, smaller = _model_scale(trained.recipe, paper)
            command = f"{MODULE}.train --preset {name}" if trains else trained.ablate_command
            source = f"checkpoint {trained.where}"
            yield row(ours, f"{name}: {scale}", command, _verdict(agrees, smaller), source)


def _model_scale(recipe: Recipe, paper: Recipe) -> tuple[str, bool]:
    """How a recipe differs from the paper's, whose values are in brackets where it states them, and
    whether in task, model or training set; fewer steps may suffice.
    """
    differ = departures(recipe, paper)
    stated = [name for name, (_, theirs) in differ.items() if theirs is not None]
    said = [
        f"{name} {_number(ours)}" + (f" ({_number(theirs)})" if theirs is not None else "")
        for name, (ours, theirs) in differ.items()
    ]
    smaller = stated not in ([], ["steps"])
    return ", ".join(said if smaller else [PAPER_SCALE, *said]), smaller


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _fresh_loss(trained: Trained, bound: float) -> Answer:
    record, (fresh, error) = trained.checkpoint.training, trained.fresh_loss
    ours = f"{fresh:.4f} +- {error:.4f} on {LOSS_EXAMPLES} fresh examples"
    if "validation_loss" in record:
        ours += f", {record['validation_loss']:.4f} recorded at step {record.get('step')}"
    return ours, fresh <= bound


def _sufficient(trained: Trained) -> Answer:
    mechanisms, config = trained.circuit.mechanisms, trained.checkpoint.config
    loss, heads = trained.worth.combined_loss, config.layers * config.heads
    kinds = sorted({mechanism.kind for mechanism in mechanisms.values()})
    papers = set(kinds) <= {"uniform", "identity", "one-hot"}
    return (
        f"{loss:.4f} with {len(mechanisms)} of {heads} heads replaced ({', '.join(kinds)})",
        loss < SUFFICIENT and len(mechanisms) == heads and papers,
    )


def costs_of_paths(worth: Worth) -> Answer:
    """Which paths cost as much as the paper's, and whether all do in a circuit that holds.

    The first useful layer, the lowest with a path, has a range of its own.
    """
    first = min((path.head.layer for path in worth.ablated), default=None)
    name = "first useful layer" + ("" if first is None else f" (L{first})")
    early = [one for one in worth.ablated.items() if one[0].head.layer == first]
    later = [one for one in worth.ablated.items() if one[0].head.layer != first]
    parts = _inside(name, early, FIRST_LAYER), _inside("later layers", later, PATHS)
    agrees = worth.combined_loss < SUFFICIENT and all(inside for _, inside in parts)
    return "; ".join(text for text, _ in parts), agrees


def _inside(name: str, costs: list[tuple[HeadPath, float]], within: tuple[float, float]) -> Answer:
    """Which paths cost as much as the paper's, and whether there are any and all do."""
    found: dict[str, list[str]] = {"inside": [], "below": [], "above": []}
    for path, cost in costs:
        low, high = (round(cost, 2) < within[0], round(cost, 2) > within[1])
        found["below" if low else "above" if high else "inside"].append(f"{path} {cost:.2f}")
    parts = [f"{len(one)} {place} ({', '.join(one)})" for place, one in found.items() if one]
    inside = len(found["inside"])
    return f"{name}: {', '.join(parts) or 'no path'}", 0 < inside == len(costs)


def _useful_heads(trained: Trained) -> Answer:
    circuit, task = trained.circuit, cast(RetrievalTask, trained.checkpoint.task)
    useful, least = len({path.head for path in circuit.paths()}), causal_depth(task.steps)
    first = min((path.head for path in circuit.every_path()), default=None)
    joins = any(joins_pair(path.path) for path in circuit.every_path() if path.head == first)
    does = "joins" if joins else "does not join"
    said = f"{useful} useful heads (least possible {least}), the first {does} pairs"
    # The paper has four and says that fewer would do.
    return said, joins and least <= useful <= 4


def _learned_with_circuit(trained: Trained) -> Answer:
    said, learned = _fresh_loss(trained, D_LEARNED)
    loss = trained.worth.combined_loss
    searched = f"searched for a loss below {trained.tolerance:g}"
    return (
        f"{said}; {loss:.4f} with the circuit, which was {searched}",
        learned and loss <= D_SUFFICIENT,
    )
