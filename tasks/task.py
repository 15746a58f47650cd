"""The interface of tasks: `Task` draws batches and measures losses, `Batch` has the examples.

After them come activations on counterfactual prompts (`HeadActivations`), which no task needs to
know about, and the names that a task may give its roles (`Task.role_names`).
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from retrieval_interp.tasks.graph import RetrievalGraph
from retrieval_interp.tasks.messages import InputError, nearest
from retrieval_interp.tasks.sampling import Split

Device = str | torch.device
Roles = int | Sequence[str]  # how many roles there are, or what each is called
_NUMBERED = re.compile("s(0|[1-9][0-9]{0,5})")  # the name that every role has
_DRAWS = 16  # times that a task draws more examples for counterfactual prompts
_PER_DRAW = 512  # examples each time
Outputs = Float[Tensor, "batch pos d_out"]  # of a model


@dataclass(frozen=True)
class Batch:
    """Examples of a task. The c-th query belongs to chain c."""

    inputs: Shaped[Tensor, "batch pos *d_in"]  # vectors, or token ids [batch pos]
    targets: Shaped[Tensor, "batch query *d_out"]  # one vector or token id per query
    roles: Int[Tensor, "batch chain role"]  # their positions; -1 where an example lacks one
    # True (or 1) at real positions and False at padding; None where all are real.
    attention_mask: Bool[Tensor, "batch pos"] | Int[Tensor, "batch pos"] | None = None
    # The intact model's attention on counterfactual prompts, layer by layer, if needed.
    counterfactual_activations: tuple["HeadActivations", ...] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.attention_mask, Tensor):
            object.__setattr__(self, "attention_mask", self.attention_mask.bool())

    @property
    def tokens(self) -> Int[Tensor, "batch pos"] | None:
        """Token ids, or None where inputs are vectors."""
        return None if self.inputs.is_floating_point() else self.inputs

    def __len__(self) -> int:
        return self.inputs.shape[0]

    def __repr__(self) -> str:
        parts = {name: list(getattr(self, name).shape) for name in ("inputs", "targets", "roles")}
        return f"Batch of {len(self)}: " + ", ".join(f"{name} {parts[name]}" for name in parts)

    def __getitem__(self, examples: slice | list[int]) -> "Batch":
        return self._map(lambda tensor: tensor[examples])

    def parts(self, size: int) -> Iterator["Batch"]:
        """Split the batch into consecutive parts of at most `size` examples."""
        for start in range(0, len(self), size):
            yield self[start : start + size]

    def to(self, device: Device) -> "Batch":
        return self._map(lambda tensor: tensor.to(device))

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        mask, layers = self.attention_mask, self.counterfactual_activations
        return Batch(
            inputs=change(self.inputs),
            targets=change(self.targets),
            roles=change(self.roles),
            attention_mask=None if mask is None else change(mask),
            counterfactual_activations=layers and tuple(layer.map(change) for layer in layers),
        )

    def counterfactual_of(self, layer: int, head: int) -> "HeadActivations | None":
        """Return a head's attention on the counterfactual prompts, if the batch has it."""
        layers = self.counterfactual_activations
        return None if layers is None else layers[layer].of(head)


class Task:
    """What a model is asked, with a role for every position that matters.

    Subclasses define `role_names`, `sample` and `example_losses`; everything else has a default.
    """

    loss_name: ClassVar[str] = "loss"  # in tables
    fixed: ClassVar[bool] = False  # whether examples are given, and so the same for every seed
    scored_roles: tuple[int, ...] = ()  # roles at which the loss reads outputs; (): at any position
    counterfactual_words: ClassVar[str] = "other examples with the same roles"
    answer_role: int | None = None  # the role of the answer itself, if it stands in the prompt
    plateau: float | None = None  # the loss of a model that has learned nothing, if known
    tolerance: float | None = None  # a working circuit loses less; None: keeps 95%
    vocabulary: Sequence[str] = ()  # words by token id; by default of the model's tokenizer
    position_note: str = ""  # a sentence that explains `position_labels`
    graph: RetrievalGraph | None = None  # what each symbol of a chain depends on, if known

    @cached_property
    def role_names(self) -> tuple[str, ...]:
        """The names of roles in written paths; s0, s1, ... always work as well."""
        raise NotImplementedError

    def sample(
        self, n: int, seed: int = 0, device: Device = "cpu", split: Split = "train", start: int = 0
    ) -> Batch:
        """Draw n examples of a seed; `train`, `validation`, `discovery` and `test` share none."""
        raise NotImplementedError

    def example_losses(self, outputs: Outputs, batch: Batch) -> Float[Tensor, "batch target"]:
        """Return the loss of each example and asked symbol; one column if one thing is asked."""
        raise NotImplementedError

    def loss(self, outputs: Outputs, batch: Batch) -> Float[Tensor, ""]:
        """Return the mean loss over examples and everything asked."""
        return self.example_losses(outputs, batch).mean(dim=0).mean()

    def answers(self, outputs: Outputs, batch: Batch) -> Float[Tensor, "batch chain role d_out"]:
        """Select the outputs at the scored roles; those of absent roles are zeros.

        `outputs` are those at all positions, or at the scored roles alone, as [chain role].
        """
        roles = batch.roles[:, :, list(self.scored_roles)]
        if outputs.shape[1] == batch.inputs.shape[1]:
            example = torch.arange(len(batch), device=roles.device)[:, None]
            outputs = outputs[example, roles.flatten(1).clamp(min=0)]
        outputs = outputs.masked_fill(roles.flatten(1)[..., None] < 0, 0.0)
        return outputs.unflatten(1, roles.shape[1:])  # type: ignore[no-any-return]

    def counterfactual(self, batch: Batch, seed: int = 0) -> Batch:
        """Return prompts of the same lengths that ask something else; their targets are not used.

        By default each is another example of the batch with the same roles and padding. If the
        batch has none, it is one of up to 16 times 512 more examples.
        """
        return other_examples(self, batch, seed)

    @cached_property
    def loss_meaning(self) -> str:
        """The loss in a sentence, for reports."""
        plateau = "lower is better"
        if self.plateau is not None:
            plateau = f"{self.plateau:.3g} is the plateau before anything is learned"
        return (
            f"{self.loss_name} as the task defines it, where {plateau}; +- is the standard error "
            "over examples"
        )

    @cached_property
    def role_labels(self) -> tuple[str, ...]:
        """What each role is, in words, such as `B of A->B`."""
        return self.role_names

    @cached_property
    def role_symbols(self) -> tuple[str, ...]:
        """What stands at each role, shorter, such as `B`."""
        return self.role_names

    @cached_property
    def description(self) -> str:
        """The task in a few words."""
        return f"{type(self).__name__} with roles {', '.join(self.role_names)}"

    def path_label(self, dest: int, src: int) -> str:
        """Return a readable name of a path."""
        return join_labels(self.role_labels[dest], self.role_labels[src])

    def position_labels(self, batch: Batch, example: int) -> list[str]:
        """Name every position: its word, if there is a vocabulary, and its role or number."""
        word = self.vocabulary.__getitem__ if self.vocabulary else None
        return named_positions(self, batch, example, word)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON data by which a circuit file identifies its task."""
        return {"name": type(self).__name__}


class HeadActivations(NamedTuple):
    """What attention heads of a layer did in a run, or of one head (without the axis `head`)."""

    pattern: Float[Tensor, "batch *head dest src"]
    v: Float[Tensor, "batch src *kv_head d_head"]  # values; query heads may share them
    z: Float[Tensor, "batch dest *head d_head"]  # what heads write, before W_O

    def of(self, head: int) -> "HeadActivations":
        """Return one head of a layer."""
        group = self.z.shape[2] // self.v.shape[2]
        return HeadActivations(
            self.pattern[:, head], self.v[:, :, head // group], self.z[:, :, head]
        )

    def map(self, change: Callable[[Tensor], Tensor]) -> "HeadActivations":
        """Return the same with every tensor changed."""
        return HeadActivations(*map(change, self))


def other_examples(task: Task, batch: Batch, seed: int) -> Batch:
    """Return for each example another one with the same layout and other targets."""
    draw = torch.Generator().manual_seed(seed)
    layout, targets = _layout(batch), batch.targets.flatten(1)
    inputs, unmatched = batch.inputs.clone(), list(range(len(batch)))
    for draws in range(1 + _DRAWS):
        pool, missing = batch, []
        if draws:
            pool = task.sample(_PER_DRAW, seed + draws, batch.inputs.device, split="train")
        others = _layout(pool)
        for example in unmatched if others.shape[1:] == layout.shape[1:] else ():
            alike = (others == layout[example]).all(1)
            alike &= (pool.targets.flatten(1) != targets[example]).any(1)
            places = alike.nonzero()[:, 0]
            if len(places):
                chosen = places[torch.randint(len(places), (1,), generator=draw)]
                inputs[example] = pool.inputs[chosen][0]
            else:
                missing.append(example)
        if not (unmatched := missing):
            return replace(batch, inputs=inputs)
    raise InputError(
        "counterfactual: expected other examples with the roles at the same positions, the "
        f"same padding and other targets, found none for {len(unmatched)} of {len(batch)} "
        f"examples among {_DRAWS * _PER_DRAW} more; give the task its own "
        "counterfactual(batch, seed)"
    )


def _layout(batch: Batch) -> Int[Tensor, "batch place"]:
    """Where the roles and the padding of each example are, and how long it is."""
    mask = (
        torch.ones(batch.inputs.shape[:2]) if batch.attention_mask is None else batch.attention_mask
    )
    return torch.cat([batch.roles.flatten(1), mask.to(batch.roles)], dim=1)


def named_positions(
    task: Task, batch: Batch, example: int, word: Callable[[int], str] | None
) -> list[str]:
    """Name an example's positions; `word` returns the word of a token id."""
    roles_at: dict[int, list[str]] = {}
    chains = batch.roles[example].tolist()
    for chain, roles in enumerate(chains, start=1):
        for symbol, position in zip(task.role_symbols, roles):
            name = f"{symbol}.{chain}" if len(chains) > 1 else symbol
            roles_at.setdefault(position, []).append(name)
    labels = []
    for place in range(batch.inputs.shape[1]):
        names = "/".join(roles_at.get(place, []))
        if batch.attention_mask is not None and not batch.attention_mask[example, place]:
            labels.append("pad")
        elif batch.tokens is None or word is None:
            labels.append(names or f"{place}")
        else:
            text = word(int(batch.tokens[example, place]))
            labels.append(f"{text} ({names})" if names else text)
    return labels


def role_name(role: int, names: Sequence[str] = ()) -> str:
    """Return a task's name of a role, or else `s<number>`, as in the paper's appendix B."""
    return names[role] if 0 <= role < len(names) else f"s{role}"


def parse_role(name: object, roles: Roles) -> int:
    """Read the number of a role from its name or from `s<number>`."""
    names, count = ((), roles) if isinstance(roles, int) else (tuple(roles), len(roles))
    text = name.strip() if isinstance(name, str) else ""
    if text in names:
        return names.index(text)
    match = _NUMBERED.fullmatch(text)
    if match is None or int(match[1]) >= count:
        given = "" if all(map(_NUMBERED.fullmatch, names)) else f" ({', '.join(names)})"
        expected = f"a role from s0 to s{count - 1}{given:.200}"
        if given and (meant := nearest(text, names)):
            expected = f"the role {meant}"
        raise InputError(f"expected {expected}, found {name!r:.60}")
    return int(match[1])


def check_role_names(names: Sequence[str], where: str = "task") -> None:
    """Check that roles can be told apart in written paths; errors start with `where`."""
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise InputError(
            f"{where}: expected role_names that are words in a tuple, found {names!r:.40}"
        )
    for number, name in enumerate(names):
        if (
            not isinstance(name, str)
            or not re.fullmatch(r"[^\s~,;<>]+", name)
            or (_NUMBERED.fullmatch(name) and name != role_name(number))
            or name in names[:number]
        ):
            raise InputError(
                f"{where}: expected role_names that are different words without ~ , ; < >, and s0, "
                f"s1, ... only for the roles of these numbers, found {name!r:.40} for s{number}"
            )


def join_labels(dest: str, src: str) -> str:
    """Return the label of a path, shortened if both ends are of one pair: `B <- A of A->B`."""
    symbol, _, pair = dest.partition(" of ")
    return f"{symbol if pair and pair == src.partition(' of ')[2] else dest} <- {src}"
