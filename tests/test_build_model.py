"""Models for vectors: blocks and weights."""

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.circuits.models.plain import PlainTransformer
from tests.models import randomize


@pytest.mark.parametrize("mlp", [True, False])
def test_a_model_with_hook_points_equals_the_one_without(task, mlp):
    model = randomize(ri.build_model(ri.ModelConfig(2, 2, 16, mlp=mlp), task))
    plain, inputs = PlainTransformer.of(model), task.sample(4).inputs
    torch.testing.assert_close(plain(inputs), model(inputs), atol=1e-5, rtol=0)
    trained, plainly_trained = (
        {name: weight.shape for name, weight in net.named_parameters() if weight.requires_grad}
        for net in (model, plain)
    )
    assert trained == plainly_trained


def test_the_same_seed_gives_the_same_weights_and_leaves_the_random_state_alone(task, config):
    before = torch.random.get_rng_state()
    first, second, third = (ri.build_model(config, task, seed) for seed in (3, 3, 4))
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(first.W_Q, second.W_Q) and not torch.equal(first.W_Q, third.W_Q)


def test_linear_init_is_that_of_pytorchs_linear_layers():
    """Every weight against a torch.nn.Linear of its sizes; heads together are one linear layer."""
    task, config = ri.RetrievalTask(), ri.ModelConfig(layers=1, heads=4, d_model=64)
    weights = dict(ri.build_model(config, task, seed=1, init="linear").named_parameters())
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
