import threading
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import retrieval_interp as ri
from retrieval_interp.circuits.losses import HookRuns, Scorer, make_runs
from retrieval_interp.circuits.mechanisms import (
    IDENTITY,
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
    WithPaths,
)
from retrieval_interp.circuits.role_runs import RoleRuns
from tests.models import randomize, without_norms
from tests.naive import PATHS, naive_outputs

TASK = ri.RetrievalTask(chains=3, steps=2, dim=4)
BATCH = TASK.sample(4, seed=3)
MODELS = {
    (mlp, heads): randomize(ri.build_model(ri.ModelConfig(3, heads, 16, mlp=mlp), TASK))
    for mlp in (True, False)
    for heads in (1, 2)
}


def bidirectional():
    model = ri.build_model(ri.ModelConfig(3, 2, 16), TASK, seed=1)
    for block in model.blocks:
        block.attn.cfg.attention_dir = "bidirectional"
    model.cfg.attention_dir = "bidirectional"
    return randomize(model)


shared = st.sets(st.sampled_from([ri.RolePath(*path) for path in PATHS]), max_size=5)
mean = partial(Mean, torch.rand(15, 15).softmax(-1).tril())
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


def naive(model, circuit, batch=BATCH):
    with torch.no_grad():
        return naive_outputs(model, circuit, batch)[:, -TASK.chains :]


def check(runs, circuit, base, model, batch=BATCH):
    """A run equals one with hooks set by hand, and so does its base, which is returned."""
    expected = naive(model, circuit, batch)
    found = runs.outputs(circuit, base)[:, -TASK.chains :]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    base = runs.base(circuit, base)
    found = runs.outputs(circuit, base)[:, -TASK.chains :]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    return base


@pytest.mark.parametrize("make", [RoleRuns, HookRuns])
@settings(max_examples=15, deadline=None)
@given(drawn, drawn, st.sampled_from(sorted(MODELS)))
def test_runs_equal_naive_runs_from_any_base(make, first, second, which):
    model, runs = MODELS[which], make(MODELS[which], BATCH)
    before, circuit = circuit_from(first, which[1]), circuit_from(second, which[1])
    old = runs.base(before)
    check(runs, circuit, old, model)
    check(runs, before, old, model)  # another run leaves it as it is


@pytest.mark.parametrize("make", [without_norms, bidirectional])
def test_role_runs_are_exact_without_norms_and_without_a_mask(make):
    model = make()
    runs, whole = RoleRuns(model, BATCH), HookRuns(model, BATCH)
    base = runs.base(ri.Circuit({}, 5))
    for circuit in (
        ri.Circuit({}, 5),
        ri.Circuit({ri.Head(0, 0): UNIFORM, ri.Head(1, 1): IDENTITY}, 5),
        ri.Circuit({ri.Head(0, 1): OneHot((ri.RolePath(0, 2),))}, 5),
        ri.Circuit({ri.Head(2, 0): Cut((ri.RolePath(0, 2), ri.RolePath(0, 4)))}, 5),
    ):
        expected = whole.base(circuit).outputs
        if not circuit.mechanisms:
            torch.testing.assert_close(expected, model.run_with_hooks(BATCH.inputs))
        torch.testing.assert_close(runs.outputs(circuit, base), expected[:, -3:], atol=1e-5, rtol=0)


def test_the_fast_way_is_taken_only_where_it_is_exact():
    model, empty = MODELS[True, 1], ri.Circuit({}, 5)
    assert make_runs(model, BATCH, TASK).are_cheap
    with model.hooks(fwd_hooks=[("blocks.0.attn.hook_z", lambda z, hook: z * 2)]):
        runs = make_runs(model, BATCH, TASK)
        assert not runs.are_cheap
        outputs = runs.outputs(empty, runs.base(empty))
        torch.testing.assert_close(outputs, model(BATCH.inputs)[:, -3:])


def test_a_batch_is_divided_among_threads_and_their_errors_reach_the_caller(monkeypatch):
    model, batch = MODELS[True, 2], TASK.sample(40, seed=4)
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
    model, batch = MODELS[True, 1], TASK.sample(4)
    circuit = ri.Circuit({ri.Head(0, 0): OneHot((ri.RolePath(2, 1),))}, 5)
    with ri.ablated(model, circuit, batch):
        whole = ri.mean_attention(model, batch)
        monkeypatch.setattr("retrieval_interp.circuits.hooks.WHOLE", 3)
        monkeypatch.setattr("retrieval_interp.circuits.hooks.PART", 3)
        torch.testing.assert_close(ri.mean_attention(model, batch), whole)


@dataclass(frozen=True)
class WeakOneHot(WithPaths):
    """Three tenths of a one-hot head."""

    kind = "third-of-a-path"
    follows_paths = True

    def pattern(self, positions):
        return 0.3 * OneHot(self.paths).pattern(positions)


@dataclass(frozen=True)
class WeakShared(Shared):
    kind = "weak-shared"

    def pattern(self, positions):
        return 0.3 * super().pattern(positions)


@dataclass(frozen=True)
class Weakened(ri.Mechanism):
    """A tenth of the head's own attention."""

    kind = "weakened"
    keeps_own = True

    def changed(self, pattern, roles):
        return 0.1 * pattern


@dataclass(frozen=True)
class CutTwice(Cut):
    """The head's own attention along its paths turned over."""

    kind = "cut-twice"

    def changed(self, pattern, roles):
        return 2 * super().changed(pattern, roles) - pattern


@dataclass(frozen=True)
class HalfOutput(ri.Mechanism):
    """Half of what the head writes."""

    kind = "half-output"
    replaces_output = True

    def output(self, here, there, roles):
        return here.z / 2


to_two = (ri.RolePath(0, 2), ri.RolePath(4, 3))
own_mechanisms = WeakOneHot(to_two), WeakShared(to_two), Weakened(), CutTwice(to_two), HalfOutput()


@pytest.mark.parametrize("mechanism", own_mechanisms, ids=lambda mechanism: mechanism.kind)
def test_a_mechanism_of_ones_own_loses_what_it_loses_with_hooks(mechanism):
    """A scorer of vectors, which knows built-in mechanisms by role, has to run any other."""
    model, head = MODELS[True, 2], ri.Head(1, 0)
    circuit = ri.Circuit({head: mechanism, ri.Head(2, 1): UNIFORM}, 5)

    def pattern_by_hand(pattern, hook):
        pattern[:, 1] = Uniform().pattern(positions) if hook.layer() == 2 else pattern[:, 1]
        if hook.layer() == 1 and mechanism.keeps_own:
            pattern[:, 0] = mechanism.changed(pattern[:, 0], BATCH.roles)
        elif hook.layer() == 1 and not mechanism.replaces_output:
            pattern[:, 0] = mechanism.pattern(positions)
        return pattern

    def half(z, hook):
        z[:, :, 0] /= 2 if mechanism.replaces_output else 1
        return z

    scorer = Scorer(model, TASK, BATCH)
    assert scorer.runs.are_cheap
    positions = scorer.positions[0]
    hooks = [(f"blocks.{layer}.attn.hook_pattern", pattern_by_hand) for layer in (1, 2)]
    with torch.no_grad(), model.hooks(fwd_hooks=[*hooks, ("blocks.1.attn.hook_z", half)]):
        expected = TASK.example_losses(model(BATCH.inputs), BATCH)
    intact = scorer.base_losses
    assert (expected.mean(1) - intact.mean(1)).abs().max() > 1e-3
    torch.testing.assert_close(scorer.losses(circuit), expected, atol=1e-5, rtol=0)
    scorer.rebase(circuit)
    torch.testing.assert_close(scorer.base_losses, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(scorer.losses(scorer.empty_circuit), intact, atol=1e-5, rtol=0)
