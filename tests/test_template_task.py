"""Templates with roles, and indirect objects."""

import re
from collections import Counter
from itertools import pairwise, product

import pytest
import torch

from retrieval_interp.tasks import IndirectObjectTask, InputError, TemplateTask
from retrieval_interp.tasks.words.template_task import NAMES, TEMPLATES
from retrieval_interp.tasks.words.text_task import Unusable
from tests import tiny_tokenizers

PEOPLE = ["Anna", "Bob", "Clara", "Dan", "Eve", "Frank", "Greta", "Hugo", "Ida", "Jakob"]
PLACES = ["shop", "park", "school", "harbour"]
GIVING = [
    "When {S1} and {IO} met at the {place}, {S2} gave a book to",
    "At the {place} {IO} saw {S1} , {S2} spoke to",
]
FILLINGS = {"IO": PEOPLE, "S1": PEOPLE, "S2": "S1", "place": PLACES}
CAPITALS = [
    {"country": c, "capital": w}
    for c, w in (("France", "Paris"), ("Italy", "Rome"), ("Peru", "Lima"))
]
TEXTS = [
    template.format(S1=a, IO=b, S2=a, place=p) + f" {b}"
    for template in GIVING
    for a, b in product(PEOPLE, repeat=2)
    for p in PLACES
]


@pytest.fixture(scope="module")
def bpe():
    """Few merges, so that many names are several tokens."""
    return tiny_tokenizers.byte_pairs(TEXTS, 300)


def giving(tokenizer, **changes):
    roles = ("END", "S2", "S1+1", "S1", "IO")
    arguments = {"templates": GIVING, "fillings": FILLINGS, "answer": "IO", "wrong": "S1"}
    return TemplateTask(**{**arguments, "roles": roles, "tokenizer": tokenizer, **changes})


def tokens_of(task, question):
    """A question's tokens, or why it has none."""
    try:
        return task.tokens(question)
    except Unusable as error:
        return str(error)


@pytest.mark.parametrize("kind", ["bytes", "llama", "words"])
def test_roles_are_at_the_last_token_of_their_words(kind, bpe):
    tokenizer = {
        "bytes": lambda: bpe,
        "llama": lambda: tiny_tokenizers.like_llama(TEXTS, 75),
        "words": lambda: tiny_tokenizers.whole_words(TEXTS),
    }[kind]()
    task = giving(tokenizer)
    several, used = 0, 0
    for index in range(60):
        question = task.question(index, seed=3)
        made = tokens_of(task, question)
        if not isinstance(made, str):  # else two names begin alike
            used += 1
            several += tiny_tokenizers.check_tokens(task, question, made)
            at = dict(zip(task.roles, made.roles))
            assert at["S1+1"] == at["S1"] + 1
    assert used > 10 and (several > 0 or kind == "words")


def test_all_other_words_are_wrong_by_default(bpe):
    task = TemplateTask(["The capital of {country} is"], CAPITALS, "capital", tokenizer=bpe)
    question = task.question(0)
    assert question.acceptable == ("Lima", "Paris", "Rome") and task.n_answers == 3
    assert {"country": question.prompt.split()[3], "capital": question.correct} in CAPITALS
    assert task.to_dict()["wrong"] == ["Paris", "Rome", "Lima"]
    assert task.to_dict()["roles"] == ["END", "country"]


def test_splits_share_no_prompt_where_there_are_many(bpe):
    task = giving(bpe)  # 2 templates, 90 pairs, 4 places
    seen = {
        split: {task.question(i, seed, split).prompt for i in range(150) for seed in range(2)}
        for split in ("train", "validation", "discovery", "test")
    }
    assert sum(map(len, seen.values())) == len(set().union(*seen.values()))
    assert all(len(prompts) > 60 for prompts in seen.values())
    again = giving(bpe).question(7, 1, "test")
    assert again == task.question(7, 1, "test") != task.question(7, 0, "test")


def test_few_examples_come_in_turns_in_every_split(bpe):
    task = TemplateTask(["{country}: "[:-1]], CAPITALS, "capital", tokenizer=bpe)
    for split in ("train", "test"):
        counts = Counter(task.question(index, 5, split).prompt for index in range(9))
        assert counts == {"France:": 3, "Italy:": 3, "Peru:": 3}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"templates": []}, "templates: expected a list of texts"),
        ({"templates": "{IO} and {S1}"}, "templates: expected a list of texts"),
        ({"templates": ["{IO} saw {S1}, who saw"]}, r"roles: expected one of .* found 'S2'"),
        ({"templates": ["{IO} and {S1}, {S2}, {IO} to"]}, "different marks"),
        ({"templates": ["{IO} and {S1} and {X}, {S2} to"]}, "templates: .* found 'X'"),
        ({"templates": ["{IO and {S1}, {S2} to"]}, "expected different marks such as {IO}"),
        ({"templates": ["{IO} and {S1}, {S2} to {END}"]}, "not {END}"),
        ({"templates": ["{IO} and {S1}, {S2} to "]}, "without a blank at the end"),
        ({"fillings": {**FILLINGS, "IO": []}}, "fillings of IO: expected a list of texts"),
        ({"fillings": {**FILLINGS, "S2": "S9"}}, "fillings: expected one of .* found 'S9'"),
        ({"fillings": {**FILLINGS, "IO": ["Bob"], "S1": ["Bob"]}}, "expected enough words"),
        ({"answer": "OI"}, "answer: expected one of IO, S1, S2, place, found 'OI'"),
        ({"wrong": []}, "at least two answers"),
        ({"wrong": "IO"}, "expected different words for IO, IO"),
        ({"roles": ("S1", "IO")}, "roles: expected different ones and END"),
        ({"tokenizer": None}, "expected a Hugging Face tokenizer that gives offsets"),
        ({"tokenizer": tiny_tokenizers.byte_pairs(TEXTS, 300, bos=False), "prepend_bos": True},
         "beginning-of-sequence token"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused_in_one_line(bpe, changes, text, without_type_checks):
    with pytest.raises(InputError, match=text) as refused:
        giving(**{"tokenizer": bpe, **changes})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"fillings": {**FILLINGS, "IO": ["Jan", "Jana", "Tom"]}, "wrong": None},
         "begin with one token"),
        ({"templates": ["{place} {IO} {S1} saw {S2}"]}, "roles share a token"),
        ({"templates": ["{place}: {S1}{IO} , {S2} saw"]}, "put text between"),
    ],
)  # fmt: skip
def test_what_makes_examples_unusable_is_said(changes, text):
    joined = [f" {a}{b}" for a in PEOPLE for b in PEOPLE]
    task = giving(tiny_tokenizers.byte_pairs([*TEXTS, *joined], 2000), **changes)
    reasons = [tokens_of(task, task.question(index)) for index in range(40)]
    assert any(isinstance(reason, str) and re.search(text, reason) for reason in reasons)


@pytest.mark.parametrize("kind", [tiny_tokenizers.byte_pairs, tiny_tokenizers.like_llama])
def test_indirect_objects(kind):
    names = NAMES[:30]
    texts = [t.format(IO=a, S1=b, S2=b) for t in TEMPLATES for a, b in pairwise(names)]
    tokenizer = kind(texts, 2000)
    task = IndirectObjectTask(tokenizer)
    assert set(names[1:-1]) <= set(task.names)
    assert {*task.names, *task.left_out} == set(NAMES)
    assert task.left_out and f"({len(task.left_out)} left out)" in task.description
    batch = task.sample(64)
    end, s2, after, s1, io = batch.roles[:, 0].T
    assert (after == s1 + 1).all() and (s2 > after).all() and (end > s2).all()
    assert 16 < int((io < s1).sum()) < 48  # ABB and BAB
    words = [batch.inputs[torch.arange(64), at] for at in (io, s1, s2)]
    assert torch.equal(words[1], words[2])
    assert torch.equal(torch.stack(words[:2], dim=-1), batch.targets[:, 0])
    with pytest.raises(InputError, match="names: expected at least two that are one token"):
        IndirectObjectTask(tokenizer, names=["Anna", "Qzxwvut"])


def test_a_template_may_lack_a_role(bpe):
    with_place, without = GIVING[1], "When {S1} and {IO} met, {S2} gave a book to"
    task = giving(bpe, templates=[with_place, without], roles=("END", "S1", "place", "place+1"))
    questions, tokens = task.usable(40)
    assert task.role_names == ("END", "S1", "place", "place+1")
    batch = task.batch(tokens)
    lacking = torch.tensor([question.prompt.startswith("When") for question in questions])
    assert 5 < int(lacking.sum()) < 35
    assert (batch.roles[lacking][:, 0, 2:] == -1).all()
    assert (batch.roles[~lacking][:, 0, 2] + 1 == batch.roles[~lacking][:, 0, 3]).all()
    assert (batch.roles[:, :, :2] >= 0).all()
    by_default = giving(bpe, templates=[without, with_place], roles=None)
    assert by_default.role_names == ("END", "S2", "IO", "S1", "place")
