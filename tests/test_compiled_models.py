"""Circuits compiled into weights do what they were built to do, and are found by searches."""

import pytest
import torch

import retrieval_interp as ri
from examples.reach_the_bound import compile_circuit, doubling_heads
from retrieval_interp.circuits.flow import causal_depth
from retrieval_interp.circuits.mechanisms import IDENTITY, UNIFORM
from tests.random_heads import PAIRINGS, random_heads

VARIANCE = 1 / 8  # of a component of a unit token in 8 dimensions


def unit_task(steps, **options):
    return ri.RetrievalTask(steps=steps, **{"dim": 8, "tokens": "unit", **options})


def batch_of(task, n=32):
    return task.sample(n, seed=7, split="test")


@torch.no_grad()
def losses(compiled, batch, circuit=None):
    """The loss of each asked symbol."""
    circuit = circuit or ri.Circuit({}, len(compiled.task.role_names))
    with ri.ablated(compiled.model, circuit, batch):
        return compiled.task.partial_losses(compiled.model(batch.inputs), batch)


def mse(compiled, batch, circuit=None):
    return float(losses(compiled, batch, circuit).mean())


def assert_it_works_by_its_paths(compiled, batch):
    """It solves the task, by itself and with its circuit, and attends along its paths alone."""
    assert mse(compiled, batch) < 1e-3
    assert mse(compiled, batch, compiled.circuit) == pytest.approx(mse(compiled, batch), abs=1e-4)
    attention = ri.mean_attention(compiled.model, batch)
    on_paths = [attention[(*path.head, *path.path)] for path in compiled.circuit.paths()]
    assert min(map(float, on_paths)) == pytest.approx(1.0, abs=1e-6)
    assert compiled.carrying | compiled.enabling <= set(compiled.circuit.paths())


def assert_paths_do_as_said(compiled, batch):
    """Removed from the circuit, carrying paths are missed; cut in the model, enabling ones too."""
    for path in compiled.circuit.paths():
        removed = losses(compiled, batch, compiled.circuit.without(path))
        mechanism = compiled.circuit[path.head].without(path.path)
        cut = losses(compiled, batch, ri.Circuit({path.head: mechanism}, compiled.circuit.n_roles))
        if path in compiled.carrying:  # what is not brought is answered with zeros
            assert float(removed.max()) == pytest.approx(VARIANCE, rel=1e-3), path
        else:
            assert float(removed.max()) < 1e-6, path
        if path in compiled.carrying | compiled.enabling:
            assert float(cut.max()) > VARIANCE / 3, path
        else:
            assert float(cut.max()) < 1e-6, path


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("steps", [1, 3, 4, 8])
def test_doubling_reaches_the_causal_bound_with_one_head_a_layer(steps, pairing):
    task = unit_task(steps)
    compiled = compile_circuit(doubling_heads(task, pairing), task)
    assert compiled.model.cfg.n_layers == causal_depth(task.steps) == steps.bit_length() + 1
    assert compiled.model.cfg.n_heads == 1 and not compiled.idle
    assert_it_works_by_its_paths(compiled, batch_of(task))


SEEDS = [pytest.param(n, marks=[pytest.mark.slow] * (n > 3)) for n in range(12)]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_models_work_by_the_paths_they_name(seed):
    task, extras = unit_task(1 + seed % 9), seed % 2 > 0
    sizes = causal_depth(task.steps) + seed % 4, 1 + seed % 3
    compiled = compile_circuit(random_heads(task, sizes[0], seed, sizes[1], extras), task, *sizes)
    assert_it_works_by_its_paths(compiled, batch_of(task))
    if not extras:
        assert_paths_do_as_said(compiled, batch_of(task, 8))


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 4))])
def test_discovery_recovers_compiled_circuits(seed):
    """Precision and recall 1."""
    task = unit_task(1 + seed % 3)
    rules = random_heads(task, 4, seed=seed, n_heads=1 + seed % 2, extras=False)
    compiled = compile_circuit(rules, task, n_layers=4, n_heads=1 + seed % 2)
    found = ri.discover(compiled.model, task, tolerance=0.05 * VARIANCE, examples=64, seed=seed)
    assert set(found.paths()) == set(compiled.carrying)
    assert set(found.enabling) == set(compiled.enabling) - set(compiled.carrying)
    for head in compiled.idle:
        assert found[head] in (UNIFORM, IDENTITY)
