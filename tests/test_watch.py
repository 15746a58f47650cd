"""`train --watch`: the same training to the last bit, and what `emergence` makes of its log."""

from dataclasses import replace

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.commands.emergence import main as emergence
from retrieval_interp.commands.train import main as train
from retrieval_interp.config import Recipe
from retrieval_interp.emergence.measure import Probe, Watch, read_watch
from retrieval_interp.model import ModelConfig, build_model
from retrieval_interp.storage.checkpoint import load_checkpoint
from retrieval_interp.tasks import InputError, RetrievalTask
from retrieval_interp.training import train_model
from tests.test_training import Stop, metrics, same, stop_at

TINY = Recipe(
    task=RetrievalTask(chains=2, steps=1, dim=2),
    model=ModelConfig(layers=2, heads=1, d_model=8),
    steps=60,
    batch=8,
    examples=64,
    log_every=5,
    checkpoint_every=20,
    validation_examples=16,
)
CIRCUIT = ri.parse_circuit(["L0.H0 shared s2<-s1 s2<-s2", "L1.H0 one-hot s0<-s2"], TINY.task)
OTHER = ri.parse_circuit(["L0.H0 one-hot s2<-s1"], TINY.task)


def run(folder, watch=CIRCUIT, recipe=TINY, **options):
    watched = Watch(watch, examples=8) if watch is not None else None
    return train_model(recipe, folder, compile=False, watch=watched, **options)


def test_training_is_the_same_to_the_last_bit_with_and_without(tmp_path):
    before = torch.random.get_rng_state()
    watched = run(tmp_path / "watched")
    assert torch.equal(torch.random.get_rng_state(), before)
    plain = run(tmp_path / "plain", watch=None)
    weights = (dict(trained.model.named_parameters()) for trained in (watched, plain))
    assert same(*weights)
    assert metrics(tmp_path / "watched") == metrics(tmp_path / "plain")
    assert not (tmp_path / "plain" / "watch.jsonl").exists()


def test_what_is_watched_equals_what_a_checkpoint_gives(tmp_path):
    run(tmp_path)
    circuit, rows = read_watch(tmp_path, TINY)
    assert circuit == CIRCUIT and [row.step for row in rows] == [0, *range(5, 61, 5)]
    assert rows[0].source == "watch" and rows[0].examples == 8
    probe = Probe(TINY.task, CIRCUIT, examples=8)
    models = {0: build_model(TINY.model, TINY.task, TINY.seed)}
    for step in (20, 40, 60):
        path = tmp_path / "checkpoints" / f"step-{step:06d}.safetensors"
        models[step] = load_checkpoint(path).model
    for row in rows:
        if row.step in models:
            direct = probe.measure(models[row.step], row.step)
            assert row.partial_losses == pytest.approx(direct.partial_losses, abs=1e-6)
            for path, at in row.paths.items():
                assert at.attention == pytest.approx(direct.paths[path].attention, abs=1e-6)
                assert at.live_losses == pytest.approx(direct.paths[path].live_losses, abs=1e-6)


def test_a_stopped_run_goes_on_to_the_same_log(tmp_path):
    run(tmp_path / "whole")
    for step in (3, 33, 47):
        with pytest.raises(Stop):
            run(tmp_path / "parts", on_step=stop_at(step))
        with open(tmp_path / "parts" / "watch.jsonl", "a") as file:
            file.write('{"step": 50, "sour')  # killed while writing
    run(tmp_path / "parts")
    whole, parts = ((tmp_path / name / "watch.jsonl").read_text() for name in ("whole", "parts"))
    assert whole == parts


def test_watching_can_begin_in_the_middle(tmp_path):
    with pytest.raises(Stop):
        run(tmp_path, watch=None, on_step=stop_at(38))
    run(tmp_path)
    steps = [row.step for row in read_watch(tmp_path, TINY)[1]]
    assert steps == list(range(20, 61, 5))


def test_another_circuit_is_refused_before_anything_changes(tmp_path):
    with pytest.raises(Stop):
        run(tmp_path, on_step=stop_at(38))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="watch.jsonl: expected the paths of the circuit that is"):
        run(tmp_path, watch=OTHER)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="at least one path"):
        Watch(ri.parse_circuit(["L0.H0 uniform"], TINY.task))


def test_without_a_folder_the_snapshots_are_kept():
    watch = Watch(CIRCUIT, examples=8)
    train_model(replace(TINY, steps=10), compile=False, watch=watch)
    assert [row.step for row in watch.snapshots] == [0, 5, 10]


def test_steps_whose_checkpoint_is_gone_come_from_the_log(tmp_path):
    run(tmp_path)
    whole = ri.follow_run(tmp_path, examples=8)
    assert whole.circuit_from == "as watched while training (watch.jsonl)"
    (tmp_path / "checkpoints" / "step-000020.safetensors").unlink()
    (tmp_path / "checkpoints" / "step-000040.safetensors").write_bytes(b"damaged")
    found = ri.follow_run(tmp_path, CIRCUIT, examples=8)
    assert found.steps == whole.steps == [0, *range(5, 61, 5)]
    sources = {row.step: row.source for row in found.snapshots}
    assert sources[20] == sources[40] == sources[45] == "watch" and sources[60] == "checkpoint"
    for path in found.paths:
        assert found.attention(path) == pytest.approx(whole.attention(path), abs=1e-6)
    assert "step-000040" in found.notes[0] and "does not hold" in found.notes[1]
    other = ri.follow_run(tmp_path, OTHER, examples=8)
    assert other.steps == [60]
    notes = "\n".join(other.notes)
    assert "follows another circuit" in notes and "measured at steps 20, 40" in notes


def test_a_log_alone_is_enough_and_a_damaged_one_is_named(tmp_path):
    run(tmp_path)
    for path in (tmp_path / "checkpoints").iterdir():
        path.unlink()
    assert ri.follow_run(tmp_path).steps == [0, *range(5, 61, 5)]
    lines = (tmp_path / "watch.jsonl").read_text().splitlines()
    lines[3] = '{"step": 10}'
    (tmp_path / "watch.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match="watch.jsonl: line 4: expected the key 'examples'"):
        read_watch(tmp_path, TINY)
    with pytest.raises(InputError, match="run folder with checkpoints/.*watch.jsonl: line 4"):
        ri.follow_run(tmp_path)


def test_the_commands_work_together(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "circuit.json").write_text(CIRCUIT.to_json())
    tiny = ["--out", "run", "--watch", "circuit.json", "--steps", "6", "--log-every", "2"]
    tiny += ["--checkpoint-every", "6", "--task.chains", "2", "--task.steps", "1", "--batch", "4"]
    train([*tiny, "--model.layers", "2", "--model.d-model", "8", "--no-compile"])
    assert "python -m retrieval_interp emergence --run run" in capsys.readouterr().out
    emergence(["--run", "run", "--circuit", "circuit.json"])
    printed = capsys.readouterr().out
    assert "4 steps measured, 0 to 6; 32 examples, seed 0; 3 of them while training" in printed
