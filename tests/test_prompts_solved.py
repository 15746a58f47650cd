"""Questions solved from their text alone, and not solved by shortcuts."""

import re
from collections import Counter

import jaxtyping
import pytest

from retrieval_interp.tasks.words.prompts import (
    EquationsPrompt,
    FunctionsPrompt,
    KingdomsPrompt,
    LivesWithPrompt,
    RelativesPrompt,
)

FORMULATIONS = [
    EquationsPrompt(),
    LivesWithPrompt(),
    KingdomsPrompt(),
    FunctionsPrompt(),
    RelativesPrompt(),
]
OTHERS = [
    EquationsPrompt(steps=12, chains=7),  # 84 letters
    EquationsPrompt(steps=1, chains=1),
    LivesWithPrompt(steps=9, chains=13),  # 117 people
    KingdomsPrompt(chains=11),
    FunctionsPrompt(chains=11),  # 33 letters, numbers of two digits
    RelativesPrompt(chains=12),
    RelativesPrompt(chains=1),
]
each_formulation = pytest.mark.parametrize("formulation", FORMULATIONS, ids=lambda f: f.name)


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


def nearest_in_same_place(question, n):
    """The same, in the step nearest to the question that mentions answers."""
    lines = [re.findall(r"\w+", line) for line in question.prompt.splitlines()[:-1]]
    _, variable = queries(question.prompt)
    if variable:
        return next(line[-1] for line in lines[-n:] if variable in line)
    return same_place(question, n)


def same_rank(question, n):
    """The answer that comes as late in the alphabet as the query does among its like."""
    lines = [re.findall(r"\w+", line) for line in question.prompt.splitlines()[:-1]]
    query = queries(question.prompt)[0]
    alike = lines[-2 * n : -n] if "(" in question.prompt else lines[-n:]
    side = -1 if "Who has" in question.prompt else 0
    rank = sorted(line[side] for line in alike).index(query)
    return question.acceptable[rank * len(question.acceptable) // n]


@pytest.fixture
def unchecked(monkeypatch):
    """Leaves the types alone where thousands of questions are drawn."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@each_formulation
def test_shortcuts_are_right_by_chance_only(formulation, unchecked):
    questions = [formulation.sample(index) for index in range(2000)]
    error = (formulation.chance * (1 - formulation.chance) / 2000) ** 0.5
    for shortcut in (first, last, most_frequent, same_place, nearest_in_same_place, same_rank):
        right = sum(shortcut(q, formulation.chains) == q.correct for q in questions) / 2000
        assert abs(right - formulation.chance) < 4 * error, shortcut.__name__


@pytest.mark.parametrize(
    "formulation",
    [EquationsPrompt(2, 3), LivesWithPrompt(2, 3), KingdomsPrompt(3)],
    ids=lambda f: f.name,
)
def test_places_and_names_of_query_and_answer_are_independent(formulation, unchecked):
    cells = Counter()
    ranks = {}  # of queries, numbered as they are met
    for index in range(6000):
        question = formulation.sample(index)
        lines = question.prompt.splitlines()
        place = {
            o.role: question.prompt.count("\n", 0, o.start)
            for o in question.occurrences
            if o.chain == 0
        }
        query = queries(question.prompt)[0]
        rank = ranks.setdefault(query, len(ranks))
        answer = place[f"s{2 * formulation.steps}"]
        assert question.correct in lines[answer]
        cells[place["s1"] % 3, answer, rank, question.acceptable.index(question.correct)] += 1
    assert len(cells) == 81
    # chi-square with 80 degrees of freedom: 124.8 is its 0.999 quantile
    assert sum((count - 6000 / 81) ** 2 / (6000 / 81) for count in cells.values()) < 124.8
