"""Equations as text for a language model that reads whole words (paper, section 4, F1).

1. A document is a token that begins it, the statements of `tasks.prompts.EquationsPrompt`, such as
   `b = a`, those of every chain's pair D first, and then questions such as `c = ?`. A word, `=` or
   `?` is a token. Unlike there any letter may stand at any step: what a model learns of a letter
   where one step is asked then serves it where more are.
2. With the implicit curriculum everything is asked for, so every depth is: first the variables that
   are D steps away from their number, then those that are D-1 steps away, and at last the numbers
   themselves, which are their own answers. Without, only the first. No answer is shown, so an
   earlier question gives a later one nothing away.
3. The answer to a question, a number, is the token that the model predicts after the `?`.

Roles are those of the retrieval problem (appendix B), and where answers are given:
s0 is x_0 in its question; s_{2d-1} and s_{2d} are x_{d-1} and x_d in the statement of pair d;
s_{2D+1} is the `?` of x_0. With the curriculum the question of x_k has s_{2D+2k} and s_{2D+2k+1}.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from tasks.batch import Batch
from tasks.errors import InputError
from tasks.philox import random_words
from tasks.positions import rotary_encoding
from tasks.prompts.names import groups, letters
from tasks.roles import path_letters, role_letters, role_name, symbol_letter
from tasks.training_task import TrainingTask, counted

WORDS = 3  # of a statement, and of a question
BEGIN = "<s>"  # before every document
LINE_BASE, PLACE_BASE = 100.0, 10.0  # of the rotary frequencies
MAX_POSITIONS = 8192


@dataclass(frozen=True)
class EquationsTask(TrainingTask):
    """Say which number a variable holds that was set to a variable that was set ...

    Attributes:
        chains: number of chains, N; they end in the numbers 0 .. N-1.
        steps: equations a chain, D.
        curriculum: ask for every variable and number (implicit curriculum), or for the variables
            that are D steps away from their number alone.

    Raises:
        InputError: a parameter is out of range, or the document too long.
    """

    chains: int = 4
    steps: int = 3
    curriculum: bool = True

    name: ClassVar[str] = "equations"
    loss_name: ClassVar[str] = "cross entropy"

    def __post_init__(self) -> None:
        self._check_counts(("chains", 2), ("steps", 1))
        self._check_curriculum()
        if self.n_positions > MAX_POSITIONS:
            raise InputError(
                f"task: expected documents of at most {MAX_POSITIONS} words, found "
                f"{self.n_positions}; use fewer chains or steps"
            )

    # Shapes

    @property
    def depths(self) -> tuple[int, ...]:
        """How many steps lead from what is asked for to its number, in the order of print."""
        return tuple(range(self.steps, -1, -1)) if self.curriculum else (self.steps,)

    @property
    def n_positions(self) -> int:
        """Tokens of a document, T."""
        return 1 + WORDS * self.chains * (self.steps + len(self.depths))

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Every word by its token number: numbers, variables, `=`, `?`, `BEGIN`."""
        numbers = map(str, range(self.chains))
        return (*numbers, *letters(self.chains * self.steps), "=", "?", BEGIN)

    @property
    def d_in(self) -> int:
        return len(self.vocabulary)

    @property
    def d_out(self) -> int:
        return len(self.vocabulary)

    @property
    def asked(self) -> tuple[str, ...]:
        """`depth 0` .. `depth D`: how many steps a question takes."""
        return tuple(f"depth {depth}" for depth in reversed(self.depths))

    @property
    def plateau(self) -> float:
        """Cross entropy, in nats, of guessing among the numbers."""
        return math.log(self.chains)

    @property
    def loss_scale(self) -> float:
        return self.plateau

    # Names

    @property
    def answer_roles(self) -> tuple[int, ...]:
        """The `?` of every question of a chain."""
        return tuple(2 * self.steps + 1 + 2 * place for place in range(len(self.depths)))

    @property
    def role_names(self) -> tuple[str, ...]:
        return tuple(map(role_name, range(2 * self.steps + 1 + 2 * len(self.depths) - 1)))

    @property
    def role_labels(self) -> tuple[str, ...]:
        """`query A`, `A of A->B`, ..., `answer A`, `query B`, `answer B`, ..."""
        chain = [role_letters(role) for role in range(2 * self.steps + 1)]
        return (*chain, *self._question_roles("query {}", "answer {}"))

    @property
    def role_symbols(self) -> tuple[str, ...]:
        chain = [symbol_letter(role // 2) for role in range(2 * self.steps + 1)]
        return ("A?", *chain[1:], *self._question_roles("{}?", "?{}"))

    def _question_roles(self, query: str, answer: str) -> list[str]:
        named = map(symbol_letter, range(len(self.depths)))
        both = [text.format(letter) for letter in named for text in (query, answer)]
        return both[1:]  # query A is s0

    def path_label(self, dest: int, src: int) -> str:
        """A path in letters, shortened where both ends stand in one statement."""
        if max(dest, src) <= 2 * self.steps:
            return path_letters(dest, src)
        return f"{self.role_labels[dest]} <- {self.role_labels[src]}"

    @property
    def description(self) -> str:
        return (
            f"equations with {counted(self.chains, 'chain')} of {counted(self.steps, 'step')}, "
            f"{'with' if self.curriculum else 'without'} implicit curriculum"
        )

    # Examples

    def _generate(self, indices: Int[Tensor, " batch"], seed: int, stream: int) -> Batch:
        chains, n_tables = self.chains, self.steps + len(self.depths)
        n_words = (self.steps + 1) * chains
        words = random_words(indices, n_words + (n_tables - 1) * chains, seed, stream)
        numbers = words[:, :chains].argsort(dim=-1, stable=True)
        variables = words[:, chains:n_words].argsort(dim=-1, stable=True) + chains
        places = words[:, n_words:].unflatten(-1, (n_tables - 1, chains))
        places = places.argsort(dim=-1, stable=True)
        # Chains are exchangeable, so they are numbered as their first questions are printed.
        first = torch.arange(chains, device=words.device).expand(len(words), 1, -1)
        return self.arrange(
            torch.cat([variables, numbers], dim=1).unflatten(1, (-1, chains)),
            torch.cat([places[:, : self.steps], first, places[:, self.steps :]], dim=1),
        )

    def arrange(
        self, tokens: Int[Tensor, "batch symbol chain"], places: Int[Tensor, "batch table chain"]
    ) -> Batch:
        """Write given chains down.

        Args:
            tokens: x_0..x_D of every chain, all different; x_D are the numbers.
            places: a permutation each: of every chain the place of its statement among those of
                pair 1, ..., of pair D; then of its question among those of x_0, x_1, ...

        Returns:
            Tokens [batch pos]; the number of each chain [batch chain]; and roles.
        """
        chains, steps, device = self.chains, self.steps, tokens.device
        tables = [*range(steps - 1, -1, -1), *range(steps, steps + len(self.depths))]
        start = torch.empty(len(tables), dtype=torch.long, device=device)
        start[tables] = 1 + WORDS * chains * torch.arange(len(tables), device=device)
        begin = start[:, None] + WORDS * places  # [batch table chain]
        equals, unknown, start_token = range(self.d_in - 3, self.d_in)
        first = torch.cat([tokens[:, :steps], tokens[:, : len(self.depths)]], dim=1)
        last = torch.cat(
            [tokens[:, 1:], torch.full_like(tokens[:, : len(self.depths)], unknown)], dim=1
        )
        inputs = torch.full((len(tokens), self.n_positions), equals, device=device)
        inputs[:, 0] = start_token
        inputs.scatter_(1, begin.flatten(1), first.flatten(1))
        inputs.scatter_(1, (begin + WORDS - 1).flatten(1), last.flatten(1))
        ends = torch.stack([begin, begin + WORDS - 1], dim=2).flatten(1, 2)  # [batch role chain]
        pairs, questions = ends[:, : 2 * steps], ends[:, 2 * steps :]
        roles = torch.cat([questions[:, :1], pairs, questions[:, 1:]], dim=1)
        return Batch(inputs, tokens[:, -1], roles.transpose(1, 2).contiguous())

    def position_encoding(self, width: int) -> Float[Tensor, "pos width"]:
        """Sinusoids of the line in one half, and of the place in the line in the other.

        What a line is made of has one code in common, as a pair of vectors has (equation 1).
        """
        place = torch.arange(self.n_positions) - 1
        lines = rotary_encoding(self.n_positions, 2 * (width // 4), LINE_BASE)
        places = rotary_encoding(WORDS, width - lines.shape[1] & ~1, PLACE_BASE)
        code = torch.cat([lines[place // WORDS], places[place % WORDS]], dim=1)
        return F.pad(code, (0, width - code.shape[1]))

    def text(self, batch: Batch, example: int) -> str:
        """A document as people read it, a statement or question a line."""
        words = [self.vocabulary[token] for token in batch.inputs[example, 1:].tolist()]
        return "\n".join(" ".join(line) for line in groups(words, WORDS))

    # Losses

    def example_losses(
        self, outputs: Float[Tensor, "batch pos d_out"], batch: Batch
    ) -> Float[Tensor, "batch target"]:
        """Cross entropy over the whole vocabulary, in nats, of each example and depth."""
        logits = self.answers(outputs, batch)
        losses = F.cross_entropy(
            logits.flatten(0, 2), self._targets(batch).flatten(), reduction="none"
        )
        return _by_depth(losses.view(logits.shape[:3]))

    def accuracies(
        self, outputs: Float[Tensor, "batch pos d_out"], batch: Batch
    ) -> Float[Tensor, " target"]:
        """The share of questions whose answer is the likeliest word, by depth."""
        right = self.answers(outputs, batch).argmax(-1) == self._targets(batch)
        return _by_depth(right.float()).mean(dim=0)

    def logit_differences(
        self, outputs: Float[Tensor, "batch pos d_out"], batch: Batch
    ) -> Float[Tensor, "batch target"]:
        """The answer's logit less the mean of the other numbers', of each example and depth."""
        logits = self.answers(outputs, batch)[..., : self.chains]
        right = logits.gather(-1, self._targets(batch)[..., None])[..., 0]
        return _by_depth(right - (logits.sum(-1) - right) / (self.chains - 1))

    def _targets(self, batch: Batch) -> Int[Tensor, "batch chain question"]:
        """All questions about a chain have one answer."""
        return batch.targets[:, :, None].expand(-1, -1, len(self.depths))

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self)}


def _by_depth(each: Float[Tensor, "batch chain question"]) -> Float[Tensor, "batch target"]:
    """Means over chains; the deepest questions come first in a document and last here."""
    return each.mean(dim=1).flip(-1)
