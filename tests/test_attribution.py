"""Contributions against the exact change where they are exact, finite differences, and a bridge."""

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.circuits.circuit import Circuit, parse_circuit
from retrieval_interp.circuits.discovery.attribution import (
    _random_projections,
    attribute,
    pattern_gradients,
)
from retrieval_interp.circuits.losses import Scorer
from retrieval_interp.circuits.mechanisms import IDENTITY, ORIGINAL, UNIFORM, Cut, OneHot
from retrieval_interp.circuits.paths import Head, RolePath
from tests.models import Lookup, bridge_of, hooked_model, randomize, without_norms
from tests.naive import hooks_left

TASK = ri.RetrievalTask(chains=1, steps=2, dim=4)


TRIALS = [
    ["L0.H0 cut s0<-s2"],
    ["L0.H1 uniform"],
    ["L0.H1 identity"],
    ["L0.H0 one-hot s0<-s2 s2<-s1", "L0.H1 shared s0<-s4 s0<-s2"],
    ["L0.H0 uniform", "L0.H1 uniform"],
    [],
]


def test_a_model_linear_in_its_patterns_is_estimated_exactly(monkeypatch):
    """One layer without norms.

    Rows of a Hadamard matrix are as many draws of signs as give the expectation exactly.
    """
    model, batch = randomize(without_norms(n_layers=1, n_ctx=5)), TASK.sample(6, seed=1)
    rows = torch.tensor([[1.0]])
    for _ in range(3):
        rows = torch.cat([torch.cat([rows, rows], 1), torch.cat([rows, -rows], 1)])
    used = []

    def signs(shape, generator):
        drawn = torch.ones(shape)
        drawn[:, -1] = rows[len(used) % 8]
        used.append(drawn)
        return drawn

    monkeypatch.setattr("retrieval_interp.circuits.discovery.attribution.random_signs", signs)
    attribution = attribute(model, TASK, batch, draws=8)
    assert attribution.parts[0].of_outputs
    scorer = Scorer(model, TASK, batch)
    for trial in (parse_circuit(lines, TASK) for lines in TRIALS):
        exact = float((scorer.losses(trial) - scorer.base_losses).mean())
        assert attribution.estimate(trial).effect == pytest.approx(exact, abs=1e-5)
    assert attribution.estimate(parse_circuit(TRIALS[1], TASK)).curvature > 0.001


@pytest.mark.parametrize(("mlp", "overlap"), [(True, False), (False, False), (True, True)])
@pytest.mark.parametrize("base", [[], ["L0.H1 uniform", "L1.H0 s0<-s2", "L1.H1 cut s0<-s1"]])
def test_first_order_equals_finite_differences(mlp, overlap, base):
    """Each head's pattern is moved a little towards another circuit's, by a hook set by hand."""
    task = ri.RetrievalTask(chains=3, steps=2, dim=4)
    model = randomize(ri.build_model(ri.ModelConfig(3, 2, 16, mlp=mlp), task))
    for module in model.modules():
        if hasattr(module, "cfg"):
            module.cfg.dtype = torch.float64
    model = model.double().eval()
    batch = task.sample(4, seed=1)
    if overlap:  # then a position attends along the paths of two roles, in equal parts
        batch.roles[:, 1, 4] = batch.roles[:, 0, 2]
    batch = ri.Batch(batch.inputs.double(), batch.targets.double(), batch.roles)
    circuit = parse_circuit(base, task)
    found = pattern_gradients(model, task, batch, circuit, draws=0)
    for head, mechanism in (
        (Head(1, 0), UNIFORM),
        (Head(1, 0), ORIGINAL if base else IDENTITY),
        (Head(2, 1), Cut((RolePath(0, 2),))),
        (Head(0, 1), OneHot((RolePath(2, 1), RolePath(4, 3)))),
    ):
        step = found.pattern(head, mechanism) - found.used[head.layer][:, head.head]
        losses = {}
        for size in (1e-4, -1e-4):

            def moved(pattern, hook, size=size, head=head, step=step):
                pattern = pattern.clone()
                pattern[:, head.head] += size * step
                return pattern

            with (
                torch.no_grad(),
                ri.ablated(model, circuit, batch),
                model.hooks(fwd_hooks=[(f"blocks.{head.layer}.attn.hook_pattern", moved)]),
            ):
                losses[size] = task.example_losses(model(batch.inputs), batch).mean(dim=1)
        slope = (losses[1e-4] - losses[-1e-4]) / 2e-4
        change = found.change(head, mechanism)[0].double()
        torch.testing.assert_close(change, slope, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("kind", ["vectors", "tokens", "bridge"])
def test_a_batch_in_parts_has_the_losses_and_estimates_of_the_whole(kind, monkeypatch):
    """By role, by hooks and in a bridge; ten examples whole, then three at a time."""
    task = ri.RetrievalTask(chains=3, steps=2, dim=4) if kind == "vectors" else Lookup()
    model = ri.build_model(ri.ModelConfig(2, 2, 16), task) if kind == "vectors" else hooked_model()
    hooked = randomize(model).eval()
    model = bridge_of(hooked) if kind == "bridge" else hooked
    batch, empty = task.sample(10, seed=5), Circuit.empty(task)
    trials = [
        parse_circuit(lines, task)
        for lines in (["L0.H0 uniform"], ["L1.H1 cut s0<-s2"], ["L0.H1 s2<-s1", "L1.H0 identity"])
    ]

    def numbers():
        scorer, attribution = Scorer(model, task, batch), attribute(model, task, batch, draws=0)
        seen.append((len(scorer.runs.parts), len(attribution.parts)))
        losses = [scorer.losses(trial) for trial in (empty, *trials)]
        scorer.losses(trials[0], as_base=True)
        losses += [scorer.losses(trial) for trial in (empty, *trials)]
        effects = torch.tensor(attribution.effects(trials))
        return torch.stack(losses), effects, ri.mean_attention(model, batch)

    seen = []
    whole = numbers()
    for name in ("hooks._MOST_AT_ONCE", "hooks._PER_PART", "discovery.attribution._PART"):
        monkeypatch.setattr(f"retrieval_interp.circuits.{name}", 3)
    for found, expected in zip(numbers(), whole):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert seen == [(1, 1), (4, 4)] and float(whole[1].abs().min()) > 0
    if kind == "bridge":
        estimates = attribute(hooked, task, batch, draws=0).effects(trials)
        assert whole[1].tolist() == pytest.approx(estimates, abs=1e-5)


def test_random_weights_have_the_second_derivative_of_a_loss_as_their_covariance():
    """Of a cross entropy; those of a squared error are tested by exact effects above."""
    task, batch = Lookup(), Lookup().sample(1)
    outputs = 2 * torch.randn(1, 13, 13, generator=torch.Generator().manual_seed(0))
    weights = torch.stack(_random_projections(task, outputs, batch, draws=5_000, seed=0))
    found = torch.einsum("dpv,dpw->pvw", weights[:, 0], weights[:, 0]) / len(weights)

    def loss(y):
        return task.example_losses(y[None], batch).sum()

    exact = torch.autograd.functional.hessian(loss, outputs[0])
    blocks = exact[torch.arange(13), :, torch.arange(13)]
    assert torch.allclose(found, blocks, atol=0.05 * float(blocks.abs().max()))
    assert float(blocks.abs().max()) > 0.01


def test_a_loss_that_bends_down_has_no_curvature_term(hooked):
    class Concave(Lookup):
        def example_losses(self, outputs, batch):
            return -super().example_losses(outputs, batch).square()

    attribution = attribute(hooked, Concave(), Lookup().sample(6))
    found = attribution.estimate(parse_circuit(["L1.H0 uniform"], Lookup()))
    assert not attribution.parts[0].of_outputs and found.curvature == 0
    assert found.effect == found.first != 0


def test_what_cannot_be_differentiated_is_said(hooked, model, task):
    class Accuracy(Lookup):
        loss_name = "share of wrong answers"

        def example_losses(self, outputs, batch):
            return (outputs[:, -4:].argmax(-1) != batch.targets).float().mean(dim=1, keepdim=True)

    with pytest.raises(ri.InputError, match="share of wrong answers has none; score exactly"):
        attribute(hooked, Accuracy(), Lookup().sample(4))
    with pytest.raises(ri.InputError, match="for the task's 5 roles, found one for 7"):
        attribute(model, task, task.sample(1), Circuit({}, 7))
    model.W_U.data[0, 0] = torch.nan
    with pytest.raises(ri.InputError, match="finite gradients, found NaN"):
        attribute(model, task, task.sample(2))
    assert hooks_left(model) == 0
