"""What the answer to a prompt depends on, and changes of it that turn the answer."""

import random

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.circuits.counterfactual.keep_search import Recovery
from retrieval_interp.circuits.counterfactual.prompt_runs import PromptRuns
from retrieval_interp.circuits.counterfactual.question import ask
from retrieval_interp.circuits.counterfactual.units import MetricTask
from retrieval_interp.views.why_text import question_text
from tests.models import FAMILIES, untrained_bridge
from tests.texts import SENTENCE


class Sentence:
    """The sentence in the tokens of an untrained model, and what that says next."""

    def __init__(self, model):
        self.model = model
        self.begin, self.ids = [model.tokenizer.bos_token_id], self.tokens(SENTENCE)
        self.before = self.logits(SENTENCE)
        words = {text: self.token(text) for text in (" Mary", " John", " When", " store")}
        self.answer = max(words, key=lambda text: float(self.before[words[text]]))
        self.likeliest = words[self.answer]
        self.question = ask(model, SENTENCE, self.answer)

    def tokens(self, text):
        return self.model.tokenizer(text, add_special_tokens=False)["input_ids"]

    def token(self, word):
        return self.tokens(f"to{word}")[-1]

    @torch.no_grad()
    def logits(self, text):
        return self.model(torch.tensor([self.begin + self.tokens(text)]))[0, -1]


@pytest.fixture(scope="module")
def sentence(llama):
    return Sentence(llama)


def test_it_is_said_what_the_answer_depends_on(sentence):
    question, before = sentence.question, sentence.before
    assert question.first_token == sentence.answer
    assert question.rank == int((before >= before[sentence.likeliest]).sum())
    assert question.says_token == sentence.model.tokenizer.decode([int(before.argmax())])
    probability = float(before.softmax(0)[sentence.likeliest])
    assert question.probability == pytest.approx(probability, rel=1e-4)
    assert all(weight.grad is None for weight in sentence.model.parameters())
    strongest = max(question.places, key=lambda place: place.fall)
    said = f"That depends on {strongest.text.strip()!r} ({strongest.fall:.1f})"
    assert said in question_text(question)[1]
    # Of a named place as much is said as before.
    first = question.places[0]
    again = ask(sentence.model, SENTENCE, sentence.answer, place=first.text)
    assert again.places[0].fall == pytest.approx(first.fall)


def test_changes_of_one_place_turn_the_answer(sentence):
    question, before, right = sentence.question, sentence.before, sentence.likeliest
    assert question.changes
    for change in question.changes:
        changed = sentence.tokens(change.prompt)
        differ = [n for n, (a, b) in enumerate(zip(sentence.ids, changed)) if a != b]
        assert {*differ} <= {*range(question.place.start, question.place.stop)} and differ
        assert len(sentence.ids) == len(changed) and change.answer.startswith(change.first_token)
        after = sentence.logits(change.prompt)
        wrong = sentence.tokens(SENTENCE + change.first_token)[-1]
        assert before[wrong] < before[right] and after[wrong] > after[right]
    late = ask(sentence.model, SENTENCE, sentence.answer, place=question.place.text, time=0.0)
    assert len(late.changes) == 2 and late.changes == question.changes[:2]
    task = ri.PairsTask(question.pairs, sentence.model.tokenizer)
    batch, others = task.with_others(2, split="test")
    for row, other, change in zip(batch.inputs, others.inputs, question.changes[1::2]):
        assert row.tolist() == sentence.begin + sentence.ids
        assert other.tolist() == sentence.begin + sentence.tokens(change.prompt)


def test_of_several_tokens_all_count(sentence):
    """Of an answer, and of words that stand together."""
    answer, row, probability = 2 * sentence.answer, sentence.begin + sentence.ids, 1.0
    for token in sentence.tokens(f"to{answer}")[1:]:
        with torch.no_grad():
            probability *= float(sentence.model(torch.tensor([row]))[0, -1].softmax(0)[token])
        row = [*row, token]
    both = ask(sentence.model, SENTENCE, answer, place="to the store")
    assert both.answer == answer and both.first_token == sentence.answer
    assert both.probability == pytest.approx(probability, rel=1e-3)
    assert (both.place.text.strip(), both.place.stop - both.place.start) == ("to the store", 3)


def test_a_wrong_answer_that_is_given_leads(sentence):
    question, before = sentence.question, sentence.before
    wrong = question.changes[0].first_token.strip()
    given = ask(sentence.model, SENTENCE, sentence.answer, wrong, place=question.place.text)
    # With a blank or without.
    assert {change.first_token.strip() for change in given.changes} == {wrong}
    token = sentence.tokens(f"{SENTENCE}{given.wrong.answer}")[len(sentence.ids)]
    assert given.wrong.probability == pytest.approx(float(before.softmax(0)[token]), rel=1e-3)
    assert given.wrong.rank == int((before >= before[token]).sum())
    assert f"rank {given.wrong.rank}" in question_text(given)[0]
    likelier = f"after which {given.wrong.answer!r} is likelier than {sentence.answer!r}."
    assert likelier in question_text(given)[1]


def test_what_both_answers_begin_with_goes_behind_the_prompt(sentence):
    """The first token that differs is asked about."""
    model, answer = sentence.model, sentence.answer
    behind = ask(model, f"{SENTENCE} to", answer)
    wrong, place = behind.changes[0].first_token, behind.place.text
    behind = ask(model, f"{SENTENCE} to", answer, wrong, place)
    begun = ask(model, SENTENCE, f" to{answer}", f" to{wrong}", place)
    assert begun.answer == begun.first_token == f" to{answer}" and begun.prompt == SENTENCE
    assert [change.text for change in begun.changes] == [change.text for change in behind.changes]
    assert {change.first_token for change in begun.changes} == {f" to{wrong}"}
    batch = ri.PairsTask(begun.pairs, model.tokenizer).sample(1)
    assert batch.inputs[0].tolist() == sentence.begin + sentence.tokens(f"{SENTENCE} to")


@torch.no_grad()
def test_answers_of_several_tokens_are_scored_by_all(sentence):
    model, answer = sentence.model, 2 * sentence.answer
    row = sentence.begin + sentence.ids + sentence.tokens(f"to{answer}")[1:]
    question = ask(model, SENTENCE, answer)
    task = question.task(model.tokenizer)
    assert list(question.tokens) == row[-2:] and question.answer == answer
    assert task.role_names[-2] == "END" and len(task.scored_roles) == 2

    def by_hand(prompt):
        row = sentence.begin + sentence.tokens(f"{prompt}{answer}")
        logits = model(torch.tensor([row]))[0].log_softmax(-1)
        return logits[-3, row[-2]] + logits[-2, row[-1]]

    batch, others = task.with_others(2, split="test")
    recovery = Recovery(model, MetricTask(task), ri.with_counterfactual(model, batch, others))
    assert recovery.scorer.task.metric_name == "log probability"
    here = by_hand(SENTENCE).expand(2)
    there = torch.stack([by_hand(change.prompt) for change in question.changes[1:4:2]])
    torch.testing.assert_close(recovery.intact, here, atol=1e-4, rtol=1e-5)
    # What stands behind the change is the same, so nothing kept is the run on the changed prompt.
    torch.testing.assert_close(recovery.none_kept, there, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(task.example_losses(model(batch.inputs), batch)[:, 0], -here)


def test_an_answer_of_several_tokens_is_right_if_all_are(sentence):
    task = ask(sentence.model, SENTENCE, 2 * sentence.answer).task(sentence.model.tokenizer)
    batch, (first, second) = task.sample(2), sentence.tokens(f"to{2 * sentence.answer}")[1:]
    logits = torch.zeros(2, batch.inputs.shape[1], sentence.model.cfg.d_vocab)
    logits[:, -2, first] = logits[:, -1, second] = 1.0
    assert task.accuracy(logits, batch) == 1.0
    logits[0, -2, first] = -1.0  # one token of one example
    assert task.accuracy(logits, batch) == 0.5


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_changed_prompts_have_the_logits_of_whole_runs(tmp_path, family):
    model = untrained_bridge(family, tmp_path)
    runs = PromptRuns(model, SENTENCE)
    assert len(runs.continued.kept) == model.cfg.n_layers  # they go on after keys and values
    for span in (range(1, 2), range(5, 8)):
        rows = runs.candidates(span, 4) + runs.drawn(span, 4, random.Random(0))
        whole = model(torch.tensor([runs.begin + row for row in rows]))
        for first in (-1, 0, span.start - 1):
            logits = torch.cat(list(runs._run(rows, first)))
            torch.testing.assert_close(logits, whole[:, -logits.shape[1] :], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("prompt", "how", "message"),
    [
        (f"{SENTENCE} ", {}, "expected no trailing space"),
        (SENTENCE * 40, {}, "expected at most the model's 64 tokens, found"),
        (SENTENCE, {"answer": " Mary", "wrong": "Mary"}, "expected another wrong answer"),
        (SENTENCE, {"place": "nowhere"}, "place: expected words of"),
        ("", {}, "expected words, found ''"),
    ],
)
def test_prompts_that_cannot_be_asked_about_are_refused(llama, prompt, how, message):
    with pytest.raises(ri.InputError, match=message):
        ask(llama, prompt, **how)
