"""Reading circuit files for a model that they must fit."""

import itertools
from dataclasses import replace
from pathlib import Path

from retrieval_interp.circuits import Circuit
from retrieval_interp.circuits.attention import check_paths
from retrieval_interp.storage.files import read_text
from retrieval_interp.tasks import InputError, Task


def read_circuit(
    path: Path, task: Task, n_layers: int, n_heads: int, trained: str, causal: bool = True
) -> Circuit:
    """Read a circuit file for a model.

    Args:
        path: written by `--save-circuit`, or by hand in the same form.
        task: what the model was trained on.
        n_layers: layers of the model.
        n_heads: heads per layer.
        trained: completes "chains of 3 steps, as ..." in an error.
        causal: whether the model masks later positions.

    Raises:
        InputError: not a circuit, for another task, or with heads or paths that the model lacks.
    """
    try:
        circuit = Circuit.from_json(read_text(path, "a circuit"), task.role_names)
        circuit.check_fits(n_layers, n_heads)
        roles = task.sample(2).roles
        for head, mechanism in circuit.mechanisms.items():
            check_paths(mechanism.paths, roles, causal, f"{head}: ", task.role_names)
        for key, paths in (
            ("enabling", circuit.enabling),
            ("redundant", itertools.chain(*circuit.redundant)),
        ):
            for listed in paths:
                where = f"{key}: {listed.head}: "
                check_paths((listed.path,), roles, causal, where, task.role_names)
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(str(path)) else f"{path}: {text}") from None
    own = task.to_dict()
    for key, what in (
        ("name", "the task {!r:.40}"),
        ("steps", "chains of {!r:.20} steps"),
        ("graph", "the graph {!r:.80}"),
    ):
        if circuit.task and (found := circuit.task.get(key, own.get(key))) != own.get(key):
            raise InputError(
                f"{path}: expected a circuit for {what.format(own.get(key))}, as {trained}, found "
                f"one for {found!r:.80}"
            )
    # A circuit written by hand need not name its task.
    return circuit if circuit.task else replace(circuit, task=own)
