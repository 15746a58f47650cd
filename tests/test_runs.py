import itertools
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformer_lens import HookedTransformerConfig

from retrieval_interp.circuits import ablated, mean_attention, score_circuit
from retrieval_interp.circuits.circuit import Circuit, Head, HeadPath, RolePath
from retrieval_interp.circuits.mechanisms import (
    IDENTITY,
    MECHANISMS,
    ORIGINAL,
    UNIFORM,
    Cut,
    OneHot,
)
from retrieval_interp.circuits.models.vector_transformer import VectorTransformer
from retrieval_interp.circuits.runs.hook_runs import HookRuns
from retrieval_interp.circuits.runs.layer_input import BaseInput
from retrieval_interp.circuits.runs.parted_runs import PartedRuns, make_runs
from retrieval_interp.circuits.runs.role_runs import RoleRuns
from retrieval_interp.circuits.scores.enabling import enabled_by
from retrieval_interp.tasks import InputError, RetrievalTask
from retrieval_interp.training.model import ModelConfig, build_model
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
drawn = st.dictionaries(heads, mechanism, max_size=6)


def circuit_from(data, n_heads):
    mechanisms = {}
    for head, kind in data.items():
        if head[1] >= n_heads:
            continue
        if isinstance(kind, str):
            mechanisms[Head(*head)] = MECHANISMS[kind]()
        else:
            mechanisms[Head(*head)] = MECHANISMS[kind[0]](tuple(RolePath(*p) for p in kind[1]))
    return Circuit(mechanisms, 5)


def naive(model, circuit, batch=BATCH):
    with torch.no_grad():
        return naive_outputs(model, circuit, batch)[:, -TASK.chains :]


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
        Circuit({Head(0, 1): OneHot((RolePath(0, 2),))}, 5),
        Circuit({Head(2, 0): Cut((RolePath(0, 2), RolePath(0, 4)))}, 5),
    ):
        expected = HookRuns(model, BATCH, circuit).base_outputs
        if not circuit.mechanisms:
            torch.testing.assert_close(expected, model.run_with_hooks(BATCH.inputs))
        torch.testing.assert_close(runs.outputs(circuit), expected[:, -3:], atol=1e-5, rtol=0)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(drawn, st.booleans()), min_size=3, max_size=6), st.booleans())
def test_a_base_known_in_part_is_completed(steps, keep):
    """Whatever has been asked before, and whether or not it became the base."""
    model = MODELS[True, 2]
    runs = RoleRuns(model, BATCH, Circuit({}, 5), keep)
    for data, rebased in steps:
        circuit = circuit_from(data, 2)
        expected = naive(model, circuit)
        torch.testing.assert_close(runs.outputs(circuit), expected, atol=1e-5, rtol=0)
        if rebased:
            torch.testing.assert_close(runs.rebase(circuit), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("looked", [False, True])
def test_a_sequence_of_small_changes_stays_exact(looked):
    """Many rebases in a row, as a search makes them."""
    model, circuit = MODELS[True, 2], Circuit({}, 5)
    runs = RoleRuns(model, BATCH, circuit)
    generator = torch.Generator().manual_seed(0)
    choices = [UNIFORM, IDENTITY, ORIGINAL, *(OneHot((RolePath(*p),)) for p in PATHS)]
    for _ in range(30):
        layer, head, choice = (
            int(torch.randint(n, (), generator=generator)) for n in (3, 2, len(choices))
        )
        circuit = circuit.replace((layer, head), choices[choice])
        expected = naive(model, circuit)
        if looked:
            torch.testing.assert_close(runs.outputs(circuit), expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(runs.rebase(circuit), expected, atol=1e-5, rtol=0)


def test_the_fast_way_is_taken_only_where_it_is_exact():
    model = MODELS[True, 1]
    assert isinstance(make_runs(model, BATCH, TASK), RoleRuns)
    with model.hooks(fwd_hooks=[("blocks.0.attn.hook_z", lambda z, hook: z * 2)]):
        runs = make_runs(model, BATCH, TASK)
        assert isinstance(runs, HookRuns)
        torch.testing.assert_close(runs.base_outputs, model(BATCH.inputs)[:, -3:])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kept", [0, 9_000, 10**9])
def test_a_batch_in_parts_runs_as_a_whole(kept, threads, monkeypatch):
    """Parts of three examples, of which none, one or all keep queries, keys and values."""
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    model, batch = MODELS[True, 2], TASK.sample(8, seed=4)
    first = Circuit({Head(0, 1): UNIFORM}, 5)
    second = first.replace((1, 0), OneHot((RolePath(0, 2),)))
    wholes = [naive(model, circuit, batch) for circuit in (first, second)]
    monkeypatch.setattr("retrieval_interp.circuits.runs.hook_runs.WHOLE", 3)
    monkeypatch.setattr("retrieval_interp.circuits.runs.hook_runs.PART", 3)
    monkeypatch.setattr("retrieval_interp.circuits.runs.parted_runs.KEPT", kept)
    runs = make_runs(model, batch, TASK)
    assert isinstance(runs, PartedRuns) and len(runs.parts) == 3
    assert sum(part.keep for part in runs.parts) == {0: 0, 9_000: 1}.get(kept, 3)
    for _ in range(2):
        for circuit, whole in zip((first, second), wholes):
            torch.testing.assert_close(runs.outputs(circuit), whole, atol=1e-5, rtol=0)
            torch.testing.assert_close(runs.rebase(circuit), whole, atol=1e-5, rtol=0)
            assert runs.base is circuit


def test_a_batch_is_divided_among_threads(monkeypatch):
    model, batch = MODELS[True, 2], TASK.sample(40, seed=4)
    before = torch.get_num_threads()
    alone = make_runs(model, batch, TASK)
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    monkeypatch.setattr("torch.set_num_threads", lambda threads: None)
    monkeypatch.setattr("retrieval_interp.circuits.runs.parted_runs._LEAST", 1)
    shared = make_runs(model, batch, TASK)
    assert [len(runs.mask) for runs in shared.parts] == [14, 14, 12]
    seen = set()
    layer = RoleRuns._layer

    def noted(self, *arguments):
        seen.add((shared.parts.index(self), threading.current_thread()))
        return layer(self, *arguments)

    monkeypatch.setattr(RoleRuns, "_layer", noted)
    circuit = Circuit({Head(0, 1): UNIFORM}, 5)
    for _ in range(3):
        expected = naive(model, circuit, batch)
        torch.testing.assert_close(shared.outputs(circuit), expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(shared.rebase(circuit), expected, atol=1e-5, rtol=0)
        circuit = circuit.replace((1, 1), OneHot((RolePath(0, 2),)))
    assert len(seen) == 3  # each part by one thread, always the same
    assert {place for place, _ in seen} == {0, 1, 2}
    assert threading.main_thread() not in {thread for _, thread in seen}
    monkeypatch.undo()
    torch.testing.assert_close(alone.outputs(circuit), shared.outputs(circuit))
    assert torch.get_num_threads() == before


def test_an_error_in_a_thread_reaches_the_caller(monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    runs = make_runs(MODELS[True, 2], TASK.sample(16), TASK)
    with pytest.raises(InputError, match=r"found L9\.H0"):
        runs.outputs(Circuit({Head(9, 0): UNIFORM}, 5))


def test_scores_of_a_batch_in_parts_equal_those_of_the_whole(monkeypatch):
    model, batch = MODELS[True, 2], TASK.sample(7, seed=5)
    join = HeadPath(Head(0, 1), RolePath(2, 1))
    circuit = Circuit(
        {
            join.head: OneHot((join.path, RolePath(4, 3))),
            Head(2, 0): OneHot((RolePath(0, 2),)),
        },
        5,
    )

    def scores():
        score = score_circuit(model, TASK, circuit, batch, controls=2)
        enabled = enabled_by(model, batch, [join], list(circuit.paths()), least_drop=-1.0)
        rows = [
            *([row.attention, row.live_loss, row.ablated_loss, row.se] for row in score.paths),
            *([row.when_cut, row.by_query, row.by_key] for row in enabled[join]),
        ]
        return [*itertools.chain(*rows), score.combined_loss, *score.control]

    whole = scores()
    assert len(whole) == 3 * 4 + 3 + 1 + 2
    monkeypatch.setattr("retrieval_interp.circuits.runs.hook_runs.WHOLE", 3)
    monkeypatch.setattr("retrieval_interp.circuits.runs.hook_runs.PART", 3)
    assert scores() == pytest.approx(whole, abs=1e-5)


def test_a_model_with_hooks_is_run_whole(monkeypatch):
    """They may be made for the batch, as those of `ablated` are."""
    model, batch = MODELS[True, 1], TASK.sample(4)
    circuit = Circuit({Head(0, 0): OneHot((RolePath(2, 1),))}, 5)
    with ablated(model, circuit, batch):
        whole = mean_attention(model, batch)
        monkeypatch.setattr("retrieval_interp.circuits.runs.hook_runs.WHOLE", 3)
        monkeypatch.setattr("retrieval_interp.circuits.runs.hook_runs.PART", 3)
        torch.testing.assert_close(mean_attention(model, batch), whole)


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
    runs.outputs(circuit.replace((2, 0), OneHot((RolePath(0, 2),))))
    assert computed == [(2, (0,))]
    computed.clear()
    one_hot = OneHot((RolePath(0, 2), RolePath(4, 3)))
    runs.outputs(circuit.replace((1, 0), one_hot).replace((2, 0), IDENTITY))
    assert computed == [(1, (0,)), (2, (0,))]


def tensors_of(runs):
    return [x for kept in runs.layers for x in (*kept.residual, *kept.known.values())]


@pytest.mark.parametrize("kind", MODELS)
def test_a_base_stays_where_it_is(kind):
    """Its tensors hold no others in memory and leave no holes: two blocks, whatever comes."""
    runs = RoleRuns(MODELS[kind], BATCH, Circuit({}, 5))
    blocks = {x.untyped_storage().data_ptr() for x in tensors_of(runs)}
    assert len(blocks) == 2
    for layer, path in ((0, PATHS[0]), (1, PATHS[3]), (0, PATHS[-1])):
        circuit = Circuit({Head(layer, 0): OneHot((RolePath(*path),))}, 5)
        runs.outputs(circuit.replace((2, 0), UNIFORM))
        runs.rebase(circuit)
        assert {x.untyped_storage().data_ptr() for x in tensors_of(runs)} == blocks


@pytest.mark.parametrize("stored", [0, 1, 2])  # of the layers after 0, 1 and 2, which change
def test_a_base_half_stored_is_finished(stored, monkeypatch):
    """Ctrl-C may come between any two layers."""
    model, left, store = MODELS[True, 2], iter(range(stored)), BaseInput.store
    first, second = Circuit({}, 5), Circuit({Head(0, 0): UNIFORM, Head(2, 1): IDENTITY}, 5)
    third = second.replace((1, 1), OneHot((RolePath(0, 2),)))
    runs = RoleRuns(model, BATCH, first)

    def interrupted(self, *args):
        if next(left, None) is None:
            raise KeyboardInterrupt
        store(self, *args)

    with monkeypatch.context() as patched:
        patched.setattr(BaseInput, "store", interrupted)
        with pytest.raises(KeyboardInterrupt):
            runs.rebase(second)
    for circuit in (third, first, second):
        expected = naive(model, circuit)
        torch.testing.assert_close(runs.outputs(circuit), expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(runs.rebase(circuit), expected, atol=1e-5, rtol=0)
