"""The paper's printed questions, appendix A: (prompt, correct answer, acceptable answers)."""

import re

from retrieval_interp.tasks.words.prompts import LinearPrompt


def printed(lines, correct, acceptable):
    """Lines that are separated by slashes."""
    return lines.replace(" / ", "\n"), correct, acceptable


EQUATIONS = printed(
    "b = 2 / c = 3 / d = 0 / a = 1 / e = b / g = a / h = d / f = c / k = e / i = f / l = g / j "
    "= h / n = k / p = l / o = i / m = j / q = n / s = p / r = o / t = m / What is the value of"
    " s? Say directly only the numeric value, without any other words.",
    "1",
    "0, 1, 2, 3",
)

LIVES_WITH = printed(
    "Charlie lives in Cairo / David lives in Delhi / Alice lives in Berlin / Bob lives in "
    "Amsterdam / Henry lives with David / Eve lives with Charlie / Frank lives with Alice / "
    "Grace lives with Bob / Kate lives with Grace / Larry lives with Frank / Jack lives with "
    "Eve / Isabelle lives with Henry / Mary lives with Jack / Olivia lives with Isabelle / Nick"
    " lives with Kate / Peter lives with Larry / Rose lives with Peter / Queen lives with Nick "
    "/ Tom lives with Olivia / Sam lives with Mary / Where does Rose live? Say directly only "
    "the name of the city, without any other words.",
    "Berlin",
    "Amsterdam, Berlin, Cairo, Delhi",
)

KINGDOMS = printed(
    "Bob lives in Silvania. / Alice lives in Novaria. / Charlie lives in Aurora. / David lives "
    "in Florinia. / Silvanians believe in celestianism. / Novarians believe in harmonianism. / "
    "Aurorans believe in elysianism. / Florinians believe in luminism. / Luminists eat beef. / "
    "Elysianists eat pork. / Harmonianists eat lamb. / Celestianists eat chicken. / Beef "
    "contains Astralyte. / Chicken contains Nephryon. / Lamb contains Zephyrium. / Pork "
    "contains Virellium. / Zephyrium causes Chronogy. / Astralyte causes Aetherflux. / "
    "Virellium causes Somnosis. / Nephryon causes Synthemia. / Who has Chronogy? Say directly "
    "the name without other words.",
    "Alice",
    "Alice, Bob, Charlie, David",
)

FUNCTIONS = printed(
    "a(0) = 3 / a(1) = 2 / a(2) = 0 / a(3) = 1 / b(0) = 1 / b(1) = 3 / b(2) = 2 / b(3) = 0 / "
    "c(0) = 1 / c(1) = 0 / c(2) = 3 / c(3) = 2 / d(0) = 1 / d(1) = 0 / d(2) = 2 / d(3) = 3 / e "
    "= b / f = a / g = c / h = d / i = 0 / j = 2 / k = 3 / l = 1 / What is the value of f(i)? "
    "Say directly only the numeric value, without any other words.",
    "3",
    "0, 1, 2, 3",
)

RELATIVES = printed(
    "Penny lives in Canada. / Lily lives in Brazil. / Isabelle lives in France. / Cathy lives "
    "in Kenya. / George lives in Italy. / Adam lives in Mexico. / Kevin lives in Peru. / Ed "
    "lives in Laos. / Hank lives in Germany. / Mike lives in Japan. / Jane lives in England. / "
    "Fred lives in Hungary. / Dana lives in Norway. / Olivia lives in Qatar. / Bob lives in "
    "Denmark. / Nancy lives in Argentina. / Johns mother is Jane. / Johns sister is Olivia. / "
    "Johns father is Ed. / Johns brother is Mike. / Chriss mother is Penny. / Chriss sister is "
    "Dana. / Chriss father is Adam. / Chriss brother is George. / Dianas mother is Nancy. / "
    "Dianas sister is Isabelle. / Dianas father is Hank. / Dianas brother is Bob. / Eves mother"
    " is Lily. / Eves sister is Cathy. / Eves father is Fred. / Eves brother is Kevin. / "
    "Doctors live with their brothers. / Lawyers live with their mothers. / Teachers live with "
    "their sisters. / Engineers live with their fathers. / John works as a doctor. / Chris "
    "works as an engineer. / Diana works as a teacher. / Eve works as a lawyer. / Where does "
    "Eve live? Say directly only the name, without any other words.",
    "Brazil",
    "Argentina, Brazil, Canada, Denmark, England, France, Germany, Hungary, Italy, Japan, "
    "Kenya, Laos, Mexico, Norway, Peru, Qatar",
)

PRINTED = [EQUATIONS, LIVES_WITH, KINGDOMS, FUNCTIONS, RELATIVES]


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
