"""Four things that SmolLM2 gets right, as tasks, and which heads do it (docs/answers.md).

    python examples/four_answers.py [names list docstring repeated]

docs/language-models.md says how to install the model. A minute or more each; the levels `rows` and
`paths` take longer.
"""

import sys
from dataclasses import replace
from typing import Any

import retrieval_interp as ri
import torch

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
COPY = 12  # words of each copy


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


def repeated(tokenizer: Any) -> ri.Task:
    """The next of some random words that come again; see `another_word`."""
    templates, marks = [], [f"C{place}" for place in range(COPY - 3)]
    for place in range(4, COPY - 3):
        for between in range(place, COPY - 4):
            first = [*marks[:place], "A", "B", *marks[place:between], "X", *marks[between:]]
            again = [*(f"{mark}b" for mark in marks[:place]), "Ab"]
            templates.append(" ".join(f"{{{mark}}}" for mark in [*first, *again]))
    fillings = dict.fromkeys(["A", "B", "X", *marks], WORDS)
    same = {f"{mark}b": mark for mark in ["A", *marks]}
    roles = ("END", "X+1", "X", "B", "A")
    return ri.TemplateTask(templates, {**fillings, **same}, "B", tokenizer=tokenizer, roles=roles)


def another_word(batch: ri.Batch, seed: int) -> ri.Batch:
    """The last word is X, which has not come again yet."""
    inputs, row = batch.inputs.clone(), torch.arange(len(batch))
    inputs[row, batch.roles[:, 0, 0]] = inputs[row, batch.roles[:, 0, 2]]
    return replace(batch, inputs=inputs)


BEHAVIOURS: dict[str, Any] = {
    "names": (ri.IndirectObjectTask, None),
    "list": (shopping, None),
    "docstring": (docstring, None),
    "repeated": (repeated, another_word),
}


if __name__ == "__main__":
    try:
        model = ri.smollm2()
    except ri.InputError as missing:
        sys.exit(str(missing))
    for name in sys.argv[1:] or BEHAVIOURS:
        make, counterfactual = BEHAVIOURS[name]
        task = make(model.tokenizer)
        print(ri.why(model, task, counterfactual=counterfactual, upto="heads"), end="\n\n")
