"""Which models are right: every mechanism against plain hooks, in tiny ones of random weights."""

import itertools

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.circuits.counterfactual.mechanism import Counterfactual, with_counterfactual
from retrieval_interp.circuits.hooks import layer_masks, measuring
from retrieval_interp.circuits.mechanisms import Mean, RoleMean, Where
from retrieval_interp.circuits.paths import Head, RolePath
from retrieval_interp.circuits.runs.means import pattern_shares, read_patterns
from retrieval_interp.circuits.scores.scorer import Scorer
from retrieval_interp.tasks import InputError
from tests.test_model import randomize, stock_transformer
from tests.tiny_tokenizers import byte_pairs

NONE, WINDOW = (None, None), 4
SIZES = {
    "vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 64,
}  # fmt: skip
SHARED = SIZES | {"num_key_value_heads": 2, "sliding_window": WINDOW}
SOME = SHARED | {"use_sliding_window": True, "max_window_layers": 1}
GEMMA = SHARED | {"head_dim": 8, "query_pre_attn_scalar": 16}
OLD = {"vocab_size": 40, "n_layer": 2, "n_head": 4}
FAMILIES = {  # by Hugging Face's names: options, and each layer's window
    "GPT2": (OLD | {"n_embd": 32}, NONE),
    "GPTNeo": (
        {**SIZES, "num_layers": 2, "num_heads": 4, "window_size": WINDOW}
        | {"attention_types": [[["global", "local"], 1]]},
        (None, WINDOW),
    ),
    "GPTNeoX": (SIZES, NONE),
    "GPTJ": (OLD | {"n_embd": 32, "rotary_dim": 4}, NONE),
    "Llama": (SIZES | {"num_key_value_heads": 2}, NONE),
    "Mistral": (SHARED, (WINDOW, WINDOW)),
    "Qwen2": (SOME, (None, WINDOW)),
    "Qwen3": (SOME | {"head_dim": 8}, (None, WINDOW)),
    "Gemma2": (GEMMA, (WINDOW, None)),
    "Gemma3Text": (
        GEMMA | {"layer_types": ["sliding_attention", "full_attention"]}, (WINDOW, None)
    ),
    "Phi": (SIZES, NONE),
    "OPT": (
        {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
        | {"ffn_dim": 64, "word_embed_proj_dim": 32},
        NONE,
    ),
    "Bloom": (OLD | {"hidden_size": 32}, NONE),
    "Mpt": ({"vocab_size": 40, "d_model": 32, "n_layers": 2, "n_heads": 4}, NONE),
    "Falcon": (SIZES | {"alibi": True, "multi_query": False}, NONE),
    "Bert": (SIZES, NONE),
}
HOOKED = {
    "global": ({}, NONE),
    "local": (
        {"use_local_attn": True, "window_size": WINDOW, "attn_types": ["local", "global"]},
        (WINDOW, None),
    ),
    "bidirectional": ({"attention_dir": "bidirectional"}, NONE),
}
ENCODERS = ("Bert", "bidirectional")
ROTATED = {"GPTNeo", "GPTJ"}


def make(name, folder):
    if name in HOOKED:
        sizes = {"n_layers": 2, "n_heads": 4, "d_model": 32, "d_head": 8, "d_mlp": 64, "n_ctx": 64}
        sizes |= {"d_vocab": 40, "act_fn": "gelu_new", "device": "cpu", "seed": 0}
        return randomize(stock_transformer(**sizes, **HOOKED[name][0])).eval()
    import transformers
    from transformer_lens.model_bridge import TransformerBridge

    auto = transformers.AutoModelForMaskedLM if name == "Bert" else transformers.AutoModelForCausalLM
    torch.manual_seed(0)
    model = auto.from_config(getattr(transformers, f"{name}Config")(**FAMILIES[name][0]))
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    byte_pairs(["a b"], vocab_size=300).save_pretrained(folder)
    return TransformerBridge.boot_transformers(str(folder), device="cpu").eval()


class Asked(ri.Task):
    """What follows the last of twelve tokens, with a place near it and one that is far."""

    role_names = ("END", "near", "far")
    answer_roles = (0,)

    def sample(self, n, seed=0, device="cpu", split="train", start=0):
        draw = torch.Generator().manual_seed(10 * seed + len(split))
        tokens = torch.randint(5, 12, (start + n, 12), generator=draw)[start:]
        near, far = 9 + tokens[:, 0] % 2, 1 + tokens[:, 1] % 3
        roles = torch.stack([torch.full_like(near, 11), near, far], dim=-1)[:, None]
        return ri.Batch(tokens, tokens[:, :1], roles).to(device)

    def example_losses(self, outputs, batch):
        logits = self.answers(outputs, batch)[:, 0, 0]
        return -logits.log_softmax(-1).gather(-1, batch.targets)


TASK = Asked()
LINES = ["uniform", "identity", "previous", "first", "same", "after-same"]
LINES += ["one-hot END<-near", "shared END<-near END<-END near<-near", "cut END<-near"]


def may_see(window, encoder, dest, src):
    return (encoder or src <= dest) and (window is None or abs(dest - src) < window)


def by_hand(kind, window, encoder, tokens, roles, own, other):
    """The pattern of one example, [dest src], in a loop."""
    new, (end, near, _) = torch.zeros(12, 12), roles
    if kind.startswith("cut"):
        new = own.clone()
        new[end, near] = 0
    elif kind == "counterfactual":  # keeps END<-near
        new = other.clone()
        new[end] *= (own[end].sum() - own[end, near]) / (other[end].sum() - other[end, near])
        new[end, near] = own[end, near]
    elif kind.startswith("one-hot"):
        new[end, near] = 1
    elif kind.startswith("shared"):
        new[end, near] = new[end, end] = 0.5
        new[near, near] = 1
    elif kind == "role-mean":
        new[end, near], new[near, near] = 0.3, 0.6
    for dest in range(12 if not new.any() else 0):
        seen = [src for src in range(12) if may_see(window, encoder, dest, src)]
        earlier = [src for src in range(dest) if tokens[src] == tokens[dest]]
        before = [src + 1 for src in range(dest - 1) if tokens[src] == tokens[dest - 0]]
        wanted = {"uniform": seen, "identity": [dest], "previous": [dest - 1], "first": []}
        wanted |= {"same": earlier, "after-same": [src + 1 for src in earlier]}
        row = [src for src in wanted[kind] if src in seen] or seen[:1]
        new[dest, row] = 1 / len(row)
    return new


def plain_losses(model, batch, head, new):
    """With one head's attention replaced by what it writes then."""
    _, cache = model.run_with_cache(batch.inputs)
    values = cache[f"blocks.{head.layer}.attn.hook_v"]

    def put(z, hook):
        z = z.clone()
        z[:, :, head.head] = new @ values[:, :, head.head * values.shape[2] // z.shape[2]]
        return z

    place = f"blocks.{head.layer}.attn.hook_z"
    return TASK.example_losses(model.run_with_hooks(batch.inputs, fwd_hooks=[(place, put)]), batch)


@pytest.mark.parametrize("name", [*FAMILIES, *HOOKED])
@torch.no_grad()
def test_every_mechanism_equals_plain_hooks(name, tmp_path):
    model, (_, windows) = make(name, tmp_path), {**FAMILIES, **HOOKED}[name]
    batch, encoder = TASK.sample(5, split="test"), name in ENCODERS
    masks = layer_masks(model, batch)
    assert [(mask.causal, mask.window) for mask in masks] == [(not encoder, w) for w in windows]
    batch = with_counterfactual(model, batch, TASK.sample(5, seed=1))
    scorer, empty = Scorer(model, TASK, batch), ri.parse_circuit([], TASK)
    patterns = read_patterns(model, batch, torch.Tensor.float)
    paths = RolePath(0, 1), RolePath(1, 1)
    for head in (Head(0, 1), Head(1, 2)):
        own = patterns[head.layer][:, head.head]
        mean = Mean(own.mean(0))
        mechanisms = {line: ri.parse_circuit([f"{head} {line}"], TASK)[head] for line in LINES}
        mechanisms |= {"mean": mean, "role-mean": RoleMean(paths, (0.3, 0.6))}
        mechanisms |= {"counterfactual": Counterfactual(paths[:1])}
        for kind, mechanism in mechanisms.items():
            each = zip(batch.inputs, batch.roles[:, 0], own, batch.counterfactual[:, head.layer, head.head])
            new = [mean.weights if kind == "mean" else by_hand(kind, windows[head.layer], encoder, *one) for one in each]
            expected = plain_losses(model, batch, head, torch.stack(new))
            try:
                found = scorer.losses(empty.replace(head, mechanism))
                print(name, head, kind, (found - expected).abs().max().item(), (found-scorer.base_losses).abs().max().item())
            except InputError as error:
                print(name, head, kind, error)
