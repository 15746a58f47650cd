"""Pairs of prompts in files of other projects; the content shows which format it is.

JSON of auto-circuit: `{"prompts": [{"clean": ..., "corrupt": ..., "answers": [...],
"wrong_answers": [...]}]}`. JSON lines of feature-circuits: `clean_prefix`, `patch_prefix`,
`clean_answer`, `patch_answer`. CSV of EAP-IG and MIB: `clean`, `corrupted`, and answers in columns
as below, as words or, in columns that end in `_idx`, as token ids. CSV of PEAP, two files with the
same rows: `prompt`, `correct_token`, `wrong_token`, `length`, and a column for each span.
"""

import csv
import re
import warnings
from io import StringIO
from pathlib import Path
from typing import Any

from retrieval_interp.tasks.messages import InputError, InputWarning
from retrieval_interp.tasks.structured import from_data, read_json
from retrieval_interp.tasks.words.given_texts import Pair

_ANSWERS = (  # columns of a CSV file, first the right answer's
    ("correct", "incorrect"),
    ("clean_answer", "corrupted_answer"),
    ("answer", "wrong_answer"),
    ("country", "corrupted_country"),
)

_PEAP = ("prompt", "correct_token", "wrong_token", "length")


def read_pairs(text: str, tokenizer: Any = None, others: str | None = None) -> tuple[Pair, ...]:
    """Read the pairs of a file.

    Args:
        text: the contents of the file.
        tokenizer: the one that the token ids in the file belong to, if there are any; without it,
            answers given as ids stay numbers.
        others: the text of PEAP's other file, with the counterfactual prompts.
    """
    if not isinstance(text, str) or (len(text) < 256 and Path(text).is_file()):
        raise InputError(f"pairs: expected the text of a file, found {text!r:.60}; read it first")
    text = text.removeprefix("\ufeff")
    if others is not None:
        pairs = _from_spans(text, others)
    elif not text.lstrip().startswith("{"):
        pairs = _from_csv(text, tokenizer)
    elif '"clean_prefix"' in text.lstrip().partition("\n")[0]:
        pairs = tuple(_from_line(line) for line in text.splitlines() if line.strip())
    else:
        data = read_json(text, "pairs")
        prompts = data.get("prompts") if isinstance(data, dict) else None
        pairs = from_data(tuple[Pair, ...], prompts, "pairs: prompts")
    if not any(p.answers and p.wrong_answers and p.clean != p.corrupt for p in pairs):
        what = "pairs of different prompts with answers and wrong answers"
        raise InputError(f"pairs: expected {what}, found none in {len(pairs)}")
    return pairs


def _from_line(line: str) -> Pair:
    row = read_json(line, "pairs")
    names = ("clean_prefix", "patch_prefix", "clean_answer", "patch_answer")
    texts = [row.get(name) for name in names] if isinstance(row, dict) else []
    if not texts or not all(isinstance(text, str) for text in texts):
        raise InputError(f"pairs: expected {', '.join(names)} in every line, found {line:.60}")
    clean, corrupt, right, wrong = map(str, texts)
    return Pair(clean, corrupt, (right,), (wrong,))


def _from_csv(text: str, tokenizer: Any) -> tuple[Pair, ...]:
    rows = list(csv.DictReader(StringIO(text)))
    columns = set(rows[0]) if rows else set[str]()
    named = [
        (right + ending, wrong + ending)
        for right, wrong in _ANSWERS
        for ending in ("", "_idx")
        if {right + ending, wrong + ending} <= columns
    ]
    if not {"clean", "corrupted"} <= columns or not named:
        found = ", ".join(map(str, rows[0])) if rows else "no rows"
        raise InputError(
            "pairs: expected JSON of auto-circuit, JSON lines of feature-circuits, CSV with clean, "
            "corrupted, and answers such as correct_idx and incorrect_idx, or two files of "
            f"PEAP, found {found:.200}"
        )
    right, wrong = named[0]
    are_ids = right.endswith("_idx")

    def answer(cell: Any) -> str:
        if not are_ids:
            return f" {str(cell).strip()}"
        if not str(cell).strip().isdigit():
            raise InputError(f"pairs: expected token ids as {right}, found {cell!r:.40}")
        if tokenizer is None:
            return str(cell)
        if int(cell) >= len(tokenizer):
            raise InputError(
                f"pairs: expected ids of a tokenizer of {len(tokenizer)} tokens, found {cell}; "
                "name the tokenizer that they are of"
            )
        return str(tokenizer.decode([int(cell)]))

    pairs = tuple(
        Pair(row["clean"], row["corrupted"], (answer(row[right]),), (answer(row[wrong]),))
        for row in rows
    )
    if are_ids and tokenizer is not None:
        words = f"{pairs[0].answers[0]!r} and {pairs[0].wrong_answers[0]!r}"
        text = f"answers are token ids, of which the first two are read as {words}"
        warnings.warn(text, InputWarning, stacklevel=3)
    return pairs


def _from_spans(text: str, others: str) -> tuple[Pair, ...]:
    """Pairs with the spans of the first file: its columns of places in the prompt."""
    rows, corrupt = (list(csv.DictReader(StringIO(each))) for each in (text, others))
    if not rows or len(corrupt) != len(rows) or not set(rows[0]) & set(corrupt[0]) >= set(_PEAP):
        raise InputError(
            f"pairs: expected two files of PEAP with as many rows and the columns "
            f"{', '.join(_PEAP)}, found {len(rows)} and {len(corrupt)} rows"
        )

    def is_place(row: dict[str, str], name: str) -> bool:
        cells = [str(row[key]) for key in (name, "length")]
        return all(cell.isdigit() for cell in cells) and 0 < int(cells[0]) < int(cells[1])

    names = [name for name in rows[0] if all(is_place(row, name) for row in rows)]
    pairs = []
    for row, other in zip(rows, corrupt):
        places = [("BOS", 0), *((re.sub(r"[^\w+.]", "_", name), int(row[name])) for name in names)]
        right, wrong = (f" {row[name].strip()}" for name in ("correct_token", "wrong_token"))
        spans = (*places, ("END", int(row["length"]) - 1))
        pairs.append(Pair(row["prompt"], other["prompt"], (right,), (wrong,), spans))
    return tuple(pairs)
