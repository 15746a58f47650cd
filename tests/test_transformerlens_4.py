"""What works with TransformerLens 4, on an older one that is made to look like it.

Its bridge and its checkpoint converter are the tests'.
"""

import sys
from types import SimpleNamespace

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.circuits.hooks import is_hooked_transformer
from retrieval_interp.storage.checkpoint import save_checkpoint
from retrieval_interp.storage.files import shipped_checkpoints
from retrieval_interp.tasks import InputError
from tests.oracles import as_bridge

SMALL = ri.RetrievalTask(chains=3, steps=2, dim=4)
NAMES = ["small", "transformer-d", "equations"]  # with an MLP, without, words


@pytest.fixture(scope="module")
def hooked():
    return {name: ri.load_checkpoint(name) for name in NAMES}


@pytest.fixture
def version_4(monkeypatch):
    """TransformerLens 4, which lacks HookedTransformer and has a converter of checkpoints."""
    import transformer_lens

    monkeypatch.setattr("retrieval_interp.circuits.models.either.version", lambda name: "4.3.0")
    for name in ("HookedTransformer", "HookedTransformerConfig"):
        monkeypatch.delattr(transformer_lens, name)
        monkeypatch.setitem(sys.modules, f"transformer_lens.{name}", None)
    monkeypatch.setitem(
        sys.modules,
        "transformer_lens.utilities.tl_checkpoint_conversion",
        SimpleNamespace(convert_tl_checkpoint=as_bridge),
    )
    name = "retrieval_interp.circuits.models.transformer"  # may be loaded by now
    monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_checkpoint_has_the_same_outputs(version_4, hooked, name):
    before = torch.random.get_rng_state()
    bridged = ri.load_checkpoint(name)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not is_hooked_transformer(bridged.model) and not bridged.model.training
    assert (bridged.task, bridged.config) == (hooked[name].task, hooked[name].config)
    inputs = bridged.task.sample(8, split="test").inputs
    expected = hooked[name].model(inputs)
    torch.testing.assert_close(bridged.model(inputs), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["small", pytest.param("transformer-d", marks=pytest.mark.slow)])
def test_a_shipped_circuit_scores_the_same(version_4, without_type_checks, hooked, name, tmp_path):
    file = shipped_checkpoints()[name].parents[1] / "results" / f"{name}.circuit.json"
    scores = []
    for what in (hooked[name], name):
        bench = ri.open(what, examples=8)
        bench.load(file)
        assert bench.scorer.runs.compute_changes_only  # also those of a bridge
        score = bench.score(controls=0).data
        losses = [score.baseline_loss, score.combined_loss, *(row.loss for row in score.heads)]
        losses += [loss for row in score.paths for loss in (row.ablated_loss, row.live_loss)]
        scores.append(losses)
    assert "small" in bench.report(tmp_path / "report.html").read_text() or name != "small"
    assert scores[1] == pytest.approx(scores[0], abs=1e-5)


NEEDED = r'expected transformer-lens 3.9 for .*, found 4.3.0; do `pip install "transformer-lens<4"`'


def test_what_needs_a_hooked_transformer_says_so(version_4, tmp_path, run_command_in_process):
    recipe = ri.Recipe(task=SMALL, steps=2)
    with pytest.raises(InputError, match=NEEDED):
        ri.train_model(recipe, tmp_path / "run", device="cpu")
    with pytest.raises(InputError, match=NEEDED):
        ri.build_model(ri.ModelConfig(), SMALL)
    for command in (["train", "--preset", "small"], ["sweep", "--grid", "section7-ic"]):
        done = run_command_in_process(*command, "--out", tmp_path / "run")
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert "expected transformer-lens 3.9 for training" in done.stderr
    assert not (tmp_path / "run").exists()
    small = ri.load_checkpoint("small")
    with pytest.raises(InputError, match=r"a HookedTransformer, .* \(VectorBridge"):
        save_checkpoint(tmp_path / "x", small.model, small.task, small.config, {})
