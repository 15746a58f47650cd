"""The five formulations as tasks for a language model (paper, section 4).

The one chain is the one that is asked. Where its steps form a line, roles are those of appendix B;
otherwise they count backwards from the question. The last one is the end of the prompt.
"""

from typing import Any

from retrieval_interp.tasks.roles import chain_labels, chain_symbols, role_name
from retrieval_interp.tasks.split import Split
from retrieval_interp.tasks.words.prompts import LinearPrompt, Prompt
from retrieval_interp.tasks.words.question import Question
from retrieval_interp.tasks.words.text_task import END, TextTask


class PromptTask(TextTask):
    """Five formulations in English, for language models.

    Args:
        prompt: the formulation, such as `EquationsPrompt(steps=3)`.
        tokenizer, answer_prefix, prepend_bos: as in `TemplateTask`.
    """

    def __init__(
        self,
        prompt: Prompt,
        tokenizer: Any,
        answer_prefix: str = " ",
        prepend_bos: bool | None = None,
    ):
        self.prompt, self.n_answers = prompt, round(1 / prompt.chance)
        if isinstance(prompt, LinearPrompt):
            roles = [role_name(number) for number in range(2 * prompt.steps + 1)]
            labels, symbols = chain_labels(prompt.steps), chain_symbols(prompt.steps)
        else:
            roles = [symbol.role for symbol in prompt.sample(0).occurrences[::-1] if symbol.role]
            labels, symbols = tuple(roles), tuple(role.partition("@")[0] for role in roles)
        super().__init__([*roles, END], tokenizer, answer_prefix, prepend_bos)
        self.role_names = tuple(map(role_name, range(len(self.roles))))
        self.tolerance = 0.05 * (self.plateau or 1.0)  # as the paper's is of a symbol's variance
        self.role_labels, self.role_symbols = (*labels, "end"), (*symbols, "end")

    def question(self, index: int, seed: int = 0, split: Split = "train") -> Question:
        return self.prompt.sample(index, seed, split)

    @property
    def description(self) -> str:
        return f"{self.prompt} in the tokens of {self.tokenizer_name}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": "prompt",
            "prompt": {"name": self.prompt.name, **vars(self.prompt)},
            "tokenizer": self.tokenizer_name,
            "answer_prefix": self.answer_prefix,
        }
