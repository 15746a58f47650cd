"""A task and a model of your own: python examples/own_task.py

The task: at every place, say the word three places before. One head is enough. Then three rules of
your own, of which the search takes the one that the head follows. Needs TransformerLens 3.9.
"""

import warnings

import retrieval_interp as ri
import torch
import torch.nn.functional as F
from transformer_lens import HookedTransformer, HookedTransformerConfig

WORDS, LENGTH, BACK = 10, 12, 3


class ThreeBack(ri.Task):
    role_names = ("here", "before")
    role_labels = ("here", "three before")
    vocabulary = tuple("abcdefghij")  # for axes
    loss_name = "cross entropy"

    def sample(self, n, seed=0, device="cpu", split="train", start=0):
        splits = ["train", "validation", "discovery", "test"]
        generator = torch.Generator().manual_seed(4 * seed + splits.index(split))
        words = torch.randint(WORDS, (start + n, LENGTH), generator=generator)[start:]
        here = torch.arange(BACK, LENGTH)  # a chain for every place that has a third before it
        roles = torch.stack([here, here - BACK], dim=-1).expand(n, -1, -1)
        return ri.Batch(words, words[:, :-BACK], roles).to(device)

    def example_losses(self, outputs, batch):
        logits = outputs[:, BACK:].transpose(1, 2)
        return F.cross_entropy(logits, batch.targets, reduction="none").mean(dim=1, keepdim=True)


task = ThreeBack()
with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "HookedTransformer is deprecated", DeprecationWarning)
    sizes = {"n_layers": 1, "d_model": 32, "d_head": 32, "n_ctx": LENGTH, "d_vocab": WORDS}
    cfg = HookedTransformerConfig(**sizes, attn_only=True, seed=0, device="cpu")
    model = HookedTransformer(cfg)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(300):
    batch = task.sample(64, seed=step)
    loss = task.example_losses(model(batch.inputs), batch).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

bench = ri.open(model.eval(), task)
print(bench.roles(), bench.ablations(), bench.suppose("L0.H0 here<-before"), sep="\n\n")
print(bench.score())


# A task whose roles do not name the place where the head looks: no path is true, but a rule may be.
class Here(ThreeBack):
    role_names = role_labels = ("here",)

    def sample(self, *asked, **options):
        batch = super().sample(*asked, **options)
        return ri.Batch(batch.inputs, batch.targets, batch.roles[..., :1])


def after_next_letter(tokens):  # to the last place behind the next word of the alphabet
    weights = torch.zeros(len(tokens), len(tokens))
    for dest, token in enumerate(tokens):
        behind = [n for n in range(1, dest + 1) if tokens[n - 1] == token + 1]
        weights[dest, behind[-1] if behind else 0] = 1
    return weights


ri.rule("two-back", lambda tokens: torch.eye(len(tokens)).roll(2, 0).tril())
ri.rule("three-back", lambda tokens: torch.eye(len(tokens)).roll(3, 0).tril())
ri.rule("after-next-letter", after_next_letter)
print("\nby rules:", ri.discover(model, Here(), examples=64))
