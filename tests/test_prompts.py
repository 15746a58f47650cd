"""The five formulations: printed as in the paper, and solved from their text alone."""

import hashlib
import re

import pytest

import retrieval_interp as ri
from retrieval_interp.tasks.sampling import SPLITS
from retrieval_interp.tasks.words import names as lists
from retrieval_interp.tasks.words import prompts
from tests.paper_prompts import PRINTED, answer_of, sentences_of, solve

FORMULATIONS = [formulation() for formulation in prompts.FORMULATIONS.values()]
OTHERS = [
    ri.EquationsPrompt(steps=12, chains=7),  # 84 letters
    ri.EquationsPrompt(steps=1, chains=1),
    ri.LivesWithPrompt(steps=9, chains=13),  # 117 people
    ri.KingdomsPrompt(chains=11),
    ri.FunctionsPrompt(chains=11),  # 33 letters, numbers of two digits
    ri.RelativesPrompt(chains=12),
    ri.RelativesPrompt(chains=1),
]
each_formulation = pytest.mark.parametrize("formulation", FORMULATIONS, ids=lambda f: f.name)


def orders(text):
    return [list(map(int, order)) for order in text.split()]


def test_questions_are_printed_as_in_the_paper():
    equations = ["splga1", "qnkeb2", "roifc3", "tmjhd0"]
    tables = orders("3201 1320 1032 1023")
    given = [
        (equations, orders("1023 1023 1203 1032 1230")),
        (tables, *orders("1023 0231"), (1, 0)),
    ]
    asked = [ri.EquationsPrompt(), ri.FunctionsPrompt()]
    for formulation, arguments, printed in zip(asked, given, PRINTED):
        question = formulation.render(*arguments)
        assert (question.prompt, question.correct, ", ".join(question.acceptable)) == printed


@each_formulation
def test_a_question_depends_on_its_seed_split_and_index_alone(formulation):
    places = [(index, seed, split) for index in range(20) for seed in (0, 1) for split in SPLITS]
    questions = {place: formulation.sample(*place) for place in places}
    assert all(formulation.sample(*place) == questions[place] for place in reversed(places))
    assert len({question.prompt for question in questions.values()}) == len(places)


def test_questions_stay_the_same():
    questions = [formulation.sample(7, 2, "test") for formulation in FORMULATIONS + OTHERS]
    assert hashlib.sha256(repr(questions).encode()).hexdigest().startswith("b2204bb359621230")


def test_names_are_distinct_single_words():
    for kind in (lists.PEOPLE, lists.WOMEN, lists.MEN, lists.COUNTRIES):
        names = kind.take(10_000)
        assert len(set(names)) == 10_000 and all(name.isalpha() for name in names)
    assert lists.letters(28)[25:] == ("z", "aa", "ab")


@pytest.mark.parametrize("formulation", FORMULATIONS + OTHERS, ids=repr)
def test_following_the_chain_gives_the_answer_and_its_roles(formulation):
    sentences = sentences_of(formulation)
    for index in range(100 if formulation in FORMULATIONS else 8):
        question = formulation.sample(index, seed=3)
        text, words = question.prompt, {}
        spans = [(symbol.start, symbol.end) for symbol in question.occurrences]
        assert spans == sorted(set(spans))
        assert set(spans) <= {whole.span() for whole in re.finditer(r"\w+", text)}
        for role, start, end in question.occurrences:
            if role:
                assert role not in words
                words[role] = text[start:end]
        assert words == solve(text, sentences)
        assert answer_of(formulation, text) == question.correct
        assert question.correct in question.acceptable
        assert len(set(question.acceptable)) == round(1 / formulation.chance)
