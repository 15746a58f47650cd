"""The retrieval problem in words: five formulations for language models (paper, appendix A)."""

from retrieval_interp.tasks.words.prompts.formulations import EquationsPrompt as EquationsPrompt
from retrieval_interp.tasks.words.prompts.formulations import FunctionsPrompt as FunctionsPrompt
from retrieval_interp.tasks.words.prompts.formulations import KingdomsPrompt as KingdomsPrompt
from retrieval_interp.tasks.words.prompts.formulations import LivesWithPrompt as LivesWithPrompt
from retrieval_interp.tasks.words.prompts.formulations import RelativesPrompt as RelativesPrompt
from retrieval_interp.tasks.words.prompts.prompt import Prompt as Prompt
