"""Circuits of the small models of ARENA 2.0 (callummcdougall/ARENA_2.0, chapter 1).

    python benchmarks/foreign/arena.py PATH [--models palindromes ...] [--json FILE]

PATH is the checked-out repository. "Published" is what its own solutions say.
"""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch
from elsewhere import Foreign, command, has

import retrieval_interp as ri
from retrieval_interp.circuits import Circuit
from tests.built_by_hand import Example
from tests.models import stock_transformer

CHAPTER = "chapter1_transformers/exercises"
MONTHLY = "monthly_algorithmic_problems"


class Arena(Foreign):
    """Its model has the sizes of its weights, which are read as data."""

    file: str
    heads: int
    attention_dir = "causal"

    def model(self, path: Path) -> Any:
        file = path / CHAPTER / self.file
        weights = torch.load(file, map_location="cpu", weights_only=True)
        d_vocab, d_model = weights["embed.W_E"].shape
        mlp = weights.get("blocks.0.mlp.W_in")
        sizes = {"d_model": d_model, "d_vocab": d_vocab, "n_heads": self.heads, "act_fn": "relu"}
        sizes |= {"attention_dir": self.attention_dir, "attn_only": mlp is None, "device": "cpu"}
        model = stock_transformer(
            n_layers=sum(name.endswith("attn.W_Q") for name in weights),
            d_head=weights["blocks.0.attn.W_Q"].shape[2],
            n_ctx=weights["pos_embed.W_pos"].shape[0],
            d_vocab_out=weights["unembed.W_U"].shape[1],
            d_mlp=None if mlp is None else mlp.shape[1],
            normalization_type="LN" if "ln_final.w" in weights else None,
            **sizes,
        )
        model.load_state_dict(weights)
        return model


def works(layer: int, heads: int) -> Callable[[Circuit], bool]:
    """Whether a circuit needs all heads of a layer."""
    idle = ("uniform", "identity")
    return lambda circuit: all(circuit[layer, head].kind not in idle for head in range(heads))


class Palindromes(Arena):
    """START, 20 numbers, END: do they read the same backwards? (causal; one chain per pair)"""

    title, heads = "palindromes", 2
    file = f"{MONTHLY}/july23_palindromes/palindrome_classifier.pt"
    published = (
        ("L0.H0 attends from the second half to the mirrored first", has("L0.H0 second<-first")),
        ("L1.H0 attends from END to the second half", has("L1.H0 END<-second")),
    )
    role_names = ("END", "second", "first", "START")
    asked = (21,)

    def draw(self, rng: Random) -> Example:
        half = [rng.randint(0, 30) for _ in range(10)]
        other = half[::-1]
        if rng.random() < 0.5:
            other = [rng.randint(0, 30) if rng.random() < 0.5 else number for number in other]
        roles = [[21, 21 - place, place, 0] for place in range(1, 11)]
        return [31, *half, *other, 32], [int(other == half[::-1])], roles


class FirstUnique(Arena):
    """At every letter, which is the first that has occurred once so far? (one chain per letter)

    The role `unique` is the place of that letter, `same` the last place of this letter.
    """

    title, heads = "first unique character", 3
    file = f"{MONTHLY}/august23_unique_char/first_unique_char_model.pt"
    published = (
        ("L0.H1 is a duplicate token head", has("L0.H1 same", "L0.H1 here<-same")),
        ("all heads of layer 1 are needed, each for some letters", works(1, 3)),
    )
    role_names = ("here", "same", "unique", "START")
    asked = range(1, 20)
    answer_role = 2

    def draw(self, rng: Random) -> Example:
        tokens = [10, *(rng.randrange(10) for _ in range(19))]
        targets, roles = [], []
        for here in self.asked:
            seen = tokens[1 : here + 1]
            found = next((at for at, x in enumerate(seen, 1) if seen.count(x) == 1), -1)
            same = max((at for at in range(1, here) if tokens[at] == tokens[here]), default=-1)
            targets.append(tokens[found] if found > 0 else 10)
            roles.append([here, same, found, 0])
        return tokens, targets, roles


class SortedList(Arena):
    """Ten numbers, SEP, and the same in order (one chain per number that is asked).

    `own` is the place in the list of the last number, `next` that of the one that follows.
    """

    title, heads = "sorted list", 2
    file = f"{MONTHLY}/october23_sorted_list/sorted_list_model.pt"
    published = (
        ("both heads attend to the next larger number, each for some numbers", works(0, 2)),
    )
    role_names = ("here", "SEP", "own", "next")
    asked = range(10, 20)
    answer_role = 3

    def draw(self, rng: Random) -> Example:
        numbers = rng.sample(range(51), 10)
        order = sorted(numbers)
        places = [numbers.index(number) for number in order]
        roles = [
            [10 + step, 10 if step else -1, places[step - 1] if step else -1, places[step]]
            for step in range(10)
        ]
        return [*numbers, 51, *order], order, roles


class Cumsum(Arena):
    """The sign of the sum so far, at each of 20 numbers from -5 to 5 (one chain per number)."""

    title, heads = "cumulative sum", 1
    file = f"{MONTHLY}/november23_cumsum/cumsum_model.pt"
    published = (("the head attends uniformly", has("L0.H0 uniform")),)
    role_names = ("here", "before", "first")
    asked = range(20)

    def draw(self, rng: Random) -> Example:
        numbers = [rng.randint(-5, 5)]
        for place in range(1, 20):
            back = (rng.random() < 0.7) == (sum(numbers[:place]) > 0)
            numbers.append(-rng.randint(0, 5) if back else rng.randint(0, 5))
        sums = [sum(numbers[: place + 1]) for place in range(20)]
        roles = [[place, place - 1, 0 if place else -1] for place in range(20)]
        # Trained with negative numbers as indices, which count from the end.
        return [n % 11 for n in numbers], [1 + (s > 0) - (s < 0) for s in sums], roles


class Brackets(Arena):
    """Are 40 brackets balanced? The strings of the file, none in two splits (both directions)."""

    title, heads, attention_dir = "balanced brackets", 2, "bidirectional"
    file = "part4_interp_on_algorithmic_model/brackets_model_state_dict.pt"
    published = (
        ("L0.H0 attends uniformly to what follows", has("L0.H0 uniform")),
        ("L2.H0 attends from START to the first bracket", has("L2.H0 START<-first")),
    )
    role_names = ("START", "first", "bracket", "END")
    asked = (0,)

    def model(self, path: Path) -> Any:
        file = (path / CHAPTER / self.file).with_name("brackets_data.json")
        self.strings = [pair for pair in json.loads(file.read_text()) if len(pair[0]) == 40]
        return super().model(path)

    def sample(
        self, n: int, seed: int = 0, device: Any = "cpu", split: str = "train", start: int = 0
    ) -> ri.Batch:
        ends = {"test": (0, 2000), "discovery": (2000, 3000), "validation": (3000, 3050)}
        own = self.strings[slice(*ends.get(split, (3050, None)))]
        chosen = Random(f"{seed}").sample(own, n + start)[start:]
        tokens = torch.tensor([[0, *(3 + "()".index(c) for c in text), 2] for text, _ in chosen])
        targets = torch.tensor([[int(right)] for _, right in chosen])
        roles = torch.tensor([[0, 1, place, 41] for place in range(2, 41)]).expand(n, -1, -1)
        return ri.Batch(tokens, targets, roles.clone()).to(device)


main = command([Palindromes(), FirstUnique(), SortedList(), Cumsum(), Brackets()])

if __name__ == "__main__":
    main()
