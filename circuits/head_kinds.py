"""What a head is commonly called, by its paths or by where it looks on a text.

On a text a head is called after the kind of positions that get at least 0.4 of its attention, as in
the detectors of ARENA's chapter on interpretability: the mean over the positions that see one,
beyond what uniform attention gives them, as half of a text may be delimiters. First positions,
where most heads rest, only count if no other kind does. Duplicate-token and induction heads are
told on random tokens that are repeated (Olsson et al. 2022), since in a text what followed before
is often not what follows.
"""

from collections.abc import Collection, Mapping

import torch

from retrieval_interp.circuits.circuit import Head, HeadPath, RolePath
from retrieval_interp.circuits.hooks import HookedModel, heads_of
from retrieval_interp.circuits.means import Targets, attention_to
from retrieval_interp.circuits.mechanisms import AFTER_SAME, FIRST, PREVIOUS, SAME, Positions
from retrieval_interp.tasks import Batch, Task
from retrieval_interp.tasks.words.given_texts import NextTokenTask

KINDS = {
    "previous": "previous-token head",
    "same": "duplicate-token head",
    "after-same": "induction head",
    "delimiter": "delimiter head",
    "first": "first-token head",
}
"""The usual names, by the kind of rule that such a head follows."""
_ENOUGH = 0.4  # mean attention to a kind of positions, beyond uniform
_REPEATED = 8, 32  # sequences of random tokens, and how many are repeated in each


def head_kind(paths: Collection[HeadPath], batch: Batch) -> str:
    """What a head is called whose paths do the same on every chain, or nothing.

    They lead to the position before (`previous-token head`), to an earlier position with the same
    token (`duplicate-token head`), or to the one after such a position (`induction head`).
    """
    kinds = {path_kind(path.path, batch) for path in paths}
    return kinds.pop() if len(kinds) == 1 else ""


def path_kind(path: RolePath, batch: Batch) -> str:
    """What a head with this path is called, or nothing."""
    ends = batch.roles[:, :, path.dest], batch.roles[:, :, path.src]
    present = (ends[0] >= 0) & (ends[1] >= 0)
    example, (dest, src) = present.nonzero()[:, 0], (positions[present] for positions in ends)
    if not len(dest) or bool((src >= dest).any()):
        return ""
    if bool((dest - src == 1).all()):
        # With a single layout any two neighbouring roles would be one position apart.
        return KINDS["previous"] if len({*dest.tolist()}) > 1 else ""
    if batch.tokens is None:
        return ""
    at_dest, at_src, before_src = (batch.tokens[example, n] for n in (dest, src, src - 1))
    if bool((at_dest == at_src).all()):
        return KINDS["same"]
    return KINDS["after-same"] if bool(((src > 0) & (at_dest == before_src)).all()) else ""


def kind_by_attention(attention: Mapping[str, float]) -> str:
    """The key of `KINDS` that a head's attention (`attention_kinds`) says, or nothing."""
    enough = {kind: mean for kind, mean in attention.items() if mean >= _ENOUGH}
    return max(enough, key=lambda kind: (kind != "first", enough[kind]), default="")


def attention_kinds(model: HookedModel, task: Task, batch: Batch) -> dict[Head, dict[str, float]]:
    """Every head's mean attention to each kind of positions, beyond uniform (`attention_to`).

    `same` and `after-same` are left out where inputs are vectors, and `delimiter`, a token without
    a letter or digit, where there is no tokenizer. NaN where no position sees any.
    """
    on_text: dict[str, Targets] = {rule.kind: rule.targets for rule in (FIRST, PREVIOUS)}
    again = {rule.kind: rule.targets for rule in (SAME, AFTER_SAME) if batch.tokens is not None}
    twice = _repeated(model, batch) if isinstance(task, NextTokenTask) else batch
    if isinstance(task, NextTokenTask) and task.tokenizer is not None:
        words = {token: task.tokenizer.decode([token]) for token in batch.inputs.unique().tolist()}
        cuts = [token for token, word in words.items() if not any(map(str.isalnum, word))]

        def delimiters(positions: Positions) -> torch.Tensor:
            assert positions.tokens is not None
            there = torch.isin(positions.tokens, torch.tensor(cuts).to(positions.tokens))
            return (there & (torch.arange(positions.n_positions).to(there.device) > 0))[:, None]

        on_text["delimiter"] = delimiters
    measured = ((batch, on_text), (twice, again))
    means = torch.cat([attention_to(model, on, [*kinds.values()]) for on, kinds in measured])
    kinds, numbers = [*on_text, *again], means.permute(1, 2, 0).tolist()
    return {head: dict(zip(kinds, numbers[head.layer][head.head])) for head in heads_of(model)}


def _repeated(model: HookedModel, batch: Batch) -> Batch:
    """Sequences of random tokens, each repeated once, behind what the first text begins with."""
    count, length = _REPEATED[0], min(_REPEATED[1], (model.cfg.n_ctx - 1) // 2)
    draw = torch.Generator().manual_seed(0)
    halves = torch.randint(model.cfg.d_vocab, (count, length), generator=draw).tolist()
    first = int(batch.inputs[0, 0])
    return NextTokenTask([[first, *half, *half] for half in halves]).whole(batch.inputs.device)
