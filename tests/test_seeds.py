"""Several seeds in one step: the numbers of single runs, with a folder and a fate each."""

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from retrieval_interp.training.seeds import Stack

from retrieval_interp.commands.sweep import main as sweep
from retrieval_interp.model import build_model
from retrieval_interp.storage.run_folder import RunFolder
from retrieval_interp.sweep.cells import Job, run_jobs
from retrieval_interp.sweep.grid import Cell, make_grid
from retrieval_interp.sweep.groups import MOST_NUMBERS_ON_CPU, in_groups, numbers, seeds_together
from retrieval_interp.sweep.local import Done, Failed, Progress, run_local
from retrieval_interp.sweep.ray_cluster import room, run_on_node
from retrieval_interp.tasks import InputError
from retrieval_interp.tasks.structured import to_data
from retrieval_interp.training.loop import train_model, train_seeds

GRID = make_grid("section7-ic", "smoke")
SHORT = replace(
    GRID.recipe,
    steps=40,
    weight_decay=0.5,
    warmup=5,
    schedule="cosine",
    model=replace(GRID.recipe.model, layers=2),
)
SEEDS = (0, 5, 9)
RECIPES = [replace(SHORT, seed=seed) for seed in SEEDS]


def folders(path, count=3):
    return [path / str(number) for number in range(count)]


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def losses(rows):
    return [[row["step"], row["train_loss"], *row["partial_losses"]] for row in rows]


def weights(trained):
    return dict(trained.model.named_parameters())


def assert_same(trained, expected):
    """Losses of every step, and the final weights, to 1e-5.

    But for the biases of keys: they add the same to all scores of a query, so that their gradient
    is 0 but for rounding, which Adam takes for a direction, and no output depends on them.
    """
    assert len(losses(expected.metrics)) == SHORT.steps
    torch.testing.assert_close(
        torch.tensor(losses(trained.metrics)),
        torch.tensor(losses(expected.metrics)),
        rtol=0,
        atol=1e-5,
    )
    for name, weight in weights(expected).items():
        if not name.endswith("b_K"):
            torch.testing.assert_close(weights(trained)[name], weight, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def alone():
    """The same recipes one by one."""
    return [train_model(recipe, device="cpu", compile=False) for recipe in RECIPES]


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    path = tmp_path_factory.mktemp("together")
    return path, train_seeds(RECIPES, folders(path), "cpu", compile=False)


def test_seeds_together_are_the_seeds_alone(alone, together):
    path, trained = together
    for one, expected, folder in zip(trained, alone, folders(path)):
        assert_same(one, expected)
        assert metrics(folder) == one.metrics
        assert one.record["recipe"] == expected.record["recipe"]
        assert one.record["seeds_together"] == 3 and "seeds_together" not in expected.record
    # Were one seed's steps another's, this would show.
    assert abs(trained[0].metrics[-1]["train_loss"] - trained[1].metrics[-1]["train_loss"]) > 1e-3


def test_gradients_do_not_mix_and_models_see_their_weights_change():
    task = SHORT.task
    models = [build_model(SHORT.model, task, seed) for seed in SEEDS]
    own = [build_model(SHORT.model, task, seed) for seed in SEEDS]
    batches = [task.sample(8, seed) for seed in SEEDS]
    stack = Stack(models)
    outputs = stack(torch.stack([batch.inputs for batch in batches]))
    torch.stack([task.loss(o, b) for o, b in zip(outputs.unbind(), batches)]).sum().backward()
    trained = [name for name, weight in own[0].named_parameters() if weight.requires_grad]
    for place, (model, batch) in enumerate(zip(own, batches)):
        task.loss(model(batch.inputs), batch).backward()
        for name, stacked in zip(trained, stack.weights, strict=True):
            expected = model.get_parameter(name).grad
            torch.testing.assert_close(stacked.grad[place], expected, rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        stack.weights[0][1] += 1
    assert torch.equal(models[1].W_E, own[1].W_E + 1) and torch.equal(models[0].W_E, own[0].W_E)


def test_a_group_whose_members_stand_at_different_steps_goes_on(alone, tmp_path):
    """One is at its second checkpoint, one at its first, one has not begun."""

    class Stop(Exception):
        pass

    def until(last):
        def on_step(step, row):
            if step == last:
                raise Stop

        return on_step

    for recipe, folder, last in zip(RECIPES, folders(tmp_path), (39, 25)):
        with pytest.raises(Stop):
            train_model(recipe, folder, "cpu", False, on_step=until(last))
    steps = []
    trained = train_seeds(
        RECIPES, folders(tmp_path), "cpu", False, lambda place, step: steps.append((place, step))
    )
    # Checkpoints are at 20 and 40: the first two go on at 20, where the third meets them.
    assert steps[:20] == [(2, step) for step in range(1, 21)]
    assert steps[20:] == [(place, step) for step in range(21, 41) for place in range(3)]
    for one, expected in zip(trained, alone):
        assert_same(one, expected)


def test_a_killed_group_goes_on_exactly(together, tmp_path):
    """From the same state the same numbers, to the last bit: the moments are saved and restored."""

    class Killed(Exception):
        pass

    def on_step(place, step):
        if (place, step) == (1, 31):
            raise Killed

    with pytest.raises(Killed):
        train_seeds(RECIPES, folders(tmp_path), "cpu", False, on_step)
    trained = train_seeds(RECIPES, folders(tmp_path), "cpu", False)
    for one, folder, expected in zip(trained, folders(tmp_path), together[1]):
        assert losses(metrics(folder)) == losses(expected.metrics)
        assert all(torch.equal(w, weights(one)[name]) for name, w in weights(expected).items())
    again = train_seeds(RECIPES, folders(tmp_path), "cpu", False, lambda place, step: 1 / 0)
    assert [one.metrics for one in again] == [one.metrics for one in trained]


def test_one_that_fails_leaves_the_others_alone(alone, tmp_path, monkeypatch):
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "thesis.tex").write_text("")
    log = RunFolder.log

    def full(folder, rows):
        if folder.path.name == "1" and rows[-1]["step"] == 20:
            raise InputError("no space left")
        log(folder, rows)

    monkeypatch.setattr(RunFolder, "log", full)
    first, second, third = train_seeds(RECIPES, folders(tmp_path), "cpu", False)
    assert isinstance(first, InputError) and "found a folder with other files" in str(first)
    assert isinstance(second, InputError) and "no space left" in str(second)
    assert [row["step"] for row in metrics(tmp_path / "1")] == list(range(1, 20))
    assert_same(third, alone[2])


def test_a_loss_that_is_not_finite_ends_its_seed_alone(tmp_path, monkeypatch):
    build = build_model

    def broken(config, task, seed, *more):
        model = build(config, task, seed, *more)
        if seed == SEEDS[1]:
            model.W_E.data[0] = float("inf")
        return model

    monkeypatch.setattr("retrieval_interp.training.loop.build_model", broken)
    recipes = [replace(recipe, steps=2) for recipe in RECIPES]
    ended = train_seeds(recipes, folders(tmp_path), "cpu", False)
    assert [isinstance(one, InputError) for one in ended] == [False, True, False]
    assert "expected finite losses, found nan" in str(ended[1])


def test_recipes_that_differ_in_more_than_the_seed_are_refused(tmp_path):
    with pytest.raises(InputError, match="expected recipes that differ only in their seeds"):
        train_seeds([RECIPES[0], replace(RECIPES[1], batch=4)], folders(tmp_path, 2), "cpu")
    assert not list(tmp_path.iterdir())


# In a sweep


def jobs(path, seeds=SEEDS):
    cells = [Cell(2, seed) for seed in seeds]
    return [
        Job(
            cell.name, "section7-ic", "smoke", 2, to_data(replace(SHORT, seed=cell.seed)),
            str(path / cell.name), "cpu", 1, False,
        )
        for cell in cells
    ]  # fmt: skip


def test_results_are_those_of_single_cells(tmp_path):
    _, one = run_jobs(jobs(tmp_path / "grouped", (3, 0)))
    (expected,) = run_jobs(jobs(tmp_path / "single", (0,)))
    assert one.keys() == expected.keys() and None not in expected["below_half"][:1]
    below = zip(one["below_half"], expected["below_half"])
    assert all(a == (b and pytest.approx(b, abs=1e-2)) for a, b in below)
    for key in one.keys() - {"seconds", "seconds_per_step", "date", "below_half"}:
        close = key in ("validation_loss", "partial_losses")
        assert one[key] == (pytest.approx(expected[key], abs=1e-5) if close else expected[key])


def killed_after_one(jobs, on_step):
    """What a worker does here, instead of training."""
    cells = [job.cell for job in jobs]
    on_step(cells[0], len(cells))
    if len(cells) == 3:
        yield {"cell": cells[1], "result": {}}
        os.kill(os.getpid(), signal.SIGKILL)
    yield {"cell": cells[0], "result": {}}
    print("last words", file=sys.stderr)
    yield {"cell": cells[1], "error": "why", "detail": "trace "}


@pytest.mark.slow
def test_a_group_that_is_killed_is_started_again_with_what_is_left(tmp_path):
    first, second, third = group = jobs(tmp_path)
    events = list(run_local([group], [{}], killed_after_one))
    assert events == [
        Progress(first, 3),
        Done(second, {}, {}),
        Progress(first, 2),
        Done(first, {}, {}),
        Failed(third, "why", "trace last words\n"),
    ]


def test_a_task_on_a_node_answers_for_each_cell(tmp_path, monkeypatch):
    class Ray:
        @staticmethod
        def get_runtime_context():
            return Ray

        @staticmethod
        def get_node_id():
            return "node"

    monkeypatch.setitem(sys.modules, "ray", Ray)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    group = jobs(tmp_path / "unused", SEEDS[:2])
    bad = tmp_path / f"retrieval-interp-{os.getuid()}" / "sweep" / "node" / group[1].cell
    bad.mkdir(parents=True)
    (bad / "notes").write_text("")
    told = run_on_node(group, "sweep")
    answers = [answer for answer, _ in told]
    assert [answer["cell"] for answer in answers] == [job.cell for job in group]
    assert "found a folder with other files" in answers[1]["error"] and told[1][1] == {}
    assert answers[0]["result"]["steps"] == 40
    kept = {"config.json", "metrics.jsonl", "checkpoints/step-000040.safetensors"}
    assert told[0][1].keys() == kept
    assert list(bad.parent.iterdir()) == [bad]


def test_groups_are_of_one_depth_and_start_in_order():
    grid = make_grid("section7-ic", "full")
    (job,) = jobs(Path("."), (0,))
    order = [replace(job, cell=cell.name, layers=cell.layers) for cell in grid.cells]
    assert in_groups(order, 1) == [[job] for job in order]
    groups = in_groups(order, 3)
    assert [len(group) for group in groups] == [3] * 16 + [2] * 8
    assert [group[0].layers for group in groups] == [8, 7, 6, 5, 4, 3, 2, 1] * 3
    assert all(len({job.layers for job in group}) == 1 for group in groups)
    assert sorted(job.cell for group in groups for job in group) == sorted(j.cell for j in order)


def test_the_rule_of_auto():
    full = make_grid("section7-ic", "full").recipe
    laptop = make_grid("section7-ic", "laptop").recipe
    assert numbers(GRID.recipe) == 8 * 5 * 16 < MOST_NUMBERS_ON_CPU < numbers(laptop)
    assert seeds_together(full, False, 64, 1) == seeds_together(laptop, False, 16, 1) == 1
    assert seeds_together(full, True, 64, 4) == 8
    assert seeds_together(full, True, 64, 32) == 2
    assert seeds_together(full, True, 3, 4) == 1
    assert seeds_together(GRID.recipe, False, 4, 1) == 4


def test_a_cluster_has_room_for_tasks():
    class Ray:
        @staticmethod
        def cluster_resources():
            return {"CPU": 32.0, "GPU": 2.0}

    assert room(Ray, 0.25, 1, "auto") == (8, True)
    assert room(Ray, 0.25, 4, "cpu") == (8, False)
    Ray.cluster_resources = staticmethod(lambda: {"CPU": 3.0})
    assert room(Ray, 0.25, 2, "auto") == (1, False)


def test_the_sweep_trains_smoke_cells_in_groups(tmp_path, capsys, monkeypatch):
    seen = []

    def answered(groups, environments):
        seen.extend([job.cell for job in group] for group in groups)
        return (Failed(job, "not run", "") for group in groups for job in group)

    monkeypatch.setattr("retrieval_interp.sweep.local.run_local", answered)
    asked = ["--grid", "section7-ic", "--scale", "smoke", "--device", "cpu", "--out"]
    pairs = [[f"layers-{layers}-seed-{seed}" for seed in (0, 1)] for layers in (2, 1)]
    for name, more, expected in (
        ("auto", [], pairs),
        ("one", ["--group", "1"], [[cell] for pair in zip(*pairs) for cell in pair]),
        ("workers", ["--workers", "4"], [[cell] for pair in zip(*pairs) for cell in pair]),
        ("asked", ["--workers", "4", "--group", "8"], pairs),
    ):
        seen.clear()
        with pytest.raises(SystemExit):
            sweep([*asked, str(tmp_path / name), *more])
        assert seen == expected
    capsys.readouterr()
