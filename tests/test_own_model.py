"""Tasks and models that are not this project's: tokens, HookedTransformer, TransformerBridge."""

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.circuits import Scorer
from retrieval_interp.circuits.hooks import probed
from tests.oracles import Lookup, bridge_of, hooked_model, naive_outputs

CIRCUITS = [
    [],
    ["L0.H0 uniform", "L1.H1 uniform"],
    ["L0.H1 identity", "L1.H0 uniform"],
    ["L0.H0 one-hot s2<-s1", "L1.H0 one-hot s0<-s2"],
    ["L0.H1 one-hot s2<-s1", "L0.H0 shared s2<-s1 s2<-s2", "L1.H1 identity"],
    ["L0.H0 cut s2<-s1"],
    ["L1.H0 cut s0<-s2 s0<-s1", "L1.H1 one-hot s0<-s2", "L0.H1 cut s1<-s1"],
    ["L0.H0 first", "L0.H1 previous"],
    ["L0.H0 same", "L1.H0 after-same"],
]


@pytest.fixture(scope="module")
def task():
    return Lookup()


@pytest.fixture(scope="module")
def bridge(hooked):
    return bridge_of(hooked)


@pytest.mark.parametrize("lines", CIRCUITS)
@torch.no_grad()
def test_losses_on_tokens_equal_runs_with_hooks_set_by_hand(task, hooked, lines):
    batch = task.sample(6, split="test")
    circuit = ri.parse_circuit(lines, task)
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
    assert probed(hooked, batch).pattern_is_used and not probed(bridge, batch).pattern_is_used
    circuit = ri.parse_circuit(lines, task)
    ours, theirs = (Scorer(model, task, batch) for model in (hooked, bridge))
    torch.testing.assert_close(theirs.losses(circuit), ours.losses(circuit), atol=1e-5, rtol=0)
    if lines:
        assert not torch.allclose(ours.losses(circuit), ours.base_losses, atol=1e-4)


def test_what_a_bridge_shows_is_what_was_used(task, bridge):
    bench = ri.open(bridge, task, examples=8)
    bench.suppose("L0.H0 uniform", "L1.H0 cut s0<-s2")
    pattern = bench.attention(0, 0, with_circuit=True).data[0, 0]
    allowed = torch.ones(13, 13).tril()
    torch.testing.assert_close(pattern, allowed / allowed.sum(-1, keepdim=True))
    assert float(bench.roles(with_circuit=True).data[1, 0][0, 2]) == 0.0


@torch.no_grad()
def test_no_layer_is_left_out_where_that_would_change_the_numbers(task, hooked):
    """A hook of the user's in front of a layer, and positions that every layer adds anew."""
    batch = task.sample(6)
    circuit = ri.parse_circuit(["L1.H0 uniform"], task)
    hook = ("blocks.1.hook_resid_pre", lambda stream, hook: stream + 1.0)
    with hooked.hooks(fwd_hooks=[hook]):
        expected = task.example_losses(naive_outputs(hooked, circuit, batch), batch)
        found = Scorer(hooked, task, batch).losses(circuit)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    model = hooked_model(positional_embedding_type="shortformer", seed=1)
    expected = task.example_losses(naive_outputs(model, circuit, batch), batch)
    torch.testing.assert_close(Scorer(model, task, batch).losses(circuit), expected)


@torch.no_grad()
def test_what_enables_what_is_known_with_rotary_attention(task):
    """By the queries of the model with a path cut, and the keys of the intact one, or reversely."""
    model, batch = hooked_model(positional_embedding_type="rotary", rotary_dim=8), task.sample(8)
    cut, later = (ri.parse_head_path(text, task) for text in ("L0.H0 s2<-s1", "L1.H0 s0<-s2"))
    (found,) = ri.enabled_by(model, batch, [cut], [later], least_drop=-1.0)[cut]
    runs = []
    for circuit in (ri.parse_circuit([], task), ri.parse_circuit([], task).cut(cut)):
        with ri.ablated(model, circuit, batch):
            _, cache = model.run_with_cache(batch.inputs)
        runs.append([cache[f"blocks.1.attn.hook_rot_{side}"][:, :, 0] for side in "qk"])
    (q, k), (cut_q, cut_k) = runs
    example, dest, src = torch.arange(8)[:, None], batch.roles[:, :, 0], batch.roles[:, :, 2]
    for queries, keys, value in (
        (q, k, found.attention),
        (cut_q, cut_k, found.when_cut),
        (cut_q, k, found.by_query),
        (q, cut_k, found.by_key),
    ):
        scores = queries @ keys.mT / queries.shape[-1] ** 0.5
        hidden = torch.ones_like(scores).triu(1).bool()
        pattern = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        assert value == pytest.approx(float(pattern[example, dest, src].mean()), abs=1e-5)
