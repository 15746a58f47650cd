import json
import os
import random
import struct

import pytest
import torch
from safetensors.torch import save_file

from retrieval_interp.circuits.losses import standard_error
from retrieval_interp.storage.checkpoint import load_checkpoint, save_checkpoint, write_tensors
from retrieval_interp.storage.files import (
    find_checkpoint,
    shipped_checkpoints,
    writable,
    write_whole,
)
from retrieval_interp.tasks import InputError
from retrieval_interp.tasks.structured import to_data


@pytest.fixture
def saved(tmp_path, model, task, config):
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, model, task, config, {"step": 7})
    return path


def test_names_files_and_run_folders_are_found(tmp_path, saved):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for step in (80, 160):
        target = tmp_path / "run" / "checkpoints" / f"step-{step:06d}.safetensors"
        target.write_bytes(saved.read_bytes())
    assert find_checkpoint(str(tmp_path / "run")).name == "step-000160.safetensors"
    assert find_checkpoint("small") == shipped_checkpoints()["small"]


def test_what_is_no_checkpoint_is_refused(tmp_path, saved):
    with pytest.raises(InputError, match=r"'nothing': expected a file, .* one of: .*small"):
        load_checkpoint("nothing")
    with pytest.raises(InputError, match="expected a run folder with checkpoints/step-"):
        load_checkpoint(tmp_path)
    save_file({"a": torch.zeros(2)}, tmp_path / "other")
    data = saved.read_bytes()
    cut = {length: data[:length] for length in (0, 4, 8, 100, len(data) // 2, len(data) - 1)}
    huge = struct.pack("<Q", 2**62) + b"{}"
    for content in (b"not a checkpoint", (tmp_path / "other").read_bytes(), huge, *cut.values()):
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises(InputError, match="expected a checkpoint, a whole safetensors file"):
            load_checkpoint(tmp_path / "bad")


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


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda weights, content: content["task"].update(name="words"), "task: expected the name"),
        (lambda weights, content: content["task"].update(steps=3), "pos_embed.W_pos|unembed.b_U"),
        (lambda weights, content: content["model"].update(depth=3), "found 'depth'"),
        (lambda weights, content: content.update(format=99), "format: .*99"),
        (lambda weights, content: weights.pop("blocks.1.attn.W_K"), "blocks.1.attn.W_K"),
        (lambda weights, content: weights.update(W_X=torch.zeros(3)), "W_X of shape None"),
        (lambda weights, content: weights["unembed.b_U"].fill_(torch.inf), "infinity in unembed"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, model, task, config, change, text):
    tensors = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    content = {"format": 1, "model": to_data(config), "task": task.to_dict(), "training": {}}
    change(tensors, content)
    write_tensors(tmp_path / "bad", tensors, content)
    with pytest.raises(InputError, match=text):
        load_checkpoint(tmp_path / "bad")


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
    batch = checkpoint.task.sample(64, seed=123, split="test")
    with torch.no_grad():
        losses = checkpoint.task.example_losses(checkpoint.model(batch.inputs), batch)
    # The record is a mean over 512 other examples; on the way it also is one over the last 100
    # steps, which lags behind a falling loss.
    error = (1 + 64 / 512) ** 0.5 * standard_error(losses.mean(dim=1))
    lag = 0.3 * record["validation_loss"] if step else 0.0
    assert abs(float(losses.mean()) - record["validation_loss"]) < 4 * error + lag
    json.dumps(record)


def test_links_and_pipes_are_written_through_and_not_replaced(tmp_path):
    target, link, pipe = (tmp_path / name for name in ("target", "link", "pipe"))
    target.write_text("before")
    link.symlink_to(target)
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for path in (link, pipe):
        write_whole(writable(path), "after")
    assert os.read(reader, 100) == b"after" and pipe.is_fifo()
    os.close(reader)
    assert link.is_symlink() and target.read_text() == "after"
    assert sorted(tmp_path.iterdir()) == [link, pipe, target]
