"""Common names of heads (induction head, ...), by where they attend."""

import weakref
from typing import Any

from retrieval_interp.circuits.circuit import Head, RolePath
from retrieval_interp.circuits.head_kinds import KINDS, path_kind
from retrieval_interp.circuits.hooks import HookedModel
from retrieval_interp.circuits.mechanisms import Mechanism
from retrieval_interp.circuits.scan import describe_heads
from retrieval_interp.tasks import Batch, Task
from retrieval_interp.tasks.words.given_texts import NextTokenTask

MOVER = "mover head"
_TEXT = (
    "The old harbour lies north of the town, where two rivers meet. In 1904 a teacher named Ellen "
    "Brown bought the house by the bridge and turned it into a school. She said that children "
    "learn best when they can see the water. On Monday they counted boats; on Tuesday they drew "
    "maps, and on Friday they wrote letters to their friends in the city. "
)
_ON_TEXT: "weakref.WeakKeyDictionary[Any, dict[Head, Mechanism]]" = weakref.WeakKeyDictionary()


def head_name(path: RolePath, task: Task, batch: Batch) -> str:
    """Return what a head with this path is commonly called, or nothing."""
    kind, position = path_kind(path, batch), batch.roles[:, 0, path.src]
    answers = path.dest in task.answer_roles  # only from there is an answer moved
    if kind or not answers or batch.tokens is None or not hasattr(task, "tokenizer"):
        return kind
    there = batch.tokens.gather(1, position.clamp(min=0)[:, None])[:, 0]
    answer = batch.targets.flatten(1)[:, 0]  # the tokens of texts' answers, the correct one first
    return MOVER if bool(((position < 0) | (there == answer)).all()) else ""


def is_so_on_text(kind: str, head: Head, model: HookedModel, tokenizer: Any) -> bool:
    """Whether a kind's rule describes the head best on a text given twice."""
    if kind not in KINDS.values():
        return True
    if model not in _ON_TEXT:
        text = NextTokenTask.from_text(2 * _TEXT, tokenizer, 256)
        heads = describe_heads(model, text.whole(next(model.parameters()).device))
        _ON_TEXT[model] = {scanned.head: scanned.rule for scanned in heads.values()}
    return KINDS.get(_ON_TEXT[model][head].kind) == kind
