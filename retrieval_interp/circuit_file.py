"""Circuit files, read for a model that they have to fit."""

from pathlib import Path

from circuits import Circuit
from circuits.mechanisms import check_paths
from retrieval_interp.files import read_text
from retrieval_interp.model import ModelConfig
from tasks import InputError, RetrievalTask


def read_circuit(path: Path, task: RetrievalTask, config: ModelConfig, trained: str) -> Circuit:
    """Read a circuit file for a model.

    Args:
        path: what `--save-circuit` wrote, or a hypothesis in the same form.
        task: what the model is trained on.
        config: its sizes.
        trained: completes "chains of 3 steps, as ..." in an error.

    Raises:
        InputError: not a circuit, of a task with other steps, or naming what the model lacks.
    """
    try:
        circuit = Circuit.from_json(read_text(path, "a circuit"), len(task.role_names))
        circuit.check_fits(config.layers, config.heads)
        for head, mechanism in circuit.mechanisms.items():
            check_paths(mechanism.paths, task.sample(1).roles, causal=True, where=f"{head}: ")
        for listed in circuit.enabling:
            check_paths((listed.path,), task.sample(1).roles, True, f"enabling: {listed.head}: ")
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(str(path)) else f"{path}: {text}") from None
    steps = circuit.task.get("steps", task.steps)
    if steps != task.steps or circuit.task.get("name", "retrieval") != "retrieval":
        raise InputError(
            f"{path}: expected a circuit for chains of {task.steps} steps, as {trained}, found one "
            f"for {steps!r:.20}"
        )
    return circuit
