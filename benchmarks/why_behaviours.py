"""Where four answers of a language model come from, with seconds and memory (docs/answers.md).

    python benchmarks/why_behaviours.py [--behaviours names list docstring repeated] [--seeds 0 1 2]
        [--pages FOLDER]

`pages` gets the page and the picture of the first seed of each behaviour.
"""

import argparse
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from measure import Rows, benchmark, peak_bytes, timed

import retrieval_interp as ri
from retrieval_interp.circuits.hooks import Hooked
from retrieval_interp.views.why_view import why_drawing

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


def row(name: str, seed: int, options: argparse.Namespace, model: Any) -> dict[str, Any]:
    make, counterfactual = BEHAVIOURS[name]
    task = make(model.tokenizer)
    batch = task.sample(200 if options.examples > 8 else 16, seed, split="test")
    with torch.no_grad():
        right = task.logit_differences(Hooked(model).run(batch), batch) > 0
    chosen = {"examples": options.examples, "seed": seed, "upto": options.upto}
    seconds, found = timed(lambda: ri.why(model, task, counterfactual=counterfactual, **chosen))
    if options.pages and seed == options.seeds[0]:
        ri.why_view(found, model).save_html(Path(options.pages) / f"why-{name}.html")
        (Path(options.pages) / f"why-{name}.svg").write_text(why_drawing(found, model))
    last = found.levels[-1]
    return {
        "behaviour": name,
        "seed": seed,
        "right": float(right.float().mean()),
        "intact": found.intact.loss,
        "nothing": found.nothing.loss,
        **{level.name: len(level.units) for level in found.levels},
        "recovered": last.kept.share,
        "se": last.kept.se,
        "complement": last.complement.share,
        "random": found.control[-1] if found.control else None,
        "seconds": seconds,
        "GB": peak_bytes() / 2**30,
        "said": str(found),
    }


@benchmark(
    behaviours=list(BEHAVIOURS),
    seeds=[0, 1, 2],
    examples=32,
    upto="paths",
    pages="",
    quick={"behaviours": ["list"], "seeds": [0], "examples": 4, "upto": "heads"},
    shown=lambda rows: [{key: x for key, x in row.items() if key != "said"} for row in rows],
)
def main(options: argparse.Namespace) -> Rows:
    model = ri.smollm2(device=str(options.device))
    chosen = product(options.behaviours, options.seeds)
    return [row(name, seed, options, model) for name, seed in chosen]


if __name__ == "__main__":
    main()
