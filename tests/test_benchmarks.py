"""The benchmarks run, in tiny sizes, and what they count and fit is right. Nothing is timed."""

import importlib
import json
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from transformer_lens import HookedTransformer

import retrieval_interp as ri
from retrieval_interp.circuits.models.plain import PlainTransformer

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    """Imports a script of the folder as `python benchmarks/NAME.py` does."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


@pytest.fixture
def rows(benchmark, tmp_path, capsys):
    """Runs a script; gives its rows, which are what its table shows, and the table's lines."""

    def run(name, *arguments):
        file = tmp_path / f"{name}.json"
        benchmark(name).main(["--quick", "--json", str(file), *arguments])
        data = json.loads(file.read_text())
        assert data["versions"]["torch"] == version("torch")
        assert data["command"].startswith("python benchmarks/")
        printed = capsys.readouterr().out.splitlines()
        (rule,) = [place for place, line in enumerate(printed) if line and not line.strip("- ")]
        return data["rows"], printed[rule + 1 :]

    return run


def test_training_step(rows):
    presets = ["small", "conditional"]
    found, lines = rows("training_step", "--presets", *presets, "--device", "cpu")
    assert [line.split()[0] for line in lines] == presets
    assert all(row["ratio"] > 0 and row["times stock"] > 0 for row in found)


@pytest.mark.slow
def test_devices(rows):
    """What fails on one device has its error in the row, and the others go on."""
    found, _ = rows("devices", "--devices", "cpu", "cuda:99", "--only", "ablated")
    for row in found:
        assert row["cpu, s"] > 0 and row["cuda:99, s"] is None
        assert row["other"].startswith("cuda:99: ")


@pytest.mark.parametrize("mlp", [True, False])
def test_the_contenders_of_a_training_step_are_alike(benchmark, mlp):
    task = ri.RetrievalTask(steps=2)
    config = ri.ModelConfig(layers=2, heads=2, d_model=16, mlp=mlp)
    model = ri.build_model(config, task)
    contenders = benchmark("training_step")
    stock, plain = contenders.stock_like(model), PlainTransformer.of(model)
    inputs = task.sample(4, 0).inputs
    assert type(stock) is HookedTransformer
    outputs = stock(inputs @ stock.W_E, start_at_layer=0)
    assert torch.allclose(outputs, model(inputs), atol=1e-5)
    assert torch.allclose(plain(inputs), outputs, atol=1e-5)
    sizes = {
        sum(p.numel() for p in each.parameters() if p.requires_grad)
        for each in (model, stock, plain)
    }
    assert len(sizes) == 1


@pytest.mark.slow
def test_ablations(rows):
    (row,), _ = rows("ablations", "--device", "cpu")
    assert row["hypotheses"] > 100 and row["difference"] < 1e-5
    assert min(row["naive/ours"], row["patch/ours"], row["naive in circuit/in circuit"]) > 0


@pytest.mark.slow
def test_estimates(rows):
    found, _ = rows("ablations", "--estimates", "--device", "cpu")
    assert found[0]["estimate"] == "exact" and len(found) == 7
    assert all(-1 <= row["rank correlation"] <= 1 for row in found)


@pytest.mark.slow
def test_recovery(rows):
    found, _ = rows("recovery")
    assert [row["steps"] for row in found] == [1, 2]
    assert all(row["exact"] and row["unique"] for row in found)
    found, _ = rows("recovery", "--redundant")
    kinds = [(row["sets"], row["single"]) for row in found]
    assert kinds == [([1] * 3, [1] * 3), ([2] * 3, [3] * 3)]


@pytest.mark.slow
def test_walking_and_doubling(rows):
    """With a layer to spare hops are handed on, at the least depth they double."""
    found, _ = rows("walk_or_double", "--models", "k-hop", "k-hop-7")
    kept = [(row["query alone, kept"] > 0.5, row["single hops, kept"] > 0.5) for row in found]
    assert kept == [(False, True), (False, False)]


def test_head_detector(rows):
    found, _ = rows("head_detector")
    assert {row["detected"] for row in found} <= {"previous", "duplicate", "induction"}


@pytest.mark.slow
def test_heads_as_rules(rows):
    found, lines = rows("heads_as_rules")
    assert len(lines) == 22 and found[5]["nats"] == found[11]["nats"]  # of all heads
