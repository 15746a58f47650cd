"""A training run equals its recipe, whatever stops it."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp import training
from retrieval_interp.circuits.models.plain import PlainTransformer
from retrieval_interp.storage.checkpoint import load_checkpoint, read_tensors
from retrieval_interp.storage.models_by_name import load_model
from retrieval_interp.training import step_indices, train_model
from tests.tiny_run import TINY


class Stop(Exception):
    pass


def stop_at(step):
    def on_step(done, row):
        if done == step:
            raise Stop

    return on_step


def same(first, second):
    assert first.keys() == second.keys()
    return all(torch.equal(first[name], second[name]) for name in first)


def ended(run):
    """A run's last state, and its metrics but for the seconds that they took."""
    tensors, content = read_tensors(run / "state.safetensors", "a state")
    assert content["step"] == TINY.steps
    rows = (run / "metrics.jsonl").read_text().splitlines()
    return tensors, [json.loads(row) | {"seconds": 0} for row in rows]


def same_runs(*runs):
    (state, rows), (other, others) = map(ended, runs)
    return same(state, other) and rows == others


def test_bfloat16_rounds_matrix_products_and_nothing_that_is_kept():
    """First losses agree to bfloat16's 8 bits, not exactly; weights and measures are float32."""
    first = {}
    for precision in ("float32", "bfloat16"):
        trained = train_model(replace(TINY, steps=1, precision=precision), compile=False)
        first[precision] = trained.metrics[0]["train_loss"]
        assert {p.dtype for p in trained.model.parameters()} == {torch.float32}
    assert first["bfloat16"] != first["float32"]
    assert first["bfloat16"] == pytest.approx(first["float32"], rel=2**-7)


def test_training_equals_a_loop_written_by_hand():
    """AdamW by its formulas, batches by their definition, and a model without hook points."""
    recipe = replace(TINY, steps=12, weight_decay=0.2)
    trained = PlainTransformer.of(train_model(recipe, compile=False).model)
    model = PlainTransformer.of(ri.build_model(recipe.model, recipe.task, recipe.seed))
    kept = {n: p for n, p in model.named_parameters() if n != "pos_embed.W_pos"}
    first = {n: torch.zeros_like(p) for n, p in kept.items()}
    second = {n: torch.zeros_like(p) for n, p in kept.items()}
    orders: dict = {}
    for step in range(12):
        batch = recipe.task.examples(step_indices(recipe, step, orders), recipe.seed)
        error = model(batch.inputs)[:, -2:] - batch.targets
        grads = torch.autograd.grad(error.pow(2).mean(), list(kept.values()))
        rate = recipe.learning_rate_at(step)
        with torch.no_grad():
            for (name, p), grad in zip(kept.items(), grads):
                first[name] = 0.9 * first[name] + 0.1 * grad
                second[name] = 0.999 * second[name] + 0.001 * grad**2
                mean = first[name] / (1 - 0.9 ** (step + 1))
                scale = (second[name] / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8
                p.mul_(1 - rate * 0.2).sub_(rate * mean / scale)
    for name, p in trained.named_parameters():
        # A key bias moves all scores of a row alike: its gradient is rounding noise, which Adam
        # scales up to full steps, and no output depends on it.
        if not name.endswith("b_K"):
            expected = kept.get(name, torch.zeros(()))
            torch.testing.assert_close(p.detach(), expected.expand_as(p), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("error", [None, Stop, KeyboardInterrupt])
def test_only_training_steps_on_cuda_round_factors(monkeypatch, error):
    """Products of validation, and all that follows a run, are of float32."""
    seen, tf32 = [], training.tf32
    monkeypatch.setattr(training, "tf32", lambda device: tf32(torch.device("cuda")))

    class Noting(ri.RetrievalTask):
        def example_losses(self, outputs, batch):
            seen.append((torch.is_grad_enabled(), torch.get_float32_matmul_precision()))
            if error is not None and len(seen) == 3:
                raise error
            return super().example_losses(outputs, batch)

    recipe = replace(TINY, task=Noting(chains=2, steps=1, dim=2), steps=3)
    with nullcontext() if error is None else pytest.raises(error):
        train_model(recipe, compile=False)
    assert seen[:3] == [(True, "high"), (False, "highest"), (True, "high")]
    assert torch.get_float32_matmul_precision() == "highest"


def test_an_epoch_sees_every_example_once_in_an_order_of_its_own():
    orders: dict = {}
    epochs = torch.cat([step_indices(TINY, step, orders) for step in range(24)]).view(3, 64)
    for epoch in epochs:
        assert sorted(epoch.tolist()) == list(range(64))
    assert not torch.equal(epochs[0], epochs[1]) and not torch.equal(epochs[1], epochs[2])
    assert torch.equal(step_indices(TINY, 9, {}), epochs[1][8:16])


def test_a_stopped_run_goes_on_to_the_same_weights_and_metrics(tmp_path):
    train_model(TINY, tmp_path / "whole", compile=False)
    for step in (3, 20, 31, 47):
        with pytest.raises(Stop):
            train_model(TINY, tmp_path / "parts", compile=False, on_step=stop_at(step))
    trained = train_model(TINY, tmp_path / "parts", compile=False)
    assert same_runs(tmp_path / "parts", tmp_path / "whole")
    assert [row["step"] for row in trained.metrics] == list(range(1, 61))
    again = train_model(TINY, tmp_path / "parts", compile=False)
    assert same(dict(again.model.named_parameters()), dict(trained.model.named_parameters()))
    read, task = load_model(str(tmp_path / "parts"), "cpu")  # as `scan` and `why` do
    assert same(dict(read.named_parameters()), dict(trained.model.named_parameters()))
    assert task == TINY.task


def test_checkpoints_hold_the_weights_of_their_step_and_the_record(tmp_path):
    trained = train_model(TINY, tmp_path / "run", compile=False)
    steps = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert steps == [f"step-{step:06d}.safetensors" for step in (20, 40, 60)]
    last = load_checkpoint(tmp_path / "run")
    assert last.training == json.loads(json.dumps(trained.record))
    assert last.training["step"] == 60
    tail = [row["validation_loss"] for row in trained.metrics]  # all 60 are in the last 100
    assert last.training["validation_loss"] == pytest.approx(sum(tail) / 60)
    batch = TINY.task.sample(16, TINY.seed, split="validation")
    loss = float(TINY.task.loss(last.model(batch.inputs), batch).detach())
    assert trained.metrics[-1]["validation_loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.slow
def test_compiled_training_follows_eager_training():
    """In a process of its own: the run-time type checks of these tests cannot be compiled."""
    script = """
import json
from dataclasses import replace
from retrieval_interp.training import train_model
from tests.tiny_run import TINY
runs = [train_model(replace(TINY, steps=8), compile=compile) for compile in (False, True)]
print(json.dumps([[run.record["compiled"], run.metrics] for run in runs]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    (eager, rows), (compiled, others) = json.loads(done.stdout)
    assert compiled and not eager
    for row, other in zip(rows, others):
        assert row["validation_loss"] == pytest.approx(other["validation_loss"], abs=1e-4)


def test_where_compiling_fails_training_goes_on_with_a_word(monkeypatch):
    def broken(model, **options):
        raise RuntimeError("no C compiler here")

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.warns(ri.InputWarning, match="torch.compile failed, .* no C compiler here"):
        trained = train_model(replace(TINY, steps=4))
    assert not trained.record["compiled"]


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("damage", "recipe", "text"),
    [
        (lambda run: None, replace(TINY, batch=4), "batch = 4, found one with batch = 8"),
        (lambda run: (run / "config.json").rename(run / "thesis.tex"), TINY, "other files"),
        (lambda run: (run / "state.safetensors").unlink(), TINY, "found none; put it back"),
        (lambda run: os.truncate(run / "state.safetensors", 5000), TINY, "a run's state"),
        (lambda run: (run / "metrics.jsonl").write_text("x\n{}\n"), TINY, "line 1"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused_and_nothing_is_lost(tmp_path, damage, recipe, text):
    with pytest.raises(Stop):
        train_model(TINY, tmp_path / "run", compile=False, on_step=stop_at(25))
    damage(tmp_path / "run")
    before = files(tmp_path)
    with pytest.raises(ri.InputError, match=text):
        train_model(recipe, tmp_path / "run", compile=False)
    assert files(tmp_path) == before


def test_a_folder_in_use_is_refused(tmp_path):
    def second(done, row):
        with pytest.raises(ri.InputError, match="that no other process is training"):
            train_model(TINY, tmp_path / "run", compile=False)
        raise Stop

    with pytest.raises(Stop):
        train_model(TINY, tmp_path / "run", compile=False, on_step=second)


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    with pytest.raises(Stop):
        train_model(TINY, tmp_path / "run", compile=False, on_step=stop_at(25))
    kept = (tmp_path / "run" / "checkpoints" / "step-000020.safetensors").read_bytes()

    def full(source, target):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(ri.InputError, match="No space left on"):
        patch.setattr("os.replace", full)
        train_model(TINY, tmp_path / "run", compile=False)
    assert (tmp_path / "run" / "checkpoints" / "step-000020.safetensors").read_bytes() == kept
    assert not list((tmp_path / "run").rglob(".writing-*"))
    train_model(TINY, tmp_path / "run", compile=False)
    train_model(TINY, tmp_path / "whole", compile=False)
    assert same_runs(tmp_path / "run", tmp_path / "whole")


def test_a_run_killed_before_its_first_file_can_start_again(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "lock").touch()
    (tmp_path / ".writing-config.json-abc").write_text("{")
    assert train_model(replace(TINY, steps=2), tmp_path, compile=False).record["step"] == 2
    assert not list(tmp_path.rglob(".writing-*"))


def test_a_diverging_run_stops_with_a_word():
    with pytest.raises(ri.InputError, match="expected finite losses, found .* lower the learning"):
        train_model(replace(TINY, learning_rate=1e30, warmup=0), compile=False)
