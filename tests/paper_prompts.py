"""Questions that the paper prints, appendix A: (prompt, correct answer, acceptable answers)."""

import re

import retrieval_interp as ri
from retrieval_interp.tasks.words.prompts import LinearPrompt


def printed(lines, correct, acceptable):
    """Lines that are separated by slashes."""
    return lines.replace(" / ", "\n"), correct, acceptable


PRINTED = [
    printed(
        "b = 2 / c = 3 / d = 0 / a = 1 / e = b / g = a / h = d / f = c / k = e / i = f / l = g / j "
        "= h / n = k / p = l / o = i / m = j / q = n / s = p / r = o / t = m / What is the value of"
        " s? Say directly only the numeric value, without any other words.",
        "1",
        "0, 1, 2, 3",
    ),
    printed(
        "a(0) = 3 / a(1) = 2 / a(2) = 0 / a(3) = 1 / b(0) = 1 / b(1) = 3 / b(2) = 2 / b(3) = 0 / "
        "c(0) = 1 / c(1) = 0 / c(2) = 3 / c(3) = 2 / d(0) = 1 / d(1) = 0 / d(2) = 2 / d(3) = 3 / e "
        "= b / f = a / g = c / h = d / i = 0 / j = 2 / k = 3 / l = 1 / What is the value of f(i)? "
        "Say directly only the numeric value, without any other words.",
        "3",
        "0, 1, 2, 3",
    ),
]

SHORTER = [  # the formulations with fewer steps and chains, and texts of them
    ri.EquationsPrompt(steps=3),
    ri.LivesWithPrompt(steps=2),
    ri.KingdomsPrompt(),
    ri.FunctionsPrompt(chains=3),
    ri.RelativesPrompt(chains=2),
]
TEXTS = [prompt.sample(i, seed=7).prompt for prompt in SHORTER for i in range(30)]


# What leads to the answer, for an independent solver: regular expressions, in which <role+ending>
# stands for a symbol. Those of a line are numbered from pair 1 on.
NUMBER = r"What is the value of {}\? Say directly only the numeric value, without any other words\."
SENTENCES = {
    "equations": [NUMBER.format("<s0>"), "<{}> = <{}>"],
    "lives-with": [
        r"Where does <s0> live\? Say directly only the name of the city, without any other words\.",
        "<{}> lives (?:in|with) <{}>",
    ],
    "kingdoms": [
        r"Who has <s0>\? Say directly the name without other words\.",
        r"<s2> causes <s1>\.",
        r"<s4> contains <s3>\.",
        r"<s6+ists> eat <s5>\.",
        r"<s8+ans> believe in <s7+ism>\.",
        r"<s10> lives in <s9+a>\.",
    ],
    "functions": [
        NUMBER.format(r"<alias@question>\(<variable@question>\)"),
        "<alias@definition> = <function@definition>",
        "<variable@definition> = <argument@definition>",
        r"<function@table>\(<argument@table>\) = <value@table>",
    ],
    "relatives": [
        r"Where does <person@question> live\? "
        r"Say directly only the name, without any other words\.",
        r"<person@work> works as an? <profession@work>\.",
        r"<profession@rule+s> live with their <relation@rule+s>\.",
        r"<person@family+s> <relation@family> is <relative@family>\.",
        r"<relative@home> lives in <country@home>\.",
    ],
}


def symbol_of(role):
    return int(role[1:]) // 2 if role[1:].isdecimal() else role.partition("@")[0]


def solve(text, sentences, **words):
    """The printed words that lead to an answer, by role."""
    symbols = {symbol_of(role): word for role, word in words.items()}
    for sentence in sentences:
        marks = [mark.partition("+") for mark in re.findall("<(.*?)>", sentence)]
        parts = [f"({symbols.get(symbol_of(role), '.+?')}{ending})" for role, _, ending in marks]
        pattern = re.sub("<.*?>", "{}", sentence).format(*parts)
        lines = [re.fullmatch(pattern, line, re.IGNORECASE) for line in text.splitlines()]
        (found,) = filter(None, lines)
        for (role, _, ending), word in zip(marks, found.groups()):
            words[role], symbols[symbol_of(role)] = word, word[: len(word) - len(ending)]
    return words


def sentences_of(formulation):
    asked, *sentences = SENTENCES[formulation.name]
    if isinstance(formulation, LinearPrompt) and len(sentences) == 1:
        pairs = range(1, 2 * formulation.steps, 2)
        sentences = [sentences[0].format(f"s{role}", f"s{role + 1}") for role in pairs]
    return [asked, *sentences]


def answer_of(formulation, text):
    """The answer, by following the chain."""
    words = list(solve(text, sentences_of(formulation)).values())
    return words[-2 if formulation.name == "kingdoms" else -1]
