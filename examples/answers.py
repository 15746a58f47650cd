"""Nine things that SmolLM2 gets right, as tasks, and which heads do it (docs/answers.md).

    python examples/answers.py [capital language ...]
    python examples/answers.py --model gemma3 --atlas atlas.html [capital language ...]

The second one says what each answer loses without each head, and writes that as a page.
docs/language-models.md says how to install the model. A minute or more each.
"""

import argparse
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import retrieval_interp as ri
from retrieval_interp.tasks.words.template_task import one_token_words

Row = dict[str, str]  # the words of a prompt, by mark, and its answer


class Facts(ri.TemplateTask):
    """Prompts whose answer depends on some words, which the counterfactual replaces.

    Args:
        template: a text with marks.
        kinds: rows of words that can stand for one another, such as
            `[{"X": "France", "answer": "Paris"}, {"X": "Italy", "answer": "Rome"}]`. Each goes with
            every other one that has another answer: this is the wrong answer, and the words of the
            other row make the counterfactual. Words of several tokens are left out.
        also: words of other marks, which stay as they are.
        roles: as of templates.
    """

    def __init__(
        self,
        template: str,
        kinds: Sequence[Sequence[Row]],
        tokenizer: Any,
        also: dict[str, Sequence[str]] | None = None,
        roles: Sequence[str] | None = None,
    ):
        words = [word for rows in kinds for row in rows for word in row.values()]
        tokens = one_token_words(tokenizer, list(dict.fromkeys(words)))
        kinds = [[row for row in rows if tokens.keys() >= set(row.values())] for rows in kinds]
        couples = [(row, other) for rows in kinds for row in rows for other in rows]
        couples = [(row, other) for row, other in couples if row["answer"] != other["answer"]]
        marks = [mark for mark in couples[0][0] if mark != "answer"]
        also = also or {}
        fillings = [
            {**row, "wrong": other["answer"], **dict(zip(also, same))}
            for row, other in couples
            for same in product(*also.values())
        ]
        self.others: dict[tuple[int, ...], list[list[int]]] = {}
        for row, other in couples:
            key = *(tokens[row[mark]] for mark in marks), tokens[other["answer"]]
            self.others.setdefault(key, []).append([tokens[other[mark]] for mark in marks])
        super().__init__([template], fillings, "answer", "wrong", tokenizer=tokenizer, roles=roles)
        self.changed = [self.roles.index(mark) for mark in marks]

    def counterfactual(self, batch: ri.Batch, seed: int = 0) -> ri.Batch:
        """The prompts with the words of a row that has the wrong answer."""
        draw, inputs = random.Random(seed), batch.inputs.clone()
        for row, places, (_, wrong) in zip(inputs, batch.roles[:, 0], batch.targets[:, 0, :, 0]):
            at = places[self.changed]
            row[at] = row.new_tensor(draw.choice(self.others[(*row[at].tolist(), int(wrong))]))
        return replace(batch, inputs=inputs)


CAPITALS = """
    France Paris Germany Berlin Italy Rome Spain Madrid Japan Tokyo China Beijing Russia Moscow
    England London Egypt Cairo Greece Athens Poland Warsaw Austria Vienna Portugal Lisbon Ireland
    Dublin Cuba Havana Norway Oslo Sweden Stockholm Denmark Copenhagen Finland Helsinki Hungary
    Budapest Turkey Ankara Iran Tehran Iraq Baghdad Thailand Bangkok Kenya Nairobi Peru Lima Chile
    Santiago Canada Ottawa Belgium Brussels Syria Damascus Vietnam Hanoi Korea Seoul Lebanon Beirut
"""
LANGUAGES = """
    France French Germany German Italy Italian Spain Spanish Japan Japanese China Chinese Russia
    Russian England English Egypt Arabic Greece Greek Poland Polish Portugal Portuguese Sweden
    Swedish Denmark Danish Finland Finnish Hungary Hungarian Turkey Turkish Thailand Thai Korea
    Korean Norway Norwegian Iran Persian Israel Hebrew Brazil Portuguese Mexico Spanish Austria
    German Vietnam Vietnamese Iraq Arabic Australia English Cuba Spanish
"""
OPPOSITES = """
    hot cold big small fast slow high low old young rich poor light dark early late left right up
    down open closed good bad hard soft long short strong weak thick thin happy sad dry wet full
    empty north south east west true false win lose
"""
NOUNS = """
    dog dogs cat cats bird birds boy boys girl girls horse horses car cars house houses book books
    tree trees friend friends teacher teachers king kings farmer farmers doctor doctors student
    students lion lions ship ships child children man men woman women
"""
PLACES = ("tree", "house", "river", "road", "school", "church", "garden", "table", "door", "lake")
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
MONTHS = "January February March April May June July August September October November December"
HE = "John James Robert Michael William David Richard Joseph Thomas Charles Daniel Matthew Mark"
SHE = "Mary Jennifer Elizabeth Susan Jessica Sarah Karen Lisa Nancy Emily Laura Anna Emma Alice"


def pairs_of(text: str) -> list[tuple[str, str]]:
    """The words of a text, two at a time."""
    words = text.split()
    return list(zip(words[::2], words[1::2]))


def fact(template: str, text: str, tokenizer: Any) -> ri.Task:
    """A fact about X."""
    rows = [{"X": word, "answer": answer} for word, answer in pairs_of(text)]
    return Facts(template, [rows], tokenizer)


def agreement(tokenizer: Any) -> ri.Task:
    """Is or are, after a phrase; in the counterfactual the noun has the other number."""
    kinds = [
        [{"N": one, "answer": "is"}, {"N": many, "answer": "are"}] for one, many in pairs_of(NOUNS)
    ]
    also = {"P": ("near", "behind", "beside"), "L": PLACES}
    return Facts("The {N} {P} the {L}", kinds, tokenizer, also, ("END", "P+1", "P", "N"))


def successor(tokenizer: Any) -> ri.Task:
    """The next day or month; in the counterfactual two others are named."""
    kinds = [
        [
            {"A": names[n], "B": names[(n + 1) % len(names)], "answer": names[(n + 2) % len(names)]}
            for n in range(len(names))
        ]
        for names in (DAYS.split(), MONTHS.split())
    ]
    return Facts("We met in {A}, {B},", kinds, tokenizer, roles=("END", "B", "A+1", "A"))


def pronoun(tokenizer: Any) -> ri.Task:
    """He or she; in the counterfactual somebody else is meant."""
    of_name = {**dict.fromkeys(HE.split(), "he"), **dict.fromkeys(SHE.split(), "she")}
    rows = [{"N": name, "answer": word} for name, word in of_name.items()]
    also = {"V": ("came", "went", "walked", "drove", "ran")}
    return Facts("Then {N} {V} home because", [rows], tokenizer, also, ("END", "V+1", "V", "N"))


_WORDS = """
    apple baby bank beach bird boat body book box boy brain bread bridge brother bus cake
    camera car card cat chair child church city class clock coat coffee cup desk doctor dog
    door dress engine farm field fish floor flower game garden girl glass gold hand heart horse
    house ice island key king lake letter light lion man map milk money moon mother mouse music
    night ocean paper park phone pig plane plant rain river road rock room rose school sea ship
    shop snow song star stone street sun table tea teacher tiger town train tree wall water
    wind window wine winter wood
"""
_ARGUMENTS = """
    files value names index count text user path lines size table items shape width data order
    state mode level score image label group color input output node list
"""
WORDS, ARGUMENTS = _WORDS.split(), _ARGUMENTS.split()


def shopping(tokenizer: Any) -> ri.Task:
    """The next word of a list that is said again; in the counterfactual its last word is new."""
    return ri.TemplateTask(
        ["Shopping list: {A}, {B}, {C}, {D}. Again: {A2}, {B2},"],
        {**dict.fromkeys("ABCD", WORDS), "A2": "A", "B2": "B"},
        "C",
        ["A", "B", "D"],
        tokenizer=tokenizer,
        roles=("END", "B2", "A2", "D", "C", "B+1", "B", "A+1", "A"),
        counterfactual={"B2": WORDS},
    )


def docstring(tokenizer: Any) -> ri.Task:
    """The third argument of a function; in the counterfactual others are documented first."""
    text = (
        'def load(self, {A}, {B}, {C}):\n    """Load.\n\n    :param {A2}: the first\n'
        "    :param {B2}: the second\n    :param"
    )
    return ri.TemplateTask(
        [text],
        {**dict.fromkeys("ABC", ARGUMENTS), "A2": "A", "B2": "B"},
        "C",
        ["A", "B"],
        tokenizer=tokenizer,
        roles=("END", "B2", "A2", "C", "B+1", "B", "A+1", "A"),
        counterfactual={"A2": ARGUMENTS, "B2": ARGUMENTS},
    )


BEHAVIOURS: dict[str, Callable[[Any], ri.Task]] = {
    "capital": partial(fact, "The capital of {X} is", CAPITALS),
    "language": partial(fact, "The official language of {X} is", LANGUAGES),
    "opposite": partial(fact, "The opposite of {X} is", OPPOSITES),
    "agreement": agreement,
    "successor": successor,
    "pronoun": pronoun,
    "names": ri.IndirectObjectTask,
    "list": shopping,
    "docstring": docstring,
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BEHAVIOURS)}")
    parser.add_argument("--model", choices=["smollm2", "gemma3"], default="smollm2")
    parser.add_argument("--atlas", metavar="FILE", help="what is lost without each head, as a page")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the atlas's numbers")
    options = parser.parse_args()
    if options.json and not options.atlas:
        parser.error("--json: expected --atlas FILE with it")
    try:
        model = {"smollm2": ri.smollm2, "gemma3": ri.gemma3}[options.model]()
    except ri.InputError as missing:
        sys.exit(str(missing))
    tasks = {name: BEHAVIOURS[name](model.tokenizer) for name in options.names or BEHAVIOURS}
    if options.atlas:
        atlas = ri.atlas(model, tasks, progress=ri.progress_bar)
        print(atlas)
        ri.atlas_view(atlas).save_html(options.atlas)
        if options.json:
            parts = ("output", "attention", "values")  # a share and its standard error each
            lost = {
                name: {f"{head}": dict(zip(parts, shares)) for head, shares in by_head.items()}
                for name, by_head in atlas.lost.items()
            }
            alike = {name: {other: atlas.likeness(name, other) for other in lost} for name in lost}
            numbers = {"gaps": atlas.gaps, "lost": lost, "alike": alike}
            options.json.write_text(json.dumps(numbers))
    else:
        for task in tasks.values():
            print(ri.why(model, task, upto="heads"), end="\n\n")
