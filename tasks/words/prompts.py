"""The retrieval problem in words: five formulations for language models (paper, appendix A).

In equations, lives-with and kingdoms the steps form a line: a chain is x_0..x_D, from the symbol in
the question to the answer. The statements of all chains' pairs D, (x_{D-1}, x_D), come first, then
those of pairs D-1, ..., each in an order of its own. Roles are the paper's (appendix B).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch

from retrieval_interp.tasks.graph import path_graph
from retrieval_interp.tasks.messages import InputError
from retrieval_interp.tasks.sampling import Split, check_draw
from retrieval_interp.tasks.structured import check_fields, number_field
from retrieval_interp.tasks.task import Batch, role_name
from retrieval_interp.tasks.words import names
from retrieval_interp.tasks.words.text_task import (
    END,
    Draw,
    Line,
    Occurrence,
    Question,
    TextTask,
    token_ids,
    write,
)

_MOST = 1000  # steps at most, and chains


class Prompt:
    """A formulation of the retrieval problem in words (paper, section 4): a frozen dataclass."""

    name: ClassVar[str]  # as in the paper
    chains: int  # number of chains, whose statements are mixed in a prompt

    def __post_init__(self) -> None:
        check_fields(self, self.name)

    @property
    def chance(self) -> float:
        """The accuracy of picking one of the acceptable answers at random."""
        return 1 / self.chains

    def sample(
        self, index: int, seed: int = 0, split: Split = "train", chain: int | None = None
    ) -> Question:
        """Draw one question of a seed and split, with a generator of its own.

        With a `chain`, 0 .. chains-1, the same text asks about that one.
        """
        if index < 0:
            raise InputError(f"sample: expected an index of at least 0, found {index}")
        check_draw(seed, split)
        return self.draw(Draw(f"{self.name} {seed} {split} {index}"), chain)

    def draw(self, rng: Draw, chain: int | None = None) -> Question:
        """Draw one question."""
        raise NotImplementedError

    @property
    def asked(self) -> tuple[str, Sequence[str]]:
        """A role in the question, and the words it may have, each with another answer."""
        raise NotImplementedError


class LinearPrompt(Prompt):
    """A formulation whose chains are lines; subclasses provide names and sentences."""

    steps: int  # statements per chain, D
    ask: ClassVar[str]  # the question, with the mark {s0}

    def symbols(self) -> Sequence[Sequence[str]]:
        """Return the names for each of x_0, x_1, ..., x_D, one per chain."""
        raise NotImplementedError

    def statement(self, step: int, first: str, second: str) -> tuple[str, Sequence[str]]:
        """Return the sentence of a pair, with {first} and {second}, and its words as they come."""
        raise NotImplementedError

    @property
    def asked(self) -> tuple[str, Sequence[str]]:
        return "s0", self.symbols()[0]

    def render(self, chains: Sequence[Sequence[str]], orders: Sequence[Sequence[int]]) -> Question:
        """Write the chains x_0..x_D; orders[d-1] is the order of the chains in pair d."""
        lines: list[Line] = []
        for step in range(self.steps, 0, -1):
            roles = {"first": f"{{s{2 * step - 1}}}", "second": f"{{s{2 * step}}}"}
            for chain in orders[step - 1]:
                text, words = self.statement(step, *chains[chain][step - 1 : step + 1])
                lines.append(Line(text.format(**roles), words, chain == 0))
        lines.append(Line(self.ask, chains[0][:1]))
        return write(lines, chains[0][-1], [chain[-1] for chain in chains])

    def draw(self, rng: Draw, chain: int | None = None) -> Question:
        symbols = [rng.shuffled(names) for names in self.symbols()]
        orders = [rng.shuffled(range(self.chains)) for _ in range(self.steps)]
        chains, first = list(zip(*symbols)), chain or 0  # which is asked
        orders = [[(number - first) % self.chains for number in order] for order in orders]
        return self.render(chains[first:] + chains[:first], orders)


@dataclass(frozen=True)
class EquationsPrompt(LinearPrompt):
    """Equations (F1): the value of a variable that was set to a variable that was set to ...

    The question is `printed`, in whole sentences as in appendix A.1, or `short`, `c = ?`, as in
    section 4.
    """

    steps: int = number_field(5, minimum=1, maximum=_MOST)
    chains: int = number_field(4, minimum=1, maximum=_MOST)
    question: Literal["printed", "short"] = "printed"

    name: ClassVar[str] = "equations"

    def symbols(self) -> Sequence[Sequence[str]]:
        by_step = names.groups(names.letters(self.steps * self.chains), self.chains)
        return [*reversed(by_step), [str(number) for number in range(self.chains)]]

    def statement(self, step: int, first: str, second: str) -> tuple[str, Sequence[str]]:
        return "{first} = {second}", (first, second)

    @property
    def ask(self) -> str:  # type: ignore[override]
        only = "Say directly only the numeric value, without any other words."
        return "{s0} = ?" if self.question == "short" else f"What is the value of {{s0}}? {only}"


@dataclass(frozen=True)
class LivesWithPrompt(LinearPrompt):
    """Lives-with (F2): the city of somebody who lives with somebody who lives with ..."""

    steps: int = number_field(5, minimum=1, maximum=_MOST)
    chains: int = number_field(4, minimum=1, maximum=_MOST)

    name: ClassVar[str] = "lives-with"
    ask = "Where does {s0} live? Say directly only the name of the city, without any other words."

    def symbols(self) -> Sequence[Sequence[str]]:
        by_step = names.groups(names.PEOPLE.take(self.steps * self.chains), self.chains)
        return [*reversed(by_step), names.CITIES.take(self.chains)]

    def statement(self, step: int, first: str, second: str) -> tuple[str, Sequence[str]]:
        word = "in" if step == self.steps else "with"
        return f"{{first}} lives {word} {{second}}", (first, second)


_VERBS = (  # of pair 1 .. 5, and the endings of a thing and of its people
    ("causes", "", ""),
    ("contains", "", ""),
    ("eat", "ism", "ists"),
    ("believe in", "a", "ans"),
    ("lives in", "", ""),
)


@dataclass(frozen=True)
class KingdomsPrompt(LinearPrompt):
    """Kingdoms (F3): who has a disease that a substance causes that a food contains that ..."""

    chains: int = number_field(4, minimum=1, maximum=_MOST)

    name: ClassVar[str] = "kingdoms"
    steps = 5
    ask = "Who has {s0}? Say directly the name without other words."

    def symbols(self) -> Sequence[Sequence[str]]:
        return [kind.take(self.chains) for kind in names.OF_KINGDOMS]

    def statement(self, step: int, first: str, second: str) -> tuple[str, Sequence[str]]:
        verb, ending, plural = _VERBS[step - 1]
        subject = second.removesuffix(ending) + plural
        return f"{{second}} {verb} {{first}}.", (subject[:1].upper() + subject[1:], first)


_VALUE = "{function@table}({argument@table}) = {value@table}"
_ALIAS = "{alias@definition} = {function@definition}"
_VARIABLE = "{variable@definition} = {argument@definition}"
_VALUE_OF = (
    "What is the value of {alias@question}({variable@question})? "
    "Say directly only the numeric value, without any other words."
)


@dataclass(frozen=True)
class FunctionsPrompt(Prompt):
    """Functions (F4): which value an alias of a function takes at a variable.

    "f(2) = 3. g = f. a = 2. g(a) = ?" There are `chains` functions, permutations of 0 .. chains-1,
    and as many aliases for them and variables for their arguments.
    """

    chains: int = number_field(4, minimum=1, maximum=100)

    name: ClassVar[str] = "functions"

    @property
    def asked(self) -> tuple[str, Sequence[str]]:
        return "variable@question", names.groups(names.letters(3 * self.chains), self.chains)[2]

    def render(
        self,
        tables: Sequence[Sequence[int]],
        aliases: Sequence[int],
        variables: Sequence[int],
        asked: tuple[int, int],
    ) -> Question:
        """Write the values of all functions, then the aliases and variables, and the question.

        `aliases` has the function of each alias, `variables` each one's argument, all by number.
        """
        n = self.chains
        f_names, alias_names, variable_names = names.groups(names.letters(3 * n), n)
        function, argument = aliases[asked[0]], variables[asked[1]]
        lines = [
            Line(_VALUE, (f_names[f], str(k), str(value)), (f, k) == (function, argument))
            for f, table in enumerate(tables)
            for k, value in enumerate(table)
        ]
        for x, f in zip(alias_names, aliases):
            lines.append(Line(_ALIAS, (x, f_names[f]), f == function))
        for x, k in zip(variable_names, variables):
            lines.append(Line(_VARIABLE, (x, str(k)), k == argument))
        lines.append(Line(_VALUE_OF, (alias_names[asked[0]], variable_names[asked[1]])))
        return write(lines, str(tables[function][argument]), map(str, range(n)))

    def draw(self, rng: Draw, chain: int | None = None) -> Question:
        n = self.chains
        tables = [rng.shuffled(range(n)) for _ in range(n)]
        aliases, variables = rng.shuffled(range(n)), rng.shuffled(range(n))
        alias, variable = rng.pick(n), rng.pick(n)
        return self.render(
            tables, aliases, variables, (alias if chain is None else chain, variable)
        )


_HOME = "{relative@home} lives in {country@home}."
_FAMILY = "{person@family} {relation@family} is {relative@family}."
_RULE = "{profession@rule} live with their {relation@rule}."
_WORK = "{person@work} works as %s {profession@work}."
_LIVES = "Where does {person@question} live? Say directly only the name, without any other words."


@dataclass(frozen=True)
class RelativesPrompt(Prompt):
    """Relatives (F5): the country of somebody who lives with a relative given by the profession.

    "Engineers live with their mothers. ... Where does Alex live?" There are `chains` people,
    professions and relations, and chains^2 relatives, each of whom lives in a different country.
    """

    chains: int = number_field(4, minimum=1, maximum=len(names.RELATIONS))

    name: ClassVar[str] = "relatives"

    @property
    def chance(self) -> float:
        return 1 / self.chains**2  # of as many countries

    @property
    def relations(self) -> tuple[str, ...]:
        """The relations of a person, in print order."""
        return tuple(names.RELATIONS)[: self.chains]

    @property
    def asked(self) -> tuple[str, Sequence[str]]:
        return "person@question", names.PERSONS[: self.chains]

    def render(
        self,
        homes: Mapping[str, str],
        families: Mapping[str, Sequence[str]],
        rules: Mapping[str, str],
        works: Mapping[str, str],
        asked: str,
    ) -> Question:
        """Write where relatives live, who they are, the rules of professions, and who is what."""
        kind = rules[works[asked]]
        host = families[asked][self.relations.index(kind)]
        lines = [Line(_HOME, (name, home), name == host) for name, home in homes.items()]
        for person, family in families.items():
            for relation, relative in zip(self.relations, family):
                lines.append(Line(_FAMILY, (f"{person}s", relation, relative), relative == host))
        for work, relation in rules.items():
            lines.append(Line(_RULE, (f"{work.capitalize()}s", f"{relation}s"), relation == kind))
        for person, work in works.items():
            article = "an" if work[0] in "aeiou" else "a"
            lines.append(Line(_WORK % article, (person, work), person == asked))
        lines.append(Line(_LIVES, (asked,)))
        return write(lines, homes[host], homes.values())

    def draw(self, rng: Draw, chain: int | None = None) -> Question:
        n, relations = self.chains, self.relations
        kinds = [names.RELATIONS[relation] for relation in relations]
        women = n * kinds.count(names.WOMEN)
        sizes = {names.WOMEN: women, names.MEN: n * n - women}
        unused = {kind: iter(rng.shuffled(kind.take(size))) for kind, size in sizes.items()}
        people, professions = names.PERSONS[:n], names.PROFESSIONS[:n]
        families = {person: [next(unused[kind]) for kind in kinds] for person in people}
        relatives = [relative for family in families.values() for relative in family]
        return self.render(
            dict(zip(rng.shuffled(relatives), rng.shuffled(names.COUNTRIES.take(n * n)))),
            families,
            dict(zip(rng.shuffled(professions), rng.shuffled(relations))),
            dict(zip(people, rng.shuffled(professions))),
            people[rng.pick(n) if chain is None else chain],
        )


FORMULATIONS: dict[str, Any] = {
    kind.name: kind
    for kind in (EquationsPrompt, LivesWithPrompt, KingdomsPrompt, FunctionsPrompt, RelativesPrompt)
}


class PromptTask(TextTask):
    """A formulation, such as `EquationsPrompt(steps=3)`, as a task for language models (section 4).

    If the steps form a line, roles are those of appendix B; otherwise they count backwards from the
    question. The last role is the end of the prompt. Before each question come `solved` others with
    their answers, the same ones for all questions of a seed. With `chat`, the question is a user's
    message in the tokenizer's chat template, and the prompt ends where the model's turn begins.
    """

    counterfactual_words = "the question about another chain"

    def __init__(self, prompt: Prompt, tokenizer: Any, solved: int = 0, chat: bool = False):
        self.prompt, self.n_answers, self.n_solved = prompt, round(1 / prompt.chance), solved
        self.chat = chat
        if isinstance(prompt, LinearPrompt):
            roles = [role_name(number) for number in range(2 * prompt.steps + 1)]
            path = path_graph(prompt.steps)
            labels, symbols = path.role_labels, path.role_symbols
        else:
            roles = [symbol.role for symbol in prompt.sample(0).occurrences[::-1] if symbol.role]
            labels, symbols = tuple(roles), tuple(role.partition("@")[0] for role in roles)
        super().__init__([*roles, END], tokenizer)
        if chat:  # the template has its own first token, and a line break before the answer
            self.begin, self.before_answer = [], ""
        self.role_names = tuple(map(role_name, range(len(self.roles))))
        self.tolerance = 0.05 * (self.plateau or 1.0)  # as the paper's is of a symbol's variance
        self.role_labels, self.role_symbols = (*labels, "end"), (*symbols, "end")

    def question(
        self, index: int, seed: int = 0, split: Split = "train", chain: int | None = None
    ) -> Question:
        asked = self.prompt.sample(index, seed, split, chain)
        before, after = self._around(seed)
        return asked._replace(
            prompt=before + asked.prompt + after,
            occurrences=tuple(
                Occurrence(role, start + len(before), end + len(before))
                for role, start, end in asked.occurrences
            ),
        )

    def _around(self, seed: int) -> tuple[str, str]:
        """Return the texts before and after a question."""
        if not self.chat:
            solved = [f"{past.prompt} {past.correct}\n\n" for past in self.solved(seed)]
            return "".join(solved), ""
        turns = [
            {"role": role, "content": text}
            for past in self.solved(seed)
            for role, text in (("user", past.prompt), ("assistant", past.correct))
        ]
        here = "[the question]"
        try:
            text = self.tokenizer.apply_chat_template(
                [*turns, {"role": "user", "content": here}],
                tokenize=False,
                add_generation_prompt=True,
            )
        except ValueError as error:
            raise InputError(
                f"chat: expected a tokenizer with a chat template, found {self.tokenizer_name} "
                "without one"
            ) from error
        before, _, after = text.rpartition(here)
        return before, after

    def solved(self, seed: int = 0) -> list[Question]:
        """The questions that are answered before each one of a seed."""
        names = (f"{self.prompt.name} {seed} solved {number}" for number in range(self.n_solved))
        return [self.prompt.draw(Draw(name)) for name in names]

    def counterfactual(self, batch: Batch, seed: int = 0) -> Batch:
        """Ask about another chain, in as many tokens and with another answer."""
        draw, inputs = Draw(f"counterfactual {seed}"), batch.inputs.clone()
        (role, words), first = self.prompt.asked, len(self.begin)
        for row, places in zip(inputs, batch.roles[:, 0].tolist()):
            read, end = row[first : places[-1] + 1], places[self.roles.index(role)] + 1 - first
            text, before = map(self.tokenizer.decode, (read, read[:end]))
            asked = max((word for word in words if before.endswith(word)), key=len)
            begin = before.removesuffix(asked)
            texts = [begin + word + text[len(before) :] for word in words if word != asked]
            encoded = [token_ids(self.tokenizer, text) for text in texts]
            fitting = [ids for ids in encoded if len(ids) == len(read)]
            if not fitting:
                raise InputError(
                    f"counterfactual: expected another question in {len(read)} tokens, found "
                    f"{len(texts)} of other lengths"
                )
            read[:] = torch.tensor(fitting[draw.pick(len(fitting))])
        return replace(batch, inputs=inputs)

    @property
    def description(self) -> str:
        after = f" after {self.n_solved} solved" if self.n_solved else ""
        after += ", in a chat," if self.chat else ""
        return f"{self.prompt}{after} in the tokens of {self.tokenizer_name}"

    def to_dict(self) -> dict[str, Any]:
        prompt = {"name": self.prompt.name, **vars(self.prompt)}
        if self.n_solved:
            prompt["solved"] = self.n_solved
        if self.chat:
            prompt["chat"] = True
        return {"name": "prompt", "prompt": prompt, "tokenizer": self.tokenizer_name}
