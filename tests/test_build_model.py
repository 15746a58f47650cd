"""Models for vectors: blocks and weights."""

import copy

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.model import initial_weights
from tests.models import needs_hooked_transformer, randomize


@needs_hooked_transformer
@pytest.mark.parametrize("compiling", [True, False])
@pytest.mark.parametrize("mlp", [True, False])
def test_our_block_equals_the_stock_block_and_fires_the_same_hooks(
    task, mlp, compiling, monkeypatch
):
    from transformer_lens.components.attention import Attention
    from transformer_lens.components.transformer_block import TransformerBlock

    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    model = randomize(ri.build_model(ri.ModelConfig(2, 2, 16, mlp=mlp), task))
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


def test_the_same_seed_gives_the_same_weights_and_leaves_the_random_state_alone(task, config):
    before = torch.random.get_rng_state()
    first, second, third = (ri.build_model(config, task, seed) for seed in (3, 3, 4))
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(first.W_Q, second.W_Q) and not torch.equal(first.W_Q, third.W_Q)


def test_linear_init_is_that_of_pytorchs_linear_layers():
    """Every weight against a torch.nn.Linear of its sizes; heads together are one linear layer."""
    task, config = ri.RetrievalTask(), ri.ModelConfig(layers=1, heads=4, d_model=64)
    weights = dict(initial_weights(config, task, 1, "linear").named_parameters())
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
