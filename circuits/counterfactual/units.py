"""What a circuit may keep: a head, a row of a head, a path; and what each is estimated to bring.

Write P for a head's attention and P' for that on the counterfactual prompt. With all attention at
P' + a (P - P') and g the gradient of the metric by the pattern there, a unit brings, to first
order, the sum of (P - P') g over it. The mean over a few a is used (integrated gradients), as one
end ranks what can be added and the other what can be taken away. One pass gives all units.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.attention import attention_by_role
from retrieval_interp.circuits.attribution import attribute
from retrieval_interp.circuits.circuit import Circuit, Head, RolePath
from retrieval_interp.circuits.counterfactual.mechanism import Counterfactual, Patched
from retrieval_interp.circuits.mechanisms import ORIGINAL, Mechanism
from retrieval_interp.circuits.scores.scorer import heads_of
from retrieval_interp.tasks import Batch, InputError, Task, parse_role, role_name
from retrieval_interp.tasks.roles import Roles
from retrieval_interp.tasks.task import Outputs

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the way from the counterfactual to the prompt
LEVELS = ("heads", "rows", "paths")
LOGITS = "logit difference"
Metric = Callable[[Outputs, Batch], Float[Tensor, " batch"]]


class Unit(NamedTuple):
    """A head, its row of a role `dest`, or its path from there to the role `src`."""

    head: Head
    dest: int | None = None
    src: int | None = None

    @classmethod
    def parse(cls, text: str, roles: Roles) -> "Unit":
        """Read `L2.H0`, `L2.H0 s0` or `L2.H0 s0<-s2`."""
        head, _, path = str(text).strip().partition(" ")
        names = path.split("<-") if path else []
        if len(names) > 2:
            raise InputError(f"expected a head, a row or a path, found {text!r:.60}")
        return cls(Head.parse(head), *(parse_role(name, roles) for name in names))

    @property
    def level(self) -> str:
        """One of `LEVELS`."""
        return LEVELS[sum(role is not None for role in (self.dest, self.src))]

    def text(self, names: Sequence[str] = ()) -> str:
        if self.dest is None:
            return str(self.head)
        roles = [role for role in (self.dest, self.src) if role is not None]
        return f"{self.head} " + "<-".join(role_name(role, names) for role in roles)


def keeping(empty: Circuit, heads: Iterable[Head], units: Iterable[Unit]) -> Circuit:
    """The circuit in which these units keep their own attention, and nothing else does."""
    return _circuit(empty, heads, units, Counterfactual, ORIGINAL)


def losing(empty: Circuit, units: Sequence[Unit]) -> Circuit:
    """The circuit in which everything but these units keeps its own attention."""
    return _circuit(empty, (), units, Patched, Counterfactual())


def _circuit(
    empty: Circuit,
    heads: Iterable[Head],
    units: Iterable[Unit],
    some: type[Counterfactual],
    whole: Mechanism,
) -> Circuit:
    by_head: dict[Head, list[Unit]] = {head: [] for head in heads}
    for unit in units:
        by_head.setdefault(unit.head, []).append(unit)
    mechanisms: dict[Head, Mechanism] = {}
    for head, own in by_head.items():
        paths = [RolePath(d, s) for _, d, s in own if d is not None and s is not None]
        rows = [dest for _, dest, src in own if dest is not None and src is None]
        all_of_it = any(unit.dest is None for unit in own)
        mechanisms[head] = whole if all_of_it else some(tuple(paths), tuple(sorted(rows)))
    return replace(empty, mechanisms=mechanisms)


class MetricTask(Task):
    """A task whose loss is minus a metric, so that all that measures losses measures it.

    The metric is by default the logit difference, where the task has one, or else minus the loss.
    """

    loss_name = "share lost"

    def __init__(self, task: Task, metric: Metric | None = None):
        self.task, self._metric = task, metric or getattr(task, "logit_differences", None)
        self.is_loss = self._metric is None
        self.measures = "metric" if metric else task.loss_name if self.is_loss else LOGITS
        self.role_names, self.answer_roles = tuple(task.role_names), task.answer_roles
        self.vocabulary, self.answer_role = task.vocabulary, task.answer_role
        self.role_labels, self.role_symbols = task.role_labels, task.role_symbols

    def example_losses(self, outputs: Outputs, batch: Batch) -> Float[Tensor, "batch 1"]:
        return -self.metric(outputs, batch)[:, None]

    def metric(self, outputs: Outputs, batch: Batch) -> Float[Tensor, " batch"]:
        of_task = self._metric or self.task.example_losses
        found: Tensor = of_task(outputs, batch).view(len(batch), -1).mean(1)
        return -found if self.is_loss else found

    def to_dict(self) -> dict[str, Any]:
        return self.task.to_dict()


class Estimates(NamedTuple):
    """What each unit is estimated to bring to the metric."""

    heads: Float[Tensor, "layer head"]
    rows: Float[Tensor, "layer head dest"]
    paths: Float[Tensor, "layer head dest src"]

    def of(self, unit: Unit) -> float:
        """The estimate of a unit."""
        head, dest, src = unit
        if dest is None:
            return float(self.heads[head])
        return float(self.rows[head][dest] if src is None else self.paths[head][dest, src])

    def units(self, level: str) -> list[Unit]:
        """The units of a level, those that bring most first; rows and paths only if they do."""
        values: Tensor = getattr(self, level)
        some = values > (-torch.inf if level == "heads" else 0.0)
        order = values[some].argsort(descending=True, stable=True)
        places = some.nonzero()[order].tolist()
        return [Unit(Head(layer, head), *roles) for layer, head, *roles in places]


def estimate_units(
    model: Any, task: MetricTask, batch: Batch, shares: Sequence[float] = SHARES
) -> Estimates:
    """Estimate what every head, row and path brings, on examples with a counterfactual.

    One pass for each share of the way from the counterfactual's attention (0) to its own (1).
    """
    empty, every = Circuit.empty(task), heads_of(model)
    found: list[Estimates] = []
    for share in shares:
        circuit = replace(empty, mechanisms=dict.fromkeys(every, Counterfactual(share=share)))
        for part in attribute(model, task, batch, circuit, draws=0).parts:
            weight = len(part.batch) / len(batch) / len(shares)
            assert part.batch.counterfactual is not None
            others = part.batch.counterfactual.unbind(1)
            read = zip(part.own, others, part.of_loss)
            layers = [_sums(own, other, -weight * g, part.batch) for own, other, g in read]
            found.append(Estimates(*(torch.stack(each).cpu() for each in zip(*layers))))
    return Estimates(*(torch.stack(each).sum(0) for each in zip(*found)))


def _sums(own: Tensor, other: Tensor, gradient: Tensor, batch: Batch) -> tuple[Tensor, ...]:
    """What heads, rows and paths bring, as a mean over examples, from [batch head dest src]."""
    n, roles = len(batch), batch.roles
    product = (own - other) * gradient
    # A kept path scales its row's other shares, so they count with their mean gradient.
    weighed = other * gradient
    others = (weighed.sum(-1, keepdim=True) - weighed) / (1 - other).clamp(min=1e-6)
    means, counts = attention_by_role((own - other) * (gradient - others), roles)
    of_rows = product.sum(-1)[:, None].expand(-1, roles.shape[1], -1, -1)  # [batch chain head dest]
    here = roles.clamp(min=0)[:, :, None].expand(-1, -1, of_rows.shape[2], -1)
    of_roles = of_rows.gather(-1, here).masked_fill((roles < 0)[:, :, None], 0.0)
    return product.sum((0, 2, 3)) / n, of_roles.sum((0, 1)) / n, means * counts / n
