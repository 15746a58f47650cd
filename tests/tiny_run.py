"""A recipe of a few tiny steps, and the folder of its run."""

import json
from pathlib import Path

import retrieval_interp as ri
from retrieval_interp.tasks.structured import to_data

TASK = ri.RetrievalTask(chains=2, steps=1, dim=2)
SIZES = ri.ModelConfig(layers=2, heads=1, d_model=4)
TRAINED = {"steps": 60, "batch": 8, "examples": 64, "schedule": "cosine", "warmup": 3}
RECORDED = {"log_every": 5, "checkpoint_every": 20, "validation_examples": 16}
TINY = ri.Recipe(TASK, SIZES, **TRAINED, **RECORDED)


def save_run(folder: Path, *steps: int) -> None:
    """The folder of this run, with checkpoints of an untrained model."""
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(to_data(TINY)))
    for step in steps:
        path = folder / "checkpoints" / f"step-{step:06d}.safetensors"
        ri.save_checkpoint(path, ri.build_model(SIZES, TASK), TASK, SIZES, {"step": step})
