"""What the other files hold before they are damaged, and how each is read and used."""

import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from circuits import Circuit
from circuits.notation import circuit_text
from faults.fuzz_run import SIZES, TASKS, run
from faults.fuzz_texts import use_task
from retrieval_interp.config.recipe import Recipe
from retrieval_interp.emergence.series import read_series
from retrieval_interp.emergence.text import emergence_csv, emergence_table
from retrieval_interp.emergence.watch import read_watch
from retrieval_interp.notebook.display import circuit_html
from retrieval_interp.storage.circuit_file import read_circuit
from retrieval_interp.storage.run_folder import read_metrics, read_recipe
from retrieval_interp.sweep.findings import summarize, summary_text
from retrieval_interp.sweep.folder import read_grid, read_results
from retrieval_interp.sweep.grid import make_grid
from tasks.structured import from_data, to_data


@cache
def circuit_data() -> list[Any]:
    own = run().circuit.to_dict()
    weighted = {"layer": 0, "head": 0, "mechanism": "role-mean", "paths": [["s0", "s0"]]}
    many = [f"L{layer}.H{head} s0<-s1" for layer in range(30) for head in range(50)]
    return [
        own,
        {"heads": [{**weighted, "weights": [0.5]}], "record": {"command": "x"}},
        {"heads": own["heads"], "enabling": many},
    ]


def use_circuit(path: Path) -> None:
    circuit = read_circuit(path, TASKS[0], SIZES.layers, SIZES.heads, "x was trained on")
    assert Circuit.from_json(circuit.to_json(), 3) == circuit
    repr(circuit), circuit_html(circuit), circuit_text(circuit, SIZES.layers)


def use_bare_circuit(path: Path) -> None:
    """Without a model that says which heads there are."""
    circuit = Circuit.from_json(path.read_text("utf-8", "replace"), 3)
    repr(circuit), circuit_html(circuit)


def use_recipe(folder: Path) -> None:
    recipe = read_recipe(folder)
    assert from_data(Recipe, json.loads(json.dumps(to_data(recipe))), "again") == recipe
    use_task(recipe.task)
    recipe.learning_rate_at(0)


def metrics_data() -> list[list[Any]]:
    losses = {"train_loss": 1.0, "validation_loss": 0.5, "partial_losses": [0.5], "seconds": 1.5}
    return [[{"step": step, **losses} for step in (10, 20)]]


def use_metrics(folder: Path) -> None:
    from retrieval_interp.emergence.follow import _losses

    read_metrics(folder)
    _losses(folder, run().recipe, run().snapshots, [])


def watch_data() -> list[list[Any]]:
    return [[{"circuit": run().circuit.to_dict()}, *(row.to_dict() for row in run().snapshots)]]


def use_watch(path: Path) -> None:
    found = read_watch(path, 3)
    for snapshot in found[1] if found is not None else ():
        json.dumps(snapshot.to_dict())
        assert snapshot.baseline_loss < float("inf")


def use_series(path: Path) -> None:
    series = read_series(path)
    emergence_table(series), emergence_csv(series), json.dumps(series.to_dict())


@cache
def result_data() -> list[Any]:
    grid = make_grid("section7-ic", "smoke")
    cell = grid.cells[0]
    return [
        {
            "format": 1,
            "status": "done",
            "cell": cell.name,
            "layers": cell.layers,
            "seed": cell.seed,
            "validation_loss": 0.5,
            "partial_losses": [0.5, 0.5],
            "below_half": [3.5, None],
            "order_held": None,
            "steps": 240,
            "seconds": 2.0,
            "seconds_per_step": 0.01,
            "device": "cpu",
            "versions": {"torch": "2"},
            "date": "2026-01-01",
            "recipe": to_data(grid.cell_recipe(cell)),
        }
    ]


def use_result(folder: Path) -> None:
    grid = make_grid("section7-ic", "smoke")
    results = read_results(folder, grid)
    summary = summarize(grid, results, {}, "x")
    summary_text(summary), json.dumps(summary)


def use_grid(folder: Path) -> None:
    grid = read_grid(folder)
    assert grid is not None and [grid.cell_recipe(cell) for cell in grid.cells]
    json.dumps(grid.to_dict())


RECORD = {"command": "x", "versions": {"torch": "2"}, "date": "2026-01-01"}


# Inspect's logs


@cache
def log_data() -> list[Any]:
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalSample, EvalSpec
    from inspect_ai.scorer import Score

    spec = {"created": "2026-01-01T00:00:00+00:00", "task": "retrieval_interp/equations"}
    score = Score(value="C", answer="1", metadata={"attempts": 1, "unanswered": False})
    metadata = {"steps": 1, "chance": 0.25, "acceptable": ["0", "1"]}
    samples = [
        EvalSample(id=i, epoch=1, input="x", target="1", scores={"exact_answer": score},
                   metadata=metadata) for i in (1, 2)
    ]  # fmt: skip
    named = {"model": "mockllm/model", "metadata": {"formulation": "equations"}}
    log = EvalLog(
        status="success",
        eval=EvalSpec(**spec, **named, dataset=EvalDataset(), config=EvalConfig()),
        samples=samples,
    )
    return [json.loads(log.model_dump_json(exclude_none=True))]


def use_log(path: Path) -> None:
    from retrieval_interp.llm.plot import accuracy_figure
    from retrieval_interp.llm.results import read_results, results_table

    rows = read_results([path])
    results_table(rows), json.dumps([asdict(row) for row in rows]), accuracy_figure(rows)
