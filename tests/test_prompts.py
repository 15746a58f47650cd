"""The five formulations: printed as in the paper, and solved from their text alone."""

import hashlib
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import jaxtyping
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


def orders(text):
    return [list(map(int, order)) for order in text.split()]


LIVES_WITH = """Rose Peter Larry Frank Alice Berlin, Queen Nick Kate Grace Bob Amsterdam,
Tom Olivia Isabelle Henry David Delhi, Sam Mary Jack Eve Charlie Cairo"""
KINGDOMS = """Chronogy Zephyrium lamb harmonianism Novaria Alice,
Aetherflux Astralyte beef luminism Florinia David,
Somnosis Virellium pork elysianism Aurora Charlie,
Synthemia Nephryon chicken celestianism Silvania Bob"""
HOMES = """Penny Canada, Lily Brazil, Isabelle France, Cathy Kenya, George Italy, Adam Mexico,
Kevin Peru, Ed Laos, Hank Germany, Mike Japan, Jane England, Fred Hungary, Dana Norway,
Olivia Qatar, Bob Denmark, Nancy Argentina"""
FAMILIES = """John: Jane Olivia Ed Mike, Chris: Penny Dana Adam George,
Diana: Nancy Isabelle Hank Bob, Eve: Lily Cathy Fred Kevin"""


def test_questions_are_printed_as_in_the_paper():
    lives, kingdoms, homes = (
        [part.split() for part in text.split(",")] for text in (LIVES_WITH, KINGDOMS, HOMES)
    )
    families = {
        name.strip(): kin.split()
        for name, kin in (family.split(":") for family in FAMILIES.split(","))
    }
    rules = {"doctor": "brother", "lawyer": "mother", "teacher": "sister", "engineer": "father"}
    works = dict(zip(families, ("doctor", "engineer", "teacher", "lawyer")))
    equations = ["splga1", "qnkeb2", "roifc3", "tmjhd0"]
    tables = orders("3201 1320 1032 1023")
    for question, printed in (
        (EquationsPrompt().render(equations, orders("1023 1023 1203 1032 1230")), paper.EQUATIONS),
        (LivesWithPrompt().render(lives, orders("0123 3210 1032 2301 3201")), paper.LIVES_WITH),
        (KingdomsPrompt().render(kingdoms, orders("0123 1302 1203 3021 3021")), paper.KINGDOMS),
        (FunctionsPrompt().render(tables, *orders("1023 0231"), (1, 0)), paper.FUNCTIONS),
        (RelativesPrompt().render(dict(homes), families, rules, works, "Eve"), paper.RELATIVES),
    ):
        prompt, correct, acceptable = printed
        assert question.prompt == prompt
        assert (question.correct, ", ".join(question.acceptable)) == (correct, acceptable)


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
        (lambda: EquationsPrompt(steps=0), "equations: expected steps .* at least 1, found 0"),
        (lambda: EquationsPrompt(question="long"), "'printed' or 'short', found 'long'"),
        (lambda: KingdomsPrompt(chains=2.0), "kingdoms: expected chains .* found 2.0"),
        (lambda: LivesWithPrompt(101, 100), "at most 10000 statements .* found 10100; ask"),
        (lambda: FunctionsPrompt(100), "at most 10000 statements"),
        (lambda: RelativesPrompt(13), "at most 12 chains, .*nephew.* found 13"),
        (lambda: EquationsPrompt().sample(-1), "expected an index of at least 0, found -1"),
        (lambda: EquationsPrompt().sample(0, seed=2**64), "expected a seed from 0 to 2"),
    ],
)
def test_what_cannot_be_asked_is_refused(make, text, without_type_checks):
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


OTHERS = [
    EquationsPrompt(steps=12, chains=7),  # 84 letters
    EquationsPrompt(steps=1, chains=1),
    LivesWithPrompt(steps=9, chains=13),  # 117 people
    KingdomsPrompt(chains=11),
    FunctionsPrompt(chains=11),  # 33 letters, numbers of two digits
    RelativesPrompt(chains=12),
    RelativesPrompt(chains=1),
]
# An independent solver: regular expressions on the text, nothing else.


def one(pattern, text):
    (found,) = re.findall(pattern, text, re.MULTILINE)
    return found


def solve_linear(text, query):
    """x_0 .. x_D as the statements print them, the subject's ending taken off."""
    chain = [query]
    if " = " in text:
        steps = dict(re.findall(r"^(\w+) = (\w+)$", text, re.MULTILINE))
    elif " causes " not in text:
        steps = dict(re.findall(r"^(\w+) lives (?:in|with) (\w+)$", text, re.MULTILINE))
    else:
        substance = one(rf"^(\w+) causes {query}\.$", text)
        food = one(rf"^(\w+) contains {substance}\.$", text).lower()
        belief = one(rf"^(\w+)ists eat {food}\.$", text).lower() + "ism"
        kingdom = one(rf"^(\w+)ns believe in {belief}\.$", text)
        person = one(rf"^(\w+) lives in {kingdom}\.$", text)
        return [query, substance, food, belief, kingdom, person]
    while chain[-1] in steps:
        chain.append(steps[chain[-1]])
    return chain


def solve_function(text, alias, variable):
    function, argument = one(rf"^{alias} = (\w+)$", text), one(rf"^{variable} = (\d+)$", text)
    return function, argument, one(rf"^{function}\({argument}\) = (\d+)$", text)


def solve_relation(text, person):
    profession = one(rf"^{person} works as an? (\w+)\.$", text)
    return profession, one(rf"^{profession.capitalize()}s live with their (\w+)s\.$", text)


def solve_relative(text, person, relation):
    relative = one(rf"^{person}s {relation} is (\w+)\.$", text)
    return relative, one(rf"^{relative} lives in (\w+)\.$", text)


def queries(text):
    return one(r"(?:value of|does|has) (\w+)(?:\((\w+)\))?.* Say directly", text)


def solve(text):
    query, variable = queries(text)
    if variable:
        return solve_function(text, query, variable)[-1]
    if " works as " in text:
        return solve_relative(text, query, solve_relation(text, query)[1])[1]
    return solve_linear(text, query)[-1]


def check_linear_roles(formulation, text, word, line):
    n, last = formulation.chains, formulation.steps
    assert len(word) == n * 2 * last + 1
    assert word[0, "s0"] == queries(text)[0] == word[0, "s1"]
    for chain in range(n):
        symbols = solve_linear(text, word[chain, "s1"])
        for role in range(1, 2 * last + 1):
            symbol, printed = symbols[role // 2].lower(), word[chain, f"s{role}"].lower()
            forms = {symbol, symbol + "ns", symbol.removesuffix("m") + "ts"}
            assert printed in (forms if formulation.name == "kingdoms" else {symbol})
            step = (role + 1) // 2
            assert line[chain, f"s{role}"] // n == last - step


def check_function_roles(formulation, text, word, line):
    n = formulation.chains
    assert len(word) == 3 * n * n + 4 * n + 2
    assert (word[0, "alias@question"], word[0, "variable@question"]) == queries(text)
    assert word[0, "alias@question"] == word[0, "alias@definition"]
    assert word[0, "variable@question"] == word[0, "variable@definition"]
    for c in range(n):
        for k in range(n):
            held = solve_function(text, word[c, "alias@definition"], word[k, "variable@definition"])
            assert held[:2] == (word[c, "function@definition"], word[k, "argument@definition"])
            roles = ("function@table", "argument@table", "value@table")
            assert held == tuple(word[c * n + k, role] for role in roles)


def check_relative_roles(formulation, text, word, line):
    n = formulation.chains
    assert len(word) == 5 * n * n + 4 * n + 1
    assert word[0, "person@question"] == word[0, "person@work"] == queries(text)[0]
    assert word[0, "profession@rule"] == word[0, "profession@work"].capitalize() + "s"
    rules = {word[k, "profession@rule"]: word[k, "relation@rule"] for k in range(n)}
    for c in range(n):
        person = word[c, "person@work"]
        profession, relation = solve_relation(text, person)
        assert profession == word[c, "profession@work"]
        assert rules[profession.capitalize() + "s"] == relation + "s"
        for k in range(n):
            chain, relation = c * n + k, word[k, "relation@rule"].removesuffix("s")
            relative, country = solve_relative(text, person, relation)
            family = ("person@family", "relation@family", "relative@family")
            assert tuple(word[chain, r] for r in family) == (f"{person}s", relation, relative)
            assert (word[chain, "relative@home"], word[chain, "country@home"]) == (
                relative,
                country,
            )


@pytest.mark.parametrize("formulation", FORMULATIONS + OTHERS, ids=repr)
def test_following_the_chain_gives_the_answer_and_every_role(formulation):
    checks = {"functions": check_function_roles, "relatives": check_relative_roles}
    check = checks.get(formulation.name, check_linear_roles)
    for index in range(300 if formulation in FORMULATIONS else 8):
        question = formulation.sample(index, seed=3)
        text = question.prompt
        assert solve(text) == question.correct
        assert question.correct in question.acceptable
        assert len(set(question.acceptable)) == round(1 / formulation.chance)
        if index >= 100:
            continue
        spans = [(o.start, o.end) for o in question.occurrences]
        assert spans == sorted(set(spans))
        assert set(spans) <= {whole.span() for whole in re.finditer(r"\w+", text)}
        word = {(o.chain, o.role): text[o.start : o.end] for o in question.occurrences}
        assert len(word) == len(question.occurrences)
        line = {(o.chain, o.role): text.count("\n", 0, o.start) for o in question.occurrences}
        check(formulation, text, word, line)


# Ways to answer without following the chain.


def mentions(question):
    statements = question.prompt[: question.prompt.rindex("\n")]
    return [word for word in re.findall(r"\w+", statements) if word in question.acceptable]


def first(question, n):
    return mentions(question)[0]


def last(question, n):
    return mentions(question)[-1]


def most_frequent(question, n):
    return max(reversed(question.acceptable), key=Counter(mentions(question)).__getitem__)


def same_place(question, n):
    """The answer that stands where the query does, within its step."""
    lines = [re.findall(r"\w+", line) for line in question.prompt.splitlines()[:-1]]
    query, variable = queries(question.prompt)
    if variable:
        alias = next(i for i, line in enumerate(lines[-2 * n : -n]) if query in line)
        place = alias * n + next(i for i, line in enumerate(lines[-n:]) if variable in line)
        return lines[place][-1]
    place = next(i for i, line in enumerate(lines[-n:]) if query in line)
    (answer,) = set(lines[place]) & set(question.acceptable)
    return answer


@pytest.fixture
def unchecked(monkeypatch):
    """Leaves the types alone where thousands of questions are drawn."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@each_formulation
def test_shortcuts_are_right_by_chance_only(formulation, unchecked):
    questions = [formulation.sample(index) for index in range(2000)]
    error = (formulation.chance * (1 - formulation.chance) / 2000) ** 0.5
    for shortcut in (first, last, most_frequent, same_place):
        right = sum(shortcut(q, formulation.chains) == q.correct for q in questions) / 2000
        assert abs(right - formulation.chance) < 4 * error, shortcut.__name__
