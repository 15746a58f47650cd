"""What works with TransformerLens 4, on an older one that is made to look like it.

Its bridge and its checkpoint converter are the tests'.
"""

import sys
from contextlib import contextmanager, nullcontext
from itertools import product
from types import SimpleNamespace

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.circuits.hooks import is_hooked_transformer
from tests.oracles import as_bridge

SMALL = ri.RetrievalTask(chains=3, steps=2, dim=4)
NAMES = ["small", "transformer-d", "equations"]  # with an MLP, without, words


@pytest.fixture(scope="module")
def hooked():
    return {name: ri.load_checkpoint(name) for name in NAMES}


@contextmanager
def transformerlens_4():
    """TransformerLens 4, which lacks HookedTransformer and has a converter of checkpoints."""
    import transformer_lens

    name = "retrieval_interp.circuits.models"
    converter = SimpleNamespace(convert_tl_checkpoint=as_bridge)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{name}.plain.version", lambda name: "4.3.0")
        for missing in ("HookedTransformer", "HookedTransformerConfig"):
            patch.delattr(transformer_lens, missing)
            patch.setitem(sys.modules, f"transformer_lens.{missing}", None)
        home = "transformer_lens.utilities.tl_checkpoint_conversion"
        patch.setitem(sys.modules, home, converter)
        patch.delitem(sys.modules, f"{name}.transformer", raising=False)  # may be loaded by now
        yield


@pytest.fixture
def version_4():
    with transformerlens_4():
        yield


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_checkpoint_has_the_same_outputs(version_4, hooked, name, tmp_path):
    before = torch.random.get_rng_state()
    bridged = ri.load_checkpoint(name)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not is_hooked_transformer(bridged.model) and not bridged.model.training
    assert (bridged.task, bridged.config) == (hooked[name].task, hooked[name].config)
    inputs = bridged.task.sample(8, split="test").inputs
    expected = hooked[name].model(inputs)
    torch.testing.assert_close(bridged.model(inputs), expected, atol=1e-5, rtol=0)
    with pytest.raises(ri.InputError, match=r"a native bridge, found another model \(Linear"):
        linear, sizes = torch.nn.Linear(1, 1), ri.ModelConfig(layers=1, heads=2, d_model=8)
        ri.save_checkpoint(tmp_path / "linear", linear, SMALL, sizes, {})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["small", "transformer-d"])
def test_a_shipped_circuit_scores_the_same(version_4, without_type_checks, hooked, name, tmp_path):
    file = ri.shipped_checkpoints()[name].parents[1] / "results" / f"{name}.circuit.json"
    scores = []
    for what in (hooked[name], name):
        bench = ri.open(what, examples=8)
        bench.load(file)
        assert bench.scorer.runs.are_cheap  # also those of a bridge
        score = bench.score(controls=0).data
        losses = [score.baseline_loss, score.combined_loss, *(row.loss for row in score.heads)]
        losses += [loss for row in score.paths for loss in (row.removed_loss, row.live_loss)]
        scores.append(losses)
    assert "small" in bench.report(tmp_path / "report.html").read_text() or name != "small"
    assert scores[1] == pytest.approx(scores[0], abs=1e-5)


def stop(step, row):
    if step == 3:
        raise KeyboardInterrupt


@pytest.mark.parametrize("task", [SMALL, ri.KHopTask(hops=1)], ids=["vectors", "words"])
def test_training_is_that_of_a_hooked_transformer(task, tmp_path):
    """With either version alone, and resumed with the other: the same losses and outputs."""
    sizes, every = ri.ModelConfig(layers=2, heads=2, d_model=8), 2
    recipe = ri.Recipe(task, sizes, 6, 4, 16, log_every=every, checkpoint_every=every)
    versions = {"3": nullcontext, "4": transformerlens_4}
    trained, inputs = {}, task.sample(4, split="test").inputs
    for begun, resumed in product("34", "34"):
        run = tmp_path / (begun + resumed)
        if begun != resumed:
            with versions[begun](), pytest.raises(KeyboardInterrupt):
                ri.train_model(recipe, run, "cpu", compile=False, on_step=stop)
        with versions[resumed]():
            trained[run] = ri.train_model(recipe, run, "cpu", compile=False)
            opened = ri.load_checkpoint(run).model
        for model in (opened, trained[run].model):
            assert is_hooked_transformer(model) is (resumed == "3") and not model.training
        with torch.no_grad():
            torch.testing.assert_close(opened(inputs), trained[run].model(inputs))
    first, *others = trained.values()
    for other in others:
        with torch.no_grad():
            torch.testing.assert_close(
                other.model(inputs), first.model(inputs), atol=1e-5, rtol=1e-5
            )
        for row, expected in zip(other.metrics, first.metrics, strict=True):
            assert row["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-5)
            assert row["validation_loss"] == pytest.approx(expected["validation_loss"], rel=1e-5)
