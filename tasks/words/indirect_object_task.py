"""Indirect objects: "When Mary and John went to the store, John gave a drink to" (Mary).

From K. Wang et al., *Interpretability in the Wild: a Circuit for Indirect Object Identification in
GPT-2 small* (https://arxiv.org/abs/2211.00593), section 2.
"""

from collections.abc import Sequence
from typing import Any

from retrieval_interp.tasks.errors import InputError
from retrieval_interp.tasks.words.template_task import TemplateTask
from retrieval_interp.tasks.words.text_task import END, expect_offsets

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
    sentence.replace("{first}", one).replace("{second}", other)
    for sentence in _SENTENCES
    for one, other in (("{IO}", "{S1}"), ("{S1}", "{IO}"))
)


class IndirectObjectTask(TemplateTask):
    """To whom something is given, for language models.

    | role | label | is at |
    |---|---|---|
    | s0 | END | the last token of the prompt, where the answer is predicted |
    | s1 | S2 | the subject's name in the second clause |
    | s2 | S1+1 | the token after the subject's first name |
    | s3 | S1 | the subject's name in the first clause |
    | s4 | IO | the indirect object's name, which is the answer |

    Six sentences, each with the indirect object before the subject (ABB) and after it (BAB). Only
    names that are one token behind a blank are used; those `left_out` are not.

    Args:
        tokenizer: a Hugging Face tokenizer that gives offsets (a fast one).
        names: first names to choose from; by default 83 common English ones.
        templates: with the marks {IO}, {S1} and {S2}.
        prepend_bos: as in `TemplateTask`.
    """

    def __init__(
        self,
        tokenizer: Any,
        names: Sequence[str] = NAMES,
        templates: Sequence[str] = TEMPLATES,
        prepend_bos: bool | None = None,
    ):
        expect_offsets(tokenizer)
        self.names = tuple(name for name in names if _is_one_token(name, tokenizer))
        self.left_out = tuple(name for name in names if name not in self.names)
        if len(self.names) < 2:
            found = f"{len(self.names)} of {len(names)}"
            raise InputError(f"names: expected at least two that are one token, found {found}")
        super().__init__(
            templates,
            {"IO": self.names, "S1": self.names, "S2": "S1"},
            answer="IO",
            wrong="S1",
            tokenizer=tokenizer,
            roles=(END, "S2", "S1+1", "S1", "IO"),
            prepend_bos=prepend_bos,
            counterfactual={"S2": self.names} if len(self.names) > 2 else None,  # a third name
        )

    @property
    def description(self) -> str:
        names = f"{len(self.names)} names of one token ({len(self.left_out)} left out)"
        what = f"indirect objects in the tokens of {self.tokenizer_name}"
        return f"{what}: {names}, {len(self.templates)} templates"


def _is_one_token(name: str, tokenizer: Any) -> bool:
    alone, behind = tokenizer(["to", f"to {name}"], add_special_tokens=False)["input_ids"]
    return bool(behind[-1] != tokenizer.unk_token_id and behind[:-1] == alone)
