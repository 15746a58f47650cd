"""The retrieval problem in words: five formulations for language models (paper, appendix A).

Standard library alone, so that other projects can ask the same questions.
"""

from retrieval_interp.tasks.words.prompts.equations import EquationsPrompt as EquationsPrompt
from retrieval_interp.tasks.words.prompts.functions import FunctionsPrompt as FunctionsPrompt
from retrieval_interp.tasks.words.prompts.kingdoms import KingdomsPrompt as KingdomsPrompt
from retrieval_interp.tasks.words.prompts.lives_with import LivesWithPrompt as LivesWithPrompt
from retrieval_interp.tasks.words.prompts.prompt import Prompt as Prompt
from retrieval_interp.tasks.words.prompts.question import Occurrence as Occurrence
from retrieval_interp.tasks.words.prompts.question import Question as Question
from retrieval_interp.tasks.words.prompts.relatives import RelativesPrompt as RelativesPrompt
