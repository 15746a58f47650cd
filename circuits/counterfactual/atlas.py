"""Which heads serve which answers: what is lost without each head, on several tasks.

`why` looks for the heads of one task, and some of these may stand in for others. `atlas` ablates
one head at a time in the intact model, so that the numbers of all tasks can be compared.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from retrieval_interp.circuits.counterfactual.keep_search import Recovery, Share
from retrieval_interp.circuits.counterfactual.units import (
    MetricTask,
    Unit,
    estimate_units,
    patch_units,
)
from retrieval_interp.circuits.counterfactual.why import sample_prompts
from retrieval_interp.circuits.hooks import HookedModel, measuring
from retrieval_interp.circuits.losses import Progress, no_progress
from retrieval_interp.circuits.patched_heads import Patch
from retrieval_interp.circuits.paths import Head
from retrieval_interp.tasks import InputError, Task
from retrieval_interp.tasks.messages import shown


class Lost(NamedTuple):
    """What a task loses if a head takes something from the counterfactual prompts.

    Shares of what is lost when every head takes everything from them: 0 if the head does not
    matter, negative if it works against the answer. The last two are None if the first is not
    clear.
    """

    output: Share  # all that it writes
    attention: Share | None = None  # where it looks
    values: Share | None = None  # what it brings


@dataclass(frozen=True, repr=False)
class Atlas:
    """What several tasks lose without each head; `print` gives it as a table.

    Attributes:
        heads: those with the largest estimates in some task, by layer.
        lost: what a task loses without a head, by task and head.
        halves: for each task, the heads that matter on each half of the examples.
        gaps: how far each task's metric falls when every head is patched from the counterfactual.
        least_share: the share that has to be lost for a head to matter.
    """

    heads: tuple[Head, ...]
    lost: Mapping[str, Mapping[Head, Lost]]
    halves: Mapping[str, tuple[frozenset[Head], frozenset[Head]]]
    gaps: Mapping[str, float]
    least_share: float

    def __repr__(self) -> str:
        return shown(self)

    def served(self, head: Head) -> list[str]:
        """The tasks that lose `least_share` or more without a head, by two standard errors."""
        least = self.least_share
        return [task for task, lost in self.lost.items() if _matters(lost[head].output, least)]

    def likeness(self, first: str, second: str) -> float:
        """The mean Jaccard index of the heads that matter, between halves of two tasks.

        For a task with itself, between its own two halves; no other task can be expected to exceed
        that.
        """
        halves = list(product(self.halves[first], self.halves[second]))
        if first == second:
            halves = [self.halves[first]]
        return sum(len(a & b) / max(1, len(a | b)) for a, b in halves) / len(halves)


def atlas(
    model: HookedModel,
    tasks: Mapping[str, Task],
    *,
    examples: int = 32,
    seed: int = 0,
    max_heads: int = 12,
    least_share: float = 0.05,
    progress: Progress = no_progress,
) -> Atlas:
    """Measure what several tasks lose without each head.

    Let M be the metric of a task (as in `why`). In M(h ablated), the head h writes what it writes
    on a counterfactual prompt, and everything else is as in the intact model:

        lost(h) = (M(intact) - M(h ablated)) / (M(intact) - M(all heads ablated))

    Args:
        model: a hooked model; left unchanged.
        tasks: with counterfactuals (`Task.counterfactual`), by name.
        examples: how many of each task decide which heads are chosen; as many others are measured.
        seed: of these examples.
        max_heads: how many heads are chosen for each task, by their estimated effects of either
            sign. All heads chosen for some task are measured on every task.
        least_share: the share that has to be lost for a head to matter.
        progress: wraps an iterable to show a progress bar.
    """
    named = isinstance(tasks, Mapping) and all(isinstance(name, str) for name in tasks)
    if not (named and tasks and all(isinstance(task, Task) for task in tasks.values())):
        raise InputError(f"tasks: expected tasks by name, found {tasks!r:.60}")
    if examples < 4 or max_heads < 1:
        raise InputError(
            "expected at least 4 examples and 1 head of each task, "
            f"found {examples} and {max_heads}"
        )
    chosen: set[Head] = set()
    with measuring(model):
        for task in progress(list(tasks.values()), "choosing heads"):
            batch, _ = sample_prompts(model, task, examples, seed, "discovery")
            effects = estimate_units(model, MetricTask(task), batch).heads.sum(0).mean(0)
            order = effects.abs().flatten().argsort(descending=True)[:max_heads].tolist()
            chosen |= {Head(*divmod(place, effects.shape[1])) for place in order}
        heads = sorted(chosen)
        lost: dict[str, dict[Head, Lost]] = {}
        halves: dict[str, tuple[set[Head], set[Head]]] = {}
        gaps: dict[str, float] = {}
        for name, head in progress(list(product(tasks, heads)), "ablating heads"):
            if name not in lost:
                batch, _ = sample_prompts(model, tasks[name], examples, seed, "test")
                recovery = Recovery(model, MetricTask(tasks[name]), batch)
                recovery.check_gap()
                lost[name], halves[name], gaps[name] = {}, (set(), set()), recovery.gap
            output, by_example = _lost(recovery, head, "z")
            for half, matter in enumerate(halves[name]):
                if float(by_example[half::2].mean()) >= least_share:
                    matter.add(head)
            lost[name][head] = Lost(output)
            if abs(output.share) - 2 * output.se >= least_share:
                attention, values = (_lost(recovery, head, part)[0] for part in ("pattern", "v"))
                lost[name][head] = Lost(output, attention, values)
    sets = {name: (frozenset(first), frozenset(second)) for name, (first, second) in halves.items()}
    return Atlas(tuple(heads), lost, sets, gaps, least_share)


def _lost(recovery: Recovery, head: Head, patch: Patch) -> tuple[Share, Any]:
    """The share that is lost, and for each example."""
    metric = recovery.metric(patch_units(recovery.empty, [Unit(head)], patch))
    share = recovery.share(metric)
    return Share(1 - share.share, share.se), (recovery.intact - metric) / recovery.gap


def _matters(lost: Share, least_share: float) -> bool:
    return lost.share - 2 * lost.se >= least_share
