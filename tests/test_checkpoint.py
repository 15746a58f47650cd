import json
import random
import struct

import pytest
import torch
from safetensors.torch import save_file

from retrieval_interp.circuits.runs.losses import standard_error
from retrieval_interp.storage.checkpoint import (
    FORMAT,
    find_checkpoint,
    load_checkpoint,
    save_checkpoint,
    shipped_checkpoints,
    write_tensors,
)
from retrieval_interp.tasks import InputError
from retrieval_interp.tasks.structured import to_data


@pytest.fixture
def saved(tmp_path, model, task, config):
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, model, task, config, {"step": 7})
    return path


def weights(model):
    return dict(model.named_parameters())


def test_a_checkpoint_comes_back_as_it_was(saved, model, task, config):
    loaded = load_checkpoint(saved)
    assert (loaded.task, loaded.config, loaded.training) == (task, config, {"step": 7})
    for name, parameter in loaded.model.named_parameters():
        assert torch.equal(parameter, weights(model)[name])
    inputs = task.sample(3).inputs
    assert torch.equal(loaded.model(inputs), model(inputs))


def test_names_files_and_run_folders_are_found(tmp_path, saved):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for step in (80, 160):
        target = tmp_path / "run" / "checkpoints" / f"step-{step:06d}.safetensors"
        target.write_bytes(saved.read_bytes())
    assert find_checkpoint(str(tmp_path / "run")).name == "step-000160.safetensors"
    assert find_checkpoint("small") == shipped_checkpoints()["small"]


def test_what_is_no_checkpoint_is_refused_with_the_shipped_names(tmp_path):
    with pytest.raises(InputError, match=r"'nothing': expected a file, .* one of: .*small"):
        load_checkpoint("nothing")
    with pytest.raises(InputError, match="expected a run folder with checkpoints/step-"):
        load_checkpoint(tmp_path)
    (tmp_path / "text").write_text("not a checkpoint")
    with pytest.raises(InputError, match="expected a checkpoint .a whole safetensors file"):
        load_checkpoint(tmp_path / "text")
    save_file({"a": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="without its 'retrieval_interp' metadata"):
        load_checkpoint(tmp_path / "other.safetensors")


def test_truncated_files_are_refused(tmp_path, saved):
    data = saved.read_bytes()
    for length in (0, 4, 8, 100, len(data) // 2, len(data) - 1):
        (tmp_path / "cut").write_bytes(data[:length])
        with pytest.raises(InputError, match="expected a checkpoint"):
            load_checkpoint(tmp_path / "cut")


def test_a_flipped_byte_anywhere_is_noticed(tmp_path, saved):
    data = bytearray(saved.read_bytes())
    header = 8 + struct.unpack("<Q", data[:8])[0]
    draw = random.Random(0)
    places = draw.sample(range(header), 150) + draw.sample(range(header, len(data)), 50)
    for place in places:
        flipped = bytearray(data)
        flipped[place] ^= 1 << draw.randrange(8)
        (tmp_path / "flipped").write_bytes(flipped)
        with pytest.raises(InputError):
            load_checkpoint(tmp_path / "flipped")


def test_a_huge_header_length_is_refused(tmp_path):
    (tmp_path / "huge").write_bytes(struct.pack("<Q", 2**62) + b"{}")
    with pytest.raises(InputError, match="expected a checkpoint"):
        load_checkpoint(tmp_path / "huge")


def content(task, config, /, **changes):
    whole = {"format": FORMAT, "model": to_data(config), "task": task.to_dict(), "training": {}}
    return {**whole, **changes}


def other_task(model, task, config):
    return weights(model), content(task, config, task={"name": "words"})


def wrong_steps(model, task, config):
    return weights(model), content(task, config, task={**task.to_dict(), "steps": 3})


def missing(model, task, config):
    kept = {name: w for name, w in weights(model).items() if name != "blocks.1.attn.W_K"}
    return kept, content(task, config)


def extra(model, task, config):
    return {**weights(model), "blocks.1.attn.W_X": torch.zeros(3)}, content(task, config)


def infinite(model, task, config):
    tampered = {name: w.detach().clone() for name, w in weights(model).items()}
    tampered["blocks.2.mlp.W_in"][3, 4] = float("inf")
    return tampered, content(task, config)


def not_a_number(model, task, config):
    tampered = {name: w.detach().clone() for name, w in weights(model).items()}
    tampered["embed.W_E"][0, 0] = float("nan")
    return tampered, content(task, config)


def positions(model, task, config):
    return {**weights(model), "pos_embed.W_pos": torch.ones(15, 16)}, content(task, config)


def integers(model, task, config):
    return {**weights(model), "embed.W_E": torch.ones(8, 16).int()}, content(task, config)


def another_size(model, task, config):
    bigger = {**to_data(config), "layers": 60_000, "d_model": 4096}
    return weights(model), content(task, config, model=bigger)


def another_format(model, task, config):
    return weights(model), content(task, config, format=99)


def unknown_key(model, task, config):
    return weights(model), content(task, config, model={**to_data(config), "depth": 3})


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            other_task,
            "task: expected the name 'conditional' or .* or 'retrieval', found 'w",
        ),
        (wrong_steps, r"expected pos_embed.W_pos as floats of shape \[21, 16\]|unembed"),
        (missing, "exactly the model's 54 weights, found 1 missing: blocks.1.attn.W_K"),
        (extra, "exactly the model's 54 weights, found 1 extra: blocks.1.attn.W_X"),
        (infinite, "found NaN or infinity in blocks.2.mlp.W_in"),
        (not_a_number, "found NaN or infinity in embed.W_E"),
        (positions, "expected pos_embed.W_pos to be zero"),
        (integers, "expected embed.W_E as floats of shape"),
        (another_size, "exactly the model's 960006 weights, found 959952 missing"),
        (another_format, "expected format 1, found 99"),
        (unknown_key, "found 'depth'"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, model, task, config, make, text):
    path = tmp_path / "bad.safetensors"
    write_tensors(path, *make(model, task, config))
    with pytest.raises(InputError, match=text):
        load_checkpoint(path)


def test_an_edited_record_is_noticed(tmp_path, saved):
    data = saved.read_bytes()
    edited = data.replace(b'\\"step\\": 7', b'\\"step\\": 9')
    assert edited != data
    saved.write_bytes(edited)
    with pytest.raises(InputError, match="expected contents that match the file's sha256"):
        load_checkpoint(saved)


def test_saving_replaces_a_file_whole_or_not_at_all(tmp_path, saved, model, task, config):
    before = saved.read_bytes()
    with pytest.raises(InputError, match="expected to write a file"):
        save_checkpoint(tmp_path / "missing" / "x.safetensors", model, task, config, {})
    assert saved.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_full_disk_leaves_the_previous_checkpoint_whole(
    monkeypatch, tmp_path, saved, model, task, config
):
    before = saved.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match="No space left on device; what was there before"):
        save_checkpoint(saved, model, task, config, {"step": 8})
    assert saved.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("name", sorted(shipped_checkpoints()))
def test_shipped_checkpoints_carry_their_training_record(name):
    checkpoint = load_checkpoint(name)
    record = checkpoint.training
    run, _, step = name.partition("-step-")
    if step:  # one of a run's checkpoints on the way, shipped to show what emerges
        assert record["step"] == int(step) < record["recipe"]["steps"]
        # The schedule was chosen later; it is the same up to the last fifth of the steps.
        last = load_checkpoint(run).training["recipe"]
        same = ("task", "model", "seed", "learning_rate", "batch", "examples", "steps")
        assert [record["recipe"][key] for key in same] == [last[key] for key in same]
    else:
        assert record["step"] == record["recipe"]["steps"]
        # It errs by less than its circuit may cost; `reproduce` says how good it is.
        assert record["validation_loss"] < 0.5 * checkpoint.task.tolerance
    batch = checkpoint.task.sample(128, seed=123, split="test")
    with torch.no_grad():
        losses = checkpoint.task.example_losses(checkpoint.model(batch.inputs), batch)
    # The record is a mean over 512 other examples; on the way it also is one over the last 100
    # steps, which lags behind a falling loss.
    error = (1 + 128 / 512) ** 0.5 * standard_error(losses.mean(dim=1))
    lag = 0.3 * record["validation_loss"] if step else 0.0
    assert abs(float(losses.mean()) - record["validation_loss"]) < 4 * error + lag
    json.dumps(record)
