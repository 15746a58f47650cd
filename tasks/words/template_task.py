"""Your own sentences with roles, as a task for a language model.

An example is a template and a filling, both drawn uniformly, from random numbers that are seeded
with the text "template seed split index". If there are at least 256 different examples, a hash of
the prompt decides to which split each belongs; if there are fewer, the splits share them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import chain
from string import Formatter
from typing import Any

import torch
from torch import Tensor

from retrieval_interp.tasks.messages import InputError, counted
from retrieval_interp.tasks.sampling import SPLITS, Split, check_draw
from retrieval_interp.tasks.task import Batch
from retrieval_interp.tasks.words.text_task import (
    END,
    Draw,
    Line,
    Question,
    TextTask,
    expect_offsets,
    warn_of_unfit,
    write,
)

Filling = Mapping[str, str]  # a word for every mark
_FEW = 256  # with fewer different examples than this, the splits share them
_DRAWS = 1000  # draws at most to find a different word for every mark


class TemplateTask(TextTask):
    """Sentences of your own with roles, for language models.

    Args:
        templates: texts with marks in braces, up to where the answer comes, without a final blank.
        fillings: the words that every mark may have, `{"IO": names, "S1": names, "S2": "S1"}`,
            where "S1" stands for the same word as that mark has; or a list of complete fillings,
            `[{"country": "France", "capital": "Paris"}, ...]`.
        answer: the name in the fillings whose word is correct.
        wrong: the names in the fillings whose words are wrong answers; by default, all other words
            that `answer` may have.
        tokenizer: a Hugging Face tokenizer that gives offsets (a fast one).
        roles: which marks are roles, in this order, with `END` for the last token of the prompt,
            and `S1+1` for the token after the mark S1. By default END, then the marks of the first
            template from last to first, then those that only others have.
        counterfactual: for some roles, the words to put there in a counterfactual prompt, each one
            token after a space; by default it is another example with roles at the same positions.
    """

    counterfactual_words = "other words at the given roles, or other examples of the layout"

    def __init__(
        self,
        templates: Sequence[str],
        fillings: Mapping[str, Sequence[str] | str] | Sequence[Filling],
        answer: str,
        wrong: str | Sequence[str] | None = None,
        *,
        tokenizer: Any,
        roles: Sequence[str] | None = None,
        counterfactual: Mapping[str, Sequence[str]] | None = None,
    ):
        _check_words("templates", templates)
        self.templates, self.answer = tuple(templates), answer
        self._marks = list(map(_marks, self.templates))
        self.wrong = (wrong,) if isinstance(wrong, str) else None if wrong is None else tuple(wrong)
        # A filling has one entry of each group, all words different; then those of `_same`.
        self._same: dict[str, str] = {}
        self._groups = [list(fillings)] if not isinstance(fillings, Mapping) else []
        for name, words in fillings.items() if isinstance(fillings, Mapping) else ():
            if isinstance(words, str):
                self._same[name] = words
            else:
                self._groups.append([{name: word} for word in dict.fromkeys(words)])
        for group in self._groups:
            _check_words("fillings", [word for filling in group for word in filling.values()])
        marks = dict.fromkeys([*reversed(self._marks[0]), *chain(*self._marks[1:])])
        roles, replacements = (END, *marks) if roles is None else roles, counterfactual or {}
        self._check_names(marks, roles, replacements)
        super().__init__(roles, tokenizer)
        self.answer_role = self.roles.index(answer) if answer in self.roles else None
        every_filling = chain(*self._groups)
        answers = [filling[answer] for filling in every_filling if answer in filling]
        self.candidates: tuple[str, ...] = tuple(dict.fromkeys(answers))
        self.n_answers = len(self.candidates) if self.wrong is None else 1 + len(self.wrong)
        if self.n_answers < 2:
            raise InputError(f"fillings: expected at least two answers, found {self.n_answers}")
        self._few = len(self.templates) * math.prod(map(len, self._groups)) < _FEW
        self._draw(Draw("template"))  # an error if words do not fit
        self._replacements: dict[int, Tensor] = {}  # tokens by role
        for role, words in replacements.items():
            tokens = one_token_words(tokenizer, words)
            if len(tokens) < 3:
                raise InputError(
                    f"counterfactual: expected at least three words of one token for {role}, found "
                    f"{len(tokens)} of {len(words)}"
                )
            expected = f"counterfactual: expected words of one token for {role}, found"
            unfit = [InputError(f"{expected} {word!r}") for word in words if word not in tokens]
            warn_of_unfit(unfit, len(words), "words")
            self._replacements[self.roles.index(role)] = torch.tensor([*tokens.values()])

    def counterfactual(self, batch: Batch, seed: int = 0) -> Batch:
        """Return prompts with other words at the given roles, or other examples of the layout."""
        if not self._replacements:
            return super().counterfactual(batch, seed)
        draw, inputs = torch.Generator().manual_seed(seed), batch.inputs.clone()
        for role, tokens in self._replacements.items():
            for example, place in enumerate(batch.roles[:, 0, role].tolist()):
                new = tokens[~torch.isin(tokens, inputs[example].cpu())]
                chosen = new[torch.randint(len(new), (1,), generator=draw)]
                if place >= 0:
                    inputs[example, place] = chosen.item()
        return replace(batch, inputs=inputs)

    def _check_names(self, marks: Mapping[str, Any], roles: Sequence[str], replaced: Any) -> None:
        filled = set().union(*(set.intersection(*map(set, group)) for group in self._groups))
        for argument, names, among in (
            ("fillings", self._same.values(), filled),
            ("templates", marks, filled | {*self._same}),
            ("roles", [role.removesuffix("+1") for role in roles], [*marks, END]),
            ("answer", [self.answer], filled),
            ("wrong", self.wrong or (), filled | {*self._same}),
            ("counterfactual", replaced, roles),
        ):
            for name in names:
                if name not in among:
                    allowed = ", ".join(sorted(among))
                    raise InputError(f"{argument}: expected one of {allowed}, found {name!r:.60}")
        if END not in roles or len(set(roles)) < len(roles):
            raise InputError(f"roles: expected different ones and {END}, found {list(roles)}")

    def _draw(self, rng: Draw) -> Question:
        number = rng.pick(len(self.templates))
        for _ in range(_DRAWS):
            chosen = [group[rng.pick(len(group))] for group in self._groups]
            filling = {name: word for part in chosen for name, word in part.items()}
            if len(set(filling.values())) == len(filling):
                return self._question(number, filling)
        raise InputError("fillings: expected enough words to fill every mark with another one")

    def _question(self, number: int, filling: Filling) -> Question:
        filling = {**filling, **{name: filling[twin] for name, twin in self._same.items()}}
        line = Line(self.templates[number], [filling[mark] for mark in self._marks[number]])
        wrong = self.candidates if self.wrong is None else [filling[name] for name in self.wrong]
        question = write([line], filling[self.answer], {filling[self.answer], *wrong})
        if len(question.acceptable) < self.n_answers:
            names = ", ".join([self.answer, *(self.wrong or ())])
            raise InputError(f"fillings: expected different words for {names}, found {filling}")
        return question

    def question(self, index: int, seed: int = 0, split: Split = "train") -> Question:
        check_draw(seed, split)
        rng = Draw(f"template {seed} {split} {index}")
        while True:
            question = self._draw(rng)
            number = sha256(question.prompt.encode()).digest()[0] % len(SPLITS)
            if self._few or number == SPLITS.index(split):
                return question

    @property
    def description(self) -> str:
        templates = counted(len(self.templates), "template")
        return f"{templates} in the tokens of {self.tokenizer_name}: {self.templates[0]!r:.60}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": "template",
            "templates": list(self.templates),
            "roles": list(self.roles),
            "answer": self.answer,
            "wrong": list(self.candidates if self.wrong is None else self.wrong),
            "tokenizer": self.tokenizer_name,
        }


def _check_words(where: str, words: Any) -> None:
    right = [word for word in words if word and word == word.strip()]
    if isinstance(words, str) or not right or right != list(words):
        raise InputError(
            f"{where}: expected a list of texts without a blank at the end, found {words!r:.200}"
        )


def _marks(template: str) -> list[str]:
    """Return the marks of a template, in order."""
    try:
        marks = [mark for _, mark, _, _ in Formatter().parse(template) if mark is not None]
    except ValueError:
        marks = [END]  # a brace that is not closed
    if not all(map(str.isidentifier, marks)) or END in marks or len(set(marks)) < len(marks):
        raise InputError(
            f"template: expected different marks such as {{IO}}, of letters and digits and not "
            f'{{{END}}}, found {template!r:.200}; for a second mark write "S2": "S1"'
        )
    return marks


_COMMON = (
    "Aaron Adam Alan Alex Alice Amy Andrew Anna Anthony Arthur Ben Brian Carl Charles Chris "
    "Christina Daniel David Edward Elizabeth Emily Emma Eric Frank George Grace Henry Jack Jacob "
    "James Jane Jason Jennifer Jessica Joe John Jonathan Joseph Julia Justin Karen Kate Kelly "
    "Kevin Kim Laura Linda Lisa Lucy Luke Maria Mark Martin Mary Matthew Max Michael Michelle "
    "Nick Oliver Paul Peter Philip Rachel Richard Robert Rose Ruth Ryan Sam Samuel Sarah Scott "
    "Simon Stephen Steven Susan Thomas Tim Tom Victoria Walter William"
)
NAMES = tuple(_COMMON.split())

_SENTENCES = (
    "When {first} and {second} went to the store, {S2} gave a drink to",
    "Then, {first} and {second} went to the park, and {S2} gave a ball to",
    "While {first} and {second} were working at the office, {S2} handed the letter to",
    "Afterwards, {first} and {second} went to the garden, and {S2} gave a flower to",
    "After the lunch, {first} and {second} went to the house, and {S2} gave a ring to",
    "Then {first} and {second} had a long argument, and afterwards {S2} said to",
)
TEMPLATES = tuple(
    sentence.replace("{first}", first).replace("{second}", second)
    for sentence in _SENTENCES
    for first, second in (("{IO}", "{S1}"), ("{S1}", "{IO}"))
)


class IndirectObjectTask(TemplateTask):
    """Indirect object identification (IOI): to whom something is given, for language models.

    Six sentences, each with the indirect object IO before the subject S1 (ABB) and after it (BAB);
    the subject is named again as S2. It uses those of 83 first names that are one token after a
    space.
    """

    def __init__(self, tokenizer: Any):
        self.names = tuple(one_token_words(tokenizer, NAMES))
        if len(self.names) < 2:
            usable = f"{len(self.names)} of {len(NAMES)}"
            raise InputError(f"names: expected at least two that are one token, found {usable}")
        super().__init__(
            TEMPLATES,
            {"IO": self.names, "S1": self.names, "S2": "S1"},
            answer="IO",
            wrong="S1",
            tokenizer=tokenizer,
            roles=(END, "S2", "S1+1", "S1", "IO"),
            counterfactual={"S2": self.names} if len(self.names) > 2 else None,  # a third name
        )


def one_token_words(tokenizer: Any, words: Sequence[str]) -> dict[str, int]:
    """Return the words that are one token after a space, with their tokens."""
    expect_offsets(tokenizer)
    texts = ["to", *(f"to {word}" for word in words)]
    before, *read = tokenizer(texts, add_special_tokens=False)["input_ids"]
    last = {word: ids[-1] for word, ids in zip(words, read) if ids[:-1] == before}
    return {word: token for word, token in last.items() if token != tokenizer.unk_token_id}
