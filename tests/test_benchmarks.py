"""The benchmarks run, in tiny sizes, and what they count and fit is right. Nothing is timed."""

import importlib
import json
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from transformer_lens import HookedTransformer

import retrieval_interp as ri
from tests.browser import needs_chromium

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
    assert [row["precision"] for row in found] == ["float32", "bfloat16"]
    for row in found:
        assert 0 < row["25%"] <= row["ratio"] <= row["75%"] and row["times stock"] > 0


def test_devices(rows):
    """What fails on one device has its error in the row, and the others go on."""
    asked = ["--devices", "cpu", "cuda:99", "--only", "ablated", "check_hook"]
    found, _ = rows("devices", "--device", "cpu", *asked)
    assert [row["model"] for row in found] == ["small", "small", "llama", "llama"]
    for row in found:
        assert row["cpu, s"] > 0 and row["cuda:99, s"] is None
        assert row["other"].startswith("cuda:99: ") and row["difference"] is None


@pytest.mark.browser
@needs_chromium
@pytest.mark.slow
def test_click_times(rows):
    for row in rows("click_times")[0]:
        assert row["clicks"] and 0 < row["frame, ms"] < row["tables, ms"] < row["last, ms"]


@pytest.mark.parametrize("mlp", [True, False])
def test_the_contenders_of_a_training_step_are_alike(benchmark, mlp):
    task = ri.RetrievalTask(steps=2)
    config = ri.ModelConfig(layers=2, heads=2, d_model=16, mlp=mlp)
    model = ri.build_model(config, task)
    contenders = benchmark("training_step")
    stock, plain = contenders.stock_like(model), contenders.PlainTransformer(config, task)
    inputs = task.sample(4, 0).inputs
    assert type(stock) is HookedTransformer
    outputs = stock(inputs @ stock.W_E, start_at_layer=0)
    assert torch.allclose(outputs, model(inputs), atol=1e-5)
    assert plain(inputs).shape == outputs.shape
    sizes = {
        sum(p.numel() for p in each.parameters() if p.requires_grad)
        for each in (model, stock, plain)
    }
    assert len(sizes) == 1


def test_ablations(rows):
    (row,), _ = rows("ablations", "--device", "cpu")
    assert row["hypotheses"] > 100 and row["difference"] < 1e-5
    assert min(row["naive/ours"], row["patch/ours"], row["naive in circuit/in circuit"]) > 0


@pytest.mark.slow
def test_estimates(rows):
    found, _ = rows("ablations", "--estimates", "--device", "cpu")
    several = [f"curvature, {n}" for n in (1, 4, 16)] + [f"integrated, {n}" for n in (5, 16)]
    assert [row["estimate"] for row in found] == ["exact", "first order", *several]
    assert all(-1 <= row["rank correlation"] <= 1 for row in found) and found[0]["seconds"] > 0


def test_recovery(rows):
    found, lines = rows("recovery")
    assert [row["steps"] for row in found] == [1, 2]
    assert all(row["exact"] and row["unique"] for row in found)
    assert lines[0].split()[:3] == ["truth", "unique", "2"]


def test_recovery_of_copies(rows):
    found, _ = rows("recovery", "--redundant")
    kinds = [(row["sets"], row["single"]) for row in found]
    assert kinds == [([1] * 3, [1] * 3), ([2] * 3, [3] * 3)]


def test_walking_and_doubling(rows):
    """With 12 layers only the query moves, with a layer to spare hops are handed on, at the least
    depth they double.
    """
    found, _ = rows("walk_or_double", "--models", "transformer-a", "k-hop", "k-hop-7")
    kept = [(row["query alone, kept"] > 0.5, row["single hops, kept"] > 0.5) for row in found]
    assert kept == [(True, False), (False, True), (False, False)]
    assert (found[2]["least"], found[2]["layers"], found[2]["D"]) == (4, 4, 7)


def test_head_detector(rows):
    found, _ = rows("head_detector")
    assert [row["change"] for row in found] == sorted(row["change"] for row in found)[::-1]
    assert {row["detected"] for row in found} <= {"previous", "duplicate", "induction"}


def test_heads_as_rules(benchmark, rows):
    found, lines = rows("heads_as_rules")
    heads = found[23:]
    assert len(lines) == 22 and found[5]["nats"] == found[11]["nats"]  # of all heads
    costs, shares = ([head[key] for head in heads] for key in ("cost", "share"))
    summed = benchmark("heads_as_rules").correlations(shares, [abs(cost) for cost in costs])
    assert summed["summed"] == summed["shuffled"] == pytest.approx(-1)
