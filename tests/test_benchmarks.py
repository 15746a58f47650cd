"""The benchmarks run, in tiny sizes, and what they count and fit is right. Nothing is timed."""

import importlib
import json
import math
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from transformer_lens import HookedTransformer

import retrieval_interp as ri

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
    presets = ["small", "transformer-a"]
    options = ["--no-compile", "--rounds", "2", "--steps", "1", "--stock", "--device", "cpu"]
    found, lines = rows("training_step", "--presets", *presets, *options)
    assert [line.split()[0] for line in lines] == presets
    assert [row["precision"] for row in found] == ["float32", "bfloat16"]
    for row in found:
        assert 0 < row["25%"] <= row["ratio"] <= row["75%"] and row["times stock"] > 0


@pytest.mark.parametrize("mlp", [True, False])
def test_the_contenders_of_a_training_step_are_alike(benchmark, mlp):
    task = ri.RetrievalTask(steps=2)
    config = ri.ModelConfig(layers=2, heads=2, d_model=16, mlp=mlp)
    model = ri.build_model(config, task)
    contenders = benchmark("training_step")
    stock = contenders.StockTransformer(model)
    plain = contenders.PlainTransformer(config, task)
    inputs = task.sample(4, 0).inputs
    assert type(stock.hooked) is HookedTransformer
    assert torch.allclose(stock(inputs), model(inputs), atol=1e-5)
    assert plain(inputs).shape == model(inputs).shape
    sizes = {
        sum(p.numel() for p in each.parameters() if p.requires_grad)
        for each in (model, stock, plain)
    }
    assert len(sizes) == 1


def test_ablations(rows):
    (row,), _ = rows("ablations", "--device", "cpu")
    assert row["hypotheses"] == 150 and row["difference"] < 1e-5
    assert min(row["naive/ours"], row["patch/ours"], row["naive/in circuit"]) > 0


@pytest.mark.slow
def test_attribution(rows):
    found, _ = rows("attribution", "--device", "cpu")
    names = ["exact", "first order", "integrated, 5", "integrated, 16"]
    assert [row["estimate"] for row in found] == names
    assert all(-1 <= row["rank correlation"] <= 1 for row in found[1:])


@pytest.mark.slow
def test_growth(rows):
    found, lines = rows("growth")
    assert [line.split()[0] for line in lines] == 4 * ["ablations"] + 4 * ["discovery"]
    assert all(row["exact"] for row in found if row["cost of"] == "discovery")
    # 3 layers of one head, D = 2: each head uniform and identity, and from each of 5 roles to
    # itself and to those before it: 1 + 2 + 3 + 4 + 5 paths.
    assert [row["questions"] for row in found if "questions" in row][4:6] == 2 * [3 * (2 + 15)]


def test_recovery(rows):
    found, lines = rows("recovery")
    assert [row["steps"] for row in found] == [1, 2]
    assert all(row["exact"] and row["unique"] for row in found)
    assert lines[2].split()[:3] == ["truth", "unique", "2"]


def test_recovery_of_copies(rows):
    found, _ = rows("recovery", "--redundant")
    kinds = [(row["sets"], row["single"]) for row in found]
    assert kinds == [([1] * 3, [1] * 3), ([2] * 3, [3] * 3)]


def test_whole_process(rows):
    ((row,), _) = rows("whole_process", "--commands", "ablate --help")
    assert row["status"] == 0
    assert 0 < row["first output s"] <= row["total s"] and row["peak MB"] > 1


def test_walking_and_doubling(rows):
    """With 12 layers only the query moves, with a layer to spare hops are handed on, at the least
    depth they double.
    """
    found, _ = rows("walk_or_double", "--models", "transformer-a", "k-hop", "k-hop-7")
    kept = [(row["query alone, kept"] > 0.5, row["single hops, kept"] > 0.5) for row in found]
    assert kept == [(True, False), (False, True), (False, False)]
    assert (found[2]["least"], found[2]["layers"], found[2]["D"]) == (4, 4, 7)


def test_head_detector_scores_and_what_replacing_shows(benchmark, rows):
    found, _ = rows("head_detector")
    assert [row["change"] for row in found] == sorted(row["change"] for row in found)[::-1]
    script = benchmark("head_detector")
    checkpoint = ri.load_checkpoint("equations")
    model, batch = checkpoint.model, checkpoint.task.sample(8, split="test")[:1]
    _, cache = model.run_with_cache(batch.inputs)
    for head, of_head in script.detected(model, batch).items():
        pattern = cache["pattern", head.layer][0, head.head]
        assert of_head["previous"] == pytest.approx(
            float(pattern.diagonal(-1).sum() / len(pattern))
        )


def test_a_process_is_measured_from_outside(benchmark):
    """Its memory, its output and its status, independent of this process."""
    code = "import sys; x = bytearray(b'x') * 300_000_000; print('out'); sys.exit(3)"
    done = benchmark("measure").run_process([sys.executable, "-c", code])
    assert done.status == 3 and done.output == "out\n"
    assert done.peak > 300_000_000 and done.first <= done.seconds


def test_exponent_of_made_up_costs(benchmark):
    exponent = benchmark("measure").exponent
    sizes = [3, 5, 8, 12]
    assert exponent(sizes, [0.2 * n**1.5 for n in sizes]) == pytest.approx(1.5)
    assert exponent(sizes, [7.0] * 4) == pytest.approx(0)
    # Least squares by hand: logarithms base 2 are (0, 0), (1, 2), (2, 2); the slope is 1.
    assert exponent([1, 2, 4], [1, 4, 4]) == pytest.approx(1)


def test_turns_and_ratios(benchmark):
    measure = benchmark("measure")
    assert measure.ratios([2, 3, 8], [1, 2, 2]) == (2, 1.75, 3)
    assert measure.ratios([2], [1]) == (2, 2, 2)
    called = []
    contenders = {name: lambda n=name: called.append(n) for name in "ab"}
    times = measure.in_turns(contenders, rounds=2, times=2)
    assert "".join(called) == "aabbbbaa"
    assert all(len(each) == 2 and math.isfinite(sum(each)) for each in times.values())
