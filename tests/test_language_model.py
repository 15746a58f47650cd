"""Language models of whole words: built, trained, saved, and under the same hooks."""

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.circuits import Scorer, discover, parse_circuit, score_circuit
from retrieval_interp.circuits.hooks import ablated
from tests.test_model import randomize, stock_transformer

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


def by_hand():
    """A model of one step: layer 0 looks two words back, layer 1 for the line of that word.

    Words are unit vectors in three blocks of the residual stream: the word itself, what stands
    before the `=` of its line, and the answer.
    """
    task = ri.EquationsTask(chains=3, steps=1, curriculum=False)
    n, length = task.d_in, task.n_positions
    width = 3 * n + length
    model = stock_transformer(
        n_layers=2, n_heads=1, d_model=width, d_head=width, n_ctx=length, d_vocab=n,
        d_vocab_out=n, attn_only=True, normalization_type=None, seed=0, device="cpu",
    )  # fmt: skip
    eye, zero = torch.eye(n), torch.zeros(width, width)
    own, before, answer = (slice(block * n, (block + 1) * n) for block in range(3))
    place = slice(3 * n, width)
    back = torch.zeros(length, length)
    back[torch.arange(2, length), torch.arange(length - 2)] = 1000.0
    weights = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    weights["embed.W_E"][:, own] = eye
    weights["pos_embed.W_pos"][:, place] = torch.eye(length)
    weights["unembed.W_U"][answer] = 50 * eye
    for layer in range(2):
        for name in "QKVO":
            weights[f"blocks.{layer}.attn.W_{name}"][0] = zero
    first, second = ({k: f"blocks.{layer}.attn.W_{k}" for k in "QKVO"} for layer in range(2))
    weights[first["Q"]][0, place, place] = back
    weights[first["K"]][0, place, place] = torch.eye(length)
    weights[first["V"]][0, own, own] = eye
    weights[first["O"]][0, own, before] = eye
    weights[second["Q"]][0, before, own] = 1000 * eye
    weights[second["K"]][0, before, own] = eye
    # Never to a `?`, which holds the word before the `=`, too.
    weights[second["Q"]][0, own, n] = 1.0
    weights[second["K"]][0, task.vocabulary.index("?"), n] = -1e6
    weights[second["V"]][0, own, own] = eye
    weights[second["O"]][0, own, answer] = eye
    model.load_state_dict(weights, strict=False)
    return model, task


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
