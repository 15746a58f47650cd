"""What a head is commonly called, by its paths or by where it looks, and which rule it follows.

On a text, a head is named after the kind of position that gets at least 0.4 of its attention, as in
the detectors of ARENA's chapter on interpretability. This is the mean over the positions that see
one, beyond what uniform attention gives them, because half of a text may be delimiters. First
positions, where most heads rest, only count if no other kind does. Duplicate-token and induction
heads are recognized on random tokens that are repeated (Olsson et al. 2022), because in a text,
what followed a token before is often not what follows it again.
"""

import weakref
from collections.abc import Collection, Mapping
from typing import Any

import torch

from retrieval_interp.circuits.hooks import HookedModel, heads_of
from retrieval_interp.circuits.means import (
    Targets,
    allowed_attention,
    attention_to,
    mean_attention,
    overlaps,
    propose,
)
from retrieval_interp.circuits.mechanisms import (
    AFTER_SAME,
    FIRST,
    IDENTITY,
    PREVIOUS,
    RULES,
    SAME,
    UNIFORM,
    Mechanism,
)
from retrieval_interp.circuits.paths import Head, HeadPath, Positions, RolePath
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
MOVER = "mover head"
_PATHS = 0.25  # mean attention of the paths that are tried where positions have roles
_BETTER = 0.02  # so much more attention a less simple rule has to explain
_ENOUGH = 0.4  # mean attention to a kind of positions, beyond uniform
_REPEATED = 8, 32  # sequences of random tokens, and how many are repeated in each
_TEXT = (
    "The old harbour lies north of the town, where two rivers meet. In 1904 a teacher named Ellen "
    "Brown bought the house by the bridge and turned it into a school. She said that children "
    "learn best when they can see the water. On Monday they counted boats; on Tuesday they drew "
    "maps, and on Friday they wrote letters to their friends in the city. "
)
_ON_TEXT: "weakref.WeakKeyDictionary[Any, dict[Head, Mechanism]]" = weakref.WeakKeyDictionary()


def head_kind(paths: Collection[HeadPath], batch: Batch) -> str:
    """What a head is called if its paths do the same on every chain, or nothing.

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
    """The key of `KINDS` that fits a head's attention (`attention_kinds`), or nothing."""
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


def closest_rules(model: HookedModel, batch: Batch) -> dict[Head, tuple[Mechanism, float]]:
    """Return the rule that shares most of each head's attention on a batch, and its share.

    What a pattern and a rule share is Σ min(pattern, rule) over sources, as a mean over positions.
    Of rules that share nearly as much it is the simplest.

    Rules are identity, uniform and `RULES`, but for those that read tokens where the batch has
    none; and where it has several roles, the head's paths with at least a quarter of a role's
    attention. In a causal model only positions up to the last role of an example count: after it
    there is padding, or nothing that is asked.
    """
    known = [rule for rule in RULES if batch.tokens is not None or not rule.reads_tokens]
    rules = [IDENTITY, UNIFORM, *known]
    candidates: dict[Head, list[Mechanism]] = {head: [*rules] for head in heads_of(model)}
    attention = allowed_attention(mean_attention(model, batch).cpu(), batch, model)
    if batch.roles.shape[-1] > 1:
        for head, mechanisms in candidates.items():
            paths = propose(attention[head], "shared", _PATHS)
            mechanisms += [paths] if paths.paths else []
    closest = {}
    for head, of_rules in overlaps(model, batch, candidates).items():
        shares = [overlap.mean for overlap in of_rules]
        best = next(i for i, share in enumerate(shares) if share >= max(shares) - _BETTER)
        closest[head] = candidates[head][best], shares[best]
    return closest


def head_name(path: RolePath, task: Task, batch: Batch) -> str:
    """Return what a head with this path is commonly called, or nothing."""
    kind, position = path_kind(path, batch), batch.roles[:, 0, path.src]
    answers = path.dest in task.scored_roles  # only from there is an answer moved
    if kind or not answers or batch.tokens is None or not hasattr(task, "tokenizer"):
        return kind
    there = batch.tokens.gather(1, position.clamp(min=0)[:, None])[:, 0]
    answer = batch.targets.flatten(1)[:, 0]  # the tokens of texts' answers, the correct one first
    return MOVER if bool(((position < 0) | (there == answer)).all()) else ""


def holds_on_text(kind: str, head: Head, model: HookedModel, tokenizer: Any) -> bool:
    """Whether a kind's rule describes the head best on a text given twice."""
    if kind not in KINDS.values():
        return True
    if model not in _ON_TEXT:
        text = NextTokenTask.from_text(2 * _TEXT, tokenizer, 256)
        rules = closest_rules(model, text.whole(next(model.parameters()).device))
        _ON_TEXT[model] = {head: rule for head, (rule, _) in rules.items()}
    return KINDS.get(_ON_TEXT[model][head].kind) == kind
