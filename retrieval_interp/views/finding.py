"""A scored circuit in plain words, and its task with an example."""

from collections.abc import Sequence
from typing import Any

from retrieval_interp.circuits import Circuit, CircuitScore, Head, HeadPath
from retrieval_interp.circuits.draw.names import head_kind
from retrieval_interp.circuits.flow.delivery import describe_flow, listed
from retrieval_interp.circuits.scores.enabling import Enabled
from retrieval_interp.circuits.scores.score import PathScore
from retrieval_interp.circuits.scores.scorer import is_unlearned
from retrieval_interp.tasks import Batch, Task
from retrieval_interp.tasks.training_task import counted
from retrieval_interp.views.attention import position_labels
from retrieval_interp.views.score_text import describe

_MOST = 6  # sentences of one kind
_DETAILED = 2  # later heads whose numbers a sentence gives
_LONGEST = 160  # positions of the example shown


def finding(
    score: CircuitScore, task: Task, batch: Batch, n_layers: int, n_heads: int
) -> list[str]:
    """What the circuit does, one sentence each, from its paths and their scores.

    Where the task has chains or a graph, what its paths can deliver; otherwise what every path
    brings. Then what enables what, the largest effect first, unless the tolerance is out of reach.
    Nothing for an empty circuit, or a model that has learned nothing.

    Args:
        score: of the circuit.
        task: names the roles.
        batch: examples, by which heads of a common kind are known.
        n_layers: layers of the model.
        n_heads: heads per layer.
    """
    circuit = score.circuit
    if not circuit.mechanisms or is_unlearned(score.baseline_loss, task):
        return []
    kinds = _Kinds(circuit, batch)
    if task.graph is not None:
        said = [describe_flow(circuit, n_layers, n_heads)]
    else:
        said = _brought(score, task, kinds)
    if not score.reachable:
        return said
    enabling = _enabling(score, task, kinds)
    said += enabling[:_MOST]
    if len(enabling) > _MOST:
        said.append(f"{len(enabling) - _MOST} more such paths are in the table.")
    for row in score.redundant:
        if row.one_suffices:
            heads = listed([str(path.head) for path in row.paths], "or")
            said.append(f"Any one of {heads} suffices for {task.path_label(*row.paths[0].path)}.")
    return said


class _Kinds:
    """Heads by name, with what they are commonly called at their first mention."""

    def __init__(self, circuit: Circuit, batch: Batch):
        paths: dict[Head, list[HeadPath]] = {}
        for path in circuit.every_path():
            paths.setdefault(path.head, []).append(path)
        self.kinds = {head: head_kind(own, batch) for head, own in paths.items()}

    def name(self, head: Head) -> str:
        kind = self.kinds.pop(head, "")
        article = "an" if kind[:1] in tuple("aeiou") else "a"
        return f"{head}, {article} {kind}," if kind else str(head)


def _brought(score: CircuitScore, task: Task, kinds: _Kinds) -> list[str]:
    by_head: dict[Head, list[PathScore]] = {}
    for row in score.paths:
        by_head.setdefault(row.path.head, []).append(row)
    said = []
    for head, rows in by_head.items():
        moves = [
            f"what is at “{task.role_labels[row.path.path.src]}” to "
            f"“{task.role_labels[row.path.path.dest]}”"
            for row in rows
        ]
        said.append(f"{kinds.name(head)} brings {listed(moves, 'and')}.")
    return said


def _enabling(score: CircuitScore, task: Task, kinds: _Kinds) -> list[str]:
    rows = [row for row in (*score.paths, *score.enabling) if row.enables]
    said = []
    for row in sorted(rows, key=lambda row: -max(map(_lost, row.enables))):
        dest, src = (task.role_labels[role] for role in row.path.path)
        moves = f"keeps “{dest}” as it is" if dest == src else f"brings “{src}” to “{dest}”"
        enabled = sorted(row.enables, key=_lost, reverse=True)
        later = [
            f"{lost.path.head} ({lost.side}; without it the attention "
            f"{lost.path.path.text(task.role_names)} falls from {lost.attention:.2f} to "
            f"{lost.when_cut:.2f})"
            for lost in enabled[:_DETAILED]
        ]
        text = f"{kinds.name(row.path.head)} {moves}, which enables {listed(later, 'and')}"
        heads = list(dict.fromkeys(str(lost.path.head) for lost in enabled))
        named = {str(lost.path.head) for lost in enabled[:_DETAILED]}
        if others := [head for head in heads if head not in named]:
            text += f", and less so {listed(others, 'and')}"
        said.append(f"{text}.")
    return said


def _lost(later: Enabled) -> float:
    return later.attention - later.when_cut


def task_words(model: Any, task: Task, batch: Batch) -> list[str]:
    """The task in two sentences."""
    description = describe(model, task)
    roles = [
        f"{label} ({name})" if label != name else name
        for label, name in zip(task.role_labels, task.role_names)
    ]
    n_chains, n_positions = batch.roles.shape[1], batch.inputs.shape[1]
    return [
        f"{description[:1].upper()}{description[1:]}.",
        f"An example has {counted(n_positions, 'position')} and asks "
        f"{counted(n_chains, 'question')}; the roles of a question are {listed(roles, 'and')}.",
    ]


def example_sequence(
    model: Any, task: Task, batch: Batch, order: Sequence[int]
) -> list[dict[str, str]]:
    """The positions of the first example, with the roles that its first question gives them."""
    chain = batch.roles[0, 0].tolist()
    labels = position_labels(model, task, batch[:1], 0)
    roles = {
        place: " ".join(task.role_names[role] for role in order if chain[role] == place)
        for place in chain
    }
    last = min(len(labels), max([_LONGEST, *(place + 1 for place in chain)]))
    return [{"text": labels[place], "role": roles.get(place, "")} for place in range(last)]
