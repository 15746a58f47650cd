"""What is asked: generators of inputs, targets and roles.

Names are loaded when they are first used (see `tasks.lazy_names`).
"""

from typing import TYPE_CHECKING

from tasks.lazy_names import lazy_names

if TYPE_CHECKING:
    from tasks.batch import Batch as Batch
    from tasks.conditional import ConditionalRetrievalTask as ConditionalRetrievalTask
    from tasks.equations import EquationsTask as EquationsTask
    from tasks.errors import InputError as InputError
    from tasks.graph import GRAPHS as GRAPHS
    from tasks.graph import RetrievalGraph as RetrievalGraph
    from tasks.graph import path_graph as path_graph
    from tasks.prompt_task import PromptTask as PromptTask
    from tasks.retrieval import RetrievalTask as RetrievalTask
    from tasks.roles import parse_role as parse_role
    from tasks.roles import path_letters as path_letters
    from tasks.roles import role_letters as role_letters
    from tasks.roles import role_name as role_name
    from tasks.roles import symbol_letter as symbol_letter
    from tasks.task import Split as Split
    from tasks.task import Task as Task
    from tasks.training_task import TrainingTask as TrainingTask
    from tasks.vector_task import VectorTask as VectorTask

_HOMES = {
    "tasks.batch": ("Batch",),
    "tasks.conditional": ("ConditionalRetrievalTask",),
    "tasks.equations": ("EquationsTask",),
    "tasks.errors": ("InputError",),
    "tasks.graph": (
        "GRAPHS",
        "RetrievalGraph",
        "path_graph",
    ),
    "tasks.prompt_task": ("PromptTask",),
    "tasks.retrieval": ("RetrievalTask",),
    "tasks.roles": (
        "parse_role",
        "path_letters",
        "role_letters",
        "role_name",
        "symbol_letter",
    ),
    "tasks.task": (
        "Split",
        "Task",
    ),
    "tasks.training_task": ("TrainingTask",),
    "tasks.vector_task": ("VectorTask",),
}
__getattr__, __all__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
