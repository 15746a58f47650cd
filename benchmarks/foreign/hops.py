"""Circuits of the induction-hop models of Sanford, Hsu & Telgarsky (arXiv 2402.09268).

    python benchmarks/foreign/hops.py PATH [--models NAME ...] [--json FILE]

PATH is the checked-out chsanford/hop-induction-heads. The models have 2 to 5 layers of 4 heads and
answer 0 to 16 hops; each is asked the most hops that its paper says it learns, 2^(layers - 2).
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import torch
from elsewhere import Example, Foreign, ForeignTask, main
from torch import Tensor
from transformer_lens import HookedTransformer, HookedTransformerConfig

from retrieval_interp.circuits.circuit import Circuit, RolePath


class Hops(ForeignTask):
    """k hops of induction over four letters, asked at the last ten places (a chain for each).

    One hop leads from a letter to the place after its last occurrence before. The first token says
    how many hops; role `hop i` is where i of them lead, absent where a letter is new.
    """

    def __init__(self, hops: int):
        self.hops, self.asked = hops, range(89, 99)

    @property
    def answer_role(self) -> int:
        return self.hops

    @property
    def role_names(self) -> tuple[str, ...]:
        return ("here", *(f"hop{number}" for number in range(1, self.hops + 1)), "count")

    def draw(self, rng: Random) -> Example:
        letters = [rng.randrange(4)]
        while len(letters) < 98:
            letters.append(rng.choice([x for x in range(4) if x != letters[-1]]))
        targets, roles = [], []
        for here in self.asked:
            chain = [here - 1]
            for _ in range(self.hops):
                at = chain[-1]
                before = [p for p in range(max(at, 0)) if letters[p] == letters[at]]
                chain.append(before[-1] + 1 if before and at >= 0 else -1)
            targets.append(17 + letters[chain[-1]] if chain[-1] >= 0 else 21)
            roles.append([*(at + 1 if at >= 0 else -1 for at in chain), 0])
        return [self.hops, *(17 + letter for letter in letters)], targets, roles


def converted(file: Path) -> HookedTransformer:
    """A GPT-2 of Hugging Face whose outputs are its last hidden state."""
    old = torch.load(file, map_location="cpu", weights_only=True)
    layers = 1 + max(int(name.split(".")[2]) for name in old if ".h." in name)
    d_vocab, width = old["backbone.wte.weight"].shape
    config = HookedTransformerConfig(
        n_layers=layers,
        n_heads=4,
        d_model=width,
        d_head=width // 4,
        n_ctx=old["backbone.wpe.weight"].shape[0],
        d_vocab=d_vocab,
        d_vocab_out=width,
        act_fn="gelu_new",
        normalization_type="LN",
        device="cpu",
    )
    model = HookedTransformer(config)
    new = dict(model.state_dict())
    new |= {
        "embed.W_E": old["backbone.wte.weight"],
        "pos_embed.W_pos": old["backbone.wpe.weight"],
        "ln_final.w": old["backbone.ln_f.weight"],
        "ln_final.b": old["backbone.ln_f.bias"],
        "unembed.W_U": torch.eye(width),
        "unembed.b_U": torch.zeros(width),
    }
    for layer in range(layers):
        here, there = f"blocks.{layer}", f"backbone.h.{layer}"
        weights = old[f"{there}.attn.c_attn.weight"].chunk(3, dim=1)
        biases = old[f"{there}.attn.c_attn.bias"].chunk(3)
        for name, weight, bias in zip("QKV", weights, biases):
            new[f"{here}.attn.W_{name}"] = by_head(weight.T).transpose(1, 2)
            new[f"{here}.attn.b_{name}"] = by_head(bias)
        new[f"{here}.attn.W_O"] = by_head(old[f"{there}.attn.c_proj.weight"])
        new[f"{here}.attn.b_O"] = old[f"{there}.attn.c_proj.bias"]
        for name, part in (("in", "c_fc"), ("out", "c_proj")):
            new[f"{here}.mlp.W_{name}"] = old[f"{there}.mlp.{part}.weight"]
            new[f"{here}.mlp.b_{name}"] = old[f"{there}.mlp.{part}.bias"]
        for norm, part in (("ln1", "ln_1"), ("ln2", "ln_2")):
            new[f"{here}.{norm}.w"] = old[f"{there}.{part}.weight"]
            new[f"{here}.{norm}.b"] = old[f"{there}.{part}.bias"]
    model.load_state_dict(new)
    return model.eval()


def by_head(x: Tensor) -> Tensor:
    """The first axis divided among four heads."""
    return x.unflatten(0, (4, -1))


def models(path: Path) -> dict[str, Callable[[], Foreign]]:
    """The models of a checked-out repository, by name."""

    def depth(layers: int) -> Foreign:
        hops = 2 ** (layers - 2)
        file = path / f"models/induction_hops_full_seq/width4-depth{layers}/model_100000.pt"

        def far(circuit: Circuit) -> bool:
            long = {RolePath(0, hop) for hop in range((hops + 1) // 2, hops + 1)}
            return any(path.path in long for path in circuit.every_path())

        name = f"{hops} hop{'s' if hops > 1 else ''} in {layers} layers"
        says = {"a head attends half of all hops ahead or more at once (doubling)": far}
        return Foreign(name, converted(file), Hops(hops), says)

    return {f"depth{layers}": partial(depth, layers) for layers in range(2, 6)}


if __name__ == "__main__":
    main(__doc__, models, None)
