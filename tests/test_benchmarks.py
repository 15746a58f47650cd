"""The benchmarks run, in tiny sizes, and what they count and fit is right. Nothing is timed."""

import argparse
import importlib
import json
import math
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from transformer_lens import HookedTransformer

from retrieval_interp.config.recipe import Recipe
from retrieval_interp.model import ModelConfig, build_model
from retrieval_interp.reproduce.claims import useful_heads
from retrieval_interp.reproduce.evidence import Evidence
from retrieval_interp.storage.find_checkpoint import find_checkpoint
from retrieval_interp.tasks import RetrievalTask

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    """Imports a script of the folder as `python benchmarks/NAME.py` does."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def run(benchmark, name, tmp_path, capsys, *arguments):
    """Its rows, which are what its table shows."""
    script = benchmark(name)
    file = tmp_path / f"{name}.json"
    script.main(["--quick", "--json", str(file), *arguments])
    data = json.loads(file.read_text())
    printed = capsys.readouterr().out.splitlines()
    (rule,) = [place for place, line in enumerate(printed) if line and not line.strip("- ")]
    assert data["versions"]["torch"] == version("torch")
    assert data["command"].startswith("python benchmarks/")
    return data, printed[rule - 1], printed[rule + 1 :]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_training_step(benchmark, tmp_path, capsys, precision):
    presets = ["small", "transformer-d"]
    arguments = ["--presets", *presets, "--precision", precision, "--no-compile"]
    arguments += ["--rounds", "2", "--steps", "1", "--stock", "--device", "cpu"]
    data, header, lines = run(benchmark, "training_step", tmp_path, capsys, *arguments)
    assert header.split()[:2] == ["preset", "precision"]
    assert [line.split()[:2] for line in lines] == [[name, precision] for name in presets]
    for row in data["rows"]:
        assert 0 < row["25%"] <= row["ratio"] <= row["75%"]
        assert row["GFLOP/s"] > 0 and row["limit %"] > 0


@pytest.mark.parametrize("mlp", [True, False])
def test_the_contenders_of_a_training_step_are_alike(benchmark, mlp):
    task = RetrievalTask(steps=2)
    config = ModelConfig(layers=2, heads=2, d_model=16, mlp=mlp)
    model = build_model(config, task)
    contenders = benchmark("contenders")
    stock = contenders.StockTransformer(model)
    plain = contenders.PlainTransformer(config, task)
    inputs = task.sample(4, 0).inputs
    assert type(stock.hooked) is HookedTransformer
    assert torch.allclose(stock(inputs), model(inputs), atol=1e-5)
    assert plain(inputs).shape == model(inputs).shape
    of_each = [
        sum(p.numel() for p in each.parameters() if p.requires_grad)
        for each in (model, stock, plain)
    ]
    assert len(set(of_each)) == 1


def test_ablation_sweep(benchmark, tmp_path, capsys):
    data, header, _ = run(benchmark, "ablation_sweep", tmp_path, capsys, "--device", "cpu")
    (row,) = data["rows"]
    assert header.split()[0] == "model" and row["hypotheses"] == 150
    assert row["difference"] < 1e-5 and min(row["naive/ours"], row["patch/ours"]) > 0


@pytest.mark.slow
def test_attribution(benchmark, tmp_path, capsys):
    data, _, lines = run(benchmark, "attribution", tmp_path, capsys, "--device", "cpu")
    names = ["exact", "first order", "logits", "integrated, 5", "integrated, 16"]
    assert [row["estimate"] for row in data["rows"]] == names and len(lines) == 5
    assert all(-1 <= row["rank correlation"] <= 1 for row in data["rows"][1:])


@pytest.mark.slow
def test_growth(benchmark, tmp_path, capsys):
    page = tmp_path / "growth.html"
    data, _, lines = run(benchmark, "growth", tmp_path, capsys, "--out", str(page))
    expected = [
        (kind, against)
        for kind in ("sweep", "discovery")
        for against in ("layers", "steps D", "chains N", "examples")
    ]
    assert [tuple(line.split("  ")[0].split()) for line in lines] == [(k,) for k, _ in expected]
    assert all(against in line for (_, against), line in zip(expected, lines))
    assert all(row["exact"] for row in data["rows"] if row["cost of"] == "discovery")
    # 3 layers of one head, D = 2: each head uniform and identity, and from each of 5 roles to
    # itself and to those before it: 1 + 2 + 3 + 4 + 5 paths.
    (questions,) = {
        row["questions"]
        for row in data["rows"]
        if row["cost of"] == "sweep" and row["varied"] == "chains"
    }
    assert questions == 3 * (2 + 15)
    assert "exponent" in page.read_text()


def test_discovery_recovery(benchmark, tmp_path, capsys):
    data, header, lines = run(benchmark, "discovery_recovery", tmp_path, capsys, "--examples", "32")
    assert [row["steps"] for row in data["rows"]] == [1, 2]
    assert all(row["exact"] and row["unique"] for row in data["rows"])
    assert [line.split()[:3] for line in lines[:2]] == [["D", "=", "1"], ["D", "=", "2"]]
    assert lines[2].split()[:3] == ["truth", "unique", "2"] and "enabling recall" in header


def test_redundancy_recovery(benchmark, tmp_path, capsys):
    options = ["--examples", "32", "--models", "2"]
    data, header, lines = run(benchmark, "redundancy_recovery", tmp_path, capsys, *options)
    assert [(row["sets"], row["alone"]) for row in data["rows"]] == [
        ([1] * 3, [1] * 3),
        ([2] * 3, [3] * 3),
    ]
    assert lines[-1].split()[:3] == ["all", "2", "3"] and "sets recall" in header


def test_whole_process(benchmark, tmp_path, capsys):
    asked = ["ablate --help"]
    data, _, lines = run(benchmark, "whole_process", tmp_path, capsys, "--commands", *asked)
    (row,) = data["rows"]
    assert lines[0].startswith(asked[0]) and row["status"] == 0
    assert 0 < row["first output s"] <= row["total s"] and row["peak MB"] > 1


@pytest.mark.slow
def test_memory(benchmark, tmp_path, capsys):
    arguments = ["--cases", "score", "--device", "cpu", "--threads", "1"]
    data, _, lines = run(benchmark, "memory", tmp_path, capsys, *arguments)
    (row,) = data["rows"]
    assert lines[0].startswith("score  small, 16 examples") and row["case"] == "score"
    assert row["peak GB"] >= row["loaded GB"] > 0.05


def test_a_process_is_measured_alone(benchmark):
    """Its memory, its output and its status, whatever this process is like."""
    code = "import sys; x = bytearray(b'x') * 300_000_000; print('out'); sys.exit(3)"
    done = benchmark("measure").run_process([sys.executable, "-c", code], FOLDER)
    assert done.status == 3 and done.output == "out\n"
    assert done.peak > 300_000_000 and done.first <= done.seconds


@pytest.mark.parametrize(
    "config",
    [
        ModelConfig(layers=2, heads=1, d_model=32),
        ModelConfig(layers=3, heads=4, d_model=16),
        ModelConfig(layers=2, heads=1, d_model=48, d_head=5, mlp=False),
    ],
)
def test_flops_of_a_step_are_those_that_products_of_its_sizes_take(benchmark, config):
    """A product of [m, k] and [k, n] takes 2 m k n; the way back takes twice as many.

    Nobody asks for the gradient of the inputs. The causal mask spares no product.
    """
    recipe = Recipe(task=RetrievalTask(steps=2, chains=3), model=config, batch=7)
    positions, width = recipe.task.n_positions, config.heads * config.head_width
    rows, mlp = 2 * 7 * positions, 8 * config.d_model**2 if config.mlp else 0
    read, write = (n * config.d_model for n in (recipe.task.d_in, recipe.task.d_out))
    layer = 4 * config.d_model * width + 2 * positions * width + mlp
    expected = rows * (3 * (read + config.layers * layer + write) - read)
    assert benchmark("training_step").step_flops(recipe, torch.device("cpu")) == expected


def test_exponent_of_made_up_costs(benchmark):
    exponent = benchmark("measure").exponent
    sizes = [3, 5, 8, 12]
    assert exponent(sizes, [0.2 * n**1.5 for n in sizes]) == pytest.approx(1.5)
    assert exponent(sizes, [7.0] * 4) == pytest.approx(0)
    # Least squares by hand: logarithms base 2 are (0, 0), (1, 2), (2, 2); the slope is 1.
    assert exponent([1, 2, 4], [1, 4, 4]) == pytest.approx(1)


def test_tables_and_turns(benchmark, capsys):
    measure = benchmark("measure")
    rows = [{"name": "a", "s": 0.12345, "n": None}, {"name": "long", "s": 12345.6, "n": 2}]
    measure.report(rows, measure.arguments("x").parse_args([]), [])
    assert capsys.readouterr().out == (
        "name      s  n\n"
        "----  -----  -\n"
        "a     0.123\n"
        "long  12346  2\n"
    )  # fmt: skip
    assert measure.ratios([2, 3, 8], [1, 2, 2]) == (2, 1.75, 3)
    assert measure.ratios([2], [1]) == (2, 2, 2)
    called = []
    contenders = {name: lambda n=name: called.append(n) for name in "ab"}
    times = measure.in_turns(contenders, rounds=2, times=2)
    assert "".join(called) == "aabbbbaa"
    assert all(len(each) == 2 and math.isfinite(sum(each)) for each in times.values())


def test_head_detector_scores_stand_beside_what_replacing_shows(benchmark, tmp_path, capsys):
    script = benchmark("head_detector")
    file = tmp_path / "rows.json"
    script.main(["--quick", "--json", str(file)])
    rows = json.loads(file.read_text())["rows"]
    printed = capsys.readouterr().out
    assert [row["change"] for row in rows] == sorted((row["change"] for row in rows), reverse=True)
    model, task = script.load(argparse.Namespace(model="equations", text=None))
    batch = task.sample(8, split="test")[:1]
    _, cache = model.run_with_cache(batch.inputs)
    scores = script.detected(model, batch)
    for head, of_head in scores.items():
        pattern = cache["pattern", head.layer][0, head.head]
        assert of_head["previous"] == pytest.approx(
            float(pattern.diagonal(-1).sum() / len(pattern))
        )
    needed = [row for row in rows if row["score"] < 0.4 and row["of_knowledge"] >= 0.05]
    assert f"not similar: {len(needed)} of 6 heads" in printed and needed


def test_what_two_versions_write_is_compared_to_the_last_word(benchmark):
    differences = benchmark("versions").differences
    ours = {"losses": [1.0, 2], "path": "s0<-s2", "none": None}
    assert differences(ours, {**ours, "losses": [1.5, 2]}) == [0.5, 0]
    for other in ({**ours, "path": "s0<-s1"}, {**ours, "losses": [1.0]}, {"path": "s0<-s2"}):
        assert math.inf in differences(ours, other)


def test_walking_and_doubling(benchmark, tmp_path, capsys):
    """With 12 layers the query walks alone, with a layer to spare hops are handed on, at the least
    depth they double.
    """
    models = ["transformer-a", "k-hop", "k-hop-7"]
    data, _, lines = run(benchmark, "walk_or_double", tmp_path, capsys, "--models", *models)
    assert [line.split()[0] for line in lines] == models
    walking, handing, doubling = data["rows"]
    assert walking["query alone, kept"] > 0.95 and walking["single hops, kept"] < 0.5
    assert handing["query alone, kept"] < 0.5 and handing["single hops, kept"] > 0.95
    assert doubling["query alone, kept"] < 0.5 and doubling["single hops, kept"] < 0.5
    assert (doubling["least"], doubling["layers"], doubling["D"]) == (4, 4, 7)


def test_the_hops_that_are_cut(benchmark):
    script = benchmark("walk_or_double")
    cut = {
        kind: {str(path) for path in script.hops(5, rule)} for kind, rule in script.KINDS.items()
    }
    assert cut["single hops"] == {"s0<-s4", "s1<-s4"}
    assert cut["query alone"] == {"s1<-s2", "s1<-s3", "s1<-s4", "s2<-s4", "s3<-s4"}


def test_hops_by_depth(benchmark, tmp_path, capsys):
    data, _, _ = run(benchmark, "k_hop_depth", tmp_path, capsys, "--models", "k-hop", "k-hop-7")
    assert [row["hops by bound"] for row in data["rows"]] == [3, 7]
    for row in data["rows"]:
        assert min(share for key, share in row.items() if key.startswith("k=")) > 0.99


@pytest.mark.slow
def test_the_circuit_of_every_checkpoint(benchmark, tmp_path, capsys, monkeypatch):
    """Of a folder that holds `small` twice; rows that are there are not made again."""
    script = benchmark("circuit_by_step")
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    for step in (2, 3, 4):
        (folder / f"step-{step:06d}.safetensors").symlink_to(find_checkpoint("small"))
    options = ("--run", str(tmp_path / "run"))
    data, _, _ = run(benchmark, "circuit_by_step", tmp_path, capsys, *options, "--every", "4")
    (only,) = data["rows"]
    shipped = Evidence().trained("small")
    assert only["step"] == 4 and only["with circuit"] < 0.05
    assert only["loss"] == pytest.approx(shipped.fresh_loss[0])
    assert only["heads"] == useful_heads(shipped.circuit)
    assert only["paths"] == sum(only[place] for place in ("inside", "below", "above"))
    assert only["circuit"].count("\n") == 4
    made = []
    monkeypatch.setattr(script, "row", lambda step, file: made.append(step) or {**only, "step": 2})
    script.main([*options, "--every", "2", "--json", str(tmp_path / "circuit_by_step.json")])
    assert made == [2]
