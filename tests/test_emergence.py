"""Emergence on a run whose truth is known: the shipped model, its layers switched on in turn."""

import json
from dataclasses import replace
from importlib.resources import files
from statistics import fmean
from xml.etree import ElementTree

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.circuits.mechanisms import Cut
from retrieval_interp.emergence.series import (
    Crossing,
    PathAtStep,
    Snapshot,
    first_above,
    first_below,
    half_of_final,
    in_order,
    loss_emergence,
)
from retrieval_interp.tasks.structured import to_data
from tests.naive import naive_loss

LINES = ["L0.H0 shared s4<-s3 s4<-s4 s6<-s5", "L2.H0 one-hot s0<-s2 s4<-s6", "L4.H0 one-hot s0<-s4"]
ON = {0: 200, 2: 300, 4: 500}  # the step from which a layer attends as it was trained to
LAST = "L4.H0 s0<-s4"
STEPS = [100, 200, 300, 400, 500, 600]
LOSSES = {100: (0.9, 0.9, 0.9), 200: (0.3, 0.8, 0.9), 300: (0.1, 0.6, 0.8), 400: (0.1, 0.2, 0.7)}


@torch.no_grad()
def switched(step):
    """The shipped model as it is at a step: uniform attention in layers that are not on yet."""
    small = ri.load_checkpoint("small")
    for layer, on in ON.items():
        if step < on:
            small.model.blocks[layer].attn.W_Q.zero_()
            small.model.blocks[layer].attn.b_Q.zero_()
    return small


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """A run folder and a circuit file."""
    folder = tmp_path_factory.mktemp("emergence")
    run, small = folder / "run", ri.load_checkpoint("small")
    (run / "checkpoints").mkdir(parents=True)
    recipe = ri.Recipe(small.task, small.config, steps=600, log_every=100, checkpoint_every=100)
    (run / "config.json").write_text(json.dumps(to_data(recipe)))
    for step in STEPS:
        path = run / "checkpoints" / f"step-{step:06d}.safetensors"
        model = switched(step).model
        ri.save_checkpoint(path, model, small.task, small.config, {"step": step})
    with open(run / "metrics.jsonl", "w") as file:
        for step, partial in LOSSES.items():
            row = {"step": step, "train_loss": 1.0, "validation_loss": sum(partial) / 3}
            file.write(json.dumps({**row, "partial_losses": partial, "seconds": 1.0}) + "\n")
    circuit = ri.parse_circuit(LINES, small.task)
    circuit = replace(circuit, enabling=(ri.parse_head_path("L0.H0 s2<-s1", 7),))
    (folder / "circuit.json").write_text(circuit.to_json())
    return folder, circuit


@pytest.fixture(scope="module")
def written(known, run_command_in_process):
    """One run of the command with every output: the files, and what it printed."""
    folder = known[0]
    options = ["--run", "run", "--circuit", "circuit.json", "--json", "out.json"]
    done = run_command_in_process("emergence", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "out.json", done.stdout


@pytest.fixture(scope="module")
def series(written):
    return ri.read_series(written[0])


def test_numbers_equal_runs_with_hooks_set_by_hand(series, known):
    circuit, step = known[1], 400
    model, task = switched(step).model, series.recipe.task
    batch = task.sample(32, seed=0, split="test")
    snapshot = series.snapshots[STEPS.index(step)]

    def naive(circuit):
        return pytest.approx(naive_loss(model, task, circuit, batch), abs=1e-5)

    example = torch.arange(32)[:, None]
    _, cache = model.run_with_cache(batch.inputs)
    for path in series.paths:
        at, (dest, src) = snapshot.paths[str(path)], (batch.roles[:, :, role] for role in path.path)
        attention = cache["pattern", path.head.layer][example, path.head.head, dest, src].mean()
        assert at.attention == pytest.approx(float(attention), abs=1e-5)
        assert fmean(at.live_losses) == naive(ri.Circuit({path.head: Cut((path.path,))}, 7))
    assert fmean(snapshot.partial_losses) == naive(ri.Circuit.empty(task))
    assert fmean(snapshot.combined_losses) == naive(circuit)
    assert series.steps == STEPS


def test_paths_appear_in_the_order_in_which_layers_were_switched_on(series):
    rows = {str(row.path): row for row in ri.path_emergence(series)}
    for row in rows.values():
        crossing, on = row.attention_half, ON[row.path.head.layer]
        if str(row.path) != "L0.H0 s4<-s4":  # an early position attends to itself anyway
            assert (crossing.after, crossing.by) == (on - 100, on)
    assert rows["L0.H0 s4<-s3"].above.by == 200 and rows["L0.H0 s4<-s4"].above is None
    assert rows["L2.H0 s0<-s2"].above.by == 300 and rows[LAST].above.by == 500
    assert not rows["L0.H0 s2<-s1"].carries


def test_nothing_is_necessary_before_it_is_used(series):
    rows = {str(row.path): row for row in ri.path_emergence(series)}
    # x_1 is answered from step 300 on, when layer 2 finds it through what layer 0 brings.
    assert [rows[path].necessity_half.by for path in ("L0.H0 s2<-s1", LAST)] == [300, 500]


@pytest.mark.parametrize(
    ("losses", "cut", "share"),
    [
        ((0.1, 0.1, 0.1), (0.1, 0.425, 0.75), 0.5),
        ((0.1, 0.1, 0.1), (0.1, 0.425, 2.0), 0.5),  # at most back to the plateau
        ((0.1, 0.8, 0.45), (0.3, 1.0, 0.45), 0.2 / 0.95),  # nothing of x_2 was learned
        ((0.74, 0.75, 0.75), (0.75, 0.75, 0.75), 0.01 / 3 / 0.05),  # by the tolerance
    ],
)
def test_necessity_is_the_share_of_what_is_learned_that_is_lost(series, losses, cut, share):
    assert (series.plateau, series.tolerance) == (0.75, 0.05)
    snapshot = Snapshot(0, losses, losses, {LAST: PathAtStep(1.0, cut)})
    (found,) = replace(series, snapshots=(snapshot,)).necessity(ri.parse_head_path(LAST, 7))
    assert found == pytest.approx(share)


def test_losses_are_the_runs_own(series):
    assert {row.step: row.partial_losses for row in series.losses} == LOSSES
    found = loss_emergence(series)
    assert found["x_1"].step == pytest.approx(100 + 100 * 0.4 / 0.6)
    assert found["x_2"].by == 400 and found["x_3"] is None


def test_the_json_is_the_series_with_its_provenance(written, series, known):
    data = json.loads(written[0].read_text())
    assert "emergence --run " in data["command"] and data["date"] and data["versions"]["torch"]
    assert (data["examples"], data["seed"], data["tolerance"]) == (32, 0, 0.05)
    assert series.circuit == known[1] and series.recipe.steps == 600
    assert series.to_dict().items() <= data.items()


def test_a_series_with_a_gap_is_refused(written, tmp_path):
    data = json.loads(written[0].read_text())
    del data["snapshots"][2]["paths"][LAST]
    (tmp_path / "series.json").write_text(json.dumps(data))
    with pytest.raises(ri.InputError, match="the circuit's 7 paths"):
        ri.read_series(tmp_path / "series.json")


def test_shipped_series_still_open_and_are_written_as_they_are(without_type_checks):
    for path in sorted((files("retrieval_interp") / "results").glob("*.emergence.json")):
        data = json.loads(path.read_text())
        again = json.loads(json.dumps(ri.read_series(path).to_dict()))
        assert again["circuit_from"] == data["circuit_from"]
        for key in ("snapshots", "losses"):
            for row, old in zip(again[key], data[key], strict=True):
                assert old.items() >= row.items(), path


def test_the_command_prints_the_table(written):
    assert "6 steps measured, 100 to 600" in written[1]
    (row,) = [line for line in written[1].splitlines() if line.startswith(LAST)]
    words = row.split()  # the layer is on from step 500, and at 400 it was not
    assert all(400 < int(words[at]) <= 500 for at in (-4, -3, -1))


def test_figures_show_the_series(series):
    rows = ri.path_emergence(series)
    attention, losses = ri.attention_figure(series).data, ri.loss_figure(series).data
    assert [list(trace.y) for trace in attention] == list(map(series.attention, series.paths))
    marks = [trace.x[0] for trace in losses if trace.mode == "markers"]
    assert marks == [row.above.step for row in rows if row.above]
    drawn = {trace.name: list(trace.y) for trace in losses if trace.mode is None}
    assert drawn["partial, x_2"] == [row.partial_losses[1] for row in series.losses]
    groups = ElementTree.fromstring(ri.crossing_figure(series))
    notes = {group.get("data-path"): [*group.itertext()] for group in groups}
    assert all(str(row.above or "never") in notes[str(row.path)] for row in rows)


def test_crossings_by_hand():
    steps, values = [80, 160, 240, 320], [0.1, 0.3, 0.7, 0.2]
    assert first_above(steps, values, 0.3) == Crossing(160.0, 160, 240)  # reached, then passed
    assert first_above(steps, values, 0.5) == Crossing(200.0, 160, 240)
    assert first_above(steps, values, 0.05) == Crossing(80.0, None, 80)
    assert first_above(steps, values, 0.7) is None
    fallen = [-value for value in values]
    assert first_below(steps, fallen, -0.5) == Crossing(200.0, 160, 240)
    assert half_of_final(steps, [0.0, 0.1, 0.3, 0.4], above=0.05) == Crossing(200.0, 160, 240)
    assert half_of_final(steps, [0.0, 0.9, 0.9, 0.04], above=0.05) is None
    assert str(Crossing(80.0, None, 80)) == "<= 80" and str(Crossing(200.4, 160, 240)) == "200"


def chain(*steps):
    """When x_1, x_2, ... fell, and the pairs of a chain."""
    crossings = [None if step is None else Crossing(step, 0, 1000) for step in steps]
    losses = {f"x_{i}": crossing for i, crossing in enumerate(crossings, start=1)}
    return losses, ri.RetrievalTask(steps=len(steps)).steps_between


@pytest.mark.parametrize(
    ("steps", "held"),
    [
        ([1.0, 2.0, None], True),
        ([1.0, 3.0, 2.0], False),
        ([1.0, None, 2.0], False),
        ([1.0, 1.0], None),  # a tie shows neither this order nor another
        ([2.0, 2.0, 1.0], False),  # out of turn, whatever else is tied
        ([1.0, None, None], None),
    ],
)
def test_the_papers_order_of_losses(steps, held):
    assert in_order(*chain(*steps)) is held
