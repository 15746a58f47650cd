"""Hooks that come and go, and runs by hooks and by roles against hooks set by hand."""

import threading
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import retrieval_interp as ri
from retrieval_interp.circuits.losses import HookRuns, make_runs
from retrieval_interp.circuits.mechanisms import (
    UNIFORM,
    Cut,
    First,
    Identity,
    Mean,
    OneHot,
    Original,
    Previous,
    Shared,
    Uniform,
)
from retrieval_interp.circuits.models.plain import has_hooked_transformer
from retrieval_interp.circuits.role_runs import RoleRuns
from tests.models import needs_hooked_transformer, randomize, without_norms
from tests.naive import PATHS, hooks_left, naive_outputs


def test_the_users_own_hooks_alone_are_left_after_success_error_and_nesting(task, model):
    batch, runs = task.sample(2), []
    outer = ri.parse_circuit(["L0.H0 uniform"], task)
    inner = ri.parse_circuit(["L0.H1 s0<-s2 s2<-s1", "L0.H0 uniform", "L2.H0 identity"], task)
    model.blocks[0].attn.hook_pattern.add_hook(lambda pattern, hook: runs.append(1))
    before = hooks_left(model)
    with ri.ablated(model, outer, batch):
        outer_outputs = model(batch.inputs)
        with pytest.raises(ZeroDivisionError), ri.ablated(model, inner, batch):
            inner_outputs = model(batch.inputs)
            raise ZeroDivisionError
        torch.testing.assert_close(model(batch.inputs), outer_outputs)
    torch.testing.assert_close(inner_outputs, naive_outputs(model, inner, batch))
    assert not torch.allclose(inner_outputs, outer_outputs)
    assert hooks_left(model) == before and len(runs) == 4


@needs_hooked_transformer  # a bridge also runs the blocks that it skips
def test_a_hook_that_did_not_fire_is_an_error(task, model):
    batch = task.sample(2)
    circuit = ri.Circuit({ri.Head(0, 0): UNIFORM}, 5)
    with pytest.raises(ri.InputError, match="blocks.0.attn.hook_pattern did not"):
        with ri.ablated(model, circuit, batch):
            pass
    residual = model(batch.inputs, stop_at_layer=1)
    with pytest.raises(ri.InputError, match="blocks.0.attn.hook_pattern did not"):
        with ri.ablated(model, circuit, batch):
            model(residual, start_at_layer=1)


def test_hooks_for_another_batch_are_refused(task, model):
    circuit = ri.parse_circuit(["L0.H0 s0<-s2"], task)
    with pytest.raises(ri.InputError, match="for a batch of 3 examples and 15 positions, but"):
        with ri.ablated(model, circuit, task.sample(3)):
            model(task.sample(4).inputs)


# Runs

TASK = ri.RetrievalTask(chains=3, steps=2, dim=4)
BATCH = TASK.sample(4, seed=3)


def of_vectors(heads, **sizes):
    return randomize(ri.build_model(ri.ModelConfig(3, heads, 16, **sizes), TASK))


def bidirectional():
    model = of_vectors(2)
    for cfg in (model.cfg, *(block.attn.cfg for block in model.blocks)):
        cfg.attention_dir = "bidirectional"
    return model


MODELS = {
    "one head": of_vectors(1),
    "two heads": of_vectors(2),
    "without MLP": of_vectors(2, mlp=False),
    "without norms": randomize(without_norms()),
    # A bridge takes its mask from what it wraps.
    **({"without a mask": bidirectional()} if has_hooked_transformer() else {}),
}
shared = st.sets(st.sampled_from([ri.RolePath(*path) for path in PATHS]), max_size=5)
mean = partial(Mean, torch.arange(225.0).sin().view(15, 15).softmax(-1).tril())
RULES = [Original, Uniform, Identity, First, Previous, mean]
without_paths = st.tuples(st.sampled_from(RULES))
mechanism = st.one_of(without_paths, st.tuples(st.sampled_from([Shared, Cut]), shared))
heads = st.tuples(st.integers(0, 2), st.integers(0, 1))
drawn = st.dictionaries(heads, mechanism, max_size=6)


def circuit_from(data, n_heads):
    mechanisms = {
        ri.Head(*head): kind(*map(tuple, paths))
        for head, (kind, *paths) in data.items()
        if head[1] < n_heads
    }
    return ri.Circuit(mechanisms, 5)


def check(runs, circuit, base, model, batch=BATCH):
    """A run equals one with hooks set by hand, and so does its base, which is returned."""
    expected = naive_outputs(model, circuit, batch)[:, -TASK.chains :]
    found = runs.outputs(circuit, base)[:, -TASK.chains :]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    base = runs.base(circuit, base)
    found = runs.outputs(circuit, base)[:, -TASK.chains :]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    return base


@pytest.mark.parametrize("make", [RoleRuns, HookRuns])
@settings(max_examples=20)
@given(drawn, drawn, st.sampled_from(sorted(MODELS)))
def test_runs_equal_naive_runs_from_any_base(make, first, second, which):
    model, runs = MODELS[which], make(MODELS[which], BATCH)
    before, circuit = (circuit_from(data, model.cfg.n_heads) for data in (first, second))
    old = runs.base(before)
    check(runs, circuit, old, model)
    check(runs, before, old, model)  # another run leaves it as it is


def test_the_fast_way_is_taken_only_where_it_is_exact():
    model, empty = MODELS["one head"], ri.Circuit({}, 5)
    assert make_runs(model, BATCH, TASK).are_cheap
    with model.hooks(fwd_hooks=[("blocks.0.attn.hook_z", lambda z, hook: z * 2)]):
        runs = make_runs(model, BATCH, TASK)
        assert not runs.are_cheap
        outputs = runs.outputs(empty, runs.base(empty))
        torch.testing.assert_close(outputs, model(BATCH.inputs)[:, -3:])


@pytest.mark.parametrize("tables", ["full", "chains"])
@torch.no_grad()
def test_positions_without_a_role_are_run_by_hooks(tables):
    """The statements of full tables that belong to no chain."""
    task = ri.ConditionalRetrievalTask(chains=2, graph=ri.GRAPHS["functions"], dim=2, tables=tables)
    model = randomize(ri.build_model(ri.ModelConfig(layers=2, heads=1, d_model=8), task)).eval()
    batch = task.sample(16, split="test")
    runs = make_runs(model, batch, task)
    assert runs.are_cheap == (tables != "full")
    circuit = ri.parse_circuit(["L0.H0 one-hot s3<-s2 s1<-s1", "L1.H0 s0<-s3"], task)
    outputs = runs.outputs(circuit, runs.base(ri.Circuit.empty(task)))
    expected = task.answers(naive_outputs(model, circuit, batch), batch)
    torch.testing.assert_close(task.answers(outputs, batch), expected, atol=1e-5, rtol=0)


def test_a_batch_is_divided_among_threads_and_their_errors_reach_the_caller(monkeypatch):
    model, batch = MODELS["two heads"], TASK.sample(40, seed=4)
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    monkeypatch.setattr("torch.set_num_threads", lambda threads: None)
    monkeypatch.setattr("retrieval_interp.circuits.losses._WORTH_A_THREAD", 1)
    runs = make_runs(model, batch, TASK)
    assert [len(part.mask) for part in runs.parts] == [14, 14, 12]
    seen, layer = set(), RoleRuns._layer

    def noted(self, *arguments):
        seen.add(threading.current_thread())
        return layer(self, *arguments)

    monkeypatch.setattr(RoleRuns, "_layer", noted)
    base = runs.base(ri.Circuit({}, 5))
    check(runs, ri.Circuit({ri.Head(0, 1): UNIFORM}, 5), base, model, batch)
    assert seen and threading.main_thread() not in seen
    with pytest.raises(ri.InputError, match=r"found L9\.H0"):
        runs.outputs(ri.Circuit({ri.Head(9, 0): UNIFORM}, 5), base)


def test_a_model_with_hooks_is_run_whole(monkeypatch):
    """They may be made for the batch, as those of `ablated` are."""
    model, batch = MODELS["one head"], TASK.sample(4)
    circuit = ri.Circuit({ri.Head(0, 0): OneHot((ri.RolePath(2, 1),))}, 5)
    with ri.ablated(model, circuit, batch):
        whole = ri.mean_attention(model, batch)
        monkeypatch.setattr("retrieval_interp.circuits.hooks._MOST_AT_ONCE", 3)
        monkeypatch.setattr("retrieval_interp.circuits.hooks._PER_PART", 3)
        torch.testing.assert_close(ri.mean_attention(model, batch), whole)
