"""What was found to explain an answer, as data and in words."""

from collections import Counter
from dataclasses import dataclass

from retrieval_interp.circuits.circuit import Circuit, Head, HeadPath
from retrieval_interp.circuits.counterfactual.search import Share
from retrieval_interp.circuits.counterfactual.units import LEVELS, LOGITS, Unit
from retrieval_interp.circuits.flow import listed
from retrieval_interp.circuits.scores.enabling import Enabled
from retrieval_interp.circuits.scores.scorer import Measured
from retrieval_interp.tasks import Batch, Task
from retrieval_interp.tasks.training_task import counted

LEVEL_HEADER = ("", "kept", "recovered", "all but these")
Needed = tuple[HeadPath, ...]  # a role path in heads of which any one suffices, but not none


@dataclass(frozen=True)
class LevelScore:
    """A level's circuit on other examples."""

    name: str
    units: tuple[Unit, ...]
    kept: Share  # what its units recover
    complement: Share  # what all but them recover


@dataclass(frozen=True)
class UnitScore:
    """A unit of the last level."""

    unit: Unit
    path: HeadPath | None  # its path, or the one along which its attention changes most
    kind: str  # what a head with that path is commonly called, or nothing
    attention: float  # along that path, in the intact model
    other: float  # the same on the counterfactual prompts
    estimate: float  # of what it brings to the metric
    without: Share  # what the circuit recovers without it
    enables: tuple[Enabled, ...]  # later units' paths that lose attention then


@dataclass(frozen=True, repr=False)
class Explanation:
    """Which heads, rows and paths an answer comes from."""

    task: Task
    batch: Batch  # on which everything was measured
    other: Batch  # the counterfactual prompts
    metric: str  # the logit difference, the task's loss (then minus it), or the caller's metric
    keep: float  # the share that was asked for
    intact: Measured  # the metric
    nothing: Measured  # the metric with all attention as on the counterfactual prompts
    levels: tuple[LevelScore, ...]
    control: tuple[float, ...]  # what random sets of as many units of the last level recover
    units: tuple[UnitScore, ...]
    needed: tuple[Needed, ...]  # in the intact model
    circuit: Circuit  # of the last level
    decided_on: int  # examples
    on_the_same: bool  # whether it was found and measured on the same examples
    runs: int
    unfinished: str  # why the search ended early, or found no more levels

    def enabled_by(self, head: str | Head) -> list[tuple[UnitScore, Enabled]]:
        """Which units a head's attention depends on, those that change it most first."""
        wanted = Head.parse(head) if isinstance(head, str) else Head(*head)
        found = [(u, one) for u in self.units for one in u.enables if one.path.head == wanted]
        return sorted(found, key=lambda pair: pair[1].when_cut - pair[1].attention)

    @property
    def finding(self) -> str:
        """What was found, in a sentence or two."""
        examples = counted(len(self.batch), "example")
        sign = -1 if self.metric == self.task.loss_name else 1
        gap = (
            f"The {self.metric} is {sign * self.intact.loss:.2f} on {examples}, and "
            f"{sign * self.nothing.loss:.2f} where all heads attend as on the counterfactual."
        )
        if self.intact.loss < 0 and self.metric == LOGITS:
            gap += " The model prefers a wrong answer."
        if self.nothing.loss >= self.intact.loss:
            gap += " So nothing is lost on these examples, and the shares below mean nothing."
        if not self.levels:
            return f"{gap} Nothing was found: {self.unfinished}."
        last = self.levels[-1]
        what = counted(len({unit.head for unit in last.units}), "head")
        if last.name != "heads":
            kinds = Counter(unit.level for unit in last.units)
            of = [counted(kinds[name], name[:-1]) for name in reversed(LEVELS) if kinds[name]]
            what = f"{listed(of, 'and')} of {what}"
        said = [f"{gap} {last.kept.share:.0%} of what is lost is recovered by {what}."]
        if last.kept.share + 2 * last.kept.se < self.keep:
            said.append(f"That is less than the {self.keep:.0%} asked for: it does not hold here.")
        if self.control:
            best = f"The best of {len(self.control)} random sets of as many recovers"
            said.append(f"{best} {max(0.0, self.control[-1]):.0%}.")
        if self.needed:
            needed = [
                f"{'one of ' if paths[1:] else ''}{listed([str(p.head) for p in paths], 'or')} "
                f"{paths[0].path.text(self.task)}"
                for paths in self.needed
            ]
            said.append(f"For {self.keep:.0%} the whole model needs {listed(needed, 'and')}.")
        if self.unfinished:
            said.append(f"{self.unfinished[0].upper()}{self.unfinished[1:]}.")
        if len(self.batch) == 1:
            tokens = self.task.position_labels(self.other, 0)
            said.append(f"The counterfactual is: {' '.join(tokens)}.")
        if self.on_the_same:
            said.append("It was found and measured on the same prompt.")
        return " ".join(said)

    def sentence(self, score: UnitScore) -> str:
        """What a unit does, in words."""
        unit, path, labels = score.unit, score.path, self.task.role_labels
        what = unit.text(self.task.role_names)
        if path is None and unit.dest is not None:
            what = f"{unit.head}: {labels[unit.dest]} looks at places without a name"
        if path is not None:
            dest, src = labels[path.path.dest], labels[path.path.src]
            less = round(score.attention, 2) < round(score.other, 2)
            looks = "looks less at" if less else "looks at"
            what = f"{unit.head}: {dest} {looks} {src}"
            if score.kind and not less:
                what += f" ({score.kind})"
            what += f", {score.attention:.2f}; {score.other:.2f} on the counterfactual"
        if unit.level != self.levels[-1].name:
            what += f", a whole {unit.level[:-1]}"
        said = [f"{what}. Without it {score.without.share:.0%} is recovered."]
        if score.enables:
            later = ", ".join(
                f"{each.path.head} to {labels[each.path.path.src]} ({each.text})"
                for each in score.enables
            )
            said.append(f"It enables {later}.")
        return " ".join(said)

    @property
    def level_rows(self) -> list[tuple[str, str, str, str]]:
        """For each level how many units are kept, and what they and all others recover."""
        return [
            (
                level.name,
                f"{len(level.units)}",
                f"{level.kept.share:.0%}" + (f" +- {level.kept.se:.0%}" if level.kept.se else ""),
                f"{round(level.complement.share, 2) + 0.0:.0%}",  # never -0%
            )
            for level in self.levels
        ]

    def __repr__(self) -> str:
        if not self.levels:
            return self.finding
        rows = [LEVEL_HEADER, *self.level_rows]
        table = [f"{a:6} {b:>5} {c:>13} {d:>14}" for a, b, c, d in rows]
        return "\n".join([self.finding, "", *table, "", *map(self.sentence, self.units)])
