"""Files: checkpoints, and graphs of EAP-IG."""

import json
import os
import random
import struct
from types import SimpleNamespace as Made

import pytest
import torch
from safetensors.torch import load_file, save_file

import retrieval_interp as ri
from retrieval_interp.circuits.counterfactual.keep_search import Share
from retrieval_interp.circuits.counterfactual.units import Unit
from retrieval_interp.circuits.losses import standard_error
from retrieval_interp.storage.checkpoint import load_checkpoint, save_checkpoint, write_tensors
from retrieval_interp.storage.files import shipped_checkpoints, writable, write_whole
from retrieval_interp.tasks.structured import to_data


@pytest.fixture
def saved(tmp_path, model, task, config):
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, model, task, config, {"step": 7})
    return path


def test_what_is_no_checkpoint_is_refused(tmp_path, saved, task, config):
    with pytest.raises(ri.InputError, match="'nothing': expected a shipped name"):
        load_checkpoint("nothing")
    with pytest.raises(ri.InputError, match="found none; those of steps are in the repository"):
        ri.load_checkpoint("transformer-d-step-1")
    with pytest.raises(ri.InputError, match="expected a run folder with checkpoints/step-"):
        load_checkpoint(tmp_path)
    with pytest.raises(ri.InputError, match=r"a native bridge, found another model \(Linear"):
        save_checkpoint(tmp_path / "linear", torch.nn.Linear(1, 1), task, config, {})
    save_file({"a": torch.zeros(2)}, tmp_path / "other")
    data = saved.read_bytes()
    cut = {length: data[:length] for length in (0, 4, 8, 100, len(data) // 2, len(data) - 1)}
    huge = struct.pack("<Q", 2**62) + b"{}"
    for content in (b"not a checkpoint", (tmp_path / "other").read_bytes(), huge, *cut.values()):
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises(ri.InputError, match="expected a checkpoint, a whole safetensors file"):
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
        with pytest.raises(ri.InputError):
            load_checkpoint(tmp_path / "flipped")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda weights, content: content["task"].update(name="words"), "task: expected the name"),
        (lambda weights, content: content["task"].update(steps=3), "pos_embed.W_pos|unembed.b_U"),
        (lambda weights, content: content["model"].update(depth=3), "found 'depth'"),
        (lambda weights, content: content.update(format=99), "format: .*99"),
        (lambda weights, content: weights.pop("blocks.1.attn.b_K"), "blocks.1.attn.b_K"),
        (lambda weights, content: weights.update(W_X=torch.zeros(3)), "W_X of shape None"),
        (lambda weights, content: weights["unembed.b_U"].fill_(torch.inf), "infinity in unembed"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, saved, task, config, change, text):
    tensors = load_file(saved)
    content = {"format": 1, "model": to_data(config), "task": task.to_dict(), "training": {}}
    change(tensors, content)
    write_tensors(tmp_path / "bad", tensors, content)
    with pytest.raises(ri.InputError, match=text):
        load_checkpoint(tmp_path / "bad")


SHIPPED = sorted(shipped_checkpoints())
ON_THE_WAY = [name for name in SHIPPED if "-step-" in name]  # they show what emerges


@pytest.mark.parametrize("name", [name for name in SHIPPED if name not in ON_THE_WAY])
def test_shipped_models_are_the_last_of_their_runs_and_have_learned(name):
    checkpoint = load_checkpoint(name)
    assert checkpoint.training["step"] == checkpoint.training["recipe"]["steps"]
    # It errs by less than its circuit may cost; `reproduce` says how good it is.
    assert checkpoint.training["validation_loss"] < 0.5 * checkpoint.task.tolerance


@pytest.mark.parametrize("name", ON_THE_WAY)
def test_shipped_checkpoints_on_the_way_are_of_their_models_run(name):
    run, _, step = name.partition("-step-")
    record, last = (load_checkpoint(each).training for each in (name, run))
    assert record["step"] == int(step) < record["recipe"]["steps"]
    # The schedule was chosen later; it is the same up to the last fifth of the steps.
    for key in ("task", "model", "seed", "learning_rate", "batch", "examples", "steps"):
        assert record["recipe"][key] == last["recipe"][key]


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_checkpoints_have_the_loss_of_their_record(name):
    checkpoint = load_checkpoint(name)
    recorded = checkpoint.training["validation_loss"]
    batch = checkpoint.task.sample(64, seed=123, split="test")
    with torch.no_grad():
        losses = checkpoint.task.example_losses(checkpoint.model(batch.inputs), batch)
    # The record is a mean over 512 other examples; on the way it also is one over the last 100
    # steps, which lags behind a falling loss.
    error = (1 + 64 / 512) ** 0.5 * standard_error(losses.mean(dim=1))
    lag = 0.3 * recorded if name in ON_THE_WAY else 0.0
    assert abs(float(losses.mean()) - recorded) < 4 * error + lag


def test_a_shipped_circuit_has_its_loss_with_hooks():
    """With TransformerLens 4 (`make test-4`) of a bridge, which is run by roles as well."""
    bench = ri.open("small", examples=64)
    bench.load(shipped_checkpoints()["small"].parents[1] / "results" / "small.circuit.json")
    with torch.no_grad(), ri.ablated(bench.model, bench.circuit, bench.batch):
        loss = float(bench.task.loss(bench.model(bench.batch.inputs), bench.batch))
    assert bench.scorer.runs.are_cheap and bench.loss == pytest.approx(loss, abs=1e-5)
    assert loss < bench.tolerance


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


@pytest.mark.parametrize("parallel", [False, True])
def test_a_graph_has_the_heads_and_all_that_they_can_read(tmp_path, parallel, without_type_checks):
    """What reads what is stated here by ranks in the order in which a model computes."""
    cfg = Made(n_layers=2, n_heads=2, d_model=4, parallel_attn_mlp=parallel)
    shares = {"L0.H1 s0<-s1": 0.25, "L1.H0 s0": 0.5, "L1.H0 s1<-s1": 0.75}
    scores = [Made(unit=Unit.parse(u, 2), without=Share(s, 0.0)) for u, s in shares.items()]
    why = Made(units=scores, levels=[Made(kept=Share(1.0, 0.0))])
    graph = ri.eap_graph(why, Made(cfg=cfg))
    assert graph["cfg"] == vars(cfg)
    heads = {name: node["score"] for name, node in graph["nodes"].items() if name[0] == "a"}
    assert heads == {"a0.h0": 0.0, "a0.h1": 0.75, "a1.h0": 0.75, "a1.h1": 0.0}
    kept = {name for name, node in graph["nodes"].items() if node["in_graph"]}
    assert kept == {"input", "a0.h1", "m0", "a1.h0", "m1"}
    ranks = {"input": 0, "a0.h1": 1, "m0": 1 if parallel else 2, "a1.h0": 3}
    ranks |= {"m1": 3 if parallel else 4, "logits": 5}
    expected = {
        f"{source}->{node}{end}"
        for node, rank in ranks.items()
        for source, before in ranks.items()
        for end in (("<q>", "<k>", "<v>") if node[0] == "a" else ("",))
        if before < rank
    }
    assert set(graph["edges"]) == expected
    assert all(edge["in_graph"] for edge in graph["edges"].values())
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(graph))
    assert ri.heads_in_graph(path) == ["L0.H1", "L1.H0"]
    path.write_text("{}")
    with pytest.raises(ri.InputError, match=r"graph.json: expected a graph of EAP-IG with nodes"):
        ri.heads_in_graph(path)
