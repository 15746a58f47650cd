"""Small untrained models, HookedTransformers and bridges, and a task for them."""

import warnings
from functools import partial

import pytest
import torch
import torch.nn.functional as F
import transformers
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge.bridge import TransformerBridge

import retrieval_interp as ri
from retrieval_interp.circuits.models import plain as blocks
from retrieval_interp.tasks.sampling import SPLITS
from tests.texts import sentence_tokenizer

needs_hooked_transformer = pytest.mark.skipif(
    not blocks.has_hooked_transformer(), reason="TransformerLens 4 has no HookedTransformer"
)


def stock_transformer(tokenizer=None, **cfg):
    """A HookedTransformer as it is, here and in benchmarks/; TransformerLens 4 has none."""
    pytest.importorskip("transformer_lens.HookedTransformer")
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "HookedTransformer is deprecated", DeprecationWarning)
        return HookedTransformer(HookedTransformerConfig(**cfg), tokenizer).eval()


def bridge_weights(ours, cfg=None):
    """What `convert_tl_checkpoint` of TransformerLens 4 does, as far as it is needed here."""
    weights = {
        "embed.weight": ours["embed.W_E"],
        "pos_embed.weight": ours["pos_embed.W_pos"],
        "unembed.weight": ours["unembed.W_U"].T,
        "unembed.bias": ours["unembed.b_U"],
    }
    for norm in (name.removesuffix(".w") for name in ours if name.endswith(".w")):
        weights |= {f"{norm}.weight": ours[f"{norm}.w"], f"{norm}.bias": ours[f"{norm}.b"]}
    for layer in range(sum(name.endswith("W_Q") for name in ours)):
        attn, mlp = f"blocks.{layer}.attn.", f"blocks.{layer}.mlp."
        for name in "QKV":
            weight = ours[f"{attn}W_{name}"]  # [head d_model d_head]
            weights[f"{attn}{name.lower()}.weight"] = weight.transpose(1, 2).flatten(0, 1)
            weights[f"{attn}{name.lower()}.bias"] = ours[f"{attn}b_{name}"].flatten()
        weights[f"{attn}o.weight"] = ours[f"{attn}W_O"].flatten(0, 1).T
        weights[f"{attn}o.bias"] = ours[f"{attn}b_O"]
        for name in ("in", "out") if f"{mlp}W_in" in ours else ():
            weights[f"{mlp}{name}.weight"] = ours[f"{mlp}W_{name}"].T
            weights[f"{mlp}{name}.bias"] = ours[f"{mlp}b_{name}"]
    return weights


def bridge_of(model):
    """A bridge with a HookedTransformer's weights."""
    names = "n_layers n_heads d_model d_head d_mlp n_ctx d_vocab d_vocab_out attn_only"
    sizes = {name: getattr(model.cfg, name) for name in (*names.split(), "normalization_type")}
    sizes |= {"act_fn": "gelu_new", "positional_embedding_type": "standard"}
    cfg = TransformerBridgeConfig(**sizes)
    bridge = TransformerBridge.boot_native(cfg)
    bridge.load_state_dict(bridge_weights(dict(model.named_parameters())), strict=True)
    return bridge.eval()


def without_norms(n_layers=3, n_ctx=15):
    sizes = {"n_layers": n_layers, "n_heads": 2, "d_model": 16, "d_head": 8, "n_ctx": n_ctx}
    plain = blocks.plain_transformer(True, None, **sizes, d_vocab=8, d_vocab_out=8, attn_only=True)
    return blocks.hooked_model(randomize(plain, seed=1))


def randomize(model, seed=0):
    """Weights in which biases and layer norms matter too."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "pos" not in name:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


class Lookup(ri.Task):
    """A start without a role, four pairs of words, then every first word again."""

    role_names = ("s0", "s1", "s2")
    loss_name = "cross entropy"

    def sample(self, n, seed=0, device="cpu", split="train", start=0):
        generator = torch.Generator().manual_seed(4 * seed + SPLITS.index(split))
        keys = torch.rand(start + n, 16, generator=generator)[start:]
        words = keys[:, :12].argsort(1)[:, :8]
        key = 2 * keys[:, 12:].argsort(1)
        inputs = torch.cat([torch.full((n, 1), 12), words, words.gather(1, key)], dim=1)
        roles = torch.stack([torch.arange(9, 13).expand(n, -1), key + 1, key + 2], dim=-1)
        return ri.Batch(inputs, words.gather(1, key + 1), roles).to(device)

    def example_losses(self, outputs, batch):
        logits = outputs[:, -4:].transpose(1, 2)
        return F.cross_entropy(logits, batch.targets, reduction="none").mean(dim=1, keepdim=True)


LOOKUP_SIZES = {
    "n_layers": 2, "n_heads": 2, "d_model": 16, "d_head": 8, "d_mlp": 32, "n_ctx": 13,
    "d_vocab": 13, "d_vocab_out": 13, "act_fn": "gelu_new",
    "normalization_type": "LN",
}  # fmt: skip


def hooked_model(**sizes):
    return randomize(stock_transformer(**{**LOOKUP_SIZES, "seed": 0, "device": "cpu", **sizes}))


_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_SIZES |= {"intermediate_size": 64, "max_position_embeddings": 64}
FAMILIES = {  # two layers of four heads, with keys that queries share
    "gpt2": partial(transformers.GPT2Config, n_embd=32, n_layer=2, n_head=4, n_positions=64),
    "llama": partial(transformers.LlamaConfig, **_SIZES, num_key_value_heads=2),
    "qwen2": partial(transformers.Qwen2Config, **_SIZES, num_key_value_heads=2),
    "gemma": partial(transformers.GemmaConfig, **_SIZES, num_key_value_heads=1, head_dim=8),
}


def untrained_bridge(family, folder):
    tokenizer = sentence_tokenizer()
    return bridge_of_config(FAMILIES[family](vocab_size=len(tokenizer)), tokenizer, folder)


def bridge_of_config(config, tokenizer, folder, kind=transformers.AutoModelForCausalLM):
    """A bridge to a model of Hugging Face with random weights, large enough to matter."""
    torch.manual_seed(0)
    model = kind.from_config(config)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return TransformerBridge.boot_transformers(str(folder), device="cpu").eval()
