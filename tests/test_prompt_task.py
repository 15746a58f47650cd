import math

import pytest
import torch

from retrieval_interp.model import word_tokenizer
from retrieval_interp.tasks import EquationsTask, InputError, PromptTask
from retrieval_interp.tasks.training_task import BEGIN
from retrieval_interp.tasks.words.prompts import (
    EquationsPrompt,
    FunctionsPrompt,
    KingdomsPrompt,
    LivesWithPrompt,
    RelativesPrompt,
)
from tests import tiny_tokenizers

FORMULATIONS = [
    EquationsPrompt(steps=3),
    LivesWithPrompt(steps=2),
    KingdomsPrompt(),
    FunctionsPrompt(chains=3),
    RelativesPrompt(chains=2),
]


TEXTS = [prompt.sample(i, seed=7).prompt for prompt in FORMULATIONS for i in range(30)]


def byte_pairs(vocab_size=550, **options):
    return tiny_tokenizers.byte_pairs(TEXTS, vocab_size, **options)


@pytest.fixture(scope="module")
def bpe():
    return byte_pairs()


@pytest.fixture(scope="module")
def rough():
    """With fewer merges, so that names are several tokens."""
    return byte_pairs(450)


@pytest.mark.parametrize("formulation", FORMULATIONS, ids=lambda f: f.name)
def test_roles_are_at_the_last_token_of_their_symbols(bpe, rough, formulation):
    task = PromptTask(formulation, bpe if formulation.name == "kingdoms" else rough)
    questions, tokens = task.usable(10, seed=1)
    several = sum(map(tiny_tokenizers.check_tokens, [task] * 10, questions, tokens))
    assert several > 0 or formulation.name != "lives-with"
    assert {made.prompt[0] for made in tokens} == {task.tokenizer.bos_token_id}
    assert task.sample(10, seed=1).roles.tolist() == [[made.roles] for made in tokens]


def test_whole_words_are_the_equations_task():
    """Two makers of the same text: words through a tokenizer, and token numbers at once."""
    equations = EquationsTask(steps=2, curriculum=False)
    tokenizer = word_tokenizer(equations.vocabulary, BEGIN)
    batch = equations.sample(5)
    for example, tokens in enumerate(batch.inputs.tolist()):
        assert tokenizer(equations.text(batch, example))["input_ids"] == tokens
    (question,), (tokens,) = PromptTask(EquationsPrompt(2, 4, "short"), tokenizer).usable(1)
    assert len(tokens.prompt) == 1 + 3 * 9 and sorted(tokens.answers) == [0, 1, 2, 3]
    words = [equations.vocabulary[token] for token in tokens.prompt]
    at = [words[position] for position in tokens.roles]
    assert at[0] == at[1] and at[2] == at[3] and at[4:] == [question.correct, "?"]


def random_outputs(task, batch):
    size = (*batch.inputs.shape, len(task.tokenizer))
    return torch.randn(size, generator=torch.Generator().manual_seed(0))


def test_padding_changes_nothing(rough):
    task = PromptTask(LivesWithPrompt(steps=2), rough)
    batch, (_, tokens) = task.sample(12), task.usable(12)
    assert len({len(made.prompt) for made in tokens}) > 1
    outputs = random_outputs(task, batch)
    losses = task.example_losses(outputs, batch)
    for example, made in enumerate(tokens):
        length, alone = len(made.prompt), task.batch([made])
        assert alone.inputs[0].tolist() == batch.inputs[example, :length].tolist() == made.prompt
        loss = task.example_losses(outputs[example : example + 1, :length], alone)
        torch.testing.assert_close(loss[0], losses[example])


@pytest.mark.parametrize("kind", ["single digits", "llama", "words"])
def test_what_all_answers_share_belongs_to_the_prompt(kind):
    """Such as the space before a digit; the scored tokens are those in which answers differ."""
    prompt = EquationsPrompt(steps=3)
    texts = [*TEXTS, "0 1 2 3"]
    tokenizer = {
        "single digits": lambda: tiny_tokenizers.byte_pairs(texts, single_digits=True),
        "llama": lambda: tiny_tokenizers.like_llama(texts),
        "words": lambda: tiny_tokenizers.whole_words([*texts, prompt.sample(0).prompt]),
    }[kind]()
    task = PromptTask(prompt, tokenizer)
    (question,), (tokens,) = task.usable(1)
    read = tokenizer.convert_ids_to_tokens(tokens.prompt)
    assert read[-1] == {"single digits": "Ġ", "llama": "▁", "words": "words."}[kind]
    assert tokens.roles[-1] == len(read) - 1
    assert sorted(tokenizer.convert_ids_to_tokens(tokens.answers)) == ["0", "1", "2", "3"]
    correct = tokenizer.convert_ids_to_tokens(tokens.answers)[0]
    assert correct == question.correct
    for number in tokens.answers:  # just what the tokenizer makes of prompt and answer
        whole = f"{question.prompt} {tokenizer.decode([number])}"
        whole = tokenizer(whole, add_special_tokens=False)["input_ids"]
        assert whole == [*tokens.prompt[1:], number]


def test_losses_accuracy_and_logit_differences(bpe):
    task = PromptTask(LivesWithPrompt(steps=2), bpe)
    batch = task.sample(16)
    outputs = random_outputs(task, batch)
    losses, right, difference = [], [], []
    for example in range(16):
        logits = outputs[example, batch.roles[example, 0, -1]]
        scores = [float(logits[token]) for token in batch.targets[example, 0].tolist()]
        losses.append([math.log(sum(map(math.exp, scores))) - scores[0]])
        right.append(scores[0] == max(scores))
        difference.append(scores[0] - sum(scores[1:]) / 3)
    torch.testing.assert_close(task.example_losses(outputs, batch), torch.tensor(losses))
    torch.testing.assert_close(task.logit_differences(outputs, batch), torch.tensor(difference))
    assert task.accuracy(outputs, batch) == pytest.approx(sum(right) / 16)
    flat = task.example_losses(torch.zeros_like(outputs), batch)
    assert float(flat.mean()) == pytest.approx(task.plateau) == pytest.approx(math.log(4))


class Merging:
    """A tokenizer of whole words that reads `a = 0` as one token."""

    is_fast, bos_token_id, pad_token_id, name_or_path = True, None, None, "merging"

    def __call__(self, text, add_special_tokens, return_offsets_mapping=False):
        numbers, offsets, place = [], [], 0
        for line in text.split("\n"):
            words = [line] if line == "a = 0" else line.split(" ")
            for word in words:
                numbers.append(sum(word.encode()))
                offsets.append((place, place + len(word)))
                place += len(word) + 1
        return {"input_ids": numbers, "offset_mapping": offsets}


def test_what_is_left_out_is_said():
    task = PromptTask(EquationsPrompt(1, 2, "short"), Merging())
    merged = ["a = 0" in task.prompt.sample(index).prompt.split("\n") for index in range(40)]
    assert 5 < sum(merged) < 35
    usable = [index for index, yes in enumerate(merged) if not yes][:8]
    with pytest.warns(UserWarning) as warned:
        questions, _ = task.usable(8)
    assert questions == [task.prompt.sample(index) for index in usable]
    tried = usable[-1] + 1
    assert f"{tried - 8} of {tried} examples are left out: example {merged.index(True)}: " in str(
        warned[0].message
    )


def test_answers_that_begin_alike_are_refused():
    task = PromptTask(EquationsPrompt(1, 12, "short"), byte_pairs(300), answer_prefix="")
    text = "20 of 20 examples unusable .*the answers '1' and '10' begin with one token"
    with pytest.raises(InputError, match=text):
        task.sample(3)
