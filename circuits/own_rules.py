"""Your own rules: a mechanism from a function of the tokens."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from retrieval_interp.circuits.mechanisms import FIRST, RULES, Mechanism, Pattern, Rule
from retrieval_interp.circuits.paths import Positions
from retrieval_interp.tasks import InputError


def rule(
    kind: str,
    function: Callable[..., Any],
    tokenizer: Any = None,
    cost: tuple[int, int] = Rule.cost,
) -> Mechanism:
    """Make a rule from a function; searches and scans try it from now on.

    Another rule of the same kind replaces it; `RULES.remove` removes it.

    Args:
        kind: its word in text and files.
        function: takes the tokens of one example, without padding, and returns a head's weights
            [dest src] as a tensor, an array or lists. A row sums to at most 1, and weights on
            positions that the mask hides are dropped. Or it takes the text and the tokenizer, and
            returns a name and the weights, as the programs of Hayes et al. do
            (https://arxiv.org/abs/2606.19317); then each row is scaled to 1, and a row without
            weights attends to the first position.
        tokenizer: gives the function words, with their spaces, instead of token ids.
        cost: what the rule costs in a search: for the head, and for each role (`Mechanism.cost`).

    Raises:
        InputError: the kind is not one word, or the function needs a tokenizer; or, when the rule
            is used, the weights have another shape.

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

    def weights_of(tokens: list[int]) -> Float[Tensor, "dest src"]:
        """Call the function with one example's tokens, and check what it returns."""
        if reads_text:
            has_begin = tokenizer("")["input_ids"] == tokens[:1]  # which the tokenizer adds itself
            returned = function(tokenizer.decode(tokens[has_begin:]), tokenizer)
        else:
            words = tokens if tokenizer is None else [tokenizer.decode([n]) for n in tokens]
            returned = function(words)
        weights = returned[1] if isinstance(returned[0], str) else returned  # a name before them
        weights = torch.as_tensor(weights, dtype=torch.float32)
        if weights.shape != (len(tokens), len(tokens)):
            expected, found = [len(tokens)] * 2, list(weights.shape)
            raise InputError(f"{kind}: expected weights of shape {expected}, found {found}")
        return weights

    def pattern(self: Mechanism, positions: Positions) -> Pattern:
        weights = _by_example(kind, weights_of, positions)
        if not reads_text:
            return weights
        weights = weights.clamp(min=0)
        total = weights.sum(-1, keepdim=True)
        return torch.where(total == 0, FIRST.pattern(positions), weights / total)

    about = inspect.getdoc(function) or "A function of the tokens."
    body = {"kind": kind, "pattern": pattern, "reads_tokens": True, "cost": cost, "__doc__": about}
    cls: Any = type("OwnRule", (Mechanism,), {**body, "__module__": function.__module__})
    made: Mechanism = dataclass(frozen=True)(cls)()
    RULES[:] = [*(known for known in RULES if known.kind != kind), made]
    return made


def _by_example(
    kind: str, weights_of: Callable[[list[int]], Tensor], positions: Positions
) -> Pattern:
    """Put the weights of each example's real tokens in its pattern, but for what the mask hides."""
    if positions.tokens is None:
        raise InputError(f"{kind}: expected token ids, found vectors")
    tokens = positions.tokens.cpu()
    real = torch.ones_like(tokens).bool() if positions.real is None else positions.real.cpu()
    weights = torch.zeros(len(tokens), positions.n_positions, positions.n_positions)
    for example, is_real in enumerate(real):
        places = is_real.nonzero()
        weights[example, places, places[:, 0]] = weights_of(tokens[example, is_real].tolist())
    return weights.to(positions.roles.device) * positions.allowed
