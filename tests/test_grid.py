"""Which cells a grid has, and what a summary says about given results."""

import json
from dataclasses import replace

import pytest

from retrieval_interp.config import PAPER
from retrieval_interp.sweep.findings import summarize, summary_text
from retrieval_interp.sweep.grid import GRIDS, SCALES, Cell, Grid, make_grid
from retrieval_interp.tasks.structured import from_data, to_data


@pytest.mark.parametrize("name", GRIDS)
def test_the_full_grid_is_the_papers(name):
    grid = make_grid(name, "full")
    assert set(grid.cells) == {(layers, seed) for layers in range(1, 9) for seed in range(8)}
    for cell in grid.cells:
        expected = replace(PAPER[f"{name}-{cell.layers}"], seed=cell.seed)
        assert grid.cell_recipe(cell) == expected


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("scale", SCALES)
def test_a_grid_survives_its_file(name, scale):
    grid = make_grid(name, scale)
    assert from_data(Grid, json.loads(json.dumps(to_data(grid))), "grid.json") == grid


def result(cell, loss, partial, held):
    return {
        "cell": cell.name,
        "validation_loss": loss,
        "partial_losses": partial,
        "order_held": held,
        "seconds": 10.0,
        "step": 20,
        "device": "cpu",
    }


def test_the_summary_of_given_results():
    grid = make_grid("section7-ic", "smoke")
    results = {
        Cell(1, 0): result(Cell(1, 0), 0.8, [0.7, 0.9], None),
        Cell(1, 1): result(Cell(1, 1), 0.6, [0.3, 0.9], False),
        Cell(2, 1): result(Cell(2, 1), 0.2, [0.1, 0.3], True),
    }
    summary = summarize(grid, results, {"layers-2-seed-0": "it broke"}, "the command")
    assert (summary["cells"], summary["finished"]) == (4, 3)
    one = summary["depths"][0]
    assert (one["layers"], one["runs"], one["min"], one["max"]) == (1, 2, 0.6, 0.8)
    assert one["mean"] == pytest.approx(0.7) and one["share_above_0.7"] == 0.5
    assert one["partial_losses"] == pytest.approx([0.5, 0.9])
    assert summary["share_above_0.7"] == pytest.approx(1 / 3)
    held = {"held": 1, "broken": ["layers-1-seed-1"], "fewer_than_two_fell": 1}
    assert summary["order"] == held
    assert (one["seconds_per_step"], summary["seconds"]) == (0.5, 30.0)
    printed = summary_text(summary)
    assert "     1     2  0.7000  0.6000  0.8000        50%  0.5000  0.9000\n" in printed
    assert "1 of 2 runs; in 1 more fewer than two fell" in printed
    assert "failed: layers-2-seed-0: it broke" in printed
    nothing = summarize(grid, {}, {}, "the command")
    assert summary_text(nothing) == "section7-ic at scale smoke: 0 of 4 cells finished"
