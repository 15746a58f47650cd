"""Tasks in token ids: repeated sequences, k hops, equations in whole words (docs/tokens.md)."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from retrieval_interp.tasks.graph import path_graph
from retrieval_interp.tasks.messages import InputError, counted
from retrieval_interp.tasks.sampling import random_words, rotary_encoding
from retrieval_interp.tasks.structured import number_field
from retrieval_interp.tasks.task import Batch, Outputs
from retrieval_interp.tasks.training_task import BEGIN, MAX_WORDS, TokenTask, registered
from retrieval_interp.tasks.words.names import groups, letters

WORDS = 3  # in a line of equations
LINE_BASE, PLACE_BASE = 100.0, 10.0  # of the rotary frequencies of equations


@registered
@dataclass(frozen=True)
class RepeatedTokensTask(TokenTask):
    """Predict the next token of a repeated random sequence (https://arxiv.org/abs/2209.11895).

    The first copy has no token twice. The second begins at a random token of the first and wraps
    around at its end, so that the answer is at no fixed distance. A chain is an asked position of
    the second copy:

        s0  a token A of the second copy, where the answer is read
        s1  A in the first copy
        s2  the position after s1, which has the answer

    Attributes:
        length: tokens per copy.
        alphabet: how many tokens there are besides the begin token; at least `length`.
        rotate: whether the second copy begins at a random place.
    """

    counterfactual_words = "the second copy drawn anew"
    length: int = number_field(16, minimum=2, maximum=MAX_WORDS)
    alphabet: int = number_field(64, minimum=2, maximum=MAX_WORDS - 1)
    rotate: bool = True

    name: ClassVar[str] = "repeated-tokens"
    asked = ("next token",)
    role_labels = ("repeated A", "first A", "B after it")
    role_symbols = ("A?", "A", "B")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alphabet < self.length:
            raise InputError(
                f"task: expected an alphabet of at least length = {self.length}, found "
                f"{self.alphabet}"
            )

    @cached_property
    def n_positions(self) -> int:
        return 1 + 2 * self.length

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*letters(self.alphabet), BEGIN)

    @cached_property
    def description(self) -> str:
        place = "from a random place" if self.rotate else "from the beginning"
        return f"{self.length} of {self.alphabet} tokens, repeated {place}"

    def draw(self, indices: Int[Tensor, " batch"], seed: int, stream: int) -> Batch:
        words = random_words(indices, self.alphabet + 1, seed, stream)
        first = words[:, :-1].argsort(dim=-1, stable=True)[:, : self.length]
        begin = words[:, -1:] % self.length if self.rotate else torch.zeros_like(words[:, -1:])
        places = torch.arange(self.length, device=words.device)
        source = (places + begin) % self.length  # where the first copy has each token
        start = torch.full_like(begin, self.alphabet)
        inputs = torch.cat([start, first, first.gather(1, source)], dim=1)
        last = self.length - 1 - begin  # the place of the token that the first copy ends with
        asked = places[:-1] + (places[:-1] >= last)
        source = source.gather(1, asked)
        roles = torch.stack([1 + self.length + asked, 1 + source, 2 + source], dim=-1)
        return Batch(inputs, first.gather(1, source + 1), roles)

    def counterfactual(self, batch: Batch, seed: int = 0) -> Batch:
        """Draw the second copy anew, so that it repeats the first only by chance."""
        drawn = self.sample(len(batch), seed + 1, batch.inputs.device, "train").inputs
        first, second = batch.inputs[:, : 1 + self.length], drawn[:, 1 : 1 + self.length]
        return replace(batch, inputs=torch.cat([first, second], dim=1))


@registered
@dataclass(frozen=True)
class KHopTask(TokenTask):
    """What last followed a token, what last followed that, ... (https://arxiv.org/abs/2402.09268).

    A sequence is a begin token and hops+1 random orders of the alphabet. No token comes twice in a
    row; where it would, the first two tokens of an order are swapped. All hops are asked for at
    every position of the last order. With p_0 the asked position and p_k = find(p_{k-1}), where
    find(i) = max {j <= i : X_{j-1} = X_i}, the answers are x_k = X at p_k. Roles are:

        s0        p_0, where the answers are read
        s_{2k-1}  the position before p_k: the latest earlier x_{k-1}
        s_{2k}    p_k, which has x_k

    Attributes:
        hops: the largest k, K.
        alphabet: how many tokens there are besides the begin token.
        curriculum: whether all of x_1 .. x_K are asked for (implicit curriculum), or x_K only.
    """

    hops: int = number_field(3, minimum=1)
    alphabet: int = number_field(8, minimum=3, maximum=MAX_WORDS - 1)
    curriculum: bool = True

    name: ClassVar[str] = "k-hop"

    @cached_property
    def n_positions(self) -> int:
        return 1 + (self.hops + 1) * self.alphabet

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*letters(self.alphabet), BEGIN)

    @cached_property
    def asked(self) -> tuple[str, ...]:
        first = 1 if self.curriculum else self.hops
        return tuple(f"x_{hop}" for hop in range(first, self.hops + 1))

    @cached_property
    def role_labels(self) -> tuple[str, ...]:
        return path_graph(self.hops).role_labels

    @cached_property
    def role_symbols(self) -> tuple[str, ...]:
        return path_graph(self.hops).role_symbols

    @cached_property
    def description(self) -> str:
        hops = counted(self.hops, "hop")
        return f"{hops} among {self.alphabet} tokens, {self.curriculum_text}"

    def draw(self, indices: Int[Tensor, " batch"], seed: int, stream: int) -> Batch:
        size = self.alphabet
        words = random_words(indices, (self.hops + 1) * size, seed, stream)
        orders = words.unflatten(-1, (-1, size)).argsort(dim=-1, stable=True)
        start = orders[:, 1:, :2]
        meets = start[..., :1] == orders[:, :-1, -1:]
        orders[:, 1:, :2] = torch.where(meets, start.flip(-1), start)
        tokens, places = orders.flatten(1), orders.argsort(dim=-1).flatten(1)
        here = torch.arange(self.hops * size, (self.hops + 1) * size, device=words.device)
        here = here.expand(len(words), -1)
        roles, answers = [here], []
        for _ in range(self.hops):
            before = (here // size - 1) * size  # where the order before begins
            earlier = before + places.gather(1, before + tokens.gather(1, here))
            here = earlier + 1
            roles += [earlier, here]
            answers.append(tokens.gather(1, here))
        begin = tokens.new_full((len(tokens), 1), size)
        asked = torch.stack(answers[-len(self.asked) :], dim=-1)
        return Batch(torch.cat([begin, tokens], dim=1), asked, 1 + torch.stack(roles, dim=-1))


@registered
@dataclass(frozen=True)
class EquationsTask(TokenTask):
    """Equations in whole words, for models trained here (section 4, F1).

    A document has statements such as `b = a`, pair D of every chain first, and then one question
    per chain, such as `c = ?`. Roles are those of the retrieval problem (appendix B), and s_{2D+1}
    is the `?`.

    Attributes:
        chains: number of chains, N; they end in the numbers 0 .. N-1.
        steps: equations per chain, D.
        curriculum: whether the model has to give every x_k that a variable equals, each among the N
            candidates of its step (implicit curriculum), or only the number.
    """

    chains: int = number_field(4, minimum=2)
    steps: int = number_field(3, minimum=1)
    curriculum: bool = True

    name: ClassVar[str] = "equations"

    @cached_property
    def n_positions(self) -> int:
        return 1 + WORDS * self.chains * (self.steps + 1)

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:  # type: ignore[override]
        numbers, variables = range(self.chains), letters(self.chains * self.steps)
        return (*map(str, numbers), *variables, "=", "?", BEGIN)

    @cached_property
    def d_out(self) -> int:  # type: ignore[override]
        return len(self.vocabulary)

    @cached_property
    def candidates(self) -> int:
        return self.chains

    @cached_property
    def asked(self) -> tuple[str, ...]:
        first = 0 if self.curriculum else self.steps
        return tuple(f"x_{symbol}" for symbol in range(first, self.steps + 1))

    @cached_property
    def scored_roles(self) -> tuple[int, ...]:  # type: ignore[override]
        return (2 * self.steps + 1,)

    @cached_property
    def role_labels(self) -> tuple[str, ...]:
        return (*path_graph(self.steps).role_labels, "answer")

    @cached_property
    def role_symbols(self) -> tuple[str, ...]:
        return (*path_graph(self.steps).role_symbols, "?")

    @cached_property
    def description(self) -> str:
        chains, steps = counted(self.chains, "chain"), counted(self.steps, "step")
        return f"equations with {chains} of {steps}, {self.curriculum_text}"

    def draw(self, indices: Int[Tensor, " batch"], seed: int, stream: int) -> Batch:
        n_groups = 2 * self.steps + 1
        words = random_words(indices, n_groups * self.chains, seed, stream)
        orders = words.unflatten(-1, (n_groups, self.chains)).argsort(dim=-1, stable=True)
        # Of each step: which of its N names the chains have, and the places of their statements.
        names, places = orders[:, : self.steps + 1], orders[:, self.steps + 1 :]
        chains, steps, device = self.chains, self.steps, names.device
        tokens = names + chains * torch.arange(steps, -1, -1, device=device)[:, None]
        # Tables of lines: the statements of pair 1, ..., of pair D, and the questions.
        order = torch.arange(chains, device=device).expand(len(names), 1, -1)
        start = 1 + WORDS * chains * torch.tensor([*range(steps - 1, -1, -1), steps], device=device)
        begin = start[:, None] + WORDS * torch.cat([places, order], dim=1)
        end = begin + WORDS - 1
        equals, unknown, start_token = range(self.d_in - 3, self.d_in)
        inputs = torch.full((len(names), self.n_positions), equals, device=device)
        inputs[:, 0] = start_token
        inputs.scatter_(1, begin.flatten(1), tokens[:, [*range(steps), 0]].flatten(1))
        inputs.scatter_(1, end[:, :-1].flatten(1), tokens[:, 1:].flatten(1))
        inputs.scatter_(1, end[:, -1], unknown)
        pairs = torch.stack([begin, end], dim=2)[:, :-1].flatten(1, 2)  # [batch role chain]
        roles = torch.cat([begin[:, -1:], pairs, end[:, -1:]], dim=1)
        return Batch(inputs, names.transpose(1, 2), roles.transpose(1, 2).contiguous())

    def position_encoding(self, width: int) -> Float[Tensor, "pos width"]:
        """Encode the line by sinusoids in one half, and the place in the line in the other."""
        place = torch.arange(self.n_positions) - 1
        lines = rotary_encoding(self.n_positions, 2 * (width // 4), LINE_BASE)
        places = rotary_encoding(WORDS, (width - lines.shape[1]) & ~1, PLACE_BASE)
        code = torch.cat([lines[place // WORDS], places[place % WORDS]], dim=1)
        return F.pad(code, (0, width - code.shape[1]))

    def text(self, batch: Batch, example: int) -> str:
        """Return a document as text, one statement or question per line."""
        words = self.position_labels(batch, example)[1:]
        return "\n".join(" ".join(line) for line in groups(words, WORDS))

    def logits(self, outputs: Outputs, batch: Batch) -> Float[Tensor, "batch chain target name"]:
        """Return the logits after every `?` of the N names that each asked x_k may have."""
        names = self.answers(outputs, batch)[:, :, 0, : self.chains * (self.steps + 1)]
        by_step: Tensor = names.unflatten(-1, (-1, self.chains))
        return by_step.flip(2)[:, :, -len(self.asked) :]

    def right(self, batch: Batch) -> Int[Tensor, "batch chain target"]:
        return batch.targets[:, :, -len(self.asked) :]
