import pytest
import torch

# Nothing of this project is imported here: jaxtyping has to see its modules first, and older
# versions look for them only after this file.
torch.set_num_threads(1)


@pytest.fixture
def task():
    from tasks import RetrievalTask

    return RetrievalTask(chains=3, steps=2, dim=4)


@pytest.fixture
def config():
    from retrieval_interp.training.model import ModelConfig

    return ModelConfig(layers=3, heads=2, d_model=16)


@pytest.fixture
def model(task, config):
    from retrieval_interp.training.model import build_model

    return build_model(config, task, seed=0).eval()
