"""What the paper claims, and what the evidence says about it.

The paper's numbers come from `retrieval_interp.reproduce.paper`, ours from `Evidence`. A claim
gives one row for each thing it is about, such as a transformer. Rows at a smaller scale stand
beside those at the paper's, never instead of them.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, cast

from retrieval_interp.circuits import Circuit, HeadPath
from retrieval_interp.circuits.flow import causal_depth, least_depth, paper_bound
from retrieval_interp.config.presets import PAPER, departures
from retrieval_interp.config.recipe import Recipe
from retrieval_interp.reproduce.evidence import LOSS_EXAMPLES, Evidence, Trained, Worth
from retrieval_interp.reproduce.heads import head_order, joins_pair, order_text
from retrieval_interp.reproduce.paper import (
    D_LEARNED,
    D_SUFFICIENT,
    FIRST_LAYER,
    LEARNED,
    PATHS,
    SUFFICIENT,
    UNLEARNED,
    Range,
    range_text,
    side,
)
from retrieval_interp.tasks import RetrievalTask

Verdict = Literal["reproduced", "reproduced at smaller scale", "not reproduced", "not run"]
PAPER_SCALE = "the paper's"
_ABC = ("transformer-a", "transformer-b", "transformer-c")


@dataclass(frozen=True)
class Row:
    """A claim beside our number."""

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


class Finding(NamedTuple):
    """Our half of a row."""

    ours: str
    scale: str
    command: str
    verdict: Verdict
    source: str


Find = Callable[[Evidence], Iterator[Finding]]
Answer = tuple[str, bool]  # our number in words, and whether it agrees with the paper's
CLAIMS: dict[str, Callable[[Evidence], list[Row]]] = {}


def judge(evidence: Evidence, only: Sequence[str] = ()) -> list[Row]:
    """The table of claims.

    Args:
        evidence: what to judge by.
        only: ids of claims; default all.
    """
    return [row for name in (only or CLAIMS) for row in CLAIMS[name](evidence)]


def _claim(id: str, text: str, where: str, paper: str, rule: str = "") -> Callable[[Find], Find]:
    """Register the function that judges a claim."""

    def register(find: Find) -> Find:
        CLAIMS[id] = lambda evidence: [
            Row(id, text, where, paper, *found, rule) for found in find(evidence)
        ]
        return find

    return register


def _verdict(agrees: bool, smaller: bool) -> Verdict:
    if not agrees:
        return "not reproduced"
    return "reproduced at smaller scale" if smaller else "reproduced"


def _not_run(scale: str, command: str) -> Finding:
    return Finding("", scale, command, "not run", "")


# Depth


@_claim("C2", "depth is at least log3(2D)", "section 5, appendix B", "proof")
def _depth_bound(evidence: Evidence) -> Iterator[Finding]:
    steps = range(1, 17)
    holds = all(
        least_depth(d, causal=mask) >= paper_bound(d) for d in steps for mask in (False, True)
    )
    same = all(least_depth(d, causal=True) == causal_depth(d) for d in steps)
    sharper = "; ".join(
        f"D = {d}: bound {paper_bound(d)}, least {least_depth(d, causal=True)}"
        for d in (1, 3, 4, 16)
    )
    yield Finding(
        f"holds for D = 1..16, and is not tight: {sharper} with the causal mask",
        "simulated for D = 1..16; proofs in docs/depth.md",
        "python -m retrieval_interp bound --steps 1 3 4 16",
        _verdict(holds and same, smaller=False),
        "retrieval_interp.circuits.flow",
    )


# Section 7


def _from_grid(name: str) -> Callable[[Callable[[dict[str, Any]], Answer]], Find]:
    """Judge a claim by the summary of a grid."""
    return lambda say: partial(_find_in_grid, name, say)


def _find_in_grid(
    name: str, say: Callable[[dict[str, Any]], Answer], evidence: Evidence
) -> Iterator[Finding]:
    summary = evidence.grid(name)
    if summary is None:
        out = evidence.runs / name
        yield _not_run(PAPER_SCALE, f"python -m retrieval_interp sweep --grid {name} --out {out}")
        return
    ours, agrees = say(summary)
    full = summary["scale"] == "full" and summary["finished"] == summary["cells"]
    scale = PAPER_SCALE if full else _grid_scale(summary)
    yield Finding(ours, scale, summary["command"], _verdict(agrees, not full), f"{name}.json")


def _grid_scale(summary: dict[str, Any]) -> str:
    recipe = summary["recipe"]
    task, model = recipe["task"], recipe["model"]
    return (
        f"{summary['scale']}: {summary['finished']} of {summary['cells']} runs, "
        f"D = {task['steps']}, {recipe['steps']} steps of {recipe['batch']}, d_model "
        f"{model['d_model']}, {model['heads']} head{'s' if model['heads'] > 1 else ''}, MLPs "
        f"{'on' if model['mlp'] else 'off'}, base {task['base']:g}"
    )


@_claim(
    "C3",
    "without curriculum nothing is learned, even at D = 3",
    "section 7.2, figure 4 left",
    f"100% of runs end above {UNLEARNED:g}",
)
@_from_grid("section7-nonic")
def _nothing_learned(summary: dict[str, Any]) -> Answer:
    share, finished = summary["share_above_0.7"], summary["finished"]
    return f"{round(share * finished)} of {finished} runs end above {UNLEARNED:g}", share == 1.0


@_claim(
    "C4",
    "later places of the chain need more layers",
    "section 7.2, figure 4 right",
    "partial losses by depth (a figure)",
)
@_from_grid("section7-ic")
def _later_needs_depth(summary: dict[str, Any]) -> Answer:
    least = [
        min((r["layers"] for r in summary["depths"] if r["partial_losses"][i] < 0.5), default=None)
        for i in range(len(summary["asked"]))
    ]
    said = ", ".join(
        f"{name} {'at no depth' if layers is None else f'from {layers} layers'}"
        for name, layers in zip(summary["asked"], least)
    )
    known = [math.inf if layers is None else layers for layers in least]
    reached = [layers for layers in least if layers is not None]
    rises = known == sorted(known) and len(set(known)) > 1 and len(reached) > 1
    return f"mean partial loss below 0.5: {said}", rises


@_claim(
    "C5",
    "partial losses fall below 0.5 in the order x_1, x_2, ...",
    "section 7.2",
    "100% of runs",
)
@_from_grid("section7-ic")
def _losses_fall_in_order(summary: dict[str, Any]) -> Answer:
    order = summary["order"]
    judged = order["held"] + len(order["broken"])
    ours = f"{order['held']} of {judged} runs"
    if fewer := order["fewer_than_two_fell"]:
        ours += f"; in {fewer} more fewer than two fell below 0.5"
    if tied := order.get("tied"):
        ours += f"; in {len(tied)} more two fell at the same step"
    return ours, judged > 0 and order["held"] == judged


# Sections 8 and 9


def _from_transformers(
    *names: str, smaller: str | None = None, circuits: bool = True
) -> Callable[[Callable[[Trained], Answer]], Find]:
    """Judge a claim by some of the paper's transformers and a smaller one of ours.

    The command of a row finds the circuit; it trains the transformer if `circuits` is false.
    """

    def by(say: Callable[[Trained], Answer], evidence: Evidence) -> Iterator[Finding]:
        for name in (*names, *([smaller] if smaller else [])):
            trained = evidence.trained(name)
            if trained is None:
                out = evidence.runs / name
                command = f"python -m retrieval_interp.train --preset {name} --out {out}"
                yield _not_run(name, command)
                continue
            paper = PAPER[names[0] if name == smaller else name]
            ours, agrees = say(trained)
            yield Finding(
                ours,
                f"{name}: {_scale(trained, paper)}",
                trained.ablate_command if circuits else trained.command,
                _verdict(agrees, _is_smaller(trained, paper)),
                f"checkpoint {trained.where}",
            )

    return lambda say: partial(by, say)


def _scale(trained: Trained, paper: Recipe) -> str:
    """How a recipe differs from the paper's, whose values are in brackets where it states them."""
    differ = departures(trained.recipe, paper)
    said = [
        f"{name} {_number(ours)}" + (f" ({_number(theirs)})" if theirs is not None else "")
        for name, (ours, theirs) in differ.items()
    ]
    return ", ".join(([] if _is_smaller(trained, paper) else [PAPER_SCALE]) + said)


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _is_smaller(trained: Trained, paper: Recipe) -> bool:
    """Whether task, model or training set differ from the paper's; fewer steps may suffice."""
    differ = departures(trained.recipe, paper)
    return any(theirs is not None for name, (_, theirs) in differ.items() if name != "steps")


@_claim("C6", "A, B and C learn", "section 8.2", f"validation MSE below {LEARNED:g}")
@_from_transformers(*_ABC, smaller="small", circuits=False)
def _learned(trained: Trained) -> Answer:
    return _fresh_loss(trained, LEARNED)


def _fresh_loss(trained: Trained, bound: float) -> Answer:
    recorded, (fresh, error) = trained.validation_loss, trained.fresh_loss
    ours = f"{fresh:.4f} +- {error:.4f} on {LOSS_EXAMPLES} fresh examples"
    if recorded is not None:
        ours += f", {recorded:.4f} recorded at step {trained.checkpoint.training.get('step')}"
    return ours, fresh <= bound


@_claim(
    "C7",
    "a few heads as one-hot maps, all others uniform or identity, do it all",
    "appendix E",
    f"combined MSE below {SUFFICIENT:g}",
)
@_from_transformers(*_ABC, smaller="small")
def _sufficient(trained: Trained) -> Answer:
    mechanisms, config = trained.circuit.mechanisms, trained.checkpoint.config
    loss, heads = trained.worth.combined_loss, config.layers * config.heads
    kinds = sorted({mechanism.kind for mechanism in mechanisms.values()})
    papers = set(kinds) <= {"uniform", "identity", "one-hot"}
    return (
        f"{loss:.4f} with {len(mechanisms)} of {heads} heads replaced ({', '.join(kinds)})",
        loss < SUFFICIENT and len(mechanisms) == heads and papers,
    )


@_claim(
    "C8",
    "every path is necessary",
    "appendix E",
    f"{range_text(PATHS)} without it (first useful layer: {range_text(FIRST_LAYER)})",
    "reproduced if every path of the circuit lies inside its range, to two decimals",
)
@_from_transformers(*_ABC, smaller="small")
def _necessary(trained: Trained) -> Answer:
    return costs_of_paths(trained.worth)


def costs_of_paths(worth: Worth) -> Answer:
    """Which paths cost as much as the paper's, and whether all do in a circuit that holds.

    The first useful layer, the lowest with a path, has a range of its own.
    """
    first = min((path.head.layer for path in worth.ablated), default=None)
    name = "first useful layer" + ("" if first is None else f" (L{first})")
    costs = list(worth.ablated.items())
    parts = (
        _inside(name, [one for one in costs if one[0].head.layer == first], FIRST_LAYER),
        _inside("later layers", [one for one in costs if one[0].head.layer != first], PATHS),
    )
    agrees = worth.combined_loss < SUFFICIENT and all(inside for _, inside in parts)
    return "; ".join(text for text, _ in parts), agrees


def _inside(name: str, costs: list[tuple[HeadPath, float]], within: Range) -> Answer:
    """Which paths cost as much as the paper's, and whether there are any and all do."""
    if not costs:
        return f"{name}: no path", False
    found: dict[str, list[str]] = {"inside": [], "below": [], "above": []}
    for path, cost in costs:
        found[side(cost, within)].append(f"{path} {cost:.2f}")
    parts = [
        f"{len(paths)} {place} ({', '.join(paths)})" for place, paths in found.items() if paths
    ]
    return f"{name}: {', '.join(parts)}", len(found["inside"]) == len(costs)


@_claim(
    "C9",
    "the first useful head joins pairs; four heads, where three would do",
    "section 8.2",
    "4 useful heads",
)
@_from_transformers(*_ABC, smaller="small")
def _useful_heads(trained: Trained) -> Answer:
    useful, joins = useful_heads(trained.circuit), first_joins(trained.circuit)
    least = causal_depth(cast(RetrievalTask, trained.checkpoint.task).steps)
    return (
        f"{useful} useful heads (least possible {least}), the first "
        f"{'joins' if joins else 'does not join'} pairs",
        # The paper has four and says that fewer would do.
        joins and least <= useful <= 4,
    )


def useful_heads(circuit: Circuit) -> int:
    """How many heads a circuit replaces by paths."""
    return len({path.head for path in circuit.paths()})


def first_joins(circuit: Circuit) -> bool:
    """Whether the first head with paths brings a pair's first element to its second."""
    paths = list(circuit.every_path())
    first = min((path.head for path in paths), default=None)
    return any(joins_pair(path.path) for path in paths if path.head == first)


@_claim(
    "C10",
    "D learns, and its circuit holds",
    "section 9.2",
    f"MSE {D_LEARNED:g}, with the circuit {D_SUFFICIENT:g}",
)
@_from_transformers("transformer-d")
def _transformer_d(trained: Trained) -> Answer:
    said, learned = _fresh_loss(trained, D_LEARNED)
    loss = trained.worth.combined_loss
    return (
        f"{said}; {loss:.4f} with the circuit, which was searched for a loss below "
        f"{trained.tolerance:g}",
        learned and loss <= D_SUFFICIENT,
    )


@_claim(
    "C11",
    "heads emerge one after the other",
    "section 9.2, figures 6 and 7, appendix D",
    "an induction head first (epoch 450), then one head per further token, in order",
    "reproduced if all four conditions hold (docs/emergence.md)",
)
def _heads_emerge(evidence: Evidence) -> Iterator[Finding]:
    for name, smaller in (("transformer-d", False), ("small", True)):
        scale = f"{name}: {'smaller' if smaller else PAPER_SCALE}"
        found = evidence.series(name)
        if found is None:
            run, out = evidence.runs / name, evidence.runs / f"{name}.emergence.json"
            yield _not_run(scale, f"python -m retrieval_interp emergence --run {run} --json {out}")
            continue
        series, record = found
        verdict = _verdict(head_order(series).holds, smaller)
        yield Finding(order_text(series), scale, record.command, verdict, f"{name}.emergence.json")
