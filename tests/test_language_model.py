"""Language models of whole words: built, trained, saved, and under the same hooks."""

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.circuits import Scorer, discover, parse_circuit, score_circuit
from retrieval_interp.circuits.hooks import ablated
from tests.oracles import by_hand, randomize, stock_transformer

TASK = ri.EquationsTask(chains=3, steps=2)


@pytest.fixture(scope="module")
def model():
    return randomize(ri.build_model(ri.ModelConfig(2, 2, 16), TASK, seed=1, init="linear")).eval()


@torch.no_grad()
def test_it_is_a_hooked_transformer_that_reads_text(model):
    """The same weights in stock TransformerLens, from text, give the same logits."""
    stock = stock_transformer(model.tokenizer, **vars(model.cfg))
    stock.load_state_dict(model.state_dict())
    batch = TASK.sample(3)
    for example in range(3):
        text = TASK.text(batch, example)
        assert torch.equal(model.to_tokens(text)[0], batch.inputs[example])
        torch.testing.assert_close(stock.eval()(text)[0], model(batch.inputs)[example])
    assert model.to_str_tokens("a = 0\nb = ?") == ["<s>", "a", "=", "0", "b", "=", "?"]


@torch.no_grad()
def test_scores_equal_whole_runs_with_hooks(model):
    batch = TASK.sample(8, split="test")
    scorer = Scorer(model, TASK, batch)
    outputs = scorer.runs.outputs(scorer.base, scorer.kept)
    assert outputs.shape == (8, 3, TASK.d_out)  # at the answers alone
    several = ["L0.H1 uniform", "L1.H0 s5<-s4 s2<-s1", "L1.H1 identity"]
    for lines in ([], ["L0.H0 s5<-s0 s2<-s3"], several):
        circuit = parse_circuit(lines, TASK)
        with ablated(model, circuit, batch):
            expected = TASK.example_losses(model(batch.inputs), batch)
        torch.testing.assert_close(scorer.losses(circuit), expected, atol=1e-5, rtol=0)
    scored = score_circuit(model, TASK, parse_circuit(lines, TASK), batch, controls=2)
    assert scored.combined_loss == pytest.approx(float(expected.mean()), abs=1e-5)


@torch.no_grad()
def test_a_model_whose_circuit_is_known_has_it_found():
    model, task = by_hand()
    batch = task.sample(64)
    outputs = model(batch.inputs)
    assert task.accuracies(outputs, batch).tolist() == [1.0]
    assert float(task.loss(outputs, batch)) < 1e-6
    known = parse_circuit(["L0.H0 s2<-s1 s3<-s0", "L1.H0 s3<-s2"], task)
    scored = score_circuit(model, task, known, batch, controls=0)
    assert scored.combined_loss < 1e-6
    found = discover(model, task, examples=64)
    assert [str(path) for path in found.paths()] == ["L1.H0 s3<-s2"]
    assert {str(path) for path in found.enabling} == {"L0.H0 s2<-s1", "L0.H0 s3<-s0"}
