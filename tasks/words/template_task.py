"""Templates with roles as a task for a language model: sentences of your own, in one call.

1. A template is text with marks, such as "{S1} met {IO} and {S2} greeted". What fills the marks are
   lists of words, of which a prompt uses no word twice, or complete fillings, one after the other.
2. An example is a template and a filling, both drawn uniformly, each example from random numbers of
   its own, seeded with the text "template seed split index" (`tasks.words.prompts.prompt`).
3. Where there are at least 256 examples, each belongs to one split, which a hash of its prompt
   decides, so that the splits share none. Where there are fewer, every split has all of them, in a
   random order of its own, over and over.
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import islice
from random import Random
from string import Formatter
from typing import Any, get_args

from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.split import Split
from retrieval_interp.tasks.words.prompts.page import Mark, compose
from retrieval_interp.tasks.words.prompts.prompt import pick, shuffled
from retrieval_interp.tasks.words.prompts.question import Question
from retrieval_interp.tasks.words.text_task import END, TextTask

Filling = Mapping[str, str]  # a word for every mark
_FEW = 256  # with fewer examples, the splits share them
_NEXT = "+1"  # marks the token after a role


class TemplateTask(TextTask):
    """Templates with roles, filled with words, as a task for a language model.

    A role stands at the last token of its word. Answers are tokenized together with the prompt; the
    tokens that all of them share, such as a bare space, belong to the prompt, and the first one in
    which they differ is scored, by its cross entropy among the acceptable answers, in nats.

    Args:
        templates: texts with marks in braces, up to where the answer comes, without a final blank.
        fillings: the words of every mark, `{"IO": names, "S1": names, "S2": "S1"}`, where a text
            names the mark that has the same word, and different marks have different words; or a
            list of complete fillings, `[{"country": "France", "capital": "Paris"}, ...]`. Names
            that are no marks may be answers.
        answer: the name in the fillings whose word is correct.
        wrong: the names whose words are the other acceptable answers; by default, all other words
            that `answer` may have.
        tokenizer: a Hugging Face tokenizer that gives offsets (a fast one).
        roles: which marks are roles, in this order, with `END` for the last token of the prompt,
            and `S1+1` for the token after the mark S1. By default END, then the marks of the first
            template from last to first, then those that only others have. A role is absent where a
            template lacks its mark.
        answer_prefix: text between prompt and answer; for most tokenizers a space.
        prepend_bos: whether to start with a beginning-of-sequence token; by default yes, if the
            tokenizer has one.

    Raises:
        InputError: something is empty, a mark is missing, unknown or repeated, an answer is no
            name of the fillings, or the tokenizer gives no offsets or has no such token.

    Examples:
        >>> import retrieval_interp as ri
        >>> capitals = [
        ...     {"country": "France", "capital": "Paris"},
        ...     {"country": "Italy", "capital": "Rome"},
        ... ]
        >>> tokenizer = ri.load_checkpoint("equations").model.tokenizer  # or a real one
        >>> task = ri.TemplateTask(
        ...     ["The capital of {country} is"], capitals, answer="capital", tokenizer=tokenizer
        ... )
        >>> task.role_names
        ('END', 'country')
        >>> task.question(0).prompt
        'The capital of France is'
    """

    def __init__(
        self,
        templates: Sequence[str],
        fillings: Mapping[str, Sequence[str] | str] | Sequence[Filling],
        answer: str,
        wrong: str | Sequence[str] | None = None,
        *,
        tokenizer: Any,
        roles: Sequence[str] | None = None,
        answer_prefix: str = " ",
        prepend_bos: bool | None = None,
    ):
        _check_list("templates", "texts", templates)
        self.templates = tuple(templates)
        self.answer = answer
        self.wrong = (wrong,) if isinstance(wrong, str) else None if wrong is None else tuple(wrong)
        self._words: dict[str, Sequence[str]] = {}
        self._same: dict[str, str] = {}
        self._rows: Sequence[Filling] = ()
        if isinstance(fillings, Mapping):
            self._read_words(fillings)
        else:
            _check_list("fillings", "words by name", fillings, Mapping)
            self._rows = fillings
        parts = [_parse(template, answer_prefix) for template in self.templates]
        marks = [[mark for _, mark in part if mark is not None] for part in parts]
        later = dict.fromkeys(mark for found in marks[1:] for mark in found)
        if roles is None:
            roles = (END, *reversed(marks[0]), *(mark for mark in later if mark not in marks[0]))
        roles = tuple(roles)
        self._check_names(marks, roles)
        self._parts = parts
        super().__init__(roles, tokenizer, answer_prefix, prepend_bos)
        candidates = self._words.get(answer) or [row[answer] for row in self._rows]
        self.candidates: tuple[str, ...] = tuple(dict.fromkeys(candidates))
        different = set[str]().union(*self._words.values())
        few = list(islice(self._all(), _FEW)) if len(different) >= len(self._words) else []
        if not few:
            raise InputError(
                "fillings: expected enough words to fill every mark with another one, found "
                f"{len(different)} for {', '.join(self._words)}; add words"
            )
        self._few = few if len(few) < _FEW else None
        if self.n_answers < 2:
            raise InputError(
                f"fillings: expected at least two words for the answer {answer!r}, found "
                f"{self.candidates}; add words, or name wrong answers with `wrong`"
            )

    def _read_words(self, fillings: Mapping[str, Sequence[str] | str]) -> None:
        if not fillings:
            raise InputError("fillings: expected words for every mark, found none; add some")
        for name, words in fillings.items():
            if not isinstance(words, str):
                _check_list(f"fillings of {name}", "words", words)
                self._words[name] = tuple(dict.fromkeys(words))
        for name, words in fillings.items():
            if isinstance(words, str):
                if words not in self._words:
                    raise InputError(
                        f"fillings of {name}: expected a list of words, or the name of a mark that "
                        f"has the same word ({', '.join(self._words)}), found {words!r:.60}"
                    )
                self._same[name] = words

    def _check_names(self, marks: Sequence[Sequence[str]], roles: Sequence[str]) -> None:
        known = [{*self._words, *self._same}] if self._words else [set(row) for row in self._rows]
        everywhere = set.intersection(*known)
        listed = ", ".join(sorted(everywhere))
        for number, (template, found) in enumerate(zip(self.templates, marks), start=1):
            for mark in found:
                if mark not in everywhere:
                    raise InputError(
                        f"fillings: expected words for {{{mark}}} of template {number}, found "
                        f"{listed}; add {mark!r} to all of them"
                    )
                if found.count(mark) > 1:
                    raise InputError(
                        f"template {number}: expected {{{mark}}} once, found it "
                        f"{found.count(mark)} times in {template!r:.200}; name the second one "
                        'differently and fill it with the same word, such as "S2": "S1"'
                    )
        for role in roles:
            if role != END and not any(role.removesuffix(_NEXT) in found for found in marks):
                raise InputError(
                    f"templates: expected the role {{{role.removesuffix(_NEXT)}}} in one of them, "
                    "found it in none; write it, or leave it out of roles"
                )
        if END not in roles or len(set(roles)) < len(roles):
            raise InputError(
                f"roles: expected different ones, with {END} among them, found {list(roles)}; "
                f"add {END}, or leave out what is repeated"
            )
        for what, names in (("answer", [self.answer]), ("wrong", self.wrong or [])):
            for name in names:
                if name not in everywhere:
                    raise InputError(
                        f"{what}: expected a name in the fillings ({listed}), found {name!r:.60}; "
                        "add its words there"
                    )
        used = {self.answer, *(self.wrong or ()), *self._same.values()}.union(*marks)
        if self._words and everywhere - used:
            raise InputError(
                f"templates: expected the mark {{{min(everywhere - used)}}}, found it in none; "
                "write it, or leave it out of the fillings"
            )

    @property
    def role_names(self) -> tuple[str, ...]:
        return tuple(self._roles)

    @property
    def answer_role(self) -> int | None:
        return self._roles.index(self.answer) if self.answer in self._roles else None

    # Questions

    @property
    def n_answers(self) -> int:
        return len(self.candidates) if self.wrong is None else 1 + len(self.wrong)

    def _all(self) -> Iterator[Question]:
        """All examples, each once."""
        for number in range(len(self.templates)):
            for filling in self._rows or self._fill({}):
                yield self._question(number, filling)

    def _fill(self, chosen: dict[str, str]) -> Iterator[dict[str, str]]:
        """All fillings that begin like this one."""
        if len(chosen) == len(self._words):
            yield self._complete(chosen)
            return
        name = list(self._words)[len(chosen)]
        for word in self._words[name]:
            if word not in chosen.values():
                yield from self._fill({**chosen, name: word})

    def _complete(self, chosen: dict[str, str]) -> dict[str, str]:
        return {**chosen, **{name: chosen[other] for name, other in self._same.items()}}

    def _draw(self, rng: Random) -> Question:
        number = pick(rng, len(self.templates))
        if self._rows:
            return self._question(number, self._rows[pick(rng, len(self._rows))])
        while True:
            chosen = {name: words[pick(rng, len(words))] for name, words in self._words.items()}
            if len(set(chosen.values())) == len(chosen):
                return self._question(number, self._complete(chosen))

    def _question(self, number: int, filling: Filling) -> Question:
        line: list[str | Mark] = []
        for text, mark in self._parts[number]:
            line.append(text)
            if mark is not None:
                line.append(Mark(filling[mark], 0, mark))
        others = self.candidates if self.wrong is None else [filling[name] for name in self.wrong]
        question = compose([line], filling[self.answer], {filling[self.answer], *others})
        if len(question.acceptable) < self.n_answers:
            raise InputError(
                f"fillings: expected different words for {self.answer} and "
                f"{', '.join(self.wrong or ())}, found {filling!r:.200}; change one"
            )
        return question

    def question(self, index: int, seed: int = 0, split: Split = "train") -> Question:
        splits = get_args(Split)
        if split not in splits:
            raise InputError(f"sample: expected a split of {sorted(splits)}, found {split!r}")
        if self._few is not None:
            times, place = divmod(index, len(self._few))
            return shuffled(Random(f"template {seed} {split} {times}"), self._few)[place]
        rng = Random(f"template {seed} {split} {index}")
        while True:
            question = self._draw(rng)
            if sha256(question.prompt.encode()).digest()[0] % len(splits) == splits.index(split):
                return question

    # What it is called

    @property
    def description(self) -> str:
        templates = "1 template" if len(self.templates) == 1 else f"{len(self.templates)} templates"
        return f"{templates} in the tokens of {self.tokenizer_name}: {self.templates[0]!r:.60}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": "template",
            "templates": list(self.templates),
            "roles": list(self._roles),
            "answer": self.answer,
            "wrong": list(self.wrong) if self.wrong is not None else list(self.candidates),
            "tokenizer": self.tokenizer_name,
            "answer_prefix": self.answer_prefix,
        }


def _check_list(where: str, what: str, found: Any, kind: type = str) -> None:
    if (
        isinstance(found, str)
        or not isinstance(found, Sequence)
        or not all(isinstance(each, kind) and each for each in found)
        or not found
    ):
        raise InputError(
            f"{where}: expected a list of {what}, at least one and none empty, found {found!r:.60}"
        )


def _parse(template: str, answer_prefix: str) -> list[tuple[str, str | None]]:
    """Pieces of text, each with the mark that follows it."""
    try:
        pieces = [(text, mark) for text, mark, _, _ in Formatter().parse(template)]
    except ValueError as error:
        raise InputError(
            f"template: expected marks such as {{IO}}, found {template!r:.200} ({error}); write "
            "{{ and }} for braces"
        ) from None
    for _, mark in pieces:
        if mark is not None and (not mark.isidentifier() or mark == END):
            raise InputError(
                f"template: expected marks of letters and digits other than {END}, found "
                f"{{{mark}}} in {template!r:.200}; rename it"
            )
    if template != template.rstrip() and answer_prefix[:1].isspace():
        raise InputError(
            f"template: expected no blank at the end, found {template!r:.200}; leave it to "
            "answer_prefix"
        )
    return pieces
