from dataclasses import replace

import pytest
import torch

from retrieval_interp.circuits.circuit import Circuit, Head
from retrieval_interp.circuits.flow import causal_depth
from retrieval_interp.circuits.hooks.ablated import ablated
from retrieval_interp.circuits.known.rules import (
    PAIR,
    PAIRINGS,
    PREVIOUS,
    TOKEN,
    Jump,
    Rule,
    Slot,
    all_plans,
    all_rules,
    distractor_rule,
    doubling_rules,
    pair_rule,
    plan_rules,
    random_rules,
    split,
    stepping_rules,
)
from retrieval_interp.circuits.known.weights import compile_circuit
from retrieval_interp.circuits.mechanisms import UNIFORM, OneHot
from retrieval_interp.circuits.runs.mean_attention import mean_attention
from retrieval_interp.tasks import InputError, RetrievalTask

VARIANCE = 1 / 8  # of a component of a unit token in 8 dimensions


def unit_task(steps, **options):
    return RetrievalTask(steps=steps, **{"dim": 8, "tokens": "unit", **options})


def batch_of(task, n=32):
    return task.sample(n, seed=7, split="test")


@torch.no_grad()
def losses(compiled, batch, circuit=None):
    """The loss of each asked symbol."""
    circuit = circuit or Circuit({}, len(compiled.task.role_names))
    with ablated(compiled.model, circuit, batch):
        return compiled.task.partial_losses(compiled.model(batch.inputs), batch)


def mse(compiled, batch, circuit=None):
    return float(losses(compiled, batch, circuit).mean())


def attention_on_paths(compiled, batch):
    attention = mean_attention(compiled.model, batch)
    return {
        path: float(attention[path.head.layer, path.head.head, path.path.dest, path.path.src])
        for path in compiled.circuit.paths()
    }


def texts(paths):
    return sorted(map(str, paths))


# The bound


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 7, 8, 15, 16])
def test_doubling_reaches_the_causal_bound_with_one_head_a_layer(steps, pairing):
    task = unit_task(steps)
    compiled = compile_circuit(doubling_rules(task, pairing), task)
    batch = batch_of(task)
    assert compiled.model.cfg.n_layers == causal_depth(task.steps) == steps.bit_length() + 1
    assert compiled.model.cfg.n_heads == 1 and not compiled.idle
    assert mse(compiled, batch) < 1e-3
    assert mse(compiled, batch, compiled.circuit) == pytest.approx(mse(compiled, batch), abs=1e-4)
    on_paths = attention_on_paths(compiled, batch)
    assert compiled.carrying | compiled.enabling <= on_paths.keys()
    assert min(on_paths.values()) == pytest.approx(1.0, abs=1e-6)


def test_64_steps_in_8_layers():
    task = unit_task(64)
    compiled = compile_circuit(doubling_rules(task), task)
    assert compiled.model.cfg.n_layers == 8
    assert mse(compiled, batch_of(task, 4)) < 1e-3


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 7, 8, 15, 16])
def test_one_layer_fewer_is_refused(steps):
    task = unit_task(steps)
    bound = causal_depth(task.steps)
    rules = doubling_rules(task)
    with pytest.raises(InputError, match=rf"expected rules up to L{bound - 2}.H0, found the rule"):
        compile_circuit(rules, task, n_layers=bound - 1)
    missing = 2 ** (bound - 2)
    with pytest.raises(
        InputError, match=rf"bring x_{missing} to s0, found nothing in its slot x\+{missing}"
    ):
        compile_circuit(rules[:-1], task)
    assert not list(all_plans(steps, bound - 2))
    with pytest.raises(InputError, match=f"at least {bound} layers for {steps} steps"):
        random_rules(task, bound - 1, seed=0)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_stepping_takes_a_layer_a_token(pairing):
    task = unit_task(5)
    compiled = compile_circuit(stepping_rules(task, pairing), task)
    assert compiled.model.cfg.n_layers == 6
    assert mse(compiled, batch_of(task)) < 1e-3
    carriers = ["L1.H0 s0<-s2", "L2.H0 s0<-s4", "L3.H0 s0<-s6", "L4.H0 s0<-s8", "L5.H0 s0<-s10"]
    assert texts(compiled.carrying) == carriers


# Circuits worked by hand


def test_an_induction_head_carries_what_a_joined_pair_lets_it_find():
    task = unit_task(1)
    compiled = compile_circuit(doubling_rules(task), task)
    # s1 meets nothing of its pair but itself; the end of the chain, s2, has no successor.
    assert texts(compiled.circuit.paths()) == [
        "L0.H0 s0<-s0",
        "L0.H0 s1<-s1",
        "L0.H0 s2<-s1",
        "L1.H0 s0<-s2",
        "L1.H0 s1<-s1",
    ]
    assert texts(compiled.carrying) == ["L1.H0 s0<-s2"]
    assert texts(compiled.enabling) == ["L0.H0 s2<-s1"]


def test_a_pointer_enables_the_same_by_what_it_brings_to_the_query():
    task = unit_task(1)
    compiled = compile_circuit(doubling_rules(task, "point"), task)
    assert texts(compiled.carrying) == ["L1.H0 s0<-s2"]
    assert texts(compiled.enabling) == ["L0.H0 s0<-s1"]


def test_a_path_can_carry_and_enable():
    task = unit_task(3)
    compiled = compile_circuit(doubling_rules(task), task)
    assert texts(compiled.carrying) == ["L1.H0 s0<-s2", "L1.H0 s4<-s6", "L2.H0 s0<-s4"]
    assert texts(compiled.enabling) == [
        "L0.H0 s2<-s1",
        "L0.H0 s4<-s3",
        "L0.H0 s6<-s5",
        "L1.H0 s0<-s2",
    ]


def test_without_curriculum_only_the_last_symbol_is_carried():
    task = unit_task(3, curriculum=False)
    compiled = compile_circuit(doubling_rules(task), task)
    assert mse(compiled, batch_of(task)) < 1e-3
    assert texts(compiled.carrying) == ["L1.H0 s4<-s6", "L2.H0 s0<-s4"]
    assert "L1.H0 s0<-s2" in texts(compiled.enabling)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_every_second_element_holds_the_rest_of_its_chain_in_its_slots(pairing):
    task = unit_task(5)
    compiled = compile_circuit(doubling_rules(task, pairing), task)
    batch = batch_of(task)
    _, cache = compiled.model.run_with_cache(batch.inputs)
    held = cache["resid_post", -1].unflatten(-1, (len(compiled.slots), task.dim))
    example = torch.arange(len(batch))[:, None]
    for pair in range(task.steps + 1):
        for offset in range(1, task.steps - pair + 1):
            found = held[example, batch.roles[:, :, 2 * pair]]
            there = found[:, :, compiled.slots.index(Slot("x", offset))]
            token = batch.inputs[example, batch.roles[:, :, 2 * (pair + offset)], : task.dim]
            torch.testing.assert_close(there, token)


# What a path is worth


def assert_paths_do_as_said(compiled, batch):
    """Frozen, the carrying paths are missed; live, the enabling ones too; no other ever."""
    for path in compiled.circuit.paths():
        frozen = losses(compiled, batch, compiled.circuit.without(path))
        mechanism = compiled.circuit[path.head].without(path.path)
        alone = Circuit({path.head: mechanism}, compiled.circuit.n_roles)
        live = losses(compiled, batch, alone)
        if path in compiled.carrying:  # what is not brought is answered with zeros
            assert float(frozen.max()) == pytest.approx(VARIANCE, rel=1e-3), path
        else:
            assert float(frozen.max()) < 1e-6, path
        if path in compiled.carrying | compiled.enabling:
            assert float(live.max()) > VARIANCE / 3, path
        else:
            assert float(live.max()) < 1e-6, path


@pytest.mark.parametrize(
    "steps, n_layers, count",
    [(1, 3, 6), (2, 4, 16), (3, 3, 2), pytest.param(3, 4, 20, marks=pytest.mark.slow)],
)
def test_all_rules_deliver_and_every_path_does_as_said(steps, n_layers, count):
    task = unit_task(steps)
    batch = batch_of(task, 8)
    found = list(all_rules(task, n_layers))
    assert len(set(found)) == len(found) == count
    for rules in found:
        compiled = compile_circuit(rules, task, n_layers=n_layers)
        assert mse(compiled, batch) < 1e-3
        assert_paths_do_as_said(compiled, batch)


@pytest.mark.parametrize("seed", [*range(5), pytest.param(5, marks=pytest.mark.slow)])
def test_random_rules_deliver_and_every_path_does_as_said(seed):
    task = unit_task(4 + seed % 3)
    n_layers, n_heads = causal_depth(task.steps) + seed % 3, 1 + seed % 2
    rules = random_rules(task, n_layers, seed, n_heads, extras=False)
    compiled = compile_circuit(rules, task, n_layers, n_heads)
    assert mse(compiled, batch_of(task)) < 1e-3
    assert_paths_do_as_said(compiled, batch_of(task, 8))


@pytest.mark.parametrize("seed", range(24))
def test_random_rules_with_extras_deliver_by_the_paths_they_name(seed):
    task = unit_task(1 + seed % 9)
    n_layers, n_heads = causal_depth(task.steps) + seed % 4, 1 + seed % 3
    rules = random_rules(task, n_layers, seed, n_heads)
    assert rules == random_rules(task, n_layers, seed, n_heads)
    compiled = compile_circuit(rules, task, n_layers, n_heads)
    batch = batch_of(task)
    assert mse(compiled, batch) < 1e-3
    assert mse(compiled, batch, compiled.circuit) == pytest.approx(mse(compiled, batch), abs=1e-4)
    assert min(attention_on_paths(compiled, batch).values()) == pytest.approx(1.0, abs=1e-6)


def test_random_rules_differ():
    task = unit_task(5)
    drawn = {random_rules(task, 6, seed, n_heads=2) for seed in range(40)}
    assert len(drawn) == 40
    assert {rule.query.kind for rules in drawn for rule in rules if rule.layer == 5} == {"x", "p"}


# Heads that do little or nothing


def test_idle_heads_are_named_and_nobody_misses_them():
    task = unit_task(2)
    plan = [[Jump(1, (1,))], [Jump(2, (2,))]]
    compiled = compile_circuit(plan_rules(plan, layers=(1, 2, 4)), task, n_layers=5, n_heads=2)
    idle = {Head(layer, 1) for layer in range(5)} | {Head(0, 0), Head(3, 0)}
    assert compiled.idle == idle
    assert all(compiled.circuit[head] == UNIFORM for head in idle)
    uniform = Circuit(dict.fromkeys(idle, UNIFORM), compiled.circuit.n_roles)
    batch = batch_of(task)
    assert mse(compiled, batch, uniform) == pytest.approx(mse(compiled, batch), abs=1e-6)
    attention = compiled.model.blocks[3].attn
    assert not any(parameter.any() for parameter in attention.parameters())


def test_halved_heads_carry_half_each():
    task = unit_task(2)
    first, second, third = doubling_rules(task)
    compiled = compile_circuit([first, *split(second, [1]), *split(third, [1])], task)
    batch = batch_of(task)
    assert mse(compiled, batch) < 1e-3
    halves = ["L1.H0 s0<-s2", "L1.H1 s0<-s2", "L2.H0 s0<-s4", "L2.H1 s0<-s4"]
    assert texts(compiled.carrying) == halves
    for path in compiled.carrying:
        one_half = losses(compiled, batch, compiled.circuit.without(path))
        assert float(one_half.max()) == pytest.approx(VARIANCE / 4, rel=1e-3)


def test_distractors_attend_for_certain_and_cost_their_small_norm():
    task = unit_task(2)
    distractor = distractor_rule(1, 1, offset=2, scale=0.04)
    compiled = compile_circuit([*doubling_rules(task), distractor], task)
    batch = batch_of(task)
    mechanism = compiled.circuit[1, 1]
    assert [str(path) for path in mechanism.paths] == [
        "s0<-s0",
        "s1<-s1",
        "s2<-s1",
        "s3<-s3",
        "s4<-s3",
    ]
    assert min(attention_on_paths(compiled, batch).values()) == pytest.approx(1.0, abs=1e-6)
    assert not any(path.head == (1, 1) for path in compiled.carrying | compiled.enabling)
    # 0.04 of x_0 too much in x_2.
    torch.testing.assert_close(losses(compiled, batch), torch.tensor([0.0, 0.04**2 * VARIANCE]))
    off = compiled.circuit.replace((1, 1), OneHot())
    assert mse(compiled, batch, off) < 1e-9


def test_a_distractor_that_drowns_the_answer_is_refused():
    task = unit_task(2)
    with pytest.raises(InputError, match=r"bring x_1 to s0, found 1 x_1 \+ 0\.2 x_0 in its slot"):
        compile_circuit([*doubling_rules(task), distractor_rule(2, 1, scale=0.2)], task)


# What surrounds a model


def test_the_model_is_a_float32_transformer_of_attention_alone():
    task = unit_task(3)
    state = torch.get_rng_state()
    compiled = compile_circuit(random_rules(task, 5, seed=1, n_heads=2), task)
    assert torch.equal(torch.get_rng_state(), state)
    assert compiled.model.cfg.attn_only and compiled.model.cfg.normalization_type is None
    assert {parameter.dtype for parameter in compiled.model.parameters()} == {torch.float32}
    assert compiled.circuit.task == task.to_dict()
    read = Circuit.from_json(compiled.circuit.to_json(), len(task.role_names))
    assert read == compiled.circuit


def test_tokens_of_the_papers_size_are_matched_too():
    task = unit_task(3, dim=4)
    assert mse(compile_circuit(doubling_rules(task), task), batch_of(task, 1024)) < 1e-3


@pytest.mark.parametrize("options", [{"chains": 1}, {"chains": 12}, {"dim": 16, "base": 100.0}])
def test_other_tasks_are_answered(options):
    task = unit_task(3, **options)
    assert mse(compile_circuit(doubling_rules(task), task), batch_of(task)) < 1e-3


@pytest.mark.parametrize(
    "options, error",
    [
        ({"tokens": "gaussian"}, "expected a task with unit tokens, .*, found gaussian"),
        ({"position": "token"}, "expected one encoding per pair, found one per token"),
        ({"dim": 2}, "expected a dim of at least 4, found 2"),
        (
            {"dim": 4, "base": 1e9},
            r"expected a cosine of at most 0\.9980 .*encodings of any two pairs, found 0\.9999",
        ),
    ],
)
def test_tasks_that_cannot_be_matched_are_refused(options, error):
    task = unit_task(15, **options)
    with pytest.raises(InputError, match=f"^compile: {error}"):
        compile_circuit(doubling_rules(task), task)


@pytest.mark.parametrize("options", [{"penalty": 0.5}, {"penalty": 2.0**-20}, {"beta": 1000.0}])
def test_scores_that_float32_or_softmax_cannot_tell_apart_are_refused(options):
    task = unit_task(2)
    with pytest.raises(InputError, match="expected a penalty from 2\\^-16 to 0.1 and beta from"):
        compile_circuit(doubling_rules(task), task, **options)


def test_rules_that_do_not_fit_are_refused():
    task = unit_task(1)
    rules = doubling_rules(task)
    with pytest.raises(InputError, match="expected at least one rule, found none"):
        compile_circuit([], task)
    with pytest.raises(
        InputError, match=r"expected one rule per head, found another rule of L1\.H0"
    ):
        compile_circuit([*rules, rules[1]], task)
    with pytest.raises(InputError, match="expected n_heads of at least 1, found 0"):
        compile_circuit(rules, task, n_heads=0)
    with pytest.raises(InputError, match="expected 3 layers in order, found \\[0, 2, 1\\]"):
        plan_rules([[], []], layers=(0, 2, 1))
    with pytest.raises(InputError, match="expected at least 1 head, found 0"):
        random_rules(task, 3, seed=0, n_heads=0)


@pytest.mark.parametrize(
    "change, error",
    [
        ({"layer": -1}, "rule: expected layer to be a number from 0, found -1"),
        ({"key": TOKEN}, "L0.H0: expected tokens with tokens .*, found x and p"),
        ({"copy": ((PAIR, PREVIOUS),)}, "expected tokens with tokens .*, found p and x-1"),
        ({"copy": ((PREVIOUS, TOKEN),)}, "expected copies into other slots, found x"),
        ({"avoid": Slot("y", 2)}, r"expected slots of x or p, found y\+2"),
        ({"scale": 0.0}, "expected a scale that is not zero, found 0.0"),
    ],
)
def test_rules_that_make_no_sense_are_refused(change, error):
    with pytest.raises(InputError, match=error):
        replace(pair_rule(0), **change)


def test_what_is_found_by_chance_is_not_relied_on():
    task = unit_task(2)
    first, second, _ = doubling_rules(task)
    # After layer 1 the last second element, s4, has nothing definite in x+1, so a token sought
    # there may be found in the wrong place.
    by_chance = Rule(2, 0, Slot("x", 1), Slot("x", 1), copy=((TOKEN, Slot("x", 2)),))
    with pytest.raises(InputError, match="bring x_2 to s0, found something undetermined in its"):
        compile_circuit([first, second, by_chance], task)


def test_a_match_that_nothing_decides_is_not_relied_on():
    task = unit_task(1)
    join, fetch = doubling_rules(task)
    # Both elements of the pair bear its encoding: without `avoid`, s2 cannot tell s1 from itself.
    with pytest.raises(InputError, match="bring x_1 to s0, found something undetermined"):
        compile_circuit([replace(join, avoid=None), fetch], task)
