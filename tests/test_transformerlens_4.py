"""Training with TransformerLens 3 and 4 in turns; the latter is a 3 that is made to look like it.

Its bridge and its checkpoint converter are the tests'. `make test-4` runs tests with a real one.
"""

import sys
from contextlib import contextmanager, nullcontext
from itertools import product
from types import SimpleNamespace

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.circuits.hooks import is_hooked_transformer
from tests.models import bridge_weights, needs_hooked_transformer

pytestmark = needs_hooked_transformer


@contextmanager
def transformerlens_4():
    """TransformerLens 4, which lacks HookedTransformer and has a converter of checkpoints."""
    import transformer_lens

    name = "retrieval_interp.circuits.models"
    converter = SimpleNamespace(convert_tl_checkpoint=bridge_weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{name}.plain.version", lambda name: "4.3.0")
        for missing in ("HookedTransformer", "HookedTransformerConfig"):
            patch.delattr(transformer_lens, missing)
            patch.setitem(sys.modules, f"transformer_lens.{missing}", None)
        home = "transformer_lens.utilities.tl_checkpoint_conversion"
        patch.setitem(sys.modules, home, converter)
        patch.delitem(sys.modules, f"{name}.transformer", raising=False)  # may be loaded by now
        yield


def stop(step, row):
    if step == 3:
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    "task", [ri.RetrievalTask(steps=2), ri.KHopTask(hops=1)], ids=["vectors", "words"]
)
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
            outputs = other.model(inputs), first.model(inputs)
        torch.testing.assert_close(*outputs, atol=1e-5, rtol=1e-5)
        for row, expected in zip(other.metrics, first.metrics, strict=True):
            assert row["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-5)
            assert row["validation_loss"] == pytest.approx(expected["validation_loss"], rel=1e-5)
