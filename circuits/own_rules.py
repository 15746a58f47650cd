"""Rules of one's own: a mechanism from a function of the tokens."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from retrieval_interp.circuits.mechanisms import FIRST, RULES, Mechanism, Pattern, Positions, Rule
from retrieval_interp.tasks import InputError


def rule(kind: str, function: Callable[..., Any], tokenizer: Any = None) -> Mechanism:
    """A rule of one's own from a function, which searches and scans try from now on.

    One more of the same kind takes its place; `RULES.remove` takes it out.

    Args:
        kind: its word in text and files.
        function: from the tokens of one example, padding left out, to the weights [dest src] that
            a head is to have, as a tensor, an array or lists. A row has at most 1 in sum, and
            weights on positions that the mask hides are dropped. Or from the text and the
            tokenizer to a name and the weights, as the programs of Hayes et al.
            (https://arxiv.org/abs/2606.19317); then a row is scaled to 1, and one without weights
            attends to the first position.
        tokenizer: gives words, with their spaces, in place of token ids.

    Raises:
        InputError: the kind is no word, or the function lacks its tokenizer; and where the rule is
            used, weights of another shape.

    Examples:
        >>> def after_comma(words):  # to the last word after a comma
        ...     size, weights = len(words), torch.zeros(len(words), len(words))
        ...     for dest in range(size):
        ...         behind = [n for n in range(1, dest + 1) if words[n - 1] == ","]
        ...         weights[dest, behind[-1] if behind else 0] = 1
        ...     return weights
        >>> import retrieval_interp as ri
        >>> made = ri.rule("after-comma", after_comma, tokenizer=None)
    """

    if not re.fullmatch(r"\w[\w-]*", kind) or not callable(function):
        given = f"{kind!r} and {type(function).__name__}"
        raise InputError(f"rule: expected one word and a function, found {given}")
    needed = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    reads_text = len(needed) == 2
    if reads_text and tokenizer is None:
        raise InputError(f"{kind}: expected a tokenizer, which the function reads, found none")

    def pattern(self: Mechanism, positions: Positions) -> Pattern:
        if positions.tokens is None:
            raise InputError(f"{kind}: expected token ids, found vectors")
        weights = torch.zeros(len(positions.roles), positions.n_positions, positions.n_positions)
        for example, ids in enumerate(positions.tokens.cpu()):
            mask = positions.real
            real = torch.ones(len(ids)).bool() if mask is None else mask[example].cpu()
            tokens = ids[real].tolist()
            if reads_text:
                begun = tokenizer("")["input_ids"] == tokens[:1]  # by the tokenizer itself
                returned = function(tokenizer.decode(tokens[begun:]), tokenizer)
            else:
                words = tokens if tokenizer is None else [tokenizer.decode([n]) for n in tokens]
                returned = function(words)
            made = returned[1] if isinstance(returned[0], str) else returned  # a name before it
            made = torch.as_tensor(made, dtype=torch.float32)
            if made.shape != (len(tokens), len(tokens)):
                size, found = [len(tokens)] * 2, list(made.shape)
                raise InputError(f"{kind}: expected weights of shape {size}, found {found}")
            weights[example, real.nonzero(), real.nonzero()[:, 0]] = made
        weights = weights.to(positions.roles.device) * positions.allowed
        if not reads_text:
            return weights
        total = weights.clamp(min=0).sum(-1, keepdim=True)
        scaled = weights.clamp(min=0) / total
        return torch.where(total == 0, FIRST.pattern(positions), scaled)

    body = {"kind": kind, "pattern": pattern, "reads_tokens": True, "cost": Rule.cost}
    cls: Any = type("OwnRule", (Mechanism,), {**body, "__module__": function.__module__})
    made: Mechanism = dataclass(frozen=True)(cls)()
    RULES[:] = [*(known for known in RULES if known.kind != kind), made]
    return made
