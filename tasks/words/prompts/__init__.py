"""The retrieval problem in words: five formulations for language models (paper, appendix A).

Standard library alone, so that other projects can ask the same questions.
"""

from tasks.words.prompts.equations import EquationsPrompt as EquationsPrompt
from tasks.words.prompts.functions import FunctionsPrompt as FunctionsPrompt
from tasks.words.prompts.kingdoms import KingdomsPrompt as KingdomsPrompt
from tasks.words.prompts.lives_with import LivesWithPrompt as LivesWithPrompt
from tasks.words.prompts.prompt import Prompt as Prompt
from tasks.words.prompts.question import Occurrence as Occurrence
from tasks.words.prompts.question import Question as Question
from tasks.words.prompts.relatives import RelativesPrompt as RelativesPrompt
