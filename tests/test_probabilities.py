"""Probabilities of answers: against whole runs, and of a model whose probabilities are known."""

import json
import random
from itertools import product

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.circuits.continued_runs import ContinuedRuns
from retrieval_interp.llm.probabilities import expected_accuracy, log_probabilities
from retrieval_interp.tasks.words.prompts import FORMULATIONS
from tests.models import FAMILIES, hooked_model, stock_transformer, untrained_bridge
from tests.paper_prompts import answer_of
from tests.texts import byte_pairs

COMMON = [5, 7]  # what some answers begin with
ANSWERS = [[3], [4], [*COMMON, 1], [*COMMON, 2, 9, 9], [5, 8]]


@torch.no_grad()
@pytest.mark.parametrize("kind", [*FAMILIES, "hooked"])
def test_all_tokens_of_an_answer_count_as_in_runs_of_the_whole(kind, tmp_path):
    model = hooked_model() if kind == "hooked" else untrained_bridge(kind, tmp_path)
    runs, draw = ContinuedRuns(model), random.Random(0)
    prompt = [draw.randrange(10) for _ in range(8)]
    # Prompts that begin alike, one within another, and again; answers that begin alike, and not.
    for read in (prompt, [*prompt[:5], 1, 2, 3], prompt[:4], prompt[:4], [*prompt, 1]):
        for answers in (ANSWERS, ANSWERS[:2], ANSWERS[2:4], ANSWERS[3:4]):
            logs = log_probabilities(runs, read, answers)
            for answer, log in zip(answers, logs):
                whole = model(torch.tensor([read + answer[:-1]]))[0].log_softmax(-1)
                naive = sum(map(float, whole[range(len(read) - 1, len(whole)), answer]))
                assert float(log) == pytest.approx(naive, abs=1e-5)


def smallest_model(tokenizer):
    sizes = {"n_layers": 1, "d_model": 4, "d_head": 4, "n_heads": 1, "attn_only": True}
    return stock_transformer(d_vocab=len(tokenizer), n_ctx=500, **sizes)


@pytest.fixture
def constant():
    """A model that gives each token a probability of its own, whatever came before.

    With its tokenizer, and a function that gives the probability of a word.
    """
    tokenizer = byte_pairs(["lives in a city"], 270)
    model = smallest_model(tokenizer)
    logs = torch.randn(len(tokenizer)).log_softmax(0)
    model.unembed.W_U.data.zero_()
    model.unembed.b_U.data[:] = logs

    def probability(word):
        tokens = tokenizer(f" {word}")["input_ids"]
        assert len(tokens) > 1
        return float(logs[tokens].sum().exp())

    return model, tokenizer, probability


def test_each_of_four_answers_that_are_right_once_in_a_text_counts_a_quarter(constant):
    model, tokenizer, probability = constant
    prompt = ri.LivesWithPrompt(steps=1)
    row = expected_accuracy(model, ri.PromptTask(prompt, tokenizer, solved=1), questions=6)
    assert row.questions == 8 and (row.accuracy, row.likeliest) == pytest.approx((0.25, 0.25))
    cities = prompt.sample(0).acceptable
    assert row.accepted == pytest.approx(sum(map(probability, cities)), rel=1e-4)


def test_the_protocol_is_right_as_often_as_known_probabilities_say(constant):
    model, tokenizer, probability = constant
    prompt = ri.FunctionsPrompt()
    row = expected_accuracy(model, ri.PromptTask(prompt, tokenizer), questions=12)
    weights = {number: probability(number) for number in "0123"}
    likeliest, share = max(weights, key=weights.get), sum(weights.values())
    right = [[prompt.sample(i, 0, "test", c).correct for c in range(4)] for i in range(3)]
    accuracies = torch.tensor([[weights[n] / share for n in text] for text in right]).mean(1)
    best = torch.tensor([[float(n == likeliest) for n in text] for text in right]).mean(1)
    assert row.accuracy == pytest.approx(float(accuracies.mean()), rel=1e-4)
    assert row.stderr == pytest.approx(float(accuracies.std()) / 3**0.5, rel=1e-3)
    assert row.likeliest == pytest.approx(float(best.mean()))
    assert row.likeliest_stderr == pytest.approx(float(best.std()) / 3**0.5)


def test_a_model_that_has_learned_the_equations_is_right():
    model = ri.load_checkpoint("equations").model
    task = ri.PromptTask(ri.EquationsPrompt(steps=2, question="short"), model.tokenizer)
    row = expected_accuracy(model, task, questions=32)
    assert row.likeliest == 1 and row.accuracy > 0.99


@pytest.mark.parametrize("name", FORMULATIONS)
def test_a_text_is_asked_about_every_chain_after_the_same_solved_question(name):
    prompt = FORMULATIONS[name]()
    task = ri.PromptTask(prompt, byte_pairs([prompt.sample(0).prompt], 300), solved=1)
    for index in range(5):
        asked = [task.question(index, 3, "test", chain) for chain in range(4)]
        begin = f"{(past := task.solved(3)[0]).prompt} {past.correct}\n\n"
        assert answer_of(prompt, past.prompt) == past.correct
        texts = [question.prompt.removeprefix(begin) for question in asked]
        assert len(set(texts)) == 4 and len({text.rpartition("\n")[0] for text in texts}) == 1
        assert prompt.sample(index, 3, "test").prompt.rpartition("\n")[0] in texts[0]
        for question, text in zip(asked, texts):
            assert answer_of(prompt, text) == question.correct
            words = {question.prompt[start:end] for _, start, end in question.occurrences}
            assert all(word in text for word in words) and question.correct in words


def test_a_chat_asks_in_the_words_of_its_template():
    prompt, template = ri.EquationsPrompt(steps=1), "{% for m in messages %}"
    template += "<{{ m.role }}>{{ m.content }}</>{% endfor %}<assistant>"
    tokenizer = byte_pairs([prompt.sample(0).prompt, "<user></><assistant>"], 258)
    with pytest.raises(ri.InputError, match="a tokenizer with a chat template, found"):
        ri.PromptTask(prompt, tokenizer, chat=True).question(0)
    tokenizer.chat_template = template
    plain, chat = (ri.PromptTask(prompt, tokenizer, solved=1, chat=chat) for chat in (False, True))
    asked, past = prompt.sample(2, 3), chat.solved(3)[0]
    text = f"<user>{past.prompt}</><assistant>{past.correct}</><user>{asked.prompt}</><assistant>"
    question = chat.question(2, 3)
    assert question.prompt == text and question.correct == asked.correct
    words = [asked.prompt[start:end] for _, start, end in asked.occurrences]
    assert [text[start:end] for _, start, end in question.occurrences] == words
    model = smallest_model(tokenizer)
    row, other = (expected_accuracy(model, task, questions=8) for task in (chat, plain))
    assert row.asked != other.asked and row.accuracy != other.accuracy
    right = []
    for index, chain in product(range(2), range(4)):
        question = chat.question(index, 0, "test", chain)
        logs = model(torch.tensor([tokenizer(question.prompt)["input_ids"]])).detach()[0, -1]
        shares = logs[tokenizer.convert_tokens_to_ids(list(question.acceptable))].softmax(0)
        right.append(float(shares[question.acceptable.index(question.correct)]))
    assert row.accuracy == pytest.approx(sum(right) / 8, rel=1e-4)


def test_the_command_writes_rows_that_plot_reads(run_command_in_process, tmp_path, undocumented):
    folder, rows = tmp_path / "model", tmp_path / "rows.json"
    untrained_bridge("llama", folder)
    score = "score", "--model", folder, "--formulation", "equations", "kingdoms", "--questions", 3
    done = run_command_in_process("llm", *score)
    assert done.returncode == 2 and "at most the model's 64 tokens, found" in done.stderr
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 1999}))
    files = "--json", rows, "--out", tmp_path / "figure.html"
    done = run_command_in_process("llm", *score, *files, "--steps", 1, 2, "--solved", 1)
    assert (done.returncode, done.stderr) == (0, "") and (tmp_path / "figure.html").exists()
    data = json.loads(rows.read_text())
    keys = "formulation", "steps", "solved", "questions"
    asked = [[row[key] for key in keys] for row in data["rows"]]
    assert asked == [["equations", 1, 1, 8], ["equations", 2, 1, 8], ["kingdoms", None, 1, 8]]
    assert not undocumented(data["rows"], "llm")
    again = run_command_in_process("llm", "plot", rows)
    assert again.stdout == done.stdout.split("numbers:")[0]
