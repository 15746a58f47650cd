import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from retrieval_interp.tasks import InputError
from retrieval_interp.tasks.words.prompts import (
    EquationsPrompt,
    FunctionsPrompt,
    KingdomsPrompt,
    LivesWithPrompt,
    RelativesPrompt,
)
from retrieval_interp.tasks.words.prompts import names as lists
from tests import paper_prompts as paper

FORMULATIONS = [
    EquationsPrompt(),
    LivesWithPrompt(),
    KingdomsPrompt(),
    FunctionsPrompt(),
    RelativesPrompt(),
]
each_formulation = pytest.mark.parametrize("formulation", FORMULATIONS, ids=lambda f: f.name)


def follows_paper(question, printed):
    prompt, correct, acceptable = printed
    assert question.prompt == prompt
    assert (question.correct, ", ".join(question.acceptable)) == (correct, acceptable)


def test_equations_are_printed_as_in_the_paper():
    chains = ["splga1", "qnkeb2", "roifc3", "tmjhd0"]
    orders = ["1023", "1023", "1203", "1032", "1230"]
    follows_paper(
        EquationsPrompt().render(chains, [list(map(int, order)) for order in orders]),
        paper.EQUATIONS,
    )


def test_lives_with_is_printed_as_in_the_paper():
    chains = [
        "Rose Peter Larry Frank Alice Berlin",
        "Queen Nick Kate Grace Bob Amsterdam",
        "Tom Olivia Isabelle Henry David Delhi",
        "Sam Mary Jack Eve Charlie Cairo",
    ]
    orders = ["0123", "3210", "1032", "2301", "3201"]
    follows_paper(
        LivesWithPrompt().render(
            [chain.split() for chain in chains], [list(map(int, order)) for order in orders]
        ),
        paper.LIVES_WITH,
    )


def test_kingdoms_are_printed_as_in_the_paper():
    chains = [
        "Chronogy Zephyrium lamb harmonianism Novaria Alice",
        "Aetherflux Astralyte beef luminism Florinia David",
        "Somnosis Virellium pork elysianism Aurora Charlie",
        "Synthemia Nephryon chicken celestianism Silvania Bob",
    ]
    orders = ["0123", "1302", "1203", "3021", "3021"]
    follows_paper(
        KingdomsPrompt().render(
            [chain.split() for chain in chains], [list(map(int, order)) for order in orders]
        ),
        paper.KINGDOMS,
    )


def test_functions_are_printed_as_in_the_paper():
    tables = [[3, 2, 0, 1], [1, 3, 2, 0], [1, 0, 3, 2], [1, 0, 2, 3]]
    follows_paper(
        FunctionsPrompt().render(tables, [1, 0, 2, 3], [0, 2, 3, 1], (1, 0)), paper.FUNCTIONS
    )


def test_relatives_are_printed_as_in_the_paper():
    homes = (
        "Penny Canada, Lily Brazil, Isabelle France, Cathy Kenya, George Italy, Adam Mexico, "
        "Kevin Peru, Ed Laos, Hank Germany, Mike Japan, Jane England, Fred Hungary, Dana Norway, "
        "Olivia Qatar, Bob Denmark, Nancy Argentina"
    )
    families = {
        "John": ["Jane", "Olivia", "Ed", "Mike"],
        "Chris": ["Penny", "Dana", "Adam", "George"],
        "Diana": ["Nancy", "Isabelle", "Hank", "Bob"],
        "Eve": ["Lily", "Cathy", "Fred", "Kevin"],
    }
    rules = {"doctor": "brother", "lawyer": "mother", "teacher": "sister", "engineer": "father"}
    works = {"John": "doctor", "Chris": "engineer", "Diana": "teacher", "Eve": "lawyer"}
    follows_paper(
        RelativesPrompt().render(
            dict(home.split() for home in homes.split(", ")), families, rules, works, asked="Eve"
        ),
        paper.RELATIVES,
    )


@each_formulation
def test_a_question_depends_on_its_seed_split_and_index_alone(formulation):
    forwards = [formulation.sample(index, seed=5) for index in range(20)]
    backwards = [formulation.sample(index, seed=5) for index in reversed(range(20))]
    assert forwards == backwards[::-1]
    splits = ("train", "validation", "discovery", "test")
    prompts = [
        formulation.sample(index, seed, split).prompt
        for seed in (0, 1)
        for split in splits
        for index in range(20)
    ]
    assert len(set(prompts)) == len(prompts)


def test_questions_stay_the_same():
    question = EquationsPrompt(steps=1, chains=3).sample(7, seed=2, split="test")
    assert question.prompt.splitlines() == [
        "a = 0",
        "b = 2",
        "c = 1",
        "What is the value of c? Say directly only the numeric value, without any other words.",
    ]
    prompts = "\n".join(formulation.sample(0).prompt for formulation in FORMULATIONS)
    assert hashlib.sha256(prompts.encode()).hexdigest().startswith("91827b75459eb57d")


def test_names_are_distinct_single_words_as_far_as_questions_go():
    kinds = [kind for kind in vars(lists).values() if isinstance(kind, lists.Names)]
    assert len(kinds) == 10
    for kind in kinds:
        names = kind.take(10_000)
        assert len(set(names)) == 10_000
        assert all(name.isalpha() for name in names)
    letters = lists.letters(10_000)
    assert len(set(letters)) == 10_000
    assert letters[25:28] == ("z", "aa", "ab")
    family = {*lists.PERSONS, *lists.WOMEN.take(72), *lists.MEN.take(72), *lists.RELATIONS}
    assert len(family) == 12 + 144 + 12
    assert not family & {f"{name}s" for name in family}
    for formulation in (LivesWithPrompt(100, 100), KingdomsPrompt(2000)):
        question = formulation.sample(0)  # refuses names that come twice
        assert question.correct in question.acceptable


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: EquationsPrompt(steps=0),
            "equations: expected steps to be an integer of at least",
        ),
        (lambda: KingdomsPrompt(chains=-1), "kingdoms: expected chains .* at least 1, found -1"),
        (
            lambda: LivesWithPrompt(101, 100),
            r"at most 10000 .*\(steps \* chains\), found 10100; ask",
        ),
        (lambda: KingdomsPrompt(2001), "at most 10000 statements per question .* found 10005"),
        (lambda: FunctionsPrompt(100), "at most 10000 statements per question .* found 10200"),
        (lambda: RelativesPrompt(13), "at most 12 chains, .*nephew.* found 13; ask for fewer"),
        (lambda: EquationsPrompt().sample(-1), "expected an index of at least 0, found -1"),
        (lambda: EquationsPrompt().sample(0, seed=2**64), "expected a seed from 0 to 2"),
        (lambda: EquationsPrompt(2, 2).render(["ab1"], [[0], [0]]), "expected 2 chains, found 1"),
        (
            lambda: EquationsPrompt(1, 2).render(["a1", "b1"], [[0, 1]]),
            "symbols to be distinct, found '1' 2 times; rename them",
        ),
        (
            lambda: EquationsPrompt(1, 2).render(["a1", "b2"], [[0, 0]]),
            r"the order of step 1 to hold each of \[0, 1\] once, found \[0, 0\]; list each",
        ),
        (
            lambda: EquationsPrompt(1, 1).render([["a", ""]], [[0]]),
            "expected every symbol to be a word, found ''",
        ),
        (
            lambda: KingdomsPrompt(1).render([["C", "Z", "lamb", "faith", "Nova", "A"]], [[0]] * 5),
            "kingdoms: expected a belief to end in 'ism', found 'faith'; rename it",
        ),
        (
            lambda: FunctionsPrompt(2).render([[0, 1], [1, 1]], [0, 1], [0, 1], (0, 0)),
            r"functions: expected table 1 to hold each of \[0, 1\] once, found \[1, 1\]",
        ),
        (
            lambda: FunctionsPrompt(1).render([[0]], [0], [0], (0, 3)),
            "expected the variable asked from 0 to 0, found 3",
        ),
        (
            lambda: RelativesPrompt(2).render({}, {"Al": ["Bo"]}, {}, {}, "Al"),
            r"relatives: expected 2 families of 2 relatives each, found sizes \[1\]",
        ),
        (
            lambda: RelativesPrompt(1).render({}, {"Al": ["Bo"]}, {}, {}, "Al"),
            r"relatives: expected homes to hold each of \['Bo'\] once, found \[\]",
        ),
    ],
)
def test_what_cannot_be_asked_is_refused(make, text):
    with pytest.raises(InputError, match=text):
        make()


def test_the_package_needs_the_standard_library_alone_and_no_global_state():
    folder = Path(lists.__file__).parents[4]
    code = """
import random, sys, types
sys.path.append(sys.argv[1])
from retrieval_interp.tasks.words import prompts
state = random.getstate()
prompts.EquationsPrompt().sample(0)
assert random.getstate() == state
print({name.split(".")[0] for name in sys.modules} - sys.stdlib_module_names)
"""
    run = [sys.executable, "-I", "-S", "-c", code, folder]
    printed = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    assert eval(printed) <= {"__main__", "retrieval_interp"}
