"""The benchmarks run, in tiny sizes, and what they count and fit is right. Nothing is timed."""

import importlib
import json
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import retrieval_interp as ri
from examples.reach_the_bound import compile_circuit, jump_head, pair_head
from retrieval_interp.circuits.counterfactual.units import MetricTask
from retrieval_interp.circuits.mechanisms import UNIFORM
from retrieval_interp.circuits.models.plain import PlainTransformer
from tests.models import untrained_bridge
from tests.naive import naive_loss
from tests.texts import pairs

FOLDER = Path(__file__).parent.parent / "benchmarks"
SHARED = {"measure", "elsewhere"}  # which no one calls


@pytest.fixture
def benchmark(monkeypatch):
    """Imports a script of the folder as `python benchmarks/NAME.py` does."""
    for folder in (FOLDER / "foreign", FOLDER):
        monkeypatch.syspath_prepend(str(folder))
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


SCRIPTS = [  # what every row of a script has to say
    ("training_step --presets small --device cpu", lambda row: row["times stock"] > 0),
    # What fails on one device has its error in the row, and the others go on.
    (
        "devices --devices cpu cuda:99 --only ablated",
        lambda row: row["cpu, s"] > 0 and row["other"].startswith("cuda:99: "),
    ),
    ("ablations --device cpu", lambda row: row["hypotheses"] > 100 and row["difference"] < 1e-5),
    (
        "ablations --estimates --device cpu",
        lambda row: row["rank correlation"] > (0.9 if row["estimate"] != "first order" else 0),
    ),
    ("recovery", lambda row: row["exact"] and row["unique"]),
    # Copies cost nothing alone, and are what the sets of paths name.
    ("backups", lambda row: row["alone"] < 0.5 and row["sets"] == 1),
]


NAMES = sorted(file.stem for file in FOLDER.rglob("*.py") if file.stem not in SHARED)


@pytest.mark.parametrize("name", NAMES)
def test_a_script_says_how_it_is_called(benchmark, name, capsys):
    if name == "hops":
        pytest.importorskip("transformer_lens.pretrained")  # of version 3
    with pytest.raises(SystemExit):
        benchmark(name).main(["--help"])
    assert "--quick" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(("line", "holds"), SCRIPTS, ids=lambda value: str(value)[:12])
def test_a_script_runs(rows, line, holds):
    found, lines = rows(*line.split())
    assert found and lines and all(map(holds, found))


@pytest.mark.parametrize("mlp", [True, False])
def test_the_contenders_of_a_training_step_are_alike(benchmark, mlp):
    task = ri.RetrievalTask(steps=2)
    config = ri.ModelConfig(layers=2, heads=2, d_model=16, mlp=mlp)
    model = ri.build_model(config, task)
    contenders = benchmark("training_step")
    stock, plain = contenders.stock_like(model), PlainTransformer.of(model)
    inputs = task.sample(4, 0).inputs
    assert type(stock).__name__ == "HookedTransformer"
    outputs = stock(inputs @ stock.W_E, start_at_layer=0)
    assert torch.allclose(outputs, model(inputs), atol=1e-5)
    assert torch.allclose(plain(inputs), outputs, atol=1e-5)
    sizes = {
        sum(p.numel() for p in each.parameters() if p.requires_grad)
        for each in (model, stock, plain)
    }
    assert len(sizes) == 1


@pytest.mark.slow
def test_pairs_of_copies_are_found_where_one_alone_costs_nothing(rows):
    found, _ = rows("recovery", "--redundant")
    kinds = [(row["sets"], row["single"]) for row in found]
    assert kinds == [([1] * 3, [1] * 3), ([2] * 3, [3] * 3)]


@pytest.mark.slow
def test_walking_and_doubling(rows):
    """With a layer to spare hops are handed on, at the least depth they double."""
    found, _ = rows("walk_or_double", "--models", "k-hop", "k-hop-7")
    kept = [(row["query alone, kept"] > 0.5, row["single hops, kept"] > 0.5) for row in found]
    assert kept == [(False, True), (False, False)]


@pytest.mark.parametrize("reading", ["alone", "first", "last"])
def test_the_papers_search_finds_the_circuit_that_was_built(benchmark, reading):
    """Heads that only enable are kept, unless those that they serve have been replaced before."""
    search, task = benchmark("paper_search"), ri.RetrievalTask(steps=2, dim=8, tokens="unit")
    jumps = (jump_head(1, 1, (1,)), jump_head(3, 2, (2,)))
    built = compile_circuit((pair_head(0), *jumps), task, n_layers=4)
    batch, test = (task.sample(32, split=split) for split in ("discovery", "test"))
    circuit = search.by_hand(built.model, task, batch, 0.05 / 8, reading)
    kept = built.carrying if reading == "last" else built.carrying | built.enabling
    assert set(circuit.paths()) == kept and len(circuit.mechanisms) == 4
    row = search.row(built.model, task, circuit, test)
    (lowest, *_) = sorted(path.head for path in kept)
    uniform = circuit.replace(lowest, UNIFORM)
    for found, changed in (("combined", circuit), ("first layer uniform", uniform)):
        naive = naive_loss(built.model, task, changed, test)
        assert row[found] == pytest.approx(naive, abs=1e-7)
    for path in kept:
        naive = naive_loss(built.model, task, circuit.without(path), test)
        assert row["without"][str(path)] == pytest.approx(naive, abs=1e-7)


@pytest.mark.slow
def test_a_head_that_nothing_can_replace_alone_is_tried_again(rows):
    """The first head of `small` shares its attention, which the live heads above it need."""
    by_reading = {row["reading"]: row for row in rows("paper_search")[0]}
    assert {name: row["as they are"] for name, row in by_reading.items()} == {
        "alone": 1, "first": 0, "last": 0,
    }  # fmt: skip


@pytest.mark.slow
def test_heads_as_rules(rows):
    found, lines = rows("heads_as_rules")
    assert len(lines) == 23 and found[5]["nats"] == found[11]["nats"]  # of all heads


@pytest.fixture
def beside(benchmark, tmp_path):
    """The script, and a model with a prompt and its counterfactual, which nearly is the prompt."""
    model = untrained_bridge("gpt2", tmp_path).double()
    task = ri.PairsTask(pairs(), model.tokenizer)
    batch = task.sample(1)
    other = task.counterfactual(batch, 0)
    differs = batch.inputs != other.inputs
    before, after = int(batch.inputs[differs]), int(other.inputs[differs])
    with torch.no_grad():
        change = torch.randn(32, generator=torch.Generator().manual_seed(0))
        model.embed.weight[after] = model.embed.weight[before] + 1e-5 * change
    return benchmark("why_beside"), (model, MetricTask(task), batch, other)


@pytest.mark.parametrize("way", ["EAP, edges", "EAP-IG, edges"])
def test_estimates_are_what_is_lost_without_a_unit_if_little_changes(beside, way):
    script, (model, *asked) = beside
    for name in ("split_qkv_input", "attn_result", "hook_mlp_in"):
        getattr(model, f"set_use_{name}")(True)
    method = script.WAYS[way](model, *asked)
    estimates, gap = method.estimates(), method.recovery.gap
    marks, compared = [torch.ones_like(units, dtype=torch.bool) for units in estimates], 0
    assert method.kept(marks) == pytest.approx(1, abs=1e-6)
    for units, mark in zip(estimates, marks):
        for place in map(tuple, (units.abs() > 0.01 * abs(gap)).nonzero().tolist()):
            mark[place] = False
            lost = (1 - method.kept(marks)) * gap
            assert float(units[place]) == pytest.approx(lost, rel=0.01)
            mark[place], compared = True, compared + 1
    assert compared > 5


def test_the_areas_of_a_straight_line(benchmark):
    beside = benchmark("why_beside")
    estimates = [torch.arange(1000.0)]
    asked = SimpleNamespace(kept=lambda marks: float(marks[0].sum()) / 1000)
    assert beside.areas(asked, estimates, 1000) == pytest.approx({"CPR": 0.5, "CMD": 0.5})
    (first, second) = beside.marked([torch.tensor([3.0, 1.0]), torch.tensor([2.0])], 2)
    assert first.tolist() == [True, False] and second.tolist() == [True]


PRINTED = """
def run(tokens):
    def predicate_0_0(q_position, k_position):
        return k_position == q_position if q_position is not None else False

    attn_0_0_pattern = select_closest(positions, positions, predicate_0_0)
    attn_0_0_outputs = aggregate(attn_0_0_pattern, tokens)

    def predicate_0_1(q_token, k_token):
        return k_token == "b" if q_token is not None else False

    attn_0_1_pattern = select_closest(tokens, tokens, predicate_0_1)
    attn_0_1_outputs = aggregate(attn_0_1_pattern, tokens)

    def mlp_0_0(attn_0_1_output, token):
        return 1 if (attn_0_1_output, token) == ("b", "a") else 0

    mlp_0_0_outputs = [mlp_0_0(k0, k1) for k0, k1 in zip(attn_0_1_outputs, tokens)]
"""


def test_a_printed_program_is_read_and_made_a_transformer(benchmark, tmp_path):
    """A head that attends to itself, one that finds the nearest b, and an MLP."""
    programs = benchmark("programs")
    assert programs.ranks(3).tolist() == [[6, 2, 4], [1, 6, 2], [3, 1, 6]]
    (tmp_path / "hist.py").write_text(PRINTED)
    held = {"tokens": ["<s>", *"ab"], "positions": range(4), "ones": "_"}
    held |= dict.fromkeys(("attn_0_0_outputs", "attn_0_1_outputs"), held["tokens"])
    rows = [(name, v) for name, values in held.items() for v in values]
    rows += [("mlp_0_0_outputs", number) for number in range(4)]
    lines = [f"{name},{v},{number % 5},{number % 7}" for number, (name, v) in enumerate(rows)]
    (tmp_path / "hist_weights.csv").write_text("\n".join(["feature,value,0,1", *lines]))
    program = programs.Program(tmp_path / "hist.py")
    model = programs.transformer(program, 4)
    # The second has no b, the third one that is first and a nearer one.
    tokens = torch.tensor([[0, 1, 2, 1], [0, 1, 1, 1], [2, 1, 1, 2]])
    outputs, cache = model.run_with_cache(tokens)
    attended = cache["pattern", 0].argmax(-1)
    assert attended[:, 0].tolist() == [[0, 1, 2, 3]] * 3
    assert attended[:, 1].tolist() == [[2, 2, 2, 2], [0, 0, 0, 0], [3, 0, 3, 0]]
    weights = program.weights
    brought = tokens.gather(1, attended[:, 1])
    logits = sum(weights[name][tokens] for name in ("tokens", "attn_0_0_outputs"))
    logits += weights["positions"] + weights["attn_0_1_outputs"][brought] + program.ones
    logits += weights["mlp_0_0_outputs"][((brought == 2) & (tokens == 1)).long()]
    torch.testing.assert_close(outputs, logits, atol=1e-4, rtol=0)
