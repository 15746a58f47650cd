"""The retrieval problem in words: five formulations for language models."""

from tasks.prompts.equations import EquationsPrompt as EquationsPrompt
from tasks.prompts.functions import FunctionsPrompt as FunctionsPrompt
from tasks.prompts.kingdoms import KingdomsPrompt as KingdomsPrompt
from tasks.prompts.lives_with import LivesWithPrompt as LivesWithPrompt
from tasks.prompts.prompt import Prompt as Prompt
from tasks.prompts.question import Occurrence as Occurrence
from tasks.prompts.question import Question as Question
from tasks.prompts.relatives import RelativesPrompt as RelativesPrompt
