"""What the paper claims, and what the evidence says about it: a claim with all its conditions met
is reproduced.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, Literal, NamedTuple, cast, get_args

from retrieval_interp import paper
from retrieval_interp.circuits import HeadPath, RolePath
from retrieval_interp.circuits.flow import causal_depth, delivered, least_depth, paper_bound
from retrieval_interp.config import Recipe
from retrieval_interp.emergence.series import (
    Crossing,
    Series,
    in_order,
    loss_emergence,
    path_emergence,
)
from retrieval_interp.presets import PAPER, departures
from retrieval_interp.reproduce.evidence import ALONE, LOSS_EXAMPLES, Evidence, Shipped, Worth
from retrieval_interp.sweep.findings import UNLEARNED, above_text, order_text
from retrieval_interp.tasks import RetrievalTask
from retrieval_interp.tasks.structured import from_data, to_data
from retrieval_interp.views.tables import range_text, text_table, wrapped

Verdict = Literal["reproduced", "reproduced at smaller scale", "not reproduced", "not run"]
NEAR_PERFECT = 0.95  # accuracy of a model that solves a formulation (C1); a choice of ours
PAPER_SCALE = "the paper's"
MODULE = "python -m retrieval_interp"
ALL = ("transformer-a", "transformer-b", "transformer-c", "small")
Summary = dict[str, Any]  # of a grid
Passed = Sequence[tuple[Crossing, HeadPath]]  # when paths have half of the attention, in order


class ClaimRow(NamedTuple):
    """Our number from one run, or, if there is none yet, the command that would make it."""

    run: str  # what it comes from, in short
    scale: str  # how the run's size compares with the paper's
    commands: tuple[str, ...]  # make the number
    ours: str = ""
    verdict: Verdict = "not run"

    @property
    def command(self) -> str:
        """All commands in one line."""
        return "; ".join(self.commands)


Answer = tuple[str, bool]  # our numbers in words, and whether they are as claimed


def judged_row(
    answer: Answer, run: str, scale: str, *commands: str, smaller: bool = False
) -> ClaimRow:
    """The row of a run with numbers."""
    ours, as_claimed = answer
    reproduced: Verdict = "reproduced at smaller scale" if smaller else "reproduced"
    return ClaimRow(run, scale, commands, ours, reproduced if as_claimed else "not reproduced")


class Claim(NamedTuple):
    """What the paper says, and what finds our numbers."""

    claim: str
    where: str
    paper: str
    find: Callable[[Evidence], Iterator[ClaimRow]]
    rule: str = ""  # how the verdict is reached, if the paper's number does not say it
    why: str = ""  # some of our runs do not reproduce it


Judged = Mapping[str, Sequence[ClaimRow]]  # by claim, as `judge` returns it


def judge(evidence: Evidence, only: Sequence[str] = ()) -> dict[str, list[ClaimRow]]:
    """Our numbers for some claims, by default for all."""
    return {name: list(CLAIMS[name].find(evidence)) for name in only or CLAIMS}


def _in_words(evidence: Evidence) -> Iterator[ClaimRow]:
    answers = evidence.answers()
    if answers is None:
        command = f"{MODULE} llm score --json {evidence.runs / 'llm.json'}"
        yield ClaimRow("a language model", "", (command,))
        return
    all_rows, made_by = answers
    by_model = itertools.groupby(sorted(all_rows, key=attrgetter("asked")), attrgetter("asked"))
    for asked, rows in ((asked, [*rows]) for asked, rows in by_model):
        sentences = []
        for formulation, group in itertools.groupby(rows, attrgetter("formulation")):
            same = [*group]
            steps = ", ".join(str(row.steps) for row in same if row.steps)
            values = ", ".join(f"{row.accuracy:.0%} +- {row.stderr:.0%}" for row in same)
            of = f"{formulation} D = {steps}" if steps else formulation
            sentences.append(f"{of}: {values} (chance {same[0].chance:.0%})")
        solved = all(row.accuracy >= NEAR_PERFECT for row in rows)
        least, most = (f(row.questions for row in rows) for f in (min, max))
        scale = f"{least} to {most}" if least < most else f"{most}"
        scale += " questions each (500)"
        commands = dict.fromkeys(row.command or made_by for row in rows)
        yield judged_row(("; ".join(sentences), solved), asked, scale, *commands, smaller=True)


def _depth(_: Evidence) -> Iterator[ClaimRow]:
    holds = all(
        causal_depth(d) == least_depth(d, True) >= least_depth(d, False) >= paper_bound(d)
        for d in range(1, 17)
    )
    depths = (f"D = {d}: bound {paper_bound(d)}, least {causal_depth(d)}" for d in (1, 3, 4, 16))
    ours = f"holds for D = 1..16, and is not tight: {'; '.join(depths)} with the causal mask"
    command, proofs = f"{MODULE} bound --steps 1 3 4 16", "proofs in docs/depth.md"
    yield judged_row((ours, holds), "simulated for D = 1..16", proofs, command)


def _of_grid(name: str, say: Callable[[Summary], Answer], evidence: Evidence) -> Iterator[ClaimRow]:
    summaries = [grid for file in (name, f"{name}-5") if (grid := evidence.grid(file))]
    if not summaries:
        command = f"{MODULE} sweep --grid {name} --out {evidence.runs / name}"
        yield ClaimRow(PAPER_SCALE, "", (command,))
    for summary, command in summaries:
        recipe = summary["recipe"]
        task, model = recipe["task"], recipe["model"]
        whole = summary["scale"] == "full" and summary["finished"] == summary["cells"]
        scale = (
            f"{summary['finished']} of {summary['cells']} runs, D = {task['steps']}, "
            f"{recipe['steps']} steps of {recipe['batch']}, d_model {model['d_model']}, "
            f"heads {model['heads']}, MLPs {'on' if model['mlp'] else 'off'}, base {task['base']:g}"
        )
        run, scale = (PAPER_SCALE, "") if whole else (summary["scale"], scale)
        yield judged_row(say(summary), run, scale, command, smaller=not whole)


def _nothing_learned(summary: Summary) -> Answer:
    return above_text(summary), summary["share_above_0.7"] == 1.0


def _in_order(summary: Summary) -> Answer:
    order = summary["order"]
    return order_text(order), order["held"] > 0 and not order["broken"]


def _later_needs_depth(summary: Summary) -> Answer:
    depths = summary["depths"]
    least = [
        min((row["layers"] for row in depths if row["partial_losses"][i] < 0.5), default=math.inf)
        for i in range(len(summary["asked"]))
    ]
    from_layers = ", ".join(
        f"{name} {'at no depth' if layers == math.inf else f'from {layers} layers'}"
        for name, layers in zip(summary["asked"], least)
    )
    learned = [layers for layers in least if layers < math.inf]
    deeper = least == sorted(least) and len(set(least)) > 1 and len(learned) > 1
    return f"mean partial loss below 0.5: {from_layers}", deeper


def _of_models(
    names: Sequence[str], say: Callable[[Shipped], Answer], evidence: Evidence, trains: bool = False
) -> Iterator[ClaimRow]:
    """The command of a row finds the circuit, or trains the transformer."""
    for name, how in itertools.product(names, ("",) if trains else ("", ALONE)):
        if (trained := evidence.trained(name, how)) is None:
            if not how:
                train = f"{MODULE}.train --preset {name} --out {evidence.runs / name}"
                yield ClaimRow(name, "", (train,))
            continue
        recorded = trained.checkpoint.training.get("recipe")
        if isinstance(recorded, dict):  # its task is the checkpoint's, which has a name
            recorded = {**recorded, "task": to_data(trained.checkpoint.task)}
        recipe: Recipe = from_data(Recipe, recorded, f"{name}: recipe")
        scale, smaller = _model_scale(recipe, PAPER["transformer-a" if name == "small" else name])
        command = f"{MODULE}.train --preset {name}" if trains else trained.circuit_command
        run = f"{name}, heads tried alone" if how else name
        yield judged_row(say(trained), run, scale, command, smaller=smaller)


def _model_scale(recipe: Recipe, papers: Recipe) -> tuple[str, bool]:
    """How a recipe differs from the paper's (in brackets), and whether in more than its steps."""
    differ = departures(recipe, papers)
    smaller = any(theirs is not None for name, (_, theirs) in differ.items() if name != "steps")
    parts = [] if smaller else [PAPER_SCALE]
    for name, values in differ.items():
        ours, theirs = (f"{x:g}" if isinstance(x, float) else x for x in values)
        parts.append(f"{name} {ours}" + (f" ({theirs})" if theirs is not None else ""))
    return ", ".join(parts), smaller


def _fresh_loss(trained: Shipped, bound: float) -> Answer:
    record, (fresh, error) = trained.checkpoint.training, trained.fresh_loss
    ours = f"{fresh:.4f} +- {error:.4f} on {LOSS_EXAMPLES} fresh examples"
    if "validation_loss" in record:
        ours += f", {record['validation_loss']:.4f} recorded at step {record.get('step')}"
    return ours, fresh <= bound


def _sufficient(trained: Shipped) -> Answer:
    mechanisms, config = trained.circuit.mechanisms, trained.checkpoint.config
    loss, heads = trained.worth.combined_loss, config.layers * config.heads
    kinds = {mechanism.kind for mechanism in mechanisms.values()}
    all_as_in_paper = len(mechanisms) == heads and kinds <= {"uniform", "identity", "one-hot"}
    replaced = f"{len(mechanisms)} of {heads} heads replaced ({', '.join(sorted(kinds))})"
    return f"{loss:.4f} with {replaced}", loss < paper.SUFFICIENT and all_as_in_paper


def costs_of_paths(worth: Worth) -> Answer:
    """What paths cost; the first useful layer is made uniform as a whole, as in the paper."""
    first = worth.useful[0].layer if worth.useful else 0
    later = {path: cost for path, cost in worth.ablated.items() if path.head.layer > first}
    inside = [path for path, cost in later.items() if _inside(cost, paper.PATHS)]
    cheap = [path for path, cost in later.items() if round(cost, 2) < paper.PATHS[0]]
    holds = worth.combined_loss < paper.SUFFICIENT
    as_in_paper = _inside(worth.first_uniform, paper.FIRST_LAYER) and 0 < len(inside) == len(later)
    ours = (
        f"{worth.combined_loss:.2f} with the circuit, {worth.first_uniform:.2f} with the first "
        f"useful layer (L{first}) uniform; {len(inside)} of {len(later)} later paths inside, "
        f"{len(cheap)} below: {_costs(later) or 'none'}"
    )
    if worth.together:
        ours += f"; paths removed from all their heads: {_costs(worth.together)}"
    return ours, holds and as_in_paper


def _costs(costs: Mapping[Any, float]) -> str:
    return ", ".join(f"{path} {cost:.2f}" for path, cost in costs.items())


def _inside(cost: float, within: tuple[float, float]) -> bool:
    return within[0] <= round(cost, 2) <= within[1]


def _useful_heads(trained: Shipped) -> Answer:
    circuit, task = trained.circuit, cast(RetrievalTask, trained.checkpoint.task)
    useful, least = len(trained.worth.useful), causal_depth(task.steps)
    first = min([*trained.worth.useful, *(path.head for path in circuit.every_path())])
    joins = any(joins_pair(path.path) for path in circuit.every_path() if path.head == first)
    does = f"the first {'joins' if joins else 'does not join'} pairs"
    does = does if first in circuit.mechanisms else f"{first} is not identified"
    ours = f"{useful} useful heads (least possible {least}), {does}"
    return ours, joins and least <= useful <= paper.HEADS


def _learned_with_circuit(trained: Shipped) -> Answer:
    ours, learned = _fresh_loss(trained, paper.D_LEARNED)
    loss = trained.worth.combined_loss
    return f"{ours}; {loss:.4f} with the circuit", learned and loss <= paper.D_SUFFICIENT


def _of_series(evidence: Evidence) -> Iterator[ClaimRow]:
    for name, smaller in (("transformer-d", False), ("small", True)):
        scale, run = "smaller" if smaller else PAPER_SCALE, evidence.runs / name
        measured = evidence.series(name)
        if measured is None:
            command = f"{MODULE} emergence --run {run} --json {run}.emergence.json"
            yield ClaimRow(name, scale, (command,))
        else:
            series, command = measured
            yield judged_row(heads_emerge(series), name, scale, command, smaller=smaller)


def heads_emerge(series: Series) -> Answer:
    """The four conditions of docs/emergence.md, with the steps that decide them."""
    passed = [(row.above, row.path) for row in path_emergence(series) if row.above is not None]
    passed.sort(key=lambda crossed: (crossed[0].step, crossed[1]))
    conditions = _conditions(series, passed)
    words = {True: "yes", False: "no", None: "cannot be told"}
    ours = [
        f"{name}: {words[holds]}" + (f" ({steps})" if steps else "")
        for name, (holds, steps) in conditions.items()
    ]
    routes = ", ".join(f"{name} at {step}" for name, step in _arrivals(series, passed).items())
    ours.append(f"By any route the query can have {routes or 'none'}")
    return ". ".join(ours), all(holds for holds, _ in conditions.values())


def _conditions(series: Series, passed: Passed) -> dict[str, tuple[bool | None, str]]:
    """Whether each condition holds, None if it cannot be told, and the steps that decide it."""
    task, losses = series.recipe.task, loss_emergence(series)
    # Paths that bring something to another position, beside those that join pairs.
    moving = [c for c in passed if c[1].path.dest != c[1].path.src and not joins_pair(c[1].path)]
    first = [crossed for crossed in moving if crossed[0].step == moving[0][0].step]
    finders = {  # of every symbol
        name: next((crossed for crossed in moving if _finds(crossed[1].path, place)), None)
        for place, name in enumerate(task.asked, start=1)
    }
    heads = {finder[1].head for finder in finders.values() if finder is not None}
    crossings = {name: None if finder is None else finder[0] for name, finder in finders.items()}
    came_first = " and ".join(map(_text, first)) or "no path does"
    order = ", ".join(f"{name} {_text(finder)}" for name, finder in finders.items())
    fell = ", ".join(f"{name} {crossing or 'never'}" for name, crossing in losses.items())
    induction = {path.path for _, path in first} == {RolePath(0, 2)}
    return {
        "Induction head first": (induction, came_first),
        "A head of the query for each symbol": (len(heads) == len(finders), order),
        "In order": (in_order(crossings, task.steps_between), ""),
        "Losses in order": (in_order(losses, task.steps_between), fell),
    }


def _arrivals(series: Series, passed: Passed) -> dict[str, Crossing]:
    """When the query can have a symbol by any route along paths that have passed.

    Symbols may come through other positions, or several at once.
    """
    circuit, arrivals = replace(series.circuit, mechanisms={}), dict[str, Crossing]()
    for crossing, path in passed:
        circuit = circuit.replace(path.head, circuit[path.head].adding(path.path))
        for place in delivered(circuit, series.recipe.model.layers):
            arrivals.setdefault(series.recipe.task.asked[place - 1], crossing)
    return arrivals


def joins_pair(path: RolePath) -> bool:
    """Whether it brings a pair's first element to its second."""
    return path.dest > 0 and path.dest % 2 == 0 and path.src == path.dest - 1


def _finds(path: RolePath, place: int) -> bool:
    """Whether the query attends to x_place: second in its pair, first in the next.

    The query cannot find x_1 in the next pair, as nothing brings x_0 there.
    """
    holders = (2,) if place == 1 else (2 * place, 2 * place + 1)
    return path.dest == 0 and path.src in holders


def _text(crossed: tuple[Crossing, HeadPath] | None) -> str:
    if crossed is None:
        return "never"
    crossing, path = crossed
    return f"{path} by {crossing.by}" if crossing.after is None else f"{path} at {crossing}"


CLAIMS = {
    "C1": Claim(
        "language models solve five formulations in words",
        "section 4, figure 2",
        "near perfect, for D up to 5 in equations",
        _in_words,
        f"reproduced if every accuracy is at least {NEAR_PERFECT:.0%}",
        "models of 135 and 270 million parameters do little better than guessing; one of 494 "
        "million follows one step in a chat, and no more; large ones, which the claim is about, "
        "were not asked",
    ),
    "C2": Claim("depth is at least log3(2D)", "section 5, appendix B", "proof", _depth),
    "C3": Claim(
        "without curriculum nothing is learned, even at D = 3",
        "section 7.2, figure 4 left",
        f"100% of runs end above {UNLEARNED:g}",
        partial(_of_grid, "section7-nonic", _nothing_learned),
    ),
    "C4": Claim(
        "later places of the chain need more layers",
        "section 7.2, figure 4 right",
        "partial losses by depth (a figure)",
        partial(_of_grid, "section7-ic", _later_needs_depth),
        why="at D = 5 most runs never leave the plateau: the seed decides",
    ),
    "C5": Claim(
        "partial losses fall below 0.5 in the order x_1, x_2, ...",
        "section 7.2",
        "100% of runs",
        partial(_of_grid, "section7-ic", _in_order),
    ),
    "C6": Claim(
        "A, B and C learn",
        "section 8.2",
        f"validation MSE below {paper.LEARNED:g}",
        partial(_of_models, ALL, partial(_fresh_loss, bound=paper.LEARNED), trains=True),
    ),
    "C7": Claim(
        "a few heads as one-hot maps, all others uniform or identity, do it all",
        "appendix E",
        f"combined MSE below {paper.SUFFICIENT:g}",
        partial(_of_models, ALL, _sufficient),
        why="by the paper's procedure heads are replaced that the model can lose one at a time, "
        "but not together",
    ),
    "C8": Claim(
        "every path is necessary",
        "appendix E",
        f"{range_text(paper.PATHS)} without it (first useful layer: "
        f"{range_text(paper.FIRST_LAYER)})",
        partial(_of_models, ALL, lambda trained: costs_of_paths(trained.worth)),
        "reproduced if the first useful layer and all later paths lie inside, to two decimals",
        "where heads share work, a path costs less in one of them than in all; heads tried alone "
        "lose too much together",
    ),
    "C9": Claim(
        "the first useful head joins pairs; four heads, where three would do",
        "section 8.2",
        f"{paper.HEADS} useful heads",
        partial(_of_models, ALL, _useful_heads),
        why="more heads are useful, as some share work (C8)",
    ),
    "C10": Claim(
        "D learns, and its circuit holds",
        "section 9.2",
        f"MSE {paper.D_LEARNED:g}, with the circuit {paper.D_SUFFICIENT:g}",
        partial(_of_models, ["transformer-d"], _learned_with_circuit),
    ),
    "C11": Claim(
        "heads emerge one after the other",
        "section 9.2, figures 6 and 7, appendix D",
        "an induction head first (epoch 450), then one head per further token, in order",
        _of_series,
        "reproduced if all four conditions hold (docs/emergence.md)",
        "the paper has one head of the query for each symbol, in order; here symbols also come "
        "through other positions or together",
    ),
}


def table_text(judged: Judged, width: int = 100) -> str:
    """The claims with the paper's number and ours, one block per claim; then all verdicts."""
    lines, cells = list[str](), list[list[str]]()
    for name, rows in judged.items():
        claim = CLAIMS[name]
        lines += wrapped(f"{name}  {claim.claim} ({claim.where})", width, 4)
        items = [f"paper: {claim.paper}", *([f"judged: {claim.rule}"] if claim.rule else [])]
        for row in rows:
            # A command is broken at spaces alone, so that it can be copied.
            scale = f"{row.run}: {row.scale}" if row.scale else row.run
            items += [f"{scale}: {row.ours or '-'}", f"{row.verdict}  [{row.command}]"]
        if why := why_not(name, rows):
            items.append(f"why not: {why}")
        for item in items:
            lines += [f"    {line}" for line in wrapped(item, width - 4, 4)]
        lines.append("")
        heads = [[name, claim.claim]] + [["", ""]] * (len(rows) - 1)
        cells += [[*head, row.run, row.verdict] for head, row in zip(heads, rows)]
    lines += text_table(["", "claim", "run", "verdict"], cells, width=width)
    rows = list(itertools.chain(*judged.values()))
    return "\n".join([*lines, "", f"{len(rows)} rows: {counts_text(rows)}"])


def counts_text(rows: Sequence[ClaimRow]) -> str:
    """How many rows have each verdict."""
    counts = Counter(row.verdict for row in rows)
    return ", ".join(f"{counts[name]} {name}" for name in get_args(Verdict) if counts[name])


def why_not(name: str, rows: Sequence[ClaimRow]) -> str:
    """Why some rows do not reproduce a claim; empty if all do."""
    return CLAIMS[name].why if any(row.verdict == "not reproduced" for row in rows) else ""


def table_data(judged: Judged) -> list[dict[str, Any]]:
    """A row for each of our numbers, for JSON."""
    keys = ["claim", "where", "paper", "rule"]
    return [
        {
            "id": name,
            **{key: getattr(CLAIMS[name], key) for key in keys},
            **{key: getattr(row, key) for key in ("run", "scale", "command", "ours", "verdict")},
            "why": why_not(name, [row]),
        }
        for name, rows in judged.items()
        for row in rows
    ]
