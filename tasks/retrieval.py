"""The retrieval problem in continuous vectors (paper, sections 3.1, 6 and 7; appendix B).

1. A chain has steps+1 symbols x_0..x_D, drawn i.i.d. from N(0, 1) in `dim` dimensions (on
   request scaled to unit length).
2. Pair d is (x_{d-1}, x_d). The sequence holds every chain's pair D, then every chain's pair D-1,
   ..., then pair 1, in fresh random order within a step, then the queries x_0.
3. Every token is followed by a rotary positional encoding of `dim` numbers.
4. The target of a query is x_1..x_D (with the implicit curriculum) or x_D alone (without).

The chains are labelled by the order of their queries. They are exchangeable, so this shuffles the
queries as the paper does. The paper's "DN" target dimensions are D*K; both are equal at N = K = 4.
"""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from tasks.batch import Batch
from tasks.errors import InputError
from tasks.philox import normals, random_words
from tasks.positions import Position, rotary_encoding
from tasks.roles import path_letters, role_letters, role_name, symbol_letter
from tasks.task import Split, Task

Tokens = Literal["gaussian", "unit"]
_STREAMS: dict[str, int] = {"train": 0, "validation": 1, "discovery": 2, "test": 3}
_MAX_POSITIONS = 100_000


@dataclass(frozen=True)
class RetrievalTask(Task):
    """Follow `chains` interleaved chains of `steps` induction steps each.

    Attributes:
        chains: number of chains, N.
        steps: induction steps a chain, D.
        dim: dimensions of a symbol, K (even, since the encoding is made of cosine-sine pairs).
        curriculum: ask for every x_1..x_D (implicit curriculum) or for x_D alone.
        position: one encoding a `pair` (equation 1) or one a `token`.
        base: base of the rotary frequencies.
        tokens: symbols as drawn (`gaussian`, the paper's), or scaled to length 1 (`unit`), which
            makes matching by inner product exact.

    Raises:
        InputError: a parameter is out of range.
    """

    chains: int = 4
    steps: int = 3
    dim: int = 4
    curriculum: bool = True
    position: Position = "pair"
    base: float = 10_000.0
    tokens: Tokens = "gaussian"

    loss_name: ClassVar[str] = "MSE"
    answers_at_s0: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name, least in (("chains", 1), ("steps", 1), ("dim", 2)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(
                    f"task: expected {name} to be an integer of at least {least}, found {value!r}"
                )
        if self.dim % 2:
            raise InputError(
                f"task: expected an even dim (cosine-sine pairs encode positions), found {self.dim}"
            )
        if not isinstance(self.curriculum, bool):
            raise InputError(
                f"task: expected curriculum to be true or false, found {self.curriculum!r}"
            )
        if self.position not in ("pair", "token"):
            raise InputError(f"task: expected position 'pair' or 'token', found {self.position!r}")
        if not (isinstance(self.base, (int, float)) and 1 < self.base < float("inf")):
            raise InputError(f"task: expected base to be a number above 1, found {self.base!r}")
        if self.tokens not in ("gaussian", "unit"):
            raise InputError(f"task: expected tokens 'gaussian' or 'unit', found {self.tokens!r}")
        if self.n_positions * self.dim > _MAX_POSITIONS:
            raise InputError(
                f"task: expected chains * (2 * steps + 1) * dim of at most {_MAX_POSITIONS}, "
                f"found {self.n_positions * self.dim}; use a smaller task"
            )

    # Shapes

    @property
    def n_positions(self) -> int:
        """Sequence length, T = N (2D + 1)."""
        return self.chains * (2 * self.steps + 1)

    @property
    def d_in(self) -> int:
        """Components of an input vector: token and encoding."""
        return 2 * self.dim

    @property
    def d_out(self) -> int:
        """Components of a target vector."""
        return self.dim * self.n_targets

    @property
    def n_targets(self) -> int:
        """Symbols asked of a query: D with the implicit curriculum, 1 without."""
        return self.steps if self.curriculum else 1

    @property
    def plateau(self) -> float:
        """MSE of answering with the mean of the candidates: 1 - 1/N of a symbol's variance.

        With one chain that is the answer; what tells nothing then is answering zeros.
        """
        return (1 - 1 / self.chains if self.chains > 1 else 1.0) * self.symbol_variance

    @property
    def tolerance(self) -> float:
        """The paper's 0.05 (appendix E), of a symbol's variance."""
        return 0.05 * self.symbol_variance

    @property
    def symbol_variance(self) -> float:
        """Variance of a symbol's component, which is the MSE of answering zeros."""
        return 1.0 if self.tokens == "gaussian" else 1 / self.dim

    # Names

    @property
    def role_names(self) -> tuple[str, ...]:
        """s0 .. s2D."""
        return tuple(role_name(role) for role in range(2 * self.steps + 1))

    @property
    def role_labels(self) -> tuple[str, ...]:
        """`query A`, `A of A->B`, `B of A->B`, ..."""
        return tuple(role_letters(role) for role in range(2 * self.steps + 1))

    @property
    def role_symbols(self) -> tuple[str, ...]:
        """The symbol that each role holds: `A?`, `A`, `B`, `B`, ..."""
        return tuple(
            symbol_letter(role // 2) + ("?" if role == 0 else "")
            for role in range(2 * self.steps + 1)
        )

    @property
    def description(self) -> str:
        return (
            f"retrieval with {_count(self.chains, 'chain')} of {_count(self.steps, 'step')} in "
            f"{self.dim} dimensions, {'with' if self.curriculum else 'without'} implicit curriculum"
        )

    def path_label(self, dest: int, src: int) -> str:
        return path_letters(dest, src)

    def position_labels(self, batch: Batch, example: int) -> list[str]:
        """Symbol letter and chain number; a query with `?`.

        `B2` stands for x_1 of the chain whose query comes second, `A2?` for that query.
        """
        labels = [""] * batch.inputs.shape[1]
        for chain, roles in enumerate(batch.roles[example].tolist(), start=1):
            for role, position in enumerate(roles):
                labels[position] = f"{symbol_letter(role // 2)}{chain}{'?' if role == 0 else ''}"
        return labels

    # Examples

    def sample(
        self,
        n: int,
        seed: int = 0,
        device: str | torch.device = "cpu",
        split: Split = "train",
        start: int = 0,
    ) -> Batch:
        """The examples start .. start+n-1 of a seed.

        Args:
            n: how many, at least 1.
            seed: in [0, 2^64); the same seed gives the same examples whatever n and device.
            device: where the tensors are made.
            split: `train`, `validation`, `discovery` and `test` never share an example.
            start: index of the first one.
        """
        if n < 1:
            raise InputError(f"sample: expected n of at least 1, found {n}")
        return self.examples(torch.arange(start, start + n, device=device), seed, split)

    def examples(
        self, indices: Int[Tensor, " batch"], seed: int = 0, split: Split = "train"
    ) -> Batch:
        """The indexed examples of a seed, on the device of `indices`.

        A training set of n examples is the indices 0 .. n-1: nothing is stored.
        """
        if not 0 <= seed < 2**64:
            raise InputError(f"sample: expected a seed from 0 to 2^64 - 1, found {seed}")
        if split not in _STREAMS:
            raise InputError(f"sample: expected a split of {sorted(_STREAMS)}, found {split!r}")
        n_numbers = self.chains * (self.steps + 1) * self.dim
        n_keys = self.chains * self.steps
        words = random_words(indices, n_numbers + n_keys, seed, _STREAMS[split])
        symbols = rearrange(
            normals(words[:, :n_numbers]),
            "batch (chain symbol dim) -> batch chain symbol dim",
            chain=self.chains,
            dim=self.dim,
        )
        if self.tokens == "unit":
            symbols = F.normalize(symbols, dim=-1)
        keys = words[:, n_numbers:].unflatten(-1, (self.steps, self.chains))
        return self.layout(symbols, torch.argsort(keys, dim=-1, stable=True))

    def layout(
        self,
        symbols: Float[Tensor, "batch chain symbol dim"],
        slots: Int[Tensor, "batch step chain"],
    ) -> Batch:
        """Arrange given symbols into sequences.

        Args:
            symbols: x_0..x_D of every chain; chain c is the one whose query stands c-th.
            slots: a permutation a step: slots[b, d-1, c] is the place of chain c's pair d among
                the pairs of step d.

        Returns:
            The batch, on the device of `symbols`.
        """
        batch, device = symbols.shape[0], symbols.device
        steps_left = torch.arange(self.steps - 1, -1, -1, device=device)[None, :, None]
        first = 2 * (steps_left * self.chains + slots)  # [batch step chain]
        query = self.n_positions - self.chains + torch.arange(self.chains, device=device)
        pairs = torch.stack([first, first + 1], dim=-1)
        roles = torch.cat(
            [
                query[None, :, None].expand(batch, -1, -1),
                rearrange(pairs, "batch step chain element -> batch chain (step element)"),
            ],
            dim=-1,
        )
        # Role i holds the symbol floor(i / 2): equation (1).
        held = symbols[:, :, torch.arange(2 * self.steps + 1, device=device) // 2]
        tokens = symbols.new_empty(batch, self.n_positions, self.dim)
        tokens.scatter_(
            1,
            roles.flatten(1)[:, :, None].expand(-1, -1, self.dim),
            rearrange(held, "batch chain role dim -> batch (chain role) dim"),
        )
        encoding = self._encoding(device).to(symbols.dtype)
        asked = symbols[:, :, 1:] if self.curriculum else symbols[:, :, -1:]
        return Batch(
            inputs=torch.cat([tokens, encoding.expand(batch, -1, -1)], dim=-1),
            targets=rearrange(asked, "batch chain symbol dim -> batch chain (symbol dim)"),
            roles=roles,
        )

    def _encoding(self, device: torch.device) -> Float[Tensor, "pos dim"]:
        places = torch.arange(self.n_positions)
        if self.position == "pair":
            n_paired = 2 * self.chains * self.steps
            places = torch.where(places < n_paired, places // 2, places - n_paired // 2)
        return rotary_encoding(self.n_positions, self.dim, self.base)[places].to(device)

    # Losses

    def predictions(self, outputs: Float[Tensor, "batch pos d_out"]) -> Float[Tensor, "..."]:
        """The outputs at the queries, the last N positions: [batch query d_out]."""
        return outputs[:, -self.chains :]

    def partial_losses(
        self, outputs: Float[Tensor, "batch pos d_out"], batch: Batch
    ) -> Float[Tensor, " target"]:
        """Mean squared error of each asked symbol: x_1..x_D, or x_D alone (section 7.2)."""
        return self.example_losses(outputs, batch).mean(dim=0)

    def example_losses(
        self, outputs: Float[Tensor, "batch pos d_out"], batch: Batch
    ) -> Float[Tensor, "batch target"]:
        """Mean squared error of each example and asked symbol."""
        error: Tensor = (self.predictions(outputs) - batch.targets).square()
        return error.unflatten(-1, (self.n_targets, self.dim)).mean(dim=(1, 3))  # type: ignore[no-any-return]

    def loss(self, outputs: Float[Tensor, "batch pos d_out"], batch: Batch) -> Float[Tensor, ""]:
        """Mean squared error over everything asked."""
        return (self.predictions(outputs) - batch.targets).square().mean()

    # Files

    def to_dict(self) -> dict[str, Any]:
        return {"name": "retrieval", **asdict(self)}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
