"""Transformers of one layer whose weights are written by hand, and a task for them.

A residual stream has a place for every token, every position and every output. A head is given by
its scores, a matrix [dest, src] over tokens and positions, and by what it writes: a matrix from
tokens to outputs.
"""

from collections.abc import Sequence
from random import Random

import torch
import torch.nn.functional as F

import retrieval_interp as ri
from tests.oracles import stock_transformer

Example = tuple[list[int], list[int], list[list[int]]]  # tokens, targets, roles by chain
LETTERS, STARRED, END = range(4), range(4, 8), 8  # tokens: a b c d, a* b* c* d*, END


def built(n_ctx, heads, d_vocab=9, d_out=4, bias=None, attention_dir="causal"):
    """A model with these heads: pairs of scores [tokens + positions, same], outputs by token."""
    inner = d_vocab + n_ctx
    width = inner + d_out
    sizes = {"n_layers": 1, "n_heads": len(heads), "d_model": width, "d_head": width}
    sizes |= {"n_ctx": n_ctx, "d_vocab": d_vocab, "d_vocab_out": d_out, "attn_only": True}
    how = {"normalization_type": None, "attention_dir": attention_dir, "device": "cpu", "seed": 0}
    model = stock_transformer(**sizes, **how)
    new = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
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
    model.load_state_dict({**model.state_dict(), **new})
    return model.eval()


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
