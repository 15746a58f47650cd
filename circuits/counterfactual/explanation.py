"""What was found to explain an answer, as data and in words."""

from collections import Counter
from dataclasses import dataclass

from retrieval_interp.circuits.circuit import Circuit, Head, HeadPath
from retrieval_interp.circuits.counterfactual.mechanism import Patch
from retrieval_interp.circuits.counterfactual.origin import Origin
from retrieval_interp.circuits.counterfactual.search import Share
from retrieval_interp.circuits.counterfactual.units import LEVELS, LOGITS, Unit
from retrieval_interp.circuits.flow import listed
from retrieval_interp.circuits.losses import Measured
from retrieval_interp.circuits.scores.enabling import Enabled
from retrieval_interp.tasks import Batch, Task
from retrieval_interp.tasks.training_task import counted

LEVEL_HEADER = ("", "kept", "recovered", "all but these")
PATCHED = {  # what heads do where nothing is kept
    "z": "write what they write on the counterfactual",
    "pattern": "attend as on the counterfactual",
    "v": "read values of the counterfactual",
}
_SMALL = 0.5  # a smaller part of the metric that hangs on what was changed is said first
_MUCH = 1.1  # share above which more than all is recovered
_MOSTLY = 0.8  # share that the MLPs which are named make of what all MLPs do
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
    """A unit of the last level.

    `without` and the two after it are what the circuit recovers when this unit takes all that it
    writes from the counterfactual prompt, only its attention, or only its values. The last two are
    None where only attention is replaced.
    """

    unit: Unit
    path: HeadPath | None  # its path, or the one of its head or row that brings most
    kind: str  # what a head with that path is commonly called, or nothing
    attention: float  # along that path, in the intact model
    other: float  # the same on the counterfactual prompts
    where: float  # of what it is estimated to bring to the metric, by where it looks ...
    what: float  # ... and by what it brings
    estimate_se: float  # standard error of the sum of both over prompts
    stability: float  # share of redrawn sets of prompts whose ranking has it among as many units
    without: Share
    attention_gone: Share | None
    values_gone: Share | None
    origin: Origin | None  # what makes what it brings by its values
    enables: tuple[Enabled, ...]  # later units' paths that lose attention or values without it


@dataclass(frozen=True, repr=False)
class Explanation:
    """Which heads, rows and paths an answer comes from."""

    task: Task
    batch: Batch  # on which everything was measured
    other: Batch  # the counterfactual prompts
    patch: Patch  # what was taken from the counterfactual prompts
    metric: str  # the logit difference, the task's loss (then minus it), or the caller's metric
    keep: float  # the share that was asked for
    intact: Measured  # the metric
    nothing: Measured  # the metric where nothing is kept
    corrupted: Measured  # the metric on the counterfactual prompts themselves
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
        pairs = [(unit, later) for unit in self.units for later in unit.enables]
        pairs = [(unit, later) for unit, later in pairs if later.path.head == wanted]
        return sorted(pairs, key=lambda pair: pair[1].when_cut - pair[1].attention)

    @property
    def finding(self) -> str:
        """What was found, in a few sentences."""
        sentences = [self._gap()]
        if not self.levels:
            return f"{sentences[0]} Nothing was found: {self.unfinished}."
        sentences += [self._recovered(), *self._controls()]
        if self.unfinished:
            sentences.append(f"{self.unfinished[0].upper()}{self.unfinished[1:]}.")
        if len(self.batch) == 1:
            tokens = self.task.position_labels(self.other, 0)
            sentences.append(f"The counterfactual is: {' '.join(tokens)}.")
        if self.on_the_same:
            sentences.append("It was found and measured on the same prompt.")
        return " ".join(sentences)

    def _gap(self) -> str:
        """What hangs on what was changed."""
        examples = counted(len(self.batch), "example")
        sign = -1 if self.metric == self.task.loss_name else 1
        intact, nothing, corrupted = (m.loss for m in (self.intact, self.nothing, self.corrupted))
        said = (
            f"The {self.metric} is {sign * intact:.2f} on {examples}, and {sign * nothing:.2f} "
            f"where all heads {PATCHED[self.patch]}."
        )
        if intact < 0 and self.metric == LOGITS:
            said += " The model prefers a wrong answer."
        if nothing >= intact:
            return f"{said} So nothing is lost on these examples, and the shares mean nothing."
        changed, by_heads = intact - corrupted, intact - nothing
        if self.metric == LOGITS and intact > 0 and by_heads < _SMALL * intact:
            said += f" So {nothing / intact:.0%} of it does not hang on what was changed."
        if self.patch == "z" and changed > 0 and by_heads < 0.9 * changed:
            said += (
                f" On the counterfactual prompts themselves it is {sign * corrupted:.2f}: "
                f"{1 - by_heads / changed:.0%} of the change is made by the tokens and MLPs where "
                "the prompts differ, not by heads."
            )
        return said

    def _recovered(self) -> str:
        """What the units of the last level recover."""
        last = self.levels[-1]
        what = counted(len({unit.head for unit in last.units}), "head")
        if last.name != "heads":
            levels = Counter(unit.level for unit in last.units)
            counts = [counted(levels[name], name[:-1]) for name in reversed(LEVELS) if levels[name]]
            what = f"{listed(counts, 'and')} of {what}"
        said = f"{last.kept.share:.0%} of what is lost is recovered by {what}"
        if last.kept.share - 2 * last.kept.se > 1:
            said += ", more than all: some of what is not kept works against it"
        if last.kept.share + 2 * last.kept.se < self.keep:
            said += f". That is less than the {self.keep:.0%} asked for: it does not hold here"
        return f"{said}. All but these recover {_percent(last.complement.share)}."

    def _controls(self) -> list[str]:
        """Random sets, and what the whole model needs."""
        sentences = []
        if self.control:
            best = f"The best of {len(self.control)} random sets of as many recovers"
            sentences.append(f"{best} {max(0.0, self.control[-1]):.0%}.")
        if self.needed:
            needed = [
                f"{'one of ' if paths[1:] else ''}{listed([str(p.head) for p in paths], 'or')} "
                f"{paths[0].path.text(self.task)}"
                for paths in self.needed
            ]
            sentences.append(f"For {self.keep:.0%} the whole model needs {listed(needed, 'and')}.")
        return sentences

    def sentence(self, score: UnitScore) -> str:
        """What a unit does, in words."""
        unit, path, labels = score.unit, score.path, self.task.role_labels
        what = unit.text(self.task.role_names)
        if path is None and unit.dest is not None:
            what = f"{unit.head}: {labels[unit.dest]} looks at places without a name"
        if path is not None:
            dest, src = labels[path.path.dest], labels[path.path.src]
            less = round(score.attention, 2) < round(score.other, 2)
            what = f"{unit.head}: {dest} looks {'less ' * less}at {src}"
            if score.kind and not less:
                what += f" ({score.kind})"
            what += f", {score.attention:.2f}; {score.other:.2f} on the counterfactual"
        if unit.level != self.levels[-1].name:
            what += f", a whole {unit.level[:-1]}"
        sentences = [f"{what}. Without it {_percent(score.without.share)} is recovered."]
        if score.attention_gone is not None and score.values_gone is not None:
            sentences.append(self._where_or_what(score))
        if score.origin is not None and abs(score.what) > abs(score.where):
            sentences.append(self._made(score.origin, path))
        if score.enables:
            later = ", ".join(
                f"{enabled.path.head} to {labels[enabled.path.path.src]} ({enabled.text})"
                for enabled in score.enables
            )
            sentences.append(f"It enables {later}.")
        return " ".join(sentences)

    def _where_or_what(self, score: UnitScore) -> str:
        """Whether a unit matters by where it looks or by what it brings, by two runs."""
        assert score.attention_gone is not None and score.values_gone is not None
        whole = self.levels[-1].kept.share
        looks, brings = (whole - gone.share for gone in (score.attention_gone, score.values_gone))
        by = (
            "by both"
            if min(looks, brings) > 0.25 * max(looks, brings)
            else ("by where it looks" if looks > brings else "by what it brings")
        )
        return (
            f"It matters {by}: with the counterfactual's attention "
            f"{_percent(score.attention_gone.share)}, with its values "
            f"{_percent(score.values_gone.share)}."
        )

    def _made(self, origin: Origin, path: HeadPath | None) -> str:
        """What makes what a path brings."""
        place = "" if path is None else f" at {self.task.role_labels[path.path.src]}"
        mlps, layers, named = sum(origin.mlp), range(len(origin.mlp)), list[int]()
        for layer in sorted(layers, key=lambda layer: -origin.mlp[layer]):
            if sum(origin.mlp[n] for n in named) >= _MOSTLY * mlps:
                break
            named.append(layer)
        parts = {
            "the token itself": origin.embedding,
            "attention": sum(origin.attention),
            f"the MLPs, mostly of {listed([f'layer {n}' for n in sorted(named[:4])], 'and')}": mlps,
        }
        most = {name: made for name, made in parts.items() if made > 0.1 * abs(origin.total)}
        shares = [f"{name} ({made / origin.total:.0%})" for name, made in most.items()]
        if not shares or origin.total <= 0:
            return ""
        return f"What it brings is made{place} by {listed(shares, 'and')}."

    @property
    def level_rows(self) -> list[tuple[str, str, str, str]]:
        """For each level how many units are kept, and what they and all others recover."""
        return [
            (
                level.name,
                f"{len(level.units)}",
                f"{level.kept.share:.0%}" + (f" +- {level.kept.se:.0%}" if level.kept.se else ""),
                _percent(level.complement.share),
            )
            for level in self.levels
        ]

    def __repr__(self) -> str:
        if not self.levels:
            return self.finding
        rows = [LEVEL_HEADER, *self.level_rows]
        table = [f"{a:6} {b:>5} {c:>13} {d:>14}" for a, b, c, d in rows]
        return "\n".join([self.finding, "", *table, "", *map(self.sentence, self.units)])


def _percent(share: float) -> str:
    return f"{round(share, 2) + 0.0:.0%}"  # never -0%
