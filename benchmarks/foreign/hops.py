"""Circuits of the induction-hop models of Sanford, Hsu & Telgarsky (arXiv 2402.09268).

    python benchmarks/foreign/hops.py PATH [--models "1 hop in 2 layers" ...] [--json FILE]

PATH is the checked-out chsanford/hop-induction-heads. The models have 2 to 5 layers of 4 heads and
answer 0 to 16 hops; each is asked 1, 2, 4, ... up to 2^(layers - 2), as its paper says it learns.
"""

from pathlib import Path
from random import Random
from typing import Any

import torch
from elsewhere import Foreign, command
from transformer_lens.pretrained.weight_conversions import convert_gpt2_weights
from transformers import GPT2Config, GPT2LMHeadModel

import retrieval_interp as ri
from retrieval_interp.circuits import Circuit, Head, Mechanism, RolePath
from tests.built_by_hand import Example
from tests.models import stock_transformer


class Hops(Foreign):
    """k hops of induction over four letters, asked at the last ten places (a chain for each).

    One hop leads from a letter to the place after its last occurrence before. The first token says
    how many hops; role `hop i` is where i of them lead, absent where a letter is new.
    """

    def __init__(self, layers: int, hops: int):
        self.title = f"{hops} hop{'s' if hops > 1 else ''} in {layers} layers"
        says = "a head attends half of all hops ahead or more at once (doubling)"
        self.published = ((says, self.far),)
        self.layers, self.hops, self.asked, self.answer_role = layers, hops, range(89, 99), hops
        self.role_names = ("here", *(f"hop{number}" for number in range(1, hops + 1)), "count")

    def far(self, circuit: Circuit) -> bool:
        long = {RolePath(0, hop) for hop in range((self.hops + 1) // 2, self.hops + 1)}
        return any(path.path in long for path in circuit.every_path())

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

    def more(self, model: Any, circuit: Circuit) -> dict[str, Any]:
        """How many heads give a place some hops ahead half of their mean attention or more.

        They are idle if they do nothing of the kind in the circuit.
        """
        means = ri.mean_attention(model, self.sample(512, split="test"))[:, :, :-1, :-1]
        heads = {Head(*at[:2]) for at in (means.triu(1) >= 0.5).nonzero().tolist()}
        idle = [head for head in heads if not self.ahead(circuit[head])]
        return {"attend ahead": len(heads), "of these idle": len(idle)}

    def ahead(self, mechanism: Mechanism) -> bool:
        """Whether a head may attend some hops ahead: by a path, by a rule, or as it does."""
        if mechanism.follows_paths:
            return any(path.dest < path.src <= self.hops for path in mechanism.paths)
        return mechanism.kind not in ("uniform", "identity", "first")

    def model(self, path: Path) -> Any:
        """A GPT-2 of Hugging Face whose outputs are its last hidden state."""
        folder = path / f"models/induction_hops_full_seq/width4-depth{self.layers}"
        old = torch.load(folder / "model_100000.pt", map_location="cpu", weights_only=True)
        weights = {name.removeprefix("backbone."): value for name, value in old.items()}
        d_vocab, width = weights["wte.weight"].shape
        n_ctx = len(weights["wpe.weight"])
        sizes = {"vocab_size": d_vocab, "n_positions": n_ctx, "n_embd": width}
        gpt2 = GPT2Config(**sizes, n_layer=self.layers, n_head=4, tie_word_embeddings=False)
        theirs = GPT2LMHeadModel(gpt2)
        own = theirs.transformer.state_dict()
        theirs.transformer.load_state_dict({name: weights[name] for name in own})
        theirs.lm_head.weight.data = torch.eye(width)
        shape = {"n_layers": self.layers, "n_heads": 4, "d_model": width, "d_head": width // 4}
        shape |= {"n_ctx": n_ctx, "d_vocab": d_vocab, "d_vocab_out": width}
        model = stock_transformer(**shape, act_fn="gelu_new", device="cpu")
        model.load_state_dict(convert_gpt2_weights(theirs, model.cfg), strict=False)
        return model


main = command(
    [Hops(layers, 2**doubled) for layers in range(2, 6) for doubled in range(layers - 1)]
)

if __name__ == "__main__":
    main()
