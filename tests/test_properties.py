"""What must not change a score: names of chains, heads left alone, how examples are batched."""

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.circuits import Circuit
from retrieval_interp.circuits.scores.scorer import Scorer
from retrieval_interp.model import ModelConfig, build_model

# Sums in float32 take another order: up to some 30 roundings of 6e-8 at losses of the order of 1.
ROUNDING = 2e-6
SIZES = ModelConfig(layers=2, heads=2, d_model=8)
TASKS = {
    "retrieval": ri.RetrievalTask(chains=4, steps=2, dim=4),
    "conditional": ri.ConditionalRetrievalTask(chains=3, dim=2, tables="chains"),
    "equations": ri.EquationsTask(chains=3, steps=2),
    "repeated": ri.RepeatedTokensTask(length=4, alphabet=5),
    "k-hop": ri.KHopTask(hops=2, alphabet=4),
}
LIVING = ["L0.H1 uniform", "L1.H0 shared s0<-s2 s0<-s1", "L1.H1 one-hot s0<-s1"]


@pytest.fixture(params=sorted(TASKS))
def known(request):
    """A task and a model of random weights, several times as large as they begin."""
    task = TASKS[request.param]
    model = build_model(SIZES, task).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if ".attn.W" in name:
                weight *= 4
    return task, model


def losses(task, model, circuit, batch):
    """Of the intact model, of each path cut in it, of the circuit, and of it less each path."""
    scorer, empty = Scorer(model, task, batch), Circuit({}, circuit.n_roles)
    found = [float(scorer.base_losses.mean())]
    found += [scorer.loss(empty.cut(path)) for path in circuit.paths()]
    found.append(scorer.rebase(circuit))
    found += [scorer.loss(circuit.without(path)) for path in circuit.paths()]
    return torch.tensor(found, dtype=torch.float64)


def test_names_of_chains_change_no_score(known):
    task, model = known
    batch = task.sample(8, seed=1)
    order = torch.tensor([*range(1, batch.roles.shape[1]), 0])
    renamed = ri.Batch(batch.inputs, batch.targets[:, order], batch.roles[:, order])
    circuit = ri.parse_circuit(LIVING, task)
    scores = [losses(task, model, circuit, each) for each in (batch, renamed)]
    assert (scores[0][1:] - scores[0][0]).abs().max() > 1e-3  # replacing does something
    torch.testing.assert_close(*scores, atol=ROUNDING, rtol=ROUNDING)
    wrong = ri.Batch(batch.inputs, batch.targets, batch.roles[:, order])
    assert not torch.allclose(losses(task, model, circuit, wrong), scores[0])
