import json
from dataclasses import replace

import pytest

from retrieval_interp.config.presets import PAPER
from retrieval_interp.sweep.findings import summarize, summary_text
from retrieval_interp.sweep.grid import GRIDS, SCALES, Cell, Grid, make_grid
from retrieval_interp.tasks import InputError
from retrieval_interp.tasks.structured import from_data


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
    assert from_data(Grid, json.loads(json.dumps(grid.to_dict())), "grid.json") == grid
    assert len({cell.name for cell in grid.cells}) == len(grid.cells)


def test_a_cell_of_gpu_hour_is_the_beginning_of_the_full_one():
    full, part = make_grid("section7-ic", "full"), make_grid("section7-ic", "gpu-hour")
    assert part.cells == full.cells and part.recipe.schedule == "constant"
    for cell in full.cells:
        shortened = replace(full.cell_recipe(cell), steps=part.recipe.steps)
        assert part.cell_recipe(cell) == shortened


@pytest.mark.parametrize(
    ("name", "scale", "text"),
    [
        ("section8", "full", "grid 'section8': expected one of: section7-ic, section7-nonic"),
        (
            "section7-ic",
            "huge",
            "scale 'huge': expected one of: full, gpu-hour, paper-sizes, laptop, laptop-5, smoke",
        ),
    ],
)
def test_unknown_names_are_refused_with_the_known_ones(name, scale, text):
    with pytest.raises(InputError, match=text):
        make_grid(name, scale)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"format": 2}, "grid.json: format: expected 1, found 2"),
        ({"layers": []}, "expected layers and seeds, found 0 and 2"),
        ({"seeds": ["0"]}, r"seeds\[0\]: expected an integer, found '0'"),
        ({"recipe": {"steps": 0}}, "expected steps to be an integer"),
        ({"more": 1}, "expected the keys format, grid"),
    ],
)
def test_a_damaged_grid_is_refused(change, text):
    with pytest.raises(InputError, match=text):
        from_data(Grid, {**make_grid("section7-ic", "smoke").to_dict(), **change}, "grid.json")


def result(cell, loss, partial, held):
    return {
        "cell": cell.name,
        "validation_loss": loss,
        "partial_losses": partial,
        "below_half": [
            None if loss >= 0.5 else 100.0 * place for place, loss in enumerate(partial)
        ],
        "order_held": held,
        "seconds": 10.0,
        "seconds_per_step": 0.5,
        "device": "cpu",
        "versions": {"torch": "2"},
        "date": f"2026-01-0{cell.seed + 1}",
    }


def test_the_summary_of_given_results():
    grid = make_grid("section7-ic", "smoke")
    results = {
        Cell(1, 0): result(Cell(1, 0), 0.8, [0.7, 0.9], None),
        Cell(1, 1): result(Cell(1, 1), 0.6, [0.3, 0.9], False),
        Cell(2, 1): result(Cell(2, 1), 0.2, [0.1, 0.3], True),
    }
    summary = summarize(grid, results, {Cell(2, 0): "it broke"}, "the command")
    assert (summary["cells"], summary["finished"]) == (4, 3)
    assert summary["failed"] == {"layers-2-seed-0": "it broke"}
    one, two = summary["depths"]
    assert (one["layers"], one["runs"], one["min"], one["max"]) == (1, 2, 0.6, 0.8)
    assert one["mean"] == pytest.approx(0.7) and one["share_above_0.7"] == 0.5
    assert one["partial_losses"] == pytest.approx([0.5, 0.9])
    assert two["mean"] == 0.2 and two["share_above_0.7"] == 0
    assert summary["share_above_0.7"] == pytest.approx(1 / 3)
    held = {"held": 1, "broken": ["layers-1-seed-1"], "fewer_than_two_fell": 1}
    assert summary["order"] == held
    assert (summary["first_date"], summary["date"]) == ("2026-01-01", "2026-01-02")
    assert (summary["command"], summary["seconds"]) == ("the command", 30.0)
    assert (summary["versions"], summary["devices"]) == ({"torch": ["2"]}, ["cpu"])
    printed = summary_text(summary)
    assert "     1     2  0.7000  0.6000  0.8000        50%\n" in printed
    assert "3 of 4 cells finished, 1 failed" in printed
    assert "Below 0.5 in the order x_1, x_2, ...: 1 of 2 runs (paper: 100%); in 1 more" in printed
    assert "Another order: layers-1-seed-1." in printed
    assert "failed: layers-2-seed-0: it broke" in printed


def test_losses_that_fell_at_the_same_step_are_counted_as_tied():
    grid = make_grid("section7-ic", "smoke")
    tied = {**result(Cell(2, 0), 0.2, [0.1, 0.3], None), "below_half": [50.0, 50.0]}
    few = {**result(Cell(2, 1), 0.4, [0.1, 0.7], None), "below_half": [50.0, None]}
    summary = summarize(grid, {Cell(2, 0): tied, Cell(2, 1): few}, {}, "the command")
    assert summary["order"] == {
        "held": 0,
        "broken": [],
        "fewer_than_two_fell": 1,
        "tied": ["layers-2-seed-0"],
    }
    assert "in 1 more, two fell below at the same step." in summary_text(summary)


def test_the_summary_of_nothing():
    grid = make_grid("section7-nonic", "smoke")
    summary = summarize(grid, {}, {}, "the command")
    assert summary["depths"] == [] and summary["order"] is None
    assert summary_text(summary) == "section7-nonic at scale smoke: 0 of 4 cells finished"
