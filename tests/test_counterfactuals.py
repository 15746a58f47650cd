"""What a task asks instead of its examples, and pairs of prompts that are given."""

import json

import pytest
import torch

import retrieval_interp as ri
from tests.models import Lookup
from tests.texts import SENTENCE, giving, pairs, sentence_tokenizer


@pytest.mark.parametrize(
    "task",
    [
        ri.RetrievalTask(chains=3, steps=2, dim=4),
        ri.ConditionalRetrievalTask(chains=3, dim=4),
        ri.KHopTask(hops=2, alphabet=5),
        ri.EquationsTask(chains=3, steps=2),
    ],
    ids=lambda task: task.name,
)
def test_the_question_is_about_another_chain(task):
    batch = task.sample(4)
    asked, rewired = task.counterfactual(batch), task.rewired(batch)
    for other, roles in ((asked, [0]), (rewired, list(range(2, batch.roles.shape[-1], 2)))):
        changed = other.inputs != batch.inputs
        places = changed.any(-1) if batch.tokens is None else changed
        for example in range(4):
            allowed = set(batch.roles[example][:, roles].flatten().tolist())
            assert set(places[example].nonzero()[:, 0].tolist()) <= allowed
        assert bool(places.any(1).all()) and torch.equal(other.roles, batch.roles)
    width = task.symbol_width
    here, there = batch.roles[0, 0, 0], batch.roles[0, 1, 0]
    put, own = (x.inputs[0, at].view(-1)[:width] for x, at in ((asked, here), (batch, there)))
    assert torch.equal(put, own)
    if width is not None:  # encodings stay where they are
        assert torch.equal(asked.inputs[..., width:], batch.inputs[..., width:])


def test_repeated_tokens_are_not_repeated():
    task = ri.RepeatedTokensTask(length=6)
    batch = task.sample(3)
    other = task.counterfactual(batch).inputs
    assert torch.equal(other[:, :7], batch.inputs[:, :7])
    assert not torch.equal(other[:, 7:], batch.inputs[:, 7:])


def test_a_third_name_is_put_in_place():
    task = giving({"S2": ["Ann", "Bob", "Cid", "Dan"]})
    batch = task.sample(8)
    other = task.counterfactual(batch)
    place = batch.roles[:, 0, task.roles.index("S2")]
    for example in range(8):
        changed = (other.inputs != batch.inputs)[example].nonzero()[:, 0].tolist()
        assert changed == [int(place[example])]
        assert int(other.inputs[example, place[example]]) not in batch.inputs[example].tolist()


def test_without_words_of_its_own_a_template_takes_another_of_the_batch():
    task = giving()
    batch = task.sample(8)
    alike = task.counterfactual(batch)
    assert all(row.tolist() in batch.inputs.tolist() for row in alike.inputs)
    assert bool((alike.inputs != batch.inputs).any(1).all())
    alone = task.counterfactual(batch[:1])  # another example is drawn
    assert bool((alone.inputs != batch.inputs[:1]).any())


@pytest.fixture
def padded():
    real = torch.tensor([[0, 1, 1], [1, 1, 1], [0, 1, 1], [1, 1, 1]])
    tokens = torch.arange(12).view(4, 3)
    return ri.Batch(tokens, torch.arange(4)[:, None], torch.full((4, 1, 1), 2), real)


@pytest.mark.parametrize("seed", range(4))
def test_a_counterfactual_has_the_same_padding(padded, seed):
    other = ri.Task().counterfactual(padded, seed)
    assert torch.equal(other.inputs, padded.inputs[[2, 3, 0, 1]])


def test_without_another_example_of_the_same_padding_there_is_none(padded):
    class Two(ri.Task):
        def sample(self, n, *_, **options):
            return padded[:2]

    with pytest.raises(ri.InputError, match="the same padding .* found none for 2 of 2 examples"):
        Two().counterfactual(padded[:2])


def test_a_counterfactual_is_drawn_where_the_batch_has_none():
    task = Lookup()
    batch = task.sample(3, split="test")
    other = task.counterfactual(batch)
    asked, told = (other.inputs.gather(1, batch.roles[:, :, role]) for role in (0, 1))
    assert torch.equal(asked, told)  # each is an example with its roles where they were
    assert (other.inputs != batch.inputs).any(1).all()


def test_counterfactuals_that_cannot_be_are_refused():
    alone = ri.RetrievalTask(chains=1, steps=1)
    with pytest.raises(ri.InputError, match="counterfactual: expected one of END"):
        giving({"X": ["Ann"]})
    with pytest.raises(ri.InputError, match="at least three words of one token for S2"):
        giving({"S2": ["Ann"]})
    with pytest.raises(ri.InputError, match="expected at least two chains, found one"):
        alone.counterfactual(alone.sample(2))


TOKENIZER = sentence_tokenizer()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"corrupt": SENTENCE + " the"}, "expected as many tokens as the prompt's .* part at"),
        ({"corrupt": SENTENCE}, "expected another prompt, found the same tokens"),
        ({"wrong_answers": (" Mary",)}, "begin with different tokens, found ' Mary'"),
        ({"answers": ()}, "expected right and wrong ones, found"),
    ],
)
def test_pairs_that_do_not_fit_are_refused(change, message):
    with pytest.raises(ri.InputError, match=message):
        ri.PairsTask(pairs(change), TOKENIZER)


def test_pairs_that_do_not_fit_are_left_out():
    prompts = [vars(pair) for pair in pairs({}, {"clean": SENTENCE.replace("store", "drink")})]
    bad = [{**prompts[0], "corrupt": text} for text in ("When", "When Ann", SENTENCE)]
    data = json.dumps({"prompts": [*prompts, *bad], "word_idxs": {"S2": 1}})
    said = r"3 of 5 pairs are left out: .* as many tokens .* \(2 like this\); .* \(1 like this\)"
    with pytest.warns(ri.InputWarning, match=said):
        read = ri.PairsTask(ri.read_pairs(data), TOKENIZER)
    assert read.role_names[-1] == "END" and len(read) == 2
    assert read.description.startswith("2 of 5 pairs of prompts, such as ")


def test_a_pair_is_scored_by_its_two_answers():
    task = ri.PairsTask(pairs(), TOKENIZER)
    batch = task.sample(1, split="test")
    other = task.counterfactual(batch)
    assert not torch.equal(batch.inputs, other.inputs)
    assert "Ann gave" in TOKENIZER.decode(other.inputs[0].tolist())
    outputs = torch.randn(1, batch.inputs.shape[1], len(TOKENIZER))
    right, wrong = batch.targets[0, 0, :, 0].tolist()
    difference = outputs[0, -1, right] - outputs[0, -1, wrong]
    torch.testing.assert_close(task.logit_differences(outputs, batch)[0], difference)
    loss = torch.log1p((-difference).exp())
    torch.testing.assert_close(task.example_losses(outputs, batch)[0, 0], loss)
