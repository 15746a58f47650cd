"""Reading circuit files for a model that they must fit."""

from dataclasses import replace
from pathlib import Path

from retrieval_interp.circuits import Circuit
from retrieval_interp.circuits.attention import check_paths
from retrieval_interp.storage.files import read_text
from retrieval_interp.tasks import InputError, Task


def read_circuit(
    path: Path, task: Task, n_layers: int, n_heads: int, trained: str, causal: bool = True
) -> Circuit:
    """Read a circuit file, written by `--save-circuit` or by hand, for a model of these sizes.

    Args:
        task: what the model was trained on.
        trained: completes "steps = 3, as ..." in an error.
        causal: whether the model masks later positions.
    """
    text = read_text(path, "a circuit")
    try:
        circuit = Circuit.from_json(text, task.role_names)
        circuit.check_fits(n_layers, n_heads)
        roles = task.sample(2).roles
        placed = [(head, mechanism.paths) for head, mechanism in circuit.mechanisms.items()]
        placed += [(listed.head, (listed.path,)) for listed in circuit.every_path()]
        for head, paths in placed:
            check_paths(paths, roles, causal, f"{head}: ", task.role_names)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    own = task.to_dict()
    for key in ("name", "steps", "graph"):
        if circuit.task and (found := circuit.task.get(key, own.get(key))) != own.get(key):
            raise InputError(
                f"{path}: expected a circuit for a task with {key} = {own.get(key)!r:.80}, as "
                f"{trained}, found one for {found!r:.80}"
            )
    # A circuit written by hand need not name its task.
    return circuit if circuit.task else replace(circuit, task=own)
