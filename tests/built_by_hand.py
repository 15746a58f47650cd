"""Transformers whose weights are written by hand, and tasks for them.

The tasks of benchmarks/foreign/ are `DrawnTask`s, too. In models of one layer, the residual stream
has a place for every token, every position and every output. A head is given by its scores, a
matrix [dest, src] over tokens and positions, and by what it writes: a matrix from tokens to
outputs.
"""

from collections.abc import Sequence
from random import Random

import torch
import torch.nn.functional as F

import retrieval_interp as ri
from tests.models import stock_transformer

Example = tuple[list[int], list[int], list[list[int]]]  # tokens, targets, roles by chain
LETTERS, STARRED, END = range(4), range(4, 8), 8  # tokens: a b c d, a* b* c* d*, END


def blank(**sizes):
    """A model without norms and MLPs, and its weights by name: all zero, to be written to."""
    how = {"attn_only": True, "normalization_type": None, "device": "cpu", "seed": 0}
    model = stock_transformer(**sizes, **how)
    return model, {name: weight.data.zero_() for name, weight in model.named_parameters()}


def built(n_ctx, heads, d_vocab=9, d_out=4, bias=None, attention_dir="causal"):
    """A model with these heads: pairs of scores [tokens + positions, same], outputs by token."""
    inner = d_vocab + n_ctx
    width = inner + d_out
    sizes = {"n_layers": 1, "n_heads": len(heads), "d_model": width, "d_head": width}
    sizes |= {"n_ctx": n_ctx, "d_vocab": d_vocab, "d_vocab_out": d_out}
    model, new = blank(**sizes, attention_dir=attention_dir)
    new["embed.W_E"][:, :d_vocab] = torch.eye(d_vocab)
    new["pos_embed.W_pos"][:, d_vocab:inner] = torch.eye(n_ctx)
    new["unembed.W_U"][inner:] = torch.eye(d_out)
    if bias is not None:
        new["unembed.b_U"] += bias
    for number, (scores, writes) in enumerate(heads):
        new["blocks.0.attn.W_Q"][number, :inner, :inner] = scores * width**0.5
        new["blocks.0.attn.W_K"][number] = torch.eye(width)
        new["blocks.0.attn.W_V"][number] = torch.eye(width)
        new["blocks.0.attn.W_O"][number, :d_vocab, inner:] = writes
    return model


def scores(n_ctx, *pairs, d_vocab=9):
    """Scores of a head: (dest token, src token, score)."""
    matrix = torch.zeros(d_vocab + n_ctx, d_vocab + n_ctx)
    for dest, src, score in pairs:
        matrix[dest, src] = score
    return matrix


def copies(scale):
    """What copies a letter, starred or not, to the logits."""
    letters = torch.eye(4) * scale
    return torch.cat([letters, letters, torch.zeros(1, 4)])


def finds_the_star(sharpness, scale, n_ctx=7):
    """A head with which END looks for the starred letter."""
    return scores(n_ctx, *((END, star, sharpness) for star in STARRED)), copies(scale)


class DrawnTask(ri.Task):
    """Examples drawn one by one, scored by the cross entropy at the positions that are `asked`.

    Subclasses `draw` an example: its tokens, a target for every position that is asked, and for
    every chain the position of each role, -1 where it is absent.
    """

    loss_name = "cross entropy"
    asked: Sequence[int]

    def draw(self, rng: Random) -> Example:
        raise NotImplementedError

    def sample(self, n, seed=0, device="cpu", split="train", start=0):
        rows = [self.draw(Random(f"{seed} {split} {start + at}")) for at in range(n)]
        tokens, targets, roles = (torch.tensor(part) for part in zip(*rows))
        return ri.Batch(tokens, targets, roles).to(device)

    def example_losses(self, outputs, batch):
        logits = outputs[:, list(self.asked)].transpose(1, 2)
        return F.cross_entropy(logits, batch.targets, reduction="none").mean(dim=1, keepdim=True)


class Star(DrawnTask):
    """Which letter is starred? Six letters and END.

    Where there is no star, which is in a share of the examples, the answer is a.
    """

    role_names = ("END", "other", "star")
    answer_role = 2
    asked = (6,)

    def __init__(self, starless=0.0):
        self.starless = starless

    def draw(self, rng):
        letters = [rng.randrange(4) for _ in range(6)]
        star, other = rng.sample(range(6), 2)
        if rng.random() < self.starless:
            return [*letters, END], [0], [[6, other, -1]]
        answer = letters[star]
        letters[star] += 4
        return [*letters, END], [answer], [[6, other, star]]


class LastMark(DrawnTask):
    """Which letter stands after the last mark? Letters a b c d, marks (4) and END (5)."""

    role_names = ("END", "answer", "mark")
    asked = (7,)

    def draw(self, rng):
        tokens = [*(rng.randrange(4) for _ in range(7)), 5]
        last = rng.randrange(5)
        tokens[rng.randrange(last + 1)] = tokens[last] = 4
        tokens[last + 1] %= 4
        return tokens, [tokens[last + 1]], [[7, last + 1, last]]


class Follows(DrawnTask):
    """The middle of five letters answers with the one before it; only the middle has a role."""

    role_names, answer_role, asked = ("middle",), None, (2,)

    def draw(self, rng):
        letters = [rng.randrange(4) for _ in range(5)]
        return letters, [letters[1]], [[2]]


def passing_model():
    """A model of `LastMark` in which L0.H0 only passes on what L1.H0 copies; L1.H1 does nothing."""
    sizes = {"n_layers": 2, "n_heads": 2, "d_model": 23, "d_head": 23, "n_ctx": 8}
    model, new = blank(**sizes, d_vocab=6, d_vocab_out=4)
    letter, place, marked, passed, answer = range(4), range(6, 14), 14, range(15, 19), range(19, 23)
    new["embed.W_E"][:, :6] = torch.eye(6)
    new["pos_embed.W_pos"][:, place] = torch.eye(8)
    new["unembed.W_U"][answer] = torch.eye(4)
    passes, marks, copies = (
        {name: new[f"blocks.{layer}.attn.W_{name}"][head] for name in "QKVO"}
        for layer, head in ((0, 0), (0, 1), (1, 0))
    )
    sharp = 40 * 23**0.5
    # L0.H0 attends to its own position and passes the letter on, which is all that L1.H0 reads.
    passes["Q"][place, :8] = sharp * torch.eye(8)
    passes["K"][place, :8] = torch.eye(8)
    passes["V"][letter, :4] = torch.eye(4)
    passes["O"][:4, passed] = torch.eye(4)
    # L0.H1 attends to the position before, and tells whether there is a mark (token 4).
    marks["Q"][place, :8] = sharp * torch.ones(7).diag(-1)
    marks["K"][place, :8] = torch.eye(8)
    marks["V"][4, 0] = 1.0
    marks["O"][0, marked] = 1.0
    # L1.H0 looks from END (token 5) for the last position that is marked, and copies the letter.
    copies["Q"][5, 0] = sharp
    copies["K"][marked, 0] = 1.0
    copies["K"][place, 0] = torch.arange(8) / 10
    copies["V"][passed, :4] = torch.eye(4)
    copies["O"][:4, answer] = 9 * torch.eye(4)
    return model


def equations_model():
    """A model of one step: layer 0 looks two words back, layer 1 for the line of that word.

    Words are unit vectors in three blocks of the residual stream: the word itself, what stands
    before the `=` of its line, and the answer.
    """
    task = ri.EquationsTask(chains=3, steps=1, curriculum=False)
    n, length = task.d_in, task.n_positions
    width = 3 * n + length
    sizes = {"n_layers": 2, "n_heads": 1, "d_model": width, "d_head": width}
    model, new = blank(**sizes, n_ctx=length, d_vocab=n, d_vocab_out=n)
    eye = torch.eye(n)
    own, before, answer = (slice(block * n, (block + 1) * n) for block in range(3))
    place = slice(3 * n, width)
    back = torch.zeros(length, length)
    back[torch.arange(2, length), torch.arange(length - 2)] = 1000.0
    new["embed.W_E"][:, own] = eye
    new["pos_embed.W_pos"][:, place] = torch.eye(length)
    new["unembed.W_U"][answer] = 50 * eye
    first, second = (
        {name: new[f"blocks.{layer}.attn.W_{name}"][0] for name in "QKVO"} for layer in range(2)
    )
    first["Q"][place, place] = back
    first["K"][place, place] = torch.eye(length)
    first["V"][own, own] = eye
    first["O"][own, before] = eye
    second["Q"][before, own] = 1000 * eye
    second["K"][before, own] = eye
    # Never to a `?`, which holds the word before the `=`, too.
    second["Q"][own, n] = 1.0
    second["K"][task.vocabulary.index("?"), n] = -1e6
    second["V"][own, own] = eye
    second["O"][own, answer] = eye
    return model, task
