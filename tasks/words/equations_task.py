"""Equations as text for a language model that reads whole words (paper, section 4, F1)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from retrieval_interp.tasks.roles import chain_labels, chain_symbols
from retrieval_interp.tasks.sampling import random_words, rotary_encoding
from retrieval_interp.tasks.structured import number
from retrieval_interp.tasks.task import Batch, Outputs
from retrieval_interp.tasks.training_task import (
    BEGIN,
    TokenTask,
    check_size,
    counted,
    curriculum_text,
)
from retrieval_interp.tasks.words.names import groups, letters

WORDS = 3  # per statement, and per question
LINE_BASE, PLACE_BASE = 100.0, 10.0  # of the rotary frequencies


@dataclass(frozen=True)
class EquationsTask(TokenTask):
    """Equations in whole words, for models trained here.

    A document is the statements, such as `b = a`, with every chain's pair D first, and then one
    question per chain, such as `c = ?`. With the implicit curriculum, every x_k that the variable
    equals is asked for at the `?`, each among the N candidates for its step; all are true answers.
    Roles are those of the retrieval problem (appendix B), and s_{2D+1} is the `?`.

    Attributes:
        chains: number of chains, N; they end in the numbers 0 .. N-1.
        steps: equations per chain, D.
        curriculum: ask for everything that a variable equals (implicit curriculum), or for the
            number only.
    """

    chains: int = number(4, least=2)
    steps: int = number(3, least=1)
    curriculum: bool = True

    name: ClassVar[str] = "equations"

    def facts(self) -> dict[str, Any]:
        roles = 2 * self.steps + 1  # and the answer's
        n_positions = 1 + WORDS * self.chains * (self.steps + 1)
        check_size(n_positions, n_positions)
        words = [*map(str, range(self.chains)), *letters(self.chains * self.steps), "=", "?", BEGIN]
        return {
            "n_positions": n_positions,
            "vocabulary": tuple(words),
            "d_out": len(words),
            "candidates": self.chains,
            "asked": tuple(f"x_{symbol}" for symbol in self.asked_symbols),
            "answer_roles": (roles,),
            "role_labels": (*chain_labels(self.steps), "answer"),
            "role_symbols": (*chain_symbols(self.steps), "?"),
            "description": f"equations with {counted(self.chains, 'chain')} of "
            f"{counted(self.steps, 'step')}, {curriculum_text(self.curriculum)}",
        }

    @property
    def asked_symbols(self) -> list[int]:
        return list(range(0 if self.curriculum else self.steps, self.steps + 1))

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
        """Sinusoids of the line in one half, and of the place in the line in the other."""
        place = torch.arange(self.n_positions) - 1
        lines = rotary_encoding(self.n_positions, 2 * (width // 4), LINE_BASE)
        places = rotary_encoding(WORDS, (width - lines.shape[1]) & ~1, PLACE_BASE)
        code = torch.cat([lines[place // WORDS], places[place % WORDS]], dim=1)
        return F.pad(code, (0, width - code.shape[1]))

    def text(self, batch: Batch, example: int) -> str:
        """A document as text, one statement or question per line."""
        words = self.position_labels(batch, example)[1:]
        return "\n".join(" ".join(line) for line in groups(words, WORDS))

    def logits(self, outputs: Outputs, batch: Batch) -> Float[Tensor, "batch chain target name"]:
        """Logits after every `?`, of the N names that each asked x_k may have."""
        names = self.answers(outputs, batch)[:, :, 0, : self.chains * (self.steps + 1)]
        by_step: Tensor = names.unflatten(-1, (-1, self.chains))
        return by_step.flip(2)[:, :, self.asked_symbols]

    def right(self, batch: Batch) -> Int[Tensor, "batch chain target"]:
        return batch.targets[:, :, self.asked_symbols]
