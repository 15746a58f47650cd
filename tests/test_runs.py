import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformer_lens import HookedTransformerConfig

from circuits.circuit import Circuit, Head
from circuits.mechanisms import IDENTITY, ORIGINAL, UNIFORM, Mechanism, RolePath
from circuits.role_runs import RoleRuns
from circuits.runs import HookRuns, make_runs
from circuits.vector_transformer import VectorTransformer
from retrieval_interp.model import ModelConfig, build_model
from tasks import RetrievalTask
from tests.test_ablation import naive_outputs
from tests.test_mechanisms import ORDER, PATHS
from tests.test_model import randomize

TASK = RetrievalTask(chains=3, steps=2, dim=4)
BATCH = TASK.sample(4, seed=3)
MODELS = {
    (mlp, heads): randomize(build_model(ModelConfig(3, heads, 16, mlp=mlp), TASK))
    for mlp in (True, False)
    for heads in (1, 2)
}


def without_norms():
    cfg = HookedTransformerConfig(
        n_layers=3, n_heads=2, d_model=16, d_head=8, n_ctx=15, d_vocab=8, d_vocab_out=8,
        attn_only=True, act_fn="gelu_new", normalization_type=None, device="cpu", seed=0,
    )  # fmt: skip
    return VectorTransformer(cfg)


def bidirectional():
    model = build_model(ModelConfig(3, 2, 16), TASK, seed=1)
    for block in model.blocks:
        block.attn.cfg.attention_dir = "bidirectional"
    model.cfg.attention_dir = "bidirectional"
    return randomize(model)


ONE_PER_DEST = {dest: [src for d, src in PATHS if d == dest] for dest in ORDER}
shared = st.sets(st.sampled_from(PATHS), max_size=5)
mechanism = st.one_of(
    st.sampled_from(["original", "uniform", "identity"]),
    st.tuples(st.sampled_from(["shared", "cut"]), shared),
)
heads = st.tuples(st.integers(0, 2), st.integers(0, 1))
drawn = st.tuples(
    st.dictionaries(heads, mechanism, max_size=6), st.sampled_from(["zero", "uniform", "identity"])
)


def circuit_from(data, n_heads):
    mechanisms = {}
    for head, kind in data[0].items():
        if head[1] >= n_heads:
            continue
        if isinstance(kind, str):
            mechanisms[Head(*head)] = Mechanism(kind)
        else:
            mechanisms[Head(*head)] = Mechanism(kind[0], tuple(RolePath(*p) for p in kind[1]))
    return Circuit(mechanisms, 5, data[1])


def naive(model, circuit):
    with torch.no_grad():
        return naive_outputs(model, circuit, BATCH)[:, -TASK.chains :]


@settings(max_examples=60, deadline=None)
@given(drawn, drawn, st.sampled_from(sorted(MODELS)))
def test_role_runs_equal_naive_runs_from_any_base(first, second, which):
    model = MODELS[which]
    base, circuit = circuit_from(first, which[1]), circuit_from(second, which[1])
    runs = RoleRuns(model, BATCH, base)
    torch.testing.assert_close(runs.base_outputs, naive(model, base), atol=1e-5, rtol=0)
    expected = naive(model, circuit)
    torch.testing.assert_close(runs.outputs(circuit), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(runs.rebase(circuit), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(runs.outputs(base), naive(model, base), atol=1e-5, rtol=0)


@settings(max_examples=15, deadline=None)
@given(drawn, drawn)
def test_hook_runs_equal_naive_runs_from_any_base(first, second):
    model = MODELS[True, 2]
    base, circuit = circuit_from(first, 2), circuit_from(second, 2)
    runs = HookRuns(model, BATCH, base)
    expected = naive(model, circuit)
    torch.testing.assert_close(runs.outputs(circuit)[:, -3:], expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(runs.rebase(circuit)[:, -3:], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("make", [without_norms, bidirectional])
def test_role_runs_are_exact_without_norms_and_without_a_mask(make):
    model = make()
    runs = RoleRuns(model, BATCH, Circuit({}, 5))
    for circuit in (
        Circuit({}, 5),
        Circuit({Head(0, 0): UNIFORM, Head(1, 1): IDENTITY}, 5),
        Circuit({Head(0, 1): Mechanism("one-hot", (RolePath(0, 2),))}, 5, "uniform"),
        Circuit({Head(2, 0): Mechanism("cut", (RolePath(0, 2), RolePath(0, 4)))}, 5),
    ):
        expected = HookRuns(model, BATCH, circuit).base_outputs
        if not circuit.mechanisms:
            torch.testing.assert_close(expected, model.run_with_hooks(BATCH.inputs))
        torch.testing.assert_close(runs.outputs(circuit), expected[:, -3:], atol=1e-5, rtol=0)


def test_a_sequence_of_small_changes_stays_exact():
    """Many rebases in a row, as a search makes them."""
    model, circuit = MODELS[True, 2], Circuit({}, 5)
    runs = RoleRuns(model, BATCH, circuit)
    generator = torch.Generator().manual_seed(0)
    choices = [UNIFORM, IDENTITY, ORIGINAL, *(Mechanism("one-hot", (RolePath(*p),)) for p in PATHS)]
    for _ in range(30):
        layer, head, choice = (
            int(torch.randint(n, (), generator=generator)) for n in (3, 2, len(choices))
        )
        circuit = circuit.replace((layer, head), choices[choice])
        torch.testing.assert_close(runs.rebase(circuit), naive(model, circuit), atol=1e-5, rtol=0)


def test_the_fast_way_is_taken_only_where_it_is_exact():
    model = MODELS[True, 1]
    assert isinstance(make_runs(model, BATCH, TASK), RoleRuns)
    with model.hooks(fwd_hooks=[("blocks.0.attn.hook_z", lambda z, hook: z * 2)]):
        runs = make_runs(model, BATCH, TASK)
        assert isinstance(runs, HookRuns)
        torch.testing.assert_close(runs.base_outputs, model(BATCH.inputs)[:, -3:])


def test_only_what_can_change_is_computed(monkeypatch):
    """A path into the query at the last layer costs one role of one layer."""
    model = MODELS[True, 1]
    circuit = Circuit({Head(layer, 0): UNIFORM for layer in range(3)}, 5)
    runs = RoleRuns(model, BATCH, circuit)
    computed = []
    layer = RoleRuns._layer

    def counted(self, index, inputs, rows, dests):
        computed.append((index, tuple(dests)))
        return layer(self, index, inputs, rows, dests)

    monkeypatch.setattr(RoleRuns, "_layer", counted)
    runs.outputs(circuit)
    assert computed == []
    runs.outputs(circuit.replace((2, 0), Mechanism("one-hot", (RolePath(0, 2),))))
    assert computed == [(2, (0,))]
    computed.clear()
    one_hot = Mechanism("one-hot", (RolePath(0, 2), RolePath(4, 3)))
    runs.outputs(circuit.replace((1, 0), one_hot).replace((2, 0), IDENTITY))
    assert computed == [(1, (0,)), (2, (0,))]
