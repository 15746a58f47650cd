"""Circuits of the small models of ARENA 2.0 (callummcdougall/ARENA_2.0, chapter 1).

    python benchmarks/foreign/arena.py PATH [--models NAME ...] [--json FILE]

PATH is the checked-out repository. "Published" is what its own solutions say.
"""

import json
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import torch
from elsewhere import Example, Foreign, ForeignTask, has, main
from transformer_lens import HookedTransformer, HookedTransformerConfig

import retrieval_interp as ri
from retrieval_interp.circuits import Circuit, Head
from retrieval_interp.circuits.mechanisms import SAME, UNIFORM
from retrieval_interp.tasks import Split

CHAPTER = "chapter1_transformers/exercises"


class Palindromes(ForeignTask):
    """START, 20 numbers, END: do they read the same backwards? (causal; one chain per pair)"""

    role_names = ("END", "second", "first", "START")
    asked = (21,)

    def draw(self, rng: Random) -> Example:
        half = [rng.randint(0, 30) for _ in range(10)]
        other = half[::-1]
        if rng.random() < 0.5:
            other = [rng.randint(0, 30) if rng.random() < 0.5 else number for number in other]
        roles = [[21, 21 - place, place, 0] for place in range(1, 11)]
        return [31, *half, *other, 32], [int(other == half[::-1])], roles


class FirstUnique(ForeignTask):
    """At every letter, which is the first that has occurred once so far? (one chain per letter)

    The role `unique` is the place of that letter, `same` the last place of this letter.
    """

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


class SortedList(ForeignTask):
    """Ten numbers, SEP, and the same in order (one chain per number that is asked).

    `own` is the place in the list of the last number, `next` that of the one that follows.
    """

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


class Cumsum(ForeignTask):
    """The sign of the sum so far, at each of 20 numbers from -5 to 5 (one chain per number)."""

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


class Brackets(ForeignTask):
    """Are 40 brackets balanced? The strings of the file, none in two splits (both directions)."""

    role_names = ("START", "first", "bracket", "END")
    asked = (0,)

    def __init__(self, file: Path):
        self.file = file

    @cached_property
    def strings(self) -> list[tuple[str, bool]]:
        return [
            (text, right) for text, right in json.loads(self.file.read_text()) if len(text) == 40
        ]

    def sample(self, n: int, seed: int = 0, device: Any = "cpu", split: Split = "train",
               start: int = 0) -> ri.Batch:  # fmt: skip
        ends = {"test": (0, 2000), "discovery": (2000, 3000), "validation": (3000, 3050)}
        own = self.strings[slice(*ends.get(split, (3050, None)))]
        chosen = Random(f"{seed}").sample(own, n + start)[start:]
        tokens = torch.tensor([[0, *(3 + "()".index(c) for c in text), 2] for text, _ in chosen])
        targets = torch.tensor([[int(right)] for _, right in chosen])
        roles = torch.tensor([[0, 1, place, 41] for place in range(2, 41)]).expand(n, -1, -1)
        return ri.Batch(tokens, targets, roles.clone()).to(device)


def trained(file: Path, heads: int, **sizes: Any) -> HookedTransformer:
    """A model with the sizes of its weights, which are read as data."""
    weights = torch.load(file, map_location="cpu", weights_only=True)
    layers = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blocks"))
    d_vocab, d_model = weights["embed.W_E"].shape
    d_mlp = weights["blocks.0.mlp.W_in"].shape[1] if "blocks.0.mlp.W_in" in weights else None
    config = HookedTransformerConfig(
        n_layers=layers,
        n_heads=heads,
        d_model=d_model,
        d_head=weights["blocks.0.attn.W_Q"].shape[2],
        n_ctx=weights["pos_embed.W_pos"].shape[0],
        d_vocab=d_vocab,
        d_vocab_out=weights["unembed.W_U"].shape[1],
        d_mlp=d_mlp,
        attn_only=d_mlp is None,
        act_fn="relu",
        normalization_type="LN" if "ln_final.w" in weights else None,
        device="cpu",
        **sizes,
    )
    model = HookedTransformer(config)
    model.load_state_dict(weights)
    return model.eval()


def models(path: Path) -> dict[str, Callable[[], Foreign]]:
    """The models of a checked-out repository, by name."""
    monthly = path / CHAPTER / "monthly_algorithmic_problems"
    brackets = path / CHAPTER / "part4_interp_on_algorithmic_model"

    def palindromes() -> Foreign:
        file = monthly / "july23_palindromes/palindrome_classifier.pt"
        return Foreign("palindromes", trained(file, 2), Palindromes(), {
            "L0.H0 attends from the second half to the mirrored first":
                has("L0.H0 second<-first"),
            "L1.H0 attends from END to the second half": has("L1.H0 END<-second"),
        })  # fmt: skip

    def first_unique() -> Foreign:
        file = monthly / "august23_unique_char/first_unique_char_model.pt"
        return Foreign("first unique character", trained(file, 3), FirstUnique(), {
            "L0.H1 is a duplicate token head":
                lambda circuit: has("L0.H1 here<-same")(circuit) or circuit[0, 1] == SAME,
            "all heads of layer 1 are needed, each for some letters":
                lambda circuit: not any(idle(circuit, 1, head) for head in range(3)),
        })  # fmt: skip

    def sorted_list() -> Foreign:
        file = monthly / "october23_sorted_list/sorted_list_model.pt"
        return Foreign("sorted list", trained(file, 2), SortedList(), {
            "both heads attend to the next larger number, each for some numbers":
                lambda circuit: not any(idle(circuit, 0, head) for head in range(2)),
        })  # fmt: skip

    def cumsum() -> Foreign:
        file = monthly / "november23_cumsum/cumsum_model.pt"
        return Foreign("cumulative sum", trained(file, 1), Cumsum(), {
            "the head attends uniformly": lambda circuit: circuit[0, 0] == UNIFORM,
        })  # fmt: skip

    def balanced() -> Foreign:
        model = trained(brackets / "brackets_model_state_dict.pt", 2, attention_dir="bidirectional")
        return Foreign("balanced brackets", model, Brackets(brackets / "brackets_data.json"), {
            "L0.H0 attends uniformly to what follows":
                lambda circuit: circuit[0, 0] == UNIFORM,
            "L2.H0 attends from START to the first bracket": has("L2.H0 START<-first"),
        })  # fmt: skip

    every = (palindromes, first_unique, sorted_list, cumsum, balanced)
    return {make.__name__: make for make in every}


def idle(circuit: Circuit, layer: int, head: int) -> bool:
    """Whether the circuit does without a head."""
    return circuit[Head(layer, head)].kind in ("uniform", "identity")


if __name__ == "__main__":
    main(__doc__, models)
