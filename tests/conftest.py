import pytest
import torch

from retrieval_interp.model import ModelConfig, build_model
from tasks import RetrievalTask

torch.set_num_threads(1)


@pytest.fixture
def task() -> RetrievalTask:
    return RetrievalTask(chains=3, steps=2, dim=4)


@pytest.fixture
def config() -> ModelConfig:
    return ModelConfig(layers=3, heads=2, d_model=16)


@pytest.fixture
def model(task, config):
    return build_model(config, task, seed=0).eval()
