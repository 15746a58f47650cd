"""The five formulations as tasks for a language model (paper, section 4).

There is one chain, the one that is asked. Its roles are those of the formulation, followed by the
end of the prompt, where the answer is predicted. Where the steps form a line, s0..s2D are those of
appendix B; otherwise roles count backwards from the question.
"""

from typing import Any

from retrieval_interp.tasks.roles import path_letters, role_letters, role_name, symbol_letter
from retrieval_interp.tasks.split import Split
from retrieval_interp.tasks.words.prompts.linear import LinearPrompt
from retrieval_interp.tasks.words.prompts.prompt import Prompt
from retrieval_interp.tasks.words.prompts.question import Question
from retrieval_interp.tasks.words.text_task import END, TextTask


class PromptTask(TextTask):
    """A formulation as a task for a language model.

    Answers are tokenized together with the prompt; the tokens that all of them share, such as a
    bare space, belong to the prompt, and the first one in which they differ is scored.

    Args:
        prompt: the formulation, such as `EquationsPrompt(steps=3)`.
        tokenizer: a Hugging Face tokenizer that gives offsets (a fast one).
        answer_prefix: text between prompt and answer; for most tokenizers a space.
        prepend_bos: whether to start with a beginning-of-sequence token; by default yes, if the
            tokenizer has one.

    Raises:
        InputError: not such a tokenizer.
    """

    def __init__(
        self,
        prompt: Prompt,
        tokenizer: Any,
        answer_prefix: str = " ",
        prepend_bos: bool | None = None,
    ):
        self.prompt = prompt
        roles = [symbol.role for symbol in prompt.sample(0).occurrences if symbol.chain == 0]
        if isinstance(prompt, LinearPrompt):
            roles = [role_name(number) for number in range(len(roles))]
        else:
            roles.reverse()
        super().__init__([*roles, END], tokenizer, answer_prefix, prepend_bos)

    def question(self, index: int, seed: int = 0, split: Split = "train") -> Question:
        return self.prompt.sample(index, seed, split)

    @property
    def n_answers(self) -> int:
        return round(1 / self.prompt.chance)

    @property
    def role_labels(self) -> tuple[str, ...]:
        """In letters, or as the formulation names them, such as `alias@question`; and `end`."""
        roles = self._roles[:-1]
        if isinstance(self.prompt, LinearPrompt):
            return (*map(role_letters, range(len(roles))), "end")
        return (*roles, "end")

    @property
    def role_symbols(self) -> tuple[str, ...]:
        roles = self._roles[:-1]
        if isinstance(self.prompt, LinearPrompt):
            letters = (symbol_letter(role // 2) for role in range(1, len(roles)))
            return (f"{symbol_letter(0)}?", *letters, "end")
        return (*(role.partition("@")[0] for role in roles), "end")

    def path_label(self, dest: int, src: int) -> str:
        if isinstance(self.prompt, LinearPrompt) and max(dest, src) < len(self._roles) - 1:
            return path_letters(dest, src)
        return super().path_label(dest, src)

    @property
    def description(self) -> str:
        return f"{self.prompt} in the tokens of {self.tokenizer_name}"

    @property
    def tolerance(self) -> float:
        """0.05 of the plateau, as the paper's 0.05 is of a symbol's variance."""
        return 0.05 * (self.plateau or 1.0)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": "prompt",
            "prompt": {"name": self.prompt.name, **vars(self.prompt)},
            "tokenizer": self.tokenizer_name,
            "answer_prefix": self.answer_prefix,
        }
