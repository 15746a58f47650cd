"""Emergence on a run whose truth is known: the shipped model, its layers switched on in turn."""

import io
import json
import re
import shutil
from contextlib import redirect_stdout
from dataclasses import replace
from importlib.resources import files
from statistics import fmean
from xml.etree import ElementTree

import plotly.io as pio
import pytest
import torch

import retrieval_interp as ri
from examples.reach_the_bound import compile_circuit, doubling_heads
from retrieval_interp.circuits.circuit import Circuit, Head
from retrieval_interp.commands.emergence import main as emergence
from retrieval_interp.config import PRESETS, Recipe
from retrieval_interp.emergence.measure import Probe
from retrieval_interp.emergence.series import (
    Losses,
    Series,
    loss_emergence,
    paper_epochs,
    path_emergence,
    series_from_dict,
)
from retrieval_interp.model import ModelConfig
from retrieval_interp.storage.checkpoint import load_checkpoint, save_checkpoint
from retrieval_interp.tasks import InputError, RetrievalTask
from retrieval_interp.tasks.structured import to_data
from tests.test_scoring import naive_mse

LINES = ["L0.H0 shared s4<-s3 s4<-s4 s6<-s5", "L2.H0 one-hot s0<-s2 s4<-s6", "L4.H0 one-hot s0<-s4"]
ON = {0: 200, 2: 300, 4: 500}  # the step from which a layer attends as it was trained to
STEPS = [100, 200, 300, 400, 500, 600]
LOSSES = {100: (0.9, 0.9, 0.9), 200: (0.3, 0.8, 0.9), 300: (0.1, 0.6, 0.8), 400: (0.1, 0.2, 0.7)}


@torch.no_grad()
def switched(step):
    """The shipped model as it is at a step: uniform attention in layers that are not on yet."""
    small = load_checkpoint("small")
    for layer, on in ON.items():
        if step < on:
            small.model.blocks[layer].attn.W_Q.zero_()
            small.model.blocks[layer].attn.b_Q.zero_()
    return small


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """A run folder and a circuit file."""
    folder = tmp_path_factory.mktemp("emergence")
    run, small = folder / "run", load_checkpoint("small")
    (run / "checkpoints").mkdir(parents=True)
    recipe = Recipe(small.task, small.config, steps=600, log_every=100, checkpoint_every=100)
    (run / "config.json").write_text(json.dumps(to_data(recipe)))
    for step in STEPS:
        model = switched(step).model
        save_checkpoint(checkpoint(run, step), model, small.task, small.config, {"step": step})
    with open(run / "metrics.jsonl", "w") as file:
        for step, partial in LOSSES.items():
            row = {"step": step, "train_loss": 1.0, "validation_loss": sum(partial) / 3}
            file.write(json.dumps({**row, "partial_losses": partial, "seconds": 1.0}) + "\n")
    circuit = ri.parse_circuit(LINES, small.task)
    circuit = replace(circuit, enabling=(ri.parse_head_path("L0.H0 s2<-s1", 7),))
    (folder / "circuit.json").write_text(circuit.to_json())
    return folder, circuit


@pytest.fixture
def copied(known, tmp_path):
    """The same to be damaged."""
    shutil.copytree(known[0] / "run", tmp_path / "run")
    return tmp_path / "run", known[1]


@pytest.fixture(scope="module")
def series(known):
    return ri.follow_run(known[0] / "run", known[1])


def checkpoint(run, step):
    return run / "checkpoints" / f"step-{step:06d}.safetensors"


# What is measured


def test_numbers_equal_runs_with_hooks_set_by_hand(series, known):
    circuit, step = known[1], 400
    model, task = switched(step).model, series.recipe.task
    batch = task.sample(32, seed=0, split="test")
    snapshot = series.snapshots[STEPS.index(step)]

    @torch.no_grad()
    def loss_and_pattern(path, cut):
        kept = []

        def hook(pattern, hook):
            for example in range(32):
                for chain in batch.roles[example].tolist():
                    dest, src = chain[path.path.dest], chain[path.path.src]
                    kept.append(float(pattern[example, path.head.head, dest, src]))
                    if cut:
                        pattern[example, path.head.head, dest, src] = 0.0
            return pattern

        name = f"blocks.{path.head.layer}.attn.hook_pattern"
        outputs = model.run_with_hooks(batch.inputs, fwd_hooks=[(name, hook)])
        error = (outputs[:, -4:] - batch.targets).square()
        return float(error.mean()), sum(kept) / len(kept)

    for path in series.paths:
        at = snapshot.paths[str(path)]
        intact, attention = loss_and_pattern(path, cut=False)
        assert fmean(snapshot.partial_losses) == pytest.approx(intact, abs=1e-5)
        assert at.attention == pytest.approx(attention, abs=1e-5)
        cut = loss_and_pattern(path, cut=True)[0]
        assert fmean(at.live_losses) == pytest.approx(cut, abs=1e-5)
    combined = naive_mse(model, task, circuit, batch)
    assert fmean(snapshot.combined_losses) == pytest.approx(combined, abs=1e-5)
    assert series.notes == () and series.steps == STEPS


def test_paths_appear_in_the_order_in_which_layers_were_switched_on(series):
    rows = {str(row.path): row for row in path_emergence(series)}
    for row in rows.values():
        crossing, on = row.attention_half, ON[row.path.head.layer]
        if str(row.path) != "L0.H0 s4<-s4":  # an early position attends to itself anyway
            assert (crossing.after, crossing.by) == (on - 100, on)
    above = {name: row.above for name, row in rows.items()}
    assert above["L0.H0 s4<-s3"].by == 200 and above["L0.H0 s4<-s4"] is None  # shares its role
    assert above["L2.H0 s0<-s2"].by == 300 and above["L4.H0 s0<-s4"].by == 500
    assert not rows["L0.H0 s2<-s1"].carries


def test_attention_of_an_early_layer_leads_and_nothing_is_necessary_before_it_is_used(series):
    rows = {str(row.path): row for row in path_emergence(series)}
    # x_1 is answered from step 300 on, when layer 2 finds it through what layer 0 brings.
    assert rows["L0.H0 s2<-s1"].leads == "attention"
    assert rows["L0.H0 s2<-s1"].necessity_half.by == 300
    assert rows["L4.H0 s0<-s4"].leads == "unresolved"
    for path in series.paths:
        assert series.necessity(path)[0] == pytest.approx(0.0, abs=0.05)
        assert max(series.necessity(path)) <= 1.0 + 1e-6


def test_losses_are_the_runs_own_and_measured_where_it_has_none(series):
    assert [row.logged for row in series.losses] == [True] * 4 + [False] * 2
    assert series.losses[0].partial_losses == LOSSES[100]
    assert series.losses[-1].validation_loss == fmean(series.snapshots[-1].partial_losses)
    found = loss_emergence(series)
    assert found["x_1"].step == pytest.approx(100 + 100 * 0.4 / 0.6)
    assert (found["x_3"].after, found["x_3"].by) == (400, 500)


def test_a_compiled_circuits_paths_carry_and_enable_from_the_step_at_which_they_are_sharp():
    task = RetrievalTask(steps=3, dim=8, tokens="unit")
    compiled = compile_circuit(doubling_heads(task), task)
    truth = [*sorted(compiled.carrying), *sorted(compiled.enabling - compiled.carrying)]
    mechanisms = {
        Head(*head): mechanism
        for head, mechanism in compiled.circuit.mechanisms.items()
        if mechanism.paths
    }
    circuit = Circuit(mechanisms, 7, task=task.to_dict())
    probe = Probe(task, circuit, examples=16)
    sharp = [blk.attn.W_Q.detach().clone() for blk in compiled.model.blocks]
    snapshots = []
    for step in range(5):
        with torch.no_grad():
            for layer, block in enumerate(compiled.model.blocks):
                block.attn.W_Q.copy_(sharp[layer] * (step > layer))
        snapshots.append(probe.measure(compiled.model, step))
    recipe = Recipe(task, ModelConfig(layers=3), checkpoint_every=50)
    losses = tuple(map(Losses.measured, snapshots))
    series = Series("compiled", recipe, circuit, "compiled", 0.01, tuple(snapshots), losses)
    rows = {row.path: row for row in path_emergence(series)}
    for path in truth:
        layer, above = path.head.layer, rows[path].above
        assert (above.after, above.by) == (layer, layer + 1)
        assert above.step == pytest.approx(layer + 0.5, abs=0.2)
        assert rows[path].necessity_half is not None
    for path, row in rows.items():
        if path not in truth:
            assert row.necessity == pytest.approx(0.0, abs=1e-3) and row.leads is None


# What goes wrong


def test_damaged_missing_and_foreign_checkpoints_are_named_and_passed_over(copied, series):
    run, circuit = copied
    data = checkpoint(run, 300).read_bytes()
    checkpoint(run, 300).write_bytes(data[: len(data) // 2])
    checkpoint(run, 400).unlink()
    config = ModelConfig(layers=2, d_model=8, heads=1)
    other = ri.build_model(config, series.recipe.task)
    save_checkpoint(checkpoint(run, 500), other, series.recipe.task, config, {})
    shutil.copy(checkpoint(run, 600), checkpoint(run, 700))
    (run / "metrics.jsonl").write_text('{"step": 1}\n' * 2)
    found = ri.follow_run(run, circuit)
    assert found.steps == [100, 200, 600]
    assert found.snapshots == tuple(s for s in series.snapshots if s.step in found.steps)
    notes = "\n".join(found.notes)
    assert re.search(r"skipped: \S*step-000300.safetensors", notes)
    assert re.search(r"step-000500.\S+ expected .* of this run, found .* 2 layers", notes)
    assert re.search(r"step-000700.\S+ expected .* of step 700 .*, found step 600", notes)
    assert "gap: nothing measured at steps 300, 400, 500; " in notes
    assert "metrics.jsonl" in notes and not any(row.logged for row in found.losses)
    assert path_emergence(found)[3].above.after == 200 and path_emergence(found)[3].above.by == 600


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--run", "none"], "expected a run folder"),
        (["--run", "fresh"], "with checkpoints/.*, found none; train"),
        (["--run", "fresh", "--examples", "1"], "--examples"),
        (["--run", "fresh", "--json", "fresh/config.json"], "other files to write than to read"),
        (["--run", "fresh", "--circuit", "five.json"], "as fresh was trained on"),
        (["--run", "unlearned"], "has not learned the task"),
    ],
)
def test_bad_input_is_one_line(arguments, text, known, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("fresh", "unlearned"):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
        shutil.copy(known[0] / "run" / "config.json", tmp_path / name)
    small = load_checkpoint("small")
    model = ri.build_model(small.config, small.task)
    save_checkpoint(checkpoint(tmp_path / "unlearned", 100), model, small.task, small.config, {})
    five = {"heads": [], "task": {"name": "retrieval", "steps": 5}}
    (tmp_path / "five.json").write_text(json.dumps(five))
    with pytest.raises(InputError, match=text):
        emergence(arguments)


# What is written


@pytest.fixture(scope="module")
def written(known, tmp_path_factory):
    """One run of the command with every output: the files, and what it printed."""
    folder = tmp_path_factory.mktemp("written")
    outputs = [folder / name for name in ("out.json", "out.html")]
    options = ["--json", outputs[0], "--report", outputs[1]]
    run, circuit = known[0] / "run", known[0] / "circuit.json"
    arguments = ["--run", run, "--circuit", circuit, "--examples", "16", *options]
    with redirect_stdout(io.StringIO()) as printed:
        emergence([str(argument) for argument in arguments])
    return [*outputs, printed.getvalue()]


def test_the_json_is_the_series_with_its_provenance(written, known):
    data = json.loads(written[0].read_text())
    assert "emergence --run " in data["command"] and data["date"] and data["versions"]["torch"]
    assert (data["examples"], data["seed"], data["tolerance"]) == (16, 0, 0.05)
    assert len(data["paths"]) == 7 and data["partial_losses"]["x_2"]["by"] == 400
    assert data["in_order"] is True
    again = ri.read_series(written[0])
    direct = ri.follow_run(known[0] / "run", known[1], examples=16)
    assert again.circuit == direct.circuit and again.recipe == direct.recipe
    for path in direct.paths:
        assert again.attention(path) == pytest.approx(direct.attention(path), abs=1e-6)
        assert again.necessity(path) == pytest.approx(direct.necessity(path), abs=1e-4)


LAST = "L4.H0 s0<-s4"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda data: data.pop("run"), "expected the key 'run'"),
        (lambda data: data.update(snapshots=[]), "expected snapshots"),
        (lambda data: data["snapshots"][2]["paths"].pop(LAST), "the circuit's 7 paths"),
        (lambda data: data["recipe"].update(steps=0), "series: recipe: .*steps"),
    ],
)
def test_a_series_with_a_gap_is_refused(written, change, text):
    data = json.loads(written[0].read_text())
    change(data)
    with pytest.raises(InputError, match=text):
        series_from_dict(data)


def test_shipped_series_still_open_and_are_written_as_they_are():
    for path in sorted((files("retrieval_interp") / "results").glob("*.emergence.json")):
        data = json.loads(path.read_text())
        again = ri.read_series(path).to_dict()
        for key in ("snapshots", "circuit_from", "tolerance", "run", "notes"):
            assert again[key] == data[key], path
        assert json.loads(json.dumps(again["losses"])) == data["losses"]


def test_the_report_needs_no_network(written):
    own = re.sub(r"<script.*?</script>", "", written[1].read_text(), flags=re.S)
    assert own.count('class="plotly-graph-div"') == 2 and own.count("<svg") == 1
    assert not re.search(r'(src|href|action)="', own)


def test_the_command_prints_the_table(written):
    assert "6 steps measured, 100 to 600; 16 examples, seed 0" in written[2]
    (row,) = [line for line in written[2].splitlines() if line.startswith(LAST)]
    assert re.search(r"query A <- C( of B->C)?\s+[01]\.\d\d\s+4\d\d .* unresolved$", row)
    assert "in the order of the steps" in written[2]


# Figures


def test_figures_show_the_series(series):
    template, rows = pio.templates.default, path_emergence(series)
    attention = ri.attention_figure(series)
    lines = [trace for trace in attention.data if "lines" in trace.mode]
    assert [list(trace.y) for trace in lines] == [series.attention(path) for path in series.paths]
    marks = [trace for trace in attention.data if trace.mode == "markers"]
    assert [mark.x[0] for mark in marks] == [row.above.step for row in rows if row.above]
    losses = ri.loss_figure(series)
    drawn = {trace.name: list(trace.y) for trace in losses.data if trace.mode is None}
    assert drawn["partial, x_2"] == [row.partial_losses[1] for row in series.losses]
    assert pio.templates.default == template


def test_the_drawing_is_coloured_by_when_paths_appear(series):
    groups = [g for g in ElementTree.fromstring(ri.crossing_figure(series)) if g.get("data-path")]
    colors = {group.get("data-path"): group[2].get("stroke") for group in groups}
    rows = {str(row.path): row for row in path_emergence(series)}
    assert set(colors) == set(rows)
    assert colors[LAST] == "rgb(228, 87, 86)"  # the last
    assert colors["L0.H0 s4<-s4"] == "#8a9099"  # never
    assert len({colors[name] for name in ("L0.H0 s6<-s5", "L2.H0 s0<-s2", LAST)}) == 3
    notes = {group.get("data-path"): group[3].text for group in groups}
    assert notes == {name: str(row.above or "never") for name, row in rows.items()}


def test_epochs_are_the_papers_for_transformer_d_only():
    assert paper_epochs(replace(PRESETS["transformer-d"], seed=3, steps=100, checkpoint_every=40))
    assert not paper_epochs(PRESETS["transformer-a"])
