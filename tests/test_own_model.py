"""Tasks and models that are not this project's: tokens, HookedTransformer, TransformerBridge."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge.bridge import TransformerBridge

import retrieval_interp as ri
from circuits import Scorer
from circuits.value_hooks import pattern_is_used
from tasks import InputError
from tests.test_ablation import naive_outputs
from tests.test_model import bridge_weights, randomize


class Lookup(ri.Task):
    """A start without a role, four pairs of words, then every first word again."""

    role_names = ("s0", "s1", "s2")
    loss_name = "cross entropy"

    def sample(self, n, seed=0, device="cpu", split="train", start=0):
        splits = ["train", "validation", "discovery", "test"]
        generator = torch.Generator().manual_seed(4 * seed + splits.index(split))
        keys = torch.rand(start + n, 16, generator=generator)[start:]
        words = keys[:, :12].argsort(1)[:, :8]
        key = 2 * keys[:, 12:].argsort(1)
        inputs = torch.cat([torch.full((n, 1), 12), words, words.gather(1, key)], dim=1)
        roles = torch.stack([torch.arange(9, 13).expand(n, -1), key + 1, key + 2], dim=-1)
        return ri.Batch(inputs, words.gather(1, key + 1), roles).to(device)

    def example_losses(self, outputs, batch):
        logits = outputs[:, -4:].transpose(1, 2)
        return F.cross_entropy(logits, batch.targets, reduction="none").mean(dim=1, keepdim=True)


SIZES = {
    "n_layers": 2,
    "n_heads": 2,
    "d_model": 16,
    "d_head": 8,
    "d_mlp": 32,
    "n_ctx": 13,
    "d_vocab": 13,
    "d_vocab_out": 13,
    "act_fn": "gelu_new",
    "normalization_type": "LN",
}
CIRCUITS = [
    [],
    ["L0.H0 uniform", "L1.H1 uniform"],
    ["L0.H1 identity", "L1.H0 uniform"],
    ["L0.H0 one-hot s2<-s1", "L1.H0 one-hot s0<-s2"],
    ["L0.H1 one-hot s2<-s1", "L0.H0 shared s2<-s1 s2<-s2", "L1.H1 identity"],
    ["L0.H0 cut s2<-s1"],
    ["L1.H0 cut s0<-s2 s0<-s1", "L1.H1 one-hot s0<-s2", "L0.H1 cut s1<-s1"],
]


@pytest.fixture(scope="module")
def task():
    return Lookup()


@pytest.fixture(scope="module")
def hooked():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "HookedTransformer is deprecated", DeprecationWarning)
        model = HookedTransformer(HookedTransformerConfig(**SIZES, seed=0, device="cpu"))
    return randomize(model).eval()


@pytest.fixture(scope="module")
def bridge(hooked):
    cfg = TransformerBridgeConfig(**SIZES, positional_embedding_type="standard")
    bridge = TransformerBridge.boot_native(cfg)
    bridge.load_state_dict(bridge_weights(hooked), strict=True)
    return bridge.eval()


@pytest.mark.parametrize("rest", ["zero", "uniform", "identity"])
@pytest.mark.parametrize("lines", CIRCUITS)
@torch.no_grad()
def test_losses_on_tokens_equal_runs_with_hooks_set_by_hand(task, hooked, lines, rest):
    batch = task.sample(6, split="test")
    circuit = ri.parse_circuit(lines, task, rest)
    expected = task.example_losses(naive_outputs(hooked, circuit, batch), batch)
    scorer = Scorer(hooked, task, batch)
    torch.testing.assert_close(scorer.losses(circuit), expected, atol=1e-5, rtol=0)
    scorer.rebase(circuit)
    back = scorer.losses(scorer.empty_circuit)
    intact = task.example_losses(hooked(batch.inputs), batch)
    torch.testing.assert_close(back, intact, atol=1e-5, rtol=0)


@pytest.mark.parametrize("lines", CIRCUITS)
def test_a_bridge_has_the_same_losses_as_the_same_weights_hooked(task, hooked, bridge, lines):
    """The bridge shows its pattern and does not use what a hook returns there."""
    batch = task.sample(6, split="test")
    assert pattern_is_used(hooked, batch) and not pattern_is_used(bridge, batch)
    circuit = ri.parse_circuit(lines, task)
    ours, theirs = (Scorer(model, task, batch) for model in (hooked, bridge))
    torch.testing.assert_close(theirs.losses(circuit), ours.losses(circuit), atol=1e-5, rtol=0)
    if lines:
        assert not torch.allclose(ours.losses(circuit), ours.base_losses, atol=1e-4)


def test_a_bridge_gets_the_same_score_on_the_workbench(task, hooked, bridge):
    scores = []
    for model in (hooked, bridge):
        bench = ri.open(model, task, examples=16)
        bench.suppose("L0.H0 one-hot s2<-s1", "L1.H0 one-hot s0<-s2", "L1.H1 identity")
        assert "s0<-s2" in repr(bench.roles()) + repr(bench)
        scores.append(bench.score().data)
    ours, theirs = scores
    assert ours.combined_mse == pytest.approx(theirs.combined_mse, abs=1e-5)
    assert ours.control == pytest.approx(theirs.control, abs=1e-4)
    assert [row.path for row in ours.paths] == [row.path for row in theirs.paths]
    for mine, other in zip(ours.paths, theirs.paths):
        assert mine.ablated_mse == pytest.approx(other.ablated_mse, abs=1e-5)
        assert mine.live_mse == pytest.approx(other.live_mse, abs=1e-5)
        assert [later.path for later in mine.enables] == [later.path for later in other.enables]


def test_a_model_without_its_task_is_refused(hooked):
    with pytest.raises(InputError, match=r"no checkpoint \(HookedTransformer\): ri.open\(model,"):
        ri.open(hooked)
