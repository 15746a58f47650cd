"""The tasks that models are trained on here, as recipes and checkpoints name them."""

from retrieval_interp.tasks.tokens.k_hop import KHopTask
from retrieval_interp.tasks.tokens.recall import RecallTask
from retrieval_interp.tasks.tokens.repeated import RepeatedTokensTask
from retrieval_interp.tasks.vectors.conditional import ConditionalRetrievalTask
from retrieval_interp.tasks.vectors.retrieval import RetrievalTask
from retrieval_interp.tasks.words.equations_task import EquationsTask

TrainedTask = (
    RetrievalTask
    | ConditionalRetrievalTask
    | EquationsTask
    | RepeatedTokensTask
    | KHopTask
    | RecallTask
)
