"""What the paper claims, and what the evidence says to it.

The paper's numbers are its own (`ranges`), ours come from `Evidence`. A claim gives one row for
each thing it speaks of, such as a transformer; a row at a smaller scale stands beside the paper's,
never instead of it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

from circuits import Circuit, HeadPath
from circuits.flow import causal_depth, least_depth, paper_bound
from retrieval_interp.config.presets import PAPER, departures
from retrieval_interp.config.recipe import Recipe
from retrieval_interp.reproduce.evidence import LOSS_EXAMPLES, Evidence, Trained, Worth
from retrieval_interp.reproduce.heads import head_order, joins_pair, order_text
from retrieval_interp.reproduce.ranges import (
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
from tasks import RetrievalTask

Verdict = Literal["reproduced", "reproduced at smaller scale", "not reproduced", "not run"]
PAPER_SCALE = "the paper's"
_ABC = ("transformer-a", "transformer-b", "transformer-c")


@dataclass(frozen=True)
class Row:
    """A claim beside our number.

    Attributes:
        id: of the claim, C2 to C11.
        claim: what is claimed.
        where: where the paper says it.
        paper: its number.
        ours: ours, or why there is none.
        scale: how our run's size compares.
        command: what makes our number.
        verdict: whether both agree.
        source: what the number was computed or read from.
        rule: how the verdict is reached, where the paper's number does not say it.
    """

    id: str
    claim: str
    where: str
    paper: str
    ours: str
    scale: str
    command: str
    verdict: Verdict
    source: str
    rule: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Claim:
    """One claim and how to judge it.

    Attributes:
        id: C2 to C11.
        text: what is claimed.
        where: where the paper says it.
        paper: its number.
        judge: rows from evidence.
        rule: how the verdict is reached, where the paper's number does not say it.
    """

    id: str
    text: str
    where: str
    paper: str
    judge: Callable[["Claim", Evidence], Iterator[Row]]
    rule: str = ""

    def row(self, ours: str, scale: str, command: str, verdict: Verdict, source: str) -> Row:
        about = self.id, self.text, self.where, self.paper
        return Row(*about, ours, scale, command, verdict, source, self.rule)

    def not_run(self, scale: str, command: str) -> Row:
        return self.row("", scale, command, "not run", "")


def _verdict(agrees: bool, smaller: bool) -> Verdict:
    if not agrees:
        return "not reproduced"
    return "reproduced at smaller scale" if smaller else "reproduced"


# Depth


def _depth_bound(claim: Claim, evidence: Evidence) -> Iterator[Row]:
    steps = range(1, 17)
    holds = all(
        least_depth(d, causal=mask) >= paper_bound(d) for d in steps for mask in (False, True)
    )
    sharper = [(d, paper_bound(d), least_depth(d, causal=True)) for d in (1, 3, 4, 16)]
    same = all(least_depth(d, causal=True) == causal_depth(d) for d in steps)
    ours = "; ".join(f"D = {d}: bound {bound}, least {least}" for d, bound, least in sharper)
    yield claim.row(
        f"holds for D = 1..16, and is not tight: {ours} with the causal mask",
        "simulated for D = 1..16; proofs in docs/depth.md",
        "python -m retrieval_interp.bound --steps 1 3 4 16",
        _verdict(holds and same, smaller=False),
        "circuits.flow",
    )


# Section 7


def _grid_row(
    claim: Claim,
    evidence: Evidence,
    grid: str,
    say: Callable[[dict[str, Any]], tuple[str, bool]],
) -> Iterator[Row]:
    command = f"python -m retrieval_interp.sweep --grid {grid} --out {evidence.runs / grid}"
    found = evidence.grid(grid)
    if found is None:
        yield claim.not_run(PAPER_SCALE, command)
        return
    ours, agrees = say(found)
    full = found["scale"] == "full" and found["finished"] == found["cells"]
    scale = PAPER_SCALE if full else (
        f"{found['scale']}: {found['finished']} of {found['cells']} runs, {_size(found)}"
    )  # fmt: skip
    yield claim.row(ours, scale, found["command"], _verdict(agrees, not full), f"{grid}.json")


def _size(summary: dict[str, Any]) -> str:
    recipe = summary["recipe"]
    task, model = recipe["task"], recipe["model"]
    return (
        f"D = {task['steps']}, {recipe['steps']} steps of {recipe['batch']}, d_model "
        f"{model['d_model']}, {model['heads']} head{'s' if model['heads'] > 1 else ''}, MLPs "
        f"{'on' if model['mlp'] else 'off'}, base {task['base']:g}"
    )


def _nonic_never_learns(claim: Claim, evidence: Evidence) -> Iterator[Row]:
    def say(summary: dict[str, Any]) -> tuple[str, bool]:
        share = summary["share_above_0.7"]
        runs = round(share * summary["finished"])
        return f"{runs} of {summary['finished']} runs end above {UNLEARNED:g}", share == 1.0

    yield from _grid_row(claim, evidence, "section7-nonic", say)


def _later_needs_depth(claim: Claim, evidence: Evidence) -> Iterator[Row]:
    def say(summary: dict[str, Any]) -> tuple[str, bool]:
        least = [
            next(
                (row["layers"] for row in summary["depths"] if row["partial_losses"][place] < 0.5),
                None,
            )
            for place in range(len(summary["asked"]))
        ]
        said = ", ".join(
            f"{name} {'at no depth' if layers is None else f'from {layers} layers'}"
            for name, layers in zip(summary["asked"], least)
        )
        known = [layers if layers is not None else 10**6 for layers in least]
        reached = [layers for layers in least if layers is not None]
        rises = known == sorted(known) and len(set(known)) > 1 and len(reached) > 1
        return f"mean partial loss below 0.5: {said}", rises

    yield from _grid_row(claim, evidence, "section7-ic", say)


def _losses_fall_in_order(claim: Claim, evidence: Evidence) -> Iterator[Row]:
    def say(summary: dict[str, Any]) -> tuple[str, bool]:
        order = summary["order"]
        judged = order["held"] + len(order["broken"])
        fewer = order["fewer_than_two_fell"]
        more = f"; in {fewer} more fewer than two fell below 0.5" if fewer else ""
        if tied := order.get("tied"):
            more += f"; in {len(tied)} more two fell at the same step"
        return f"{order['held']} of {judged} runs{more}", judged > 0 and order["held"] == judged

    yield from _grid_row(claim, evidence, "section7-ic", say)


# Sections 8 and 9


def _each(
    claim: Claim,
    evidence: Evidence,
    names: Sequence[str],
    say: Callable[[Trained], tuple[str, bool]],
    smaller: str | None,
    circuits: bool = True,
) -> Iterator[Row]:
    """One row per transformer, and one for its smaller stand-in."""
    for name in (*names, *([smaller] if smaller else [])):
        trained = evidence.trained(name)
        command = f"python -m retrieval_interp.train --preset {name} --out {evidence.runs / name}"
        if trained is None:
            yield claim.not_run(name, command)
            continue
        paper = PAPER[names[0] if name == smaller else name]
        ours, agrees = say(trained)
        yield claim.row(
            ours,
            f"{name}: {_scale(trained, paper)}",
            trained.ablate_command if circuits else trained.command,
            _verdict(agrees, _is_smaller(trained, paper)),
            f"checkpoint {trained.where}",
        )


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
    """Whether task, model or training set are others than the paper's; fewer steps may suffice."""
    differ = departures(trained.recipe, paper)
    return any(theirs is not None for name, (_, theirs) in differ.items() if name != "steps")


def _learned(claim: Claim, evidence: Evidence) -> Iterator[Row]:
    yield from _each(claim, evidence, _ABC, _say_learned(LEARNED), "small", circuits=False)


def _say_learned(bound: float) -> Callable[[Trained], tuple[str, bool]]:
    def say(trained: Trained) -> tuple[str, bool]:
        recorded, (fresh, error) = trained.validation_loss, trained.fresh_loss
        step = trained.checkpoint.training.get("step")
        record = "" if recorded is None else f", {recorded:.4f} recorded at step {step}"
        return f"{fresh:.4f} +- {error:.4f} on {LOSS_EXAMPLES} fresh examples{record}", (
            fresh <= bound
        )

    return say


def _sufficient(claim: Claim, evidence: Evidence) -> Iterator[Row]:
    yield from _each(claim, evidence, _ABC, _say_sufficient, "small")


def _say_sufficient(trained: Trained) -> tuple[str, bool]:
    mechanisms, config = trained.circuit.mechanisms, trained.checkpoint.config
    loss, heads = trained.worth.combined_loss, config.layers * config.heads
    kinds = sorted({mechanism.kind for mechanism in mechanisms.values()})
    papers = set(kinds) <= {"uniform", "identity", "one-hot"}
    return (
        f"{loss:.4f} with {len(mechanisms)} of {heads} heads replaced ({', '.join(kinds)})",
        loss < SUFFICIENT and len(mechanisms) == heads and papers,
    )


def _necessary(claim: Claim, evidence: Evidence) -> Iterator[Row]:
    yield from _each(claim, evidence, _ABC, lambda trained: costs_of_paths(trained.worth), "small")


def costs_of_paths(worth: Worth) -> tuple[str, bool]:
    """Which paths cost as much as the paper's, and whether all do in a circuit that holds.

    The first useful layer, the lowest with a path, has a range of its own.
    """
    first = min((path.head.layer for path in worth.ablated), default=None)
    name = "first useful layer" + ("" if first is None else f", L{first}")
    costs = list(worth.ablated.items())
    parts = (
        _inside(name, [one for one in costs if one[0].head.layer == first], FIRST_LAYER),
        _inside("later layers", [one for one in costs if one[0].head.layer != first], PATHS),
    )
    agrees = worth.combined_loss < SUFFICIENT and all(inside for _, inside in parts)
    return "; ".join(text for text, _ in parts), agrees


def _inside(name: str, costs: list[tuple[HeadPath, float]], within: Range) -> tuple[str, bool]:
    """Which of some paths cost as much as the paper's, and whether there are any and all do."""
    if not costs:
        return f"{name}: no path", False
    there: dict[str, list[str]] = {"inside": [], "below": [], "above": []}
    for path, cost in costs:
        there[side(cost, within)].append(f"{path} {cost:.2f}")
    listed = {place: f" ({', '.join(paths)})" if paths else "" for place, paths in there.items()}
    text = f"{name}: {len(there['inside'])} of {len(costs)} paths inside {range_text(within)}"
    others = (f", {len(there[p])} {p}{listed[p]}" for p in ("below", "above") if there[p])
    return text + listed["inside"] + "".join(others), len(there["inside"]) == len(costs)


def _useful_heads(claim: Claim, evidence: Evidence) -> Iterator[Row]:
    def say(trained: Trained) -> tuple[str, bool]:
        useful = useful_heads(trained.circuit)
        least = causal_depth(cast(RetrievalTask, trained.checkpoint.task).steps)
        joins = first_joins(trained.circuit)
        text = f"{useful} useful heads (least possible {least})"
        # Four in the paper; fewer is what it says would do.
        return f"{text}, the first {'joins' if joins else 'does not join'} pairs", (
            joins and least <= useful <= 4
        )

    yield from _each(claim, evidence, _ABC, say, "small")


def useful_heads(circuit: Circuit) -> int:
    """How many heads a circuit replaces by paths."""
    return len({path.head for path in circuit.paths()})


def first_joins(circuit: Circuit) -> bool:
    """Whether the first head with paths brings a pair's first element to its second."""
    paths = [*circuit.paths(), *circuit.enabling]
    first = min((path.head for path in paths), default=None)
    return any(joins_pair(path.path) for path in paths if path.head == first)


def _transformer_d(claim: Claim, evidence: Evidence) -> Iterator[Row]:
    def say(trained: Trained) -> tuple[str, bool]:
        said, learned = _say_learned(D_LEARNED)(trained)
        after = trained.worth.combined_loss
        return (
            f"{said}; {after:.4f} with the circuit, which was searched for a loss below "
            f"{trained.tolerance:g}",
            learned and after <= D_SUFFICIENT,
        )

    yield from _each(claim, evidence, ("transformer-d",), say, None)


def _heads_emerge(claim: Claim, evidence: Evidence) -> Iterator[Row]:
    for name, smaller in (("transformer-d", False), ("small", True)):
        scale = f"{name}: {'smaller' if smaller else PAPER_SCALE}"
        found = evidence.series(name)
        if found is None:
            run, out = evidence.runs / name, evidence.runs / f"{name}.emergence.json"
            command = f"python -m retrieval_interp.emergence --run {run} --json {out}"
            yield claim.not_run(scale, command)
            continue
        series, record = found
        yield claim.row(
            order_text(series),
            scale,
            record.command,
            _verdict(head_order(series).holds, smaller),
            f"{name}.emergence.json",
        )


CLAIMS: dict[str, Claim] = {
    claim.id: claim
    for claim in (
        Claim("C2", "depth is at least log3(2D)", "section 5, appendix B", "proof", _depth_bound),
        Claim(
            "C3",
            "without curriculum nothing is learned, even at D = 3",
            "section 7.2, figure 4 left",
            f"100% of runs end above {UNLEARNED:g}",
            _nonic_never_learns,
        ),
        Claim(
            "C4",
            "later places of the chain need more layers",
            "section 7.2, figure 4 right",
            "partial losses by depth (a figure)",
            _later_needs_depth,
        ),
        Claim(
            "C5",
            "partial losses fall below 0.5 in the order x_1, x_2, ...",
            "section 7.2",
            "100% of runs",
            _losses_fall_in_order,
        ),
        Claim(
            "C6", "A, B and C learn", "section 8.2", f"validation MSE below {LEARNED:g}", _learned
        ),
        Claim(
            "C7",
            "a few heads as one-hot maps, all others uniform or identity, do it all",
            "appendix E",
            f"combined MSE below {SUFFICIENT:g}",
            _sufficient,
        ),
        Claim(
            "C8",
            "every path is necessary",
            "appendix E",
            f"{range_text(PATHS)} without it (first useful layer: {range_text(FIRST_LAYER)})",
            _necessary,
            "reproduced if every path of the circuit lies inside its range, to two decimals",
        ),
        Claim(
            "C9",
            "the first useful head joins pairs; four heads, where three would do",
            "section 8.2",
            "4 useful heads",
            _useful_heads,
        ),
        Claim(
            "C10",
            "D learns, and its circuit holds",
            "section 9.2",
            f"MSE {D_LEARNED:g}, with the circuit {D_SUFFICIENT:g}",
            _transformer_d,
        ),
        Claim(
            "C11",
            "heads emerge one after the other",
            "section 9.2, figures 6 and 7, appendix D",
            "an induction head first (epoch 450), then one head per further token, in order",
            _heads_emerge,
            "reproduced if all four conditions hold (docs/emergence.md)",
        ),
    )
}  # fmt: skip


def judge(evidence: Evidence, only: Sequence[str] = ()) -> list[Row]:
    """The table of claims.

    Args:
        evidence: what to judge by.
        only: ids; default all.
    """
    chosen = [CLAIMS[name] for name in (only or CLAIMS)]
    return [row for claim in chosen for row in claim.judge(claim, evidence)]
