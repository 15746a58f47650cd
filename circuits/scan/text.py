"""Text or token ids as a task, in the tokens of a model."""

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from retrieval_interp.circuits.hooks.hooked import is_causal
from retrieval_interp.tasks import InputError
from retrieval_interp.tasks.words.next_token_task import NextTokenTask


def next_token_task(
    model: Any, text: Any, length: int = 128, prepend_bos: bool | None = None
) -> NextTokenTask:
    """Text or token ids as a task, in the tokens of a model.

    Raises:
        InputError: no text or tokens, or tokens that the model lacks.
    """
    length = min(length, model.cfg.n_ctx)
    if length < 3:
        raise InputError(f"length: expected windows of at least 3 tokens, found {length}")
    if not is_causal(model) or model.cfg.d_vocab_out != model.cfg.d_vocab:
        raise InputError(
            "text: expected a model that predicts the next of its tokens, found one "
            + (
                f"with {model.cfg.d_vocab} tokens and {model.cfg.d_vocab_out} outputs"
                if is_causal(model)
                else "that sees later tokens"
            )
            + "; give its task instead"
        )
    items: list[Any] = [text] if isinstance(text, str) else _listed(text)
    if not items:
        raise InputError("text: expected at least one text, found none")
    tokenizer = getattr(model, "tokenizer", None)
    if all(isinstance(item, str) for item in items):
        if tokenizer is None:
            raise InputError(
                "text: expected a model with a tokenizer, found none; give token ids instead"
            )
        if prepend_bos is None:
            prepend_bos = bool(getattr(model.cfg, "default_prepend_bos", True))
        return NextTokenTask.from_text(items, tokenizer, length, prepend_bos)
    nested = isinstance(items[0], Iterable)
    sequences = [_listed(item) for item in (items if nested else [items])]
    ids = [[_token(token, model.cfg.d_vocab) for token in sequence] for sequence in sequences]
    if max(map(len, ids)) > model.cfg.n_ctx:
        raise InputError(
            f"text: expected sequences of at most {model.cfg.n_ctx} tokens, which the model can "
            f"read, found {max(map(len, ids))}"
        )
    return NextTokenTask(ids, tokenizer)


def _token(token: Any, d_vocab: int) -> int:
    if not isinstance(token, bool) and hasattr(token, "__index__"):
        number = operator.index(token)
        if 0 <= number < d_vocab:
            return number
    raise InputError(
        f"text: expected strings, or token ids from 0 to {d_vocab - 1}, found {token!r:.40}"
    )


def _listed(items: Any) -> list[Any]:
    if isinstance(items, torch.Tensor):
        return list(items.tolist())
    if isinstance(items, Mapping) or not isinstance(items, Iterable):
        raise InputError(
            f"text: expected a text or several, token ids, or a task, found {items!r:.40}"
        )
    return list(items)
