from retrieval_interp.tasks.errors import InputError as InputError
from retrieval_interp.tasks.graph import GRAPHS as GRAPHS
from retrieval_interp.tasks.graph import RetrievalGraph as RetrievalGraph
from retrieval_interp.tasks.graph import path_graph as path_graph
from retrieval_interp.tasks.retrieval import (
    ConditionalRetrievalTask as ConditionalRetrievalTask,
)
from retrieval_interp.tasks.retrieval import RetrievalTask as RetrievalTask
from retrieval_interp.tasks.roles import parse_role as parse_role
from retrieval_interp.tasks.roles import path_letters as path_letters
from retrieval_interp.tasks.roles import role_letters as role_letters
from retrieval_interp.tasks.roles import role_name as role_name
from retrieval_interp.tasks.roles import symbol_letter as symbol_letter
from retrieval_interp.tasks.sampling import Split as Split
from retrieval_interp.tasks.task import Batch as Batch
from retrieval_interp.tasks.task import Task as Task
from retrieval_interp.tasks.tokens import EquationsTask as EquationsTask
from retrieval_interp.tasks.tokens import KHopTask as KHopTask
from retrieval_interp.tasks.tokens import RepeatedTokensTask as RepeatedTokensTask
from retrieval_interp.tasks.training_task import TokenTask as TokenTask
from retrieval_interp.tasks.training_task import TrainingTask as TrainingTask
from retrieval_interp.tasks.words.template_task import (
    IndirectObjectTask as IndirectObjectTask,
)
from retrieval_interp.tasks.words.template_task import TemplateTask as TemplateTask
from retrieval_interp.tasks.words.text_task import PromptTask as PromptTask
