import copy
import warnings

import pytest
import torch
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.components.attention import Attention
from transformer_lens.components.transformer_block import TransformerBlock
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge.bridge import TransformerBridge

from retrieval_interp.circuits.models.transformer import VectorTransformer
from retrieval_interp.model import ModelConfig, build_model
from retrieval_interp.tasks import RetrievalTask


def stock_transformer(tokenizer=None, **cfg):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "HookedTransformer is deprecated", DeprecationWarning)
        return HookedTransformer(HookedTransformerConfig(**cfg), tokenizer).eval()


def bridge_of(model):
    """A bridge with a HookedTransformer's weights."""
    names = "n_layers n_heads d_model d_head d_mlp n_ctx d_vocab d_vocab_out attn_only"
    sizes = {name: getattr(model.cfg, name) for name in (*names.split(), "normalization_type")}
    sizes |= {"act_fn": "gelu_new", "positional_embedding_type": "standard"}
    cfg = TransformerBridgeConfig(**sizes)
    bridge = TransformerBridge.boot_native(cfg)
    bridge.load_state_dict(as_bridge(dict(model.named_parameters())), strict=True)
    return bridge.eval()


def without_norms(n_layers=3, n_ctx=15):
    cfg = HookedTransformerConfig(
        n_layers=n_layers, n_heads=2, d_model=16, d_head=8, n_ctx=n_ctx, d_vocab=8, d_vocab_out=8,
        attn_only=True, act_fn="gelu_new", normalization_type=None, device="cpu", seed=0,
    )  # fmt: skip
    return VectorTransformer(cfg)


def randomize(model):
    """Weights in which biases and layer norms matter too."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name != "pos_embed.W_pos":
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.parametrize("compiling", [True, False])
@pytest.mark.parametrize("mlp", [True, False])
def test_our_block_equals_the_stock_block_and_fires_the_same_hooks(
    task, mlp, compiling, monkeypatch
):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    model = randomize(build_model(ModelConfig(2, 2, 16, mlp=mlp), task))
    stock = copy.deepcopy(model)
    for block in stock.blocks:
        block.__class__, block.attn.__class__ = TransformerBlock, Attention
    inputs = task.sample(4).inputs
    ours, our_cache = model.run_with_cache(inputs)
    theirs, their_cache = stock.run_with_cache(inputs)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    assert set(our_cache.keys()) == set(their_cache.keys())
    for name, value in our_cache.items():
        torch.testing.assert_close(value, their_cache[name], atol=1e-5, rtol=0)


def test_hooks_may_write_into_what_they_get(task, model):
    inputs = task.sample(4).inputs

    def silence_in_place(q, hook):
        q[:, :, 0] = 0
        return q

    def silence(q, hook):
        return torch.cat([torch.zeros_like(q[:, :, :1]), q[:, :, 1:]], 2)

    changed, expected = (
        model.run_with_hooks(inputs, fwd_hooks=[("blocks.1.attn.hook_q", hook)])
        for hook in (silence_in_place, silence)
    )
    torch.testing.assert_close(changed, expected)
    changed.sum().backward()


@pytest.mark.parametrize("mlp", [True, False])
def test_a_stock_hooked_transformer_has_the_same_weights_and_outputs(task, mlp):
    model = randomize(build_model(ModelConfig(3, 2, 16, 5, mlp), task))
    stock = stock_transformer(**vars(model.cfg))
    stock.load_state_dict(model.state_dict(), strict=True)
    inputs = task.sample(4).inputs
    outputs = stock(inputs @ stock.W_E, start_at_layer=0)
    torch.testing.assert_close(outputs, model(inputs), atol=1e-5, rtol=0)


def as_bridge(ours, cfg=None):
    """What `convert_tl_checkpoint` of TransformerLens 4 does, as far as it is needed here."""
    weights = {
        "embed.weight": ours["embed.W_E"],
        "pos_embed.weight": ours["pos_embed.W_pos"],
        "ln_final.weight": ours["ln_final.w"],
        "ln_final.bias": ours["ln_final.b"],
        "unembed.weight": ours["unembed.W_U"].T,
        "unembed.bias": ours["unembed.b_U"],
    }
    for layer in range(sum(name.endswith("W_Q") for name in ours)):
        block = f"blocks.{layer}."
        mlp = f"{block}mlp.W_in" in ours
        for norm in ("ln1", "ln2") if mlp else ("ln1",):
            weights[f"{block}{norm}.weight"] = ours[f"{block}{norm}.w"]
            weights[f"{block}{norm}.bias"] = ours[f"{block}{norm}.b"]
        for name in "QKV":
            weight = ours[f"{block}attn.W_{name}"]  # [head d_model d_head]
            weights[f"{block}attn.{name.lower()}.weight"] = weight.transpose(1, 2).flatten(0, 1)
            weights[f"{block}attn.{name.lower()}.bias"] = ours[f"{block}attn.b_{name}"].flatten()
        weights[f"{block}attn.o.weight"] = ours[f"{block}attn.W_O"].flatten(0, 1).T
        weights[f"{block}attn.o.bias"] = ours[f"{block}attn.b_O"]
        for name in ("in", "out") if mlp else ():
            weights[f"{block}mlp.{name}.weight"] = ours[f"{block}mlp.W_{name}"].T
            weights[f"{block}mlp.{name}.bias"] = ours[f"{block}mlp.b_{name}"]
    return weights


def test_the_same_seed_gives_the_same_weights_and_leaves_the_random_state_alone(task, config):
    before = torch.random.get_rng_state()
    first, second, third = (build_model(config, task, seed) for seed in (3, 3, 4))
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(first.W_Q, second.W_Q) and not torch.equal(first.W_Q, third.W_Q)


def test_linear_init_is_that_of_pytorchs_linear_layers():
    """Every weight against a torch.nn.Linear of its sizes; heads together are one linear layer."""
    task, config = RetrievalTask(), ModelConfig(layers=1, heads=4, d_model=64)
    weights = dict(build_model(config, task, seed=1, init="linear").named_parameters())
    sizes = {
        "embed.W_E": (task.d_in, 64),
        "unembed.W_U": (64, task.d_out),
        **{f"blocks.0.attn.W_{name}": (64, 64) for name in "QKVO"},
        "blocks.0.mlp.W_in": (64, 256),
        "blocks.0.mlp.W_out": (256, 64),
    }
    drawn = {name for name, weight in weights.items() if len(weight.unique()) > 2}
    assert drawn == sizes.keys()  # biases and the positional embedding stay as they were
    for name, (inputs, outputs) in sizes.items():
        linear = torch.nn.Linear(inputs, outputs).weight.detach()
        assert weights[name].numel() == linear.numel()
        assert weights[name].abs().max() <= inputs**-0.5
        assert float(weights[name].detach().std()) == pytest.approx(float(linear.std()), rel=0.1)
